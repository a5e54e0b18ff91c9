"""What it costs to learn symmetries while training: an epoch of each schedule, in epochs of MAP on the same data.

Schedules differ in where hyper-steps get the curvature from: a pass over all data, or running factors of some training batches;
and in whether weights are moved in their eigenbasis. Every epoch has a hyper-step and, where so, a new eigenbasis.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.timing import Timing, interleaved
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Curvature, MonteCarloFisher
from symbayes.data.source import as_source
from symbayes.evidence.evidence import evidence_at
from symbayes.likelihoods.classes import Categorical
from symbayes.models import build_allconv
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import ByCurvature, CurvatureTrainer, Laplace, Map
from symbayes.training.curvature_state import CurvatureState
from symbayes.training.optimiser import PLAIN, Optimiser
from symbayes.training.trainer import Problem, Schedule

#: Networks that are measured: their paths.
TRAINED = {"CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
UNIT = "MAP"
_ONE = Kfac(MonteCarloFisher())
_EVIDENCE = Laplace(_ONE, cool_down=0.5, hyper_every=2, damping=0.3)
SCHEDULES: dict[str, tuple[ByCurvature, Optimiser]] = {
    UNIT: (Map(_ONE), PLAIN),
    "MAP, eigenbasis": (Map(_ONE), Optimiser(20, eigenbasis=1)),
    "evidence, a pass with the exact Fisher": (replace(_EVIDENCE, rule=Kfac()), PLAIN),
    "evidence, a pass with one column": (_EVIDENCE, PLAIN),
    "evidence, every 10th batch": (_EVIDENCE, Optimiser(10, eigenbasis=0)),
    "evidence, every 20th batch": (_EVIDENCE, Optimiser(20, eigenbasis=0)),
    "evidence, every 10th batch, eigenbasis": (_EVIDENCE, Optimiser(10, eigenbasis=1)),
    "evidence, every 20th batch, eigenbasis": (_EVIDENCE, Optimiser(20, eigenbasis=1)),
}
#: Parts of an epoch, in steps.
STEP, FACTORS, HYPER, ROTATION, ROTATED = PARTS = (
    "step", "factors of a batch", "a hyper-step", "a new eigenbasis", "a step in it"
)  # fmt: skip
#: Of the data of CIFAR-10 in batches of 128, for what follows from the parts.
_STEPS_OF_CIFAR, _EPOCHS = 391, 100


def measure_training(width: int, batch_size: int, steps: int, repeats: int) -> dict[str, dict[str, Any]]:
    """For each network: an epoch of every schedule in epochs of MAP, the parts of an epoch in steps, and what follows."""
    found = {}
    for name, paths in TRAINED.items():
        epochs = {case: _epoch(*_trained(paths, width, batch_size, steps, *how)) for case, how in SCHEDULES.items()}
        timed = interleaved(epochs, UNIT, repeats)
        parts = interleaved(_parts(paths, width, batch_size), STEP, max(repeats, 5))
        whole = {case: whole_training(parts, *how) for case, how in SCHEDULES.items() if how[1].running}
        found[name] = {"epochs": timed, "parts": parts, "whole": whole}
    return found


def _trained(
    paths: tuple[str, ...], width: int, batch_size: int, steps: int, objective: ByCurvature, optimiser: Optimiser
) -> tuple[CurvatureTrainer, CurvatureState]:
    """Random images and classes, and a network that learns them."""
    generator = torch.Generator().manual_seed(0)
    size = steps * batch_size
    data = torch.randn(size, 3, 32, 32, generator=generator), torch.randint(10, (size,), generator=generator)
    model = build_allconv((3, 32, 32), 10, paths, width, generator=generator)
    problem = Problem(model, as_source(data, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    schedule = Schedule(batch_size=batch_size, learning_rate=1e-3, warm_up=0.0)
    trainer = objective.trainer(problem, schedule, optimiser)
    state = trainer.init(generator)
    state.generator = torch.Generator().manual_seed(1)
    return trainer, state


def _epoch(trainer: CurvatureTrainer, state: CurvatureState) -> Callable[[], object]:
    def run() -> None:
        trainer.move_weights(state)
        if not (_moves(trainer) or trainer.optimiser.eigenbasis):
            return
        curvature = trainer.curvature(state)
        if trainer.optimiser.eigenbasis:
            trainer.rotate(state, curvature)
        if _moves(trainer):
            _hyper_step(trainer, state, curvature)

    return run


def _moves(trainer: CurvatureTrainer) -> bool:
    """Whether there are hyper-steps."""
    return any(map(trainer.moves_at, range(1, trainer.schedule.epochs + 1)))


@torch.no_grad()
def _hyper_step(trainer: CurvatureTrainer, state: CurvatureState, curvature: Curvature) -> None:
    """With the evidence that follows it."""
    problem = trainer.problem
    evidence_at(trainer.hyper_step(state, curvature), problem.model, problem.prior, problem.data.size)


def _parts(paths: tuple[str, ...], width: int, batch_size: int) -> Mapping[str, Callable[[], object]]:
    """One step, and what else there is in an epoch, each on the same batch."""
    how = (_EVIDENCE, Optimiser(10, eigenbasis=1))
    (trainer, plain), (other, rotated) = (_trained(paths, width, batch_size, 2, *how) for _ in range(2))
    batch = next(plain.problem.data.batches(batch_size))
    for state in (plain, rotated):
        state.descent.set(1e-3, torch.ones(len(state.descent.parameters)))
        assert state.running is not None
        state.running.add(batch)
    other.rotate(rotated, other.curvature(rotated))
    assert plain.running is not None
    factors = partial(plain.running.add, batch)

    def hyper() -> None:
        _hyper_step(trainer, plain, trainer.curvature(plain))

    def rotate() -> None:
        other.rotate(rotated, other.curvature(rotated))

    steps = partial(trainer.step, plain, batch), partial(other.step, rotated, batch)
    return dict(zip(PARTS, (steps[0], factors, hyper, rotate, steps[1]), strict=True))


def whole_training(parts: Mapping[str, Timing], objective: ByCurvature, optimiser: Optimiser) -> float:
    """A whole training on as many data as CIFAR-10 has, in trainings by MAP, as the parts say; with running factors.

    Hyper-steps are as the objective says, so fewer than in the epochs that are measured: none at first and at the end.
    """
    cost = {name: timing.units.median for name, timing in parts.items()}
    moves = [objective.moves_at(epoch, _EPOCHS) for epoch in range(1, _EPOCHS + 1)]
    rotations = 1 / optimiser.eigenbasis if optimiser.eigenbasis else 0.0
    step = (cost[ROTATED] if rotations else 1.0) + cost[FACTORS] / optimiser.running
    return step + (cost[HYPER] * sum(moves) / _EPOCHS + cost[ROTATION] * rotations) / _STEPS_OF_CIFAR
