"""Hyper-steps: MacKay's fixed point for precisions and noise, with the curvature held."""

import torch
from torch import Tensor, nn

from symbayes.curvature.rule import Curvature
from symbayes.data.source import DataSource
from symbayes.likelihoods import Gaussian, Likelihood
from symbayes.priors import LOG_PRECISION_RANGE, Prior


@torch.no_grad()
def update_precisions(curvature: Curvature, model: nn.Module, prior: Prior, damping: float) -> None:
    """log δ ← log δ + damping · (log(γ / ‖θ‖²) − log δ) for every group, within LOG_PRECISION_RANGE.

    At the fixed point ∂ log evidence / ∂ log δ = ½ (γ − δ‖θ‖²) vanishes (MacKay 1992).
    """
    weights = dict(model.named_parameters())
    gamma = curvature.effective(prior.precisions())
    spent = torch.zeros_like(prior.log_precision)
    squares = torch.zeros_like(prior.log_precision)
    for name, group in prior.group_of.items():
        index = prior.groups.index(group)
        spent[index] += gamma[name]
        squares[index] += weights[name].square().sum()
    tiny = torch.finfo(spent.dtype).tiny
    target = (spent.clamp(min=tiny) / squares.clamp(min=tiny)).log()
    prior.log_precision.lerp_(target.clamp(*LOG_PRECISION_RANGE), damping)


@torch.no_grad()
def update_noise(
    curvature: Curvature, prior: Prior, likelihood: Likelihood, residuals: Tensor | None, num_data: int, damping: float
) -> None:
    """σ² ← Σ(y − f)² / (N − γ), towards which log σ goes by `damping`; only a learned Gaussian noise is changed.

    With a noise for each output, every output is charged an equal part of the effective parameters.
    """
    if not isinstance(likelihood, Gaussian) or not likelihood.log_noise.requires_grad or residuals is None:
        return
    gamma = sum(float(value) for value in curvature.effective(prior.precisions()).values())
    outputs = len(residuals)
    squares, count = (residuals.sum()[None], num_data * outputs) if likelihood.shared else (residuals, num_data)
    free = max(count - gamma / len(squares), 1e-3 * count)
    target = (squares / free).clamp(min=1e-12).log() / 2
    likelihood.log_noise.lerp_(target.to(likelihood.log_noise), damping)


@torch.no_grad()
def squared_residuals(model: nn.Module, data: DataSource, likelihood: Likelihood, batch_size: int) -> Tensor | None:
    """Σ_n (y − f)² for each output, where the likelihood has a noise to learn."""
    if not isinstance(likelihood, Gaussian):
        return None
    total: Tensor = torch.zeros(())
    for inputs, targets in data.batches(batch_size):
        total = total + (model(inputs) - targets).square().sum(0)
    return total
