"""The terms of the evidence lower bound, E_q log p(D | W) − KL(q ‖ p), and the best precisions in closed form."""

from collections.abc import Mapping
from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.posterior.posterior import Posterior, Weights
from symbayes.priors import LOG_PRECISION_RANGE, Prior


def second_moments(posterior: Posterior, variances: Weights) -> dict[str, Float[Tensor, ""]]:
    """E‖θ‖² by tensor: ‖mean‖² + tr Σ, with the variances of the posterior."""
    return {name: (mean.square() + variances[name]).sum(dtype=torch.float64) for name, mean in posterior.mean.items()}


@torch.no_grad()
def log_precisions(prior: Prior, moments: Mapping[str, Tensor], deterministic: frozenset[str]) -> Float[Tensor, " group"]:
    """The logarithm of the best precisions, δ = p / E‖θ‖² for every group; as they are for groups that are not learned."""
    squares, sizes = torch.zeros_like(prior.log_precision), torch.zeros_like(prior.log_precision)
    for name in _uncertain(prior, deterministic):
        index = prior.groups.index(prior.group_of[name])
        squares[index] += moments[name]
        sizes[index] += prior.sizes[name]
    best = (sizes / squares.clamp(min=torch.finfo(squares.dtype).tiny)).log().clamp(*LOG_PRECISION_RANGE)
    return torch.where(prior.learned & (sizes > 0), best, prior.log_precision)


def prior_precisions(prior: Prior, moments: Mapping[str, Tensor], deterministic: frozenset[str]) -> dict[str, Tensor]:
    """The best precisions by tensor, as numbers: at the best, the gradient of the bound through them is zero."""
    by_group = dict(zip(prior.groups, log_precisions(prior, moments, deterministic).exp(), strict=True))
    return {name: by_group[group] for name, group in prior.group_of.items()}


def expected_log_prior(
    prior: Prior, moments: Mapping[str, Tensor], precisions: Mapping[str, Tensor], deterministic: frozenset[str]
) -> Float[Tensor, ""]:
    """E_q log p(W) = Σ ½ (p log δ − p log 2π − δ E‖θ‖²), over tensors that have a prior."""
    total: Tensor = torch.zeros((), dtype=torch.float64)
    for name in _uncertain(prior, deterministic):
        size, precision = prior.sizes[name], precisions[name]
        total = total + (size * (precision.double().log() - log(2 * pi)) - precision * moments[name]) / 2
    return total


@torch.no_grad()
def effective(prior: Prior, variances: Weights, precisions: Mapping[str, Tensor]) -> dict[str, Float[Tensor, ""]]:
    """γ by tensor: p − δ tr Σ, which is what Laplace's method has with Σ = (H + Δ)⁻¹."""
    return {name: prior.sizes[name] - precisions[name] * variances[name].sum() for name in prior.group_of}


def _uncertain(prior: Prior, deterministic: frozenset[str]) -> list[str]:
    """Tensors that have a prior, always in one order: sums are rounded by it."""
    return [name for name in prior.group_of if name not in deterministic]
