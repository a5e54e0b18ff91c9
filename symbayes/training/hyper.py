"""Hyper-steps: MacKay's fixed point for precisions and noise, with the curvature held."""

import torch
from torch import Tensor, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.rule import Curvature
from symbayes.priors import LOG_PRECISION_RANGE, Prior
from symbayes.training.problem import Problem


@torch.no_grad()
def update_precisions(curvature: Curvature, model: nn.Module, prior: Prior, damping: float) -> None:
    """log δ ← log δ + damping · (log(γ / ‖θ‖²) − log δ) for every learned group, within LOG_PRECISION_RANGE.

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
    moved = prior.log_precision.lerp(target.clamp(*LOG_PRECISION_RANGE), damping)
    prior.log_precision.copy_(torch.where(prior.learned, moved, prior.log_precision))


@torch.no_grad()
def update_noise(curvature: Curvature, problem: Problem, batch_size: int, damping: float) -> bool:
    """Move a learned noise towards its fixed point under the effective parameters there are; whether there was one to move."""
    if not problem.likelihood.learns_noise:
        return False
    squares: Tensor = torch.zeros(())
    with evaluating(problem.model):
        for inputs, targets in problem.data.batches(batch_size):
            squares = squares + (problem.model(inputs) - targets).square().sum(0)
    effective = sum(float(value) for value in curvature.effective(problem.prior.precisions()).values())
    problem.likelihood.update_noise(squares, effective, problem.data.size, damping)
    return True
