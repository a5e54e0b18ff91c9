"""Networks compared at their own modes: weights brought there by all the data, the evidence there, and log-odds of two.

The evidence by Laplace's method is that of a mode. Weights at the end of training are near one, within some nats or some dozens
of them, which differ from network to network: too much to compare by. So weights climb the log joint density in coordinates in
which the full GGN is nearly the identity, and what is left of the way is said: a Newton step would gain ½ gᵀ (H + Δ)⁻¹ g.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, isnan, nan, sqrt
from statistics import fmean, stdev

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.ggn import FullCurvature
from symbayes.curvature.kfac import data_at_once
from symbayes.curvature.lanczos import LanczosCurvature, PreconditionedCurvature
from symbayes.curvature.rule import Rule
from symbayes.evidence.evidence import evidence_at
from symbayes.layout import weights
from symbayes.training.hyper import update_noise, update_precisions
from symbayes.training.trainer import Problem

#: Rounds of steps by all the data, with a hyper-step between two.
_ROUNDS = 4
#: A round ends where a step gains less than so many nats, or is shorter than so many standard deviations of the posterior.
_STILL = 1e-3


@dataclass(frozen=True)
class Judged:
    """The evidence of a network at the weights it has.

    Args:
        evidence: log p(D) by the full GGN.
        log_dets: log|I + HΔ⁻¹| under each random vector; empty where it is exact.
        gap: What a Newton step to the mode would gain.
        estimator: In words.
    """

    evidence: float
    log_dets: Float[Tensor, " probe"]
    gap: float
    estimator: str


@dataclass(frozen=True)
class LogOdds:
    """log p(D | averaged) − log p(D | not), and how far it can be trusted.

    Args:
        value: In nats, for all the data together; the mean over starts.
        standard_error: Over starts and over random vectors; of one start, over vectors alone. 0 where a single start was judged
            exactly, nan where it is not known.
        gap_with: What the averaged network would still gain at its mode.
        gap_without: What the other one would.
        starts: From how many networks the two went on.
    """

    value: float
    standard_error: float
    gap_with: float
    gap_without: float
    starts: int = 1

    @property
    def low(self) -> float:
        """Two standard errors below, and with the other network at its mode."""
        return self.value - 2 * self._error - self.gap_without

    @property
    def high(self) -> float:
        """Two standard errors above, and with the averaged network at its mode."""
        return self.value + 2 * self._error + self.gap_with

    @property
    def _error(self) -> float:
        return inf if isnan(self.standard_error) else self.standard_error


def judge(problem: Problem, rule: Rule, seed: int, steps: int) -> Judged:
    """The evidence of a network at a mode of its own, with precisions that are best there: the highest of some rounds.

    In a round, weights go up the log joint density by all the data at once; between two, precisions and noise move to MacKay's
    fixed point under the curvature there.

    Args:
        problem: Whose weights, precisions and noise are moved.
        rule: That gives the evidence, and by which precisions are found.
        seed: For random vectors: the same for all that are compared.
        steps: Of a round.
    """
    curvature, found = _curvature(problem, rule, seed), list[Judged]()
    for _ in range(_ROUNDS):
        if found:
            update_precisions(curvature, problem.model, problem.prior, 1.0)
            update_noise(curvature, problem, data_at_once(problem.model, problem.data), 1.0)
        _climb(problem, curvature, steps)
        curvature = _curvature(problem, rule, seed)
        with torch.no_grad():
            evidence = evidence_at(curvature, problem.model, problem.prior, problem.data.size)
            precisions = problem.prior.precisions()
            log_dets = curvature.log_dets(precisions) if isinstance(curvature, LanczosCurvature) else torch.zeros(0)
        gain = newton_gain(problem, curvature)
        found.append(Judged(float(evidence.total), log_dets.double().cpu(), gain, evidence.estimator))
    return max(found, key=lambda judged: judged.evidence)


def _curvature(problem: Problem, rule: Rule, seed: int) -> FullCurvature | PreconditionedCurvature:
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        found = rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)
    assert isinstance(found, FullCurvature | PreconditionedCurvature)
    return found


def _climb(problem: Problem, curvature: FullCurvature | PreconditionedCurvature, steps: int) -> None:
    """Weights up the log joint density, by L-BFGS, in coordinates in which the curvature is nearly the identity."""
    named = weights(problem.model)
    precisions = {name: precision.detach() for name, precision in problem.prior.precisions().items()}
    start = torch.cat([weight.detach().flatten() for weight in named.values()])
    moved = torch.zeros_like(start, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [moved], max_iter=steps, history_size=50, tolerance_grad=0, tolerance_change=_STILL, line_search_fn="strong_wolfe"
    )

    @torch.no_grad()
    def put() -> None:
        at = start + curvature.precondition(moved.detach(), precisions, back=True)
        for weight, part in zip(named.values(), at.split([weight.numel() for weight in named.values()]), strict=True):
            weight.copy_(part.view_as(weight))

    def closure() -> float:
        put()
        value, gradient = log_joint(problem)
        moved.grad = -curvature.precondition(gradient, precisions)
        return -value

    with evaluating(problem.model), torch.enable_grad():
        optimiser.step(closure)
    put()


def log_joint(problem: Problem) -> tuple[float, Float[Tensor, " p"]]:
    """log p(D | W) + log p(W) up to a constant, and its gradient in all weights."""
    named, precisions = weights(problem.model), problem.prior.precisions()
    values = [float(precisions[name].detach() * weight.detach().double().square().sum()) / -2 for name, weight in named.items()]
    gradient = torch.cat([(-precisions[name] * weight).detach().flatten() for name, weight in named.items()])
    for inputs, targets in problem.data.batches(data_at_once(problem.model, problem.data)):
        with torch.enable_grad():
            term = problem.likelihood.log_prob(problem.model(inputs), targets).sum()
            found = torch.autograd.grad(term, list(named.values()))
        values.append(float(term.detach()))
        gradient = gradient + torch.cat([part.to_dense().flatten() for part in found])
    return fsum(values), gradient


def newton_gain(problem: Problem, curvature: FullCurvature | PreconditionedCurvature) -> float:
    """½ gᵀ (H + Δ)⁻¹ g, with g the gradient of the log joint density: how far its mode is, in nats."""
    with evaluating(problem.model):
        gradient = log_joint(problem)[1]
    with torch.no_grad():
        step = curvature.solve(gradient, problem.prior.precisions())
        return float(gradient.double() @ step.double()) / 2


def log_odds(averaged: Sequence[Judged], other: Sequence[Judged]) -> LogOdds:
    """Of networks that were judged with the same random vectors, start by start."""
    pairs = list(zip(averaged, other, strict=True))
    values = [one.evidence - two.evidence for one, two in pairs]
    # Vectors are others for every start, so that their noise is part of what differs between starts.
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else _vector_error(*pairs[0])
    gap_with, gap_without = (fmean(judged.gap for judged in side) for side in (averaged, other))
    return LogOdds(fmean(values), error, gap_with, gap_without, len(pairs))


def _vector_error(one: Judged, two: Judged) -> float:
    count = len(one.log_dets)
    if count < 2:
        return nan if count else 0.0
    return float((one.log_dets - two.log_dets).std() / (2 * sqrt(count)))
