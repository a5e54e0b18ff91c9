"""Training where the evidence is by Laplace's method: weights by Adam, hyper-steps now and then."""

import time
from functools import partial

import torch
from torch import Generator, Tensor

from symbayes.curvature.rule import Curvature
from symbayes.errors import NotFiniteError
from symbayes.evidence.laplace import evidence_at
from symbayes.evidence.objective import Augerino, ByCurvature, Laplace
from symbayes.evidence.terms import Evidence
from symbayes.invariance.extents import all_extents
from symbayes.layers.structure import weights
from symbayes.posterior.laplace import posterior_at
from symbayes.training.hyper import HyperAdam, refuse_still, update_extents, update_noise, update_precisions
from symbayes.training.optimiser import ProximalAdam
from symbayes.training.problem import Problem
from symbayes.training.record import Record
from symbayes.training.schedule import Schedule, Training


def train_by_curvature(problem: Problem, objective: ByCurvature, schedule: Schedule, generator: Generator) -> Training:
    """`train` where the evidence is by Laplace's method."""
    optimiser = ProximalAdam(list(weights(problem.model).values()))
    hyper = HyperAdam(problem.model)
    if isinstance(objective, Laplace):
        refuse_still(problem.model)
    best = _Best(problem, keeps=isinstance(objective, Laplace) and objective.keep_best)
    started = time.perf_counter()
    for epoch in range(1, schedule.epochs + 1):
        rate = schedule.learning_rate * schedule.falls_to(epoch)
        loss = _epoch(problem, objective, optimiser, hyper, rate, schedule, generator)
        evidence: Evidence | None = None
        moves = isinstance(objective, Laplace) and objective.moves_at(epoch, schedule.epochs)
        last = epoch == schedule.epochs
        extents = None
        if moves or last:
            curvature, evidence = hyper_step(problem, objective, moves, schedule.batch_size, generator)
            best.offer(curvature, evidence)  # before extents move: it is the evidence of those that there were
            extents = all_extents(problem.model)
            if moves and not last and isinstance(objective, Laplace):
                extent_rate = objective.extent_rate * rate / schedule.learning_rate
                update_extents(curvature, problem, hyper, objective, extent_rate, generator)
        if last:
            curvature, evidence = _final(problem, objective, best, generator)
            extents = all_extents(problem.model)
        seconds = time.perf_counter() - started
        described = problem.described(evidence) if evidence else None
        shown = extents if extents is not None else all_extents(problem.model)
        yield Record(epoch, schedule.epochs, seconds, rate, loss, shown, described)
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
    problem: Problem, objective: ByCurvature, moves: bool, batch_size: int, generator: Generator
) -> tuple[Curvature, Evidence]:
    """The curvature as it is, precisions and noise moved under it if so, and the evidence then."""
    curvature = objective.rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)
    if moves and isinstance(objective, Laplace):
        for _ in range(objective.hyper_steps):
            update_precisions(curvature, problem.model, problem.prior, objective.damping)
        if update_noise(curvature, problem, batch_size, objective.damping):
            curvature = objective.rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)
    return curvature, evidence_at(curvature, problem.model, problem.prior, problem.data.size)


def _epoch(
    problem: Problem,
    objective: ByCurvature,
    optimiser: ProximalAdam,
    hyper: HyperAdam,
    rate: float,
    schedule: Schedule,
    generator: Generator,
) -> float:
    """One pass of Adam over the data; the mean loss, fetched from the device once."""
    model, prior, num_data = problem.model, problem.prior, problem.data.size
    with torch.no_grad():
        precisions = {name: float(value) for name, value in prior.precisions().items()}
    penalties = [precisions[name] / num_data for name in weights(model)]
    model.train()
    total: Tensor = torch.zeros(())
    for inputs, targets in problem.data.batches(schedule.batch_size, generator=generator):
        loss = -problem.likelihood.log_prob(model(inputs), targets).sum()
        if isinstance(objective, Augerino) and hyper.parameters:
            # There may be none, but hyperparameters of other kinds.
            extents = torch.cat([loss.new_zeros(0), *(extent.value for extent in hyper.extents)])
            reward = objective.strength * extents.norm()
            found = torch.autograd.grad(loss / len(inputs) - reward, [*optimiser.parameters, *hyper.parameters])
            count = len(optimiser.parameters)
            gradients = found[:count]
            hyper.step(found[count:], objective.extent_rate * rate / schedule.learning_rate)
        else:
            gradients = torch.autograd.grad(loss / len(inputs), optimiser.parameters)
        optimiser.step(gradients, rate, penalties)
        total = total + loss.detach()
    mean = float(total) / num_data
    if mean != mean or mean in (float("inf"), float("-inf")):
        raise NotFiniteError(
            f"The loss must be finite, got {mean} per datum with a learning rate of {rate:.3g}. Use a smaller learning rate, "
            "or check the scale of inputs and targets."
        )
    return mean


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
