"""Independent answers: slow, exact, and written without the code they check."""

import itertools
import math

import torch
from torch import Tensor, nn


def dense_ggn(model: nn.Module, inputs: Tensor, output_hessian) -> dict[tuple[str, str], Tensor]:
    """Σ_n J_nᵀ L_n J_n for every pair of trainable tensors, one backward pass for each datum and output."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total: dict[tuple[str, str], Tensor] = {}
    for datum in inputs:
        outputs = model(datum[None])[0]
        rows = []
        for output in outputs:
            gradients = torch.autograd.grad(output, list(named.values()), retain_graph=True)
            rows.append([g.flatten() for g in gradients])
        J = {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(named)}
        L = output_hessian(outputs.detach())
        for a, b in itertools.product(named, named):
            term = J[a].T @ L @ J[b]
            total[a, b] = total.get((a, b), 0) + term
    return total


def joined(ggn: dict[tuple[str, str], Tensor], names: list[str]) -> Tensor:
    """The blocks of `dense_ggn` as one matrix."""
    return torch.cat([torch.cat([ggn[a, b] for b in names], 1) for a in names], 0)


def softmax_hessian(outputs: Tensor) -> Tensor:
    p = outputs.softmax(0)
    return torch.diag(p) - torch.outer(p, p)


def hessian_of(negative_log_prob):
    """The Hessian of any function of outputs, by autograd."""
    return lambda outputs: torch.autograd.functional.hessian(negative_log_prob, outputs)


def linear_regression_evidence(features: Tensor, targets: Tensor, precisions: Tensor, noise: Tensor) -> Tensor:
    """log N(y | 0, σ² I + Φ Δ⁻¹ Φᵀ), summed over outputs, each with its own weights and noise."""
    total = torch.zeros((), dtype=features.dtype)
    for output in range(targets.shape[1]):
        covariance = features @ torch.diag(1 / precisions) @ features.T
        covariance = covariance + noise[output] ** 2 * torch.eye(len(features), dtype=features.dtype)
        y = targets[:, output]
        fit = y @ torch.linalg.solve(covariance, y)
        total = total - (fit + torch.logdet(covariance) + len(y) * math.log(2 * math.pi)) / 2
    return total


def finite_difference(function, point: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences in every entry."""
    gradient = torch.zeros_like(point)
    for index in range(point.numel()):
        shift = torch.zeros_like(point).flatten()
        shift[index] = step
        shift = shift.view_as(point)
        gradient.view(-1)[index] = (function(point + shift) - function(point - shift)) / (2 * step)
    return gradient
