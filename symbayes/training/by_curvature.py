"""Training where the evidence is by Laplace's method: weights by Adam, hyper-steps now and then."""

import time
from collections.abc import Mapping
from functools import partial

import torch
from torch import Generator, Tensor

from symbayes.curvature.rule import Curvature
from symbayes.errors import NotFiniteError
from symbayes.evidence.laplace import evidence_at
from symbayes.evidence.objective import ByCurvature, Laplace
from symbayes.evidence.terms import Evidence
from symbayes.invariance.extents import all_extents
from symbayes.layout import weights
from symbayes.posterior.laplace import posterior_at
from symbayes.training.hyper import refuse_still, update_extents, update_noise, update_precisions
from symbayes.training.problem import Problem
from symbayes.training.record import Record
from symbayes.training.schedule import Schedule, Training
from symbayes.training.weight_steps import WeightSteps


def train_by_curvature(problem: Problem, objective: ByCurvature, schedule: Schedule, generator: Generator) -> Training:
    """`train` where the evidence is by Laplace's method."""
    weight_steps = WeightSteps(problem, objective, schedule, generator)
    if isinstance(objective, Laplace):
        refuse_still(problem.model)
    best = _Best(problem, keeps=isinstance(objective, Laplace) and objective.keep_best)
    started = time.perf_counter()
    for epoch in range(1, schedule.epochs + 1):
        rate_share = schedule.rate_share(epoch)
        loss = weight_steps.epoch(rate_share, generator)
        evidence: Evidence | None = None
        moves = isinstance(objective, Laplace) and objective.moves_at(epoch, schedule.epochs)
        last = epoch == schedule.epochs
        turns = objective.turned > 0 and epoch % objective.turned == 0 and not last
        extents = None
        if moves or turns or last:
            curvature = weight_steps.curvature(last, generator)
        if turns:
            weight_steps.turn(curvature)
        if moves or last:
            squares = weight_steps.squares() if moves else None
            curvature, evidence = hyper_step(problem, objective, curvature, moves, schedule.batch_size, generator, squares)
            best.offer(curvature, evidence)  # before extents move: it is the evidence of those that there were
            extents = all_extents(problem.model)
            if moves and not last and isinstance(objective, Laplace):
                extent_rate = objective.extent_rate * rate_share
                update_extents(curvature, problem, weight_steps.hyper, objective, extent_rate, generator)
        if last:
            curvature, evidence = _final(problem, objective, best, generator)
            extents = all_extents(problem.model)
        seconds = time.perf_counter() - started
        described = problem.described(evidence) if evidence else None
        shown = extents if extents is not None else all_extents(problem.model)
        yield Record(epoch, schedule.epochs, seconds, schedule.learning_rate * rate_share, loss, shown, described)
    # As they are now: the model may be trained on before the posterior is asked for.
    mean = {name: parameter.detach().clone() for name, parameter in weights(problem.model).items()}
    precisions = {name: precision.detach().clone() for name, precision in problem.prior.precisions().items()}
    return partial(posterior_at, curvature, mean, precisions)


def _final(problem: Problem, objective: ByCurvature, best: "_Best", generator: Generator) -> tuple[Curvature, Evidence]:
    """Curvature and evidence of what is kept: the best state, or the last, under the final rule if there is one."""
    kept = best.restore()
    if objective.final_rule is None:
        return kept
    with torch.no_grad():
        curvature = objective.final_rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)
        return curvature, evidence_at(curvature, problem.model, problem.prior, problem.data.size)


@torch.no_grad()
def hyper_step(
    problem: Problem,
    objective: ByCurvature,
    curvature: Curvature,
    moves: bool,
    batch_size: int,
    generator: Generator,
    squares: Mapping[str, Tensor] | None = None,
) -> tuple[Curvature, Evidence]:
    """Precisions and noise moved under the curvature as it is, if so; the curvature and the evidence then."""
    if moves and isinstance(objective, Laplace):
        for _ in range(objective.hyper_steps):
            update_precisions(curvature, problem.model, problem.prior, objective.damping, squares)
        if update_noise(curvature, problem, batch_size, objective.damping):
            curvature = objective.rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)
    return curvature, evidence_at(curvature, problem.model, problem.prior, problem.data.size)


class _Best:
    """What is to be kept: the state of highest evidence so far, or the last one."""

    def __init__(self, problem: Problem, *, keeps: bool) -> None:
        #: What is restored; nothing where the last state is kept.
        self.parts = (problem.model, problem.prior, problem.likelihood) if keeps else ()
        self.best: tuple[Curvature, Evidence] | None = None
        self.states: list[dict[str, Tensor]] = []

    def offer(self, curvature: Curvature, evidence: Evidence) -> None:
        if not evidence.total.isfinite():
            raise NotFiniteError(f"The log evidence must be finite, got {evidence}. Check the scale of inputs and precisions.")
        if not self.parts or self.best is None or evidence.total > self.best[1].total:
            self.best = (curvature, evidence)
            self.states = [{k: v.detach().clone() for k, v in part.state_dict().items()} for part in self.parts]

    def restore(self) -> tuple[Curvature, Evidence]:
        for part, state in zip(self.parts, self.states, strict=True):
            part.load_state_dict(state)
        assert self.best is not None  # there is an offer in the last epoch
        return self.best
