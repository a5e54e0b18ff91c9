"""What it costs to learn symmetries while training: an epoch of each schedule, in epochs of MAP on the same data.

Schedules differ in where hyper-steps get the curvature from: a pass over all data, or some training batches, looked at in
passing; and in whether weights are optimised in its eigenvectors. Every epoch has a hyper-step and, where so, a turn.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.timing import Timing, interleaved
from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import as_source
from symbayes.evidence.objective import ByCurvature, Laplace, Map
from symbayes.likelihoods import Categorical
from symbayes.models import build_allconv
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import hyper_step
from symbayes.training.problem import Problem
from symbayes.training.schedule import Schedule
from symbayes.training.weight_steps import WeightSteps

#: Networks that are measured: their paths.
TRAINED = {"CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
UNIT = "MAP"
_ONE = Kfac(MonteCarloFisher())
SCHEDULES: dict[str, ByCurvature] = {
    UNIT: Map(_ONE),
    "MAP, turned": Map(_ONE, running=20, turned=1),
    "evidence, a pass with the exact Fisher": Laplace(Kfac()),
    "evidence, a pass with one column": Laplace(_ONE),
    "evidence, every 10th batch": Laplace(_ONE, running=10),
    "evidence, every 20th batch": Laplace(_ONE, running=20),
    "evidence, every 10th batch, turned": Laplace(_ONE, running=10, turned=1),
    "evidence, every 20th batch, turned": Laplace(_ONE, running=20, turned=1),
}
#: Parts of an epoch, in steps.
STEP, LOOK, HYPER, TURN, TURNED = PARTS = ("step", "a look", "a hyper-step", "a turn", "a turned step")
#: Of the data of CIFAR-10 in batches of 128, for what follows from the parts.
_STEPS_OF_CIFAR, _EPOCHS = 391, 100


def measure_training(width: int, batch_size: int, steps: int, repeats: int) -> dict[str, dict[str, Any]]:
    """For each network: an epoch of every schedule in epochs of MAP, the parts of an epoch in steps, and what follows."""
    found = {}
    for name, paths in TRAINED.items():
        epochs = {case: _epoch(_trained(paths, width, batch_size, steps, objective)) for case, objective in SCHEDULES.items()}
        timed = interleaved(epochs, UNIT, repeats)
        parts = interleaved(_parts(paths, width, batch_size), STEP, max(repeats, 5))
        whole = {case: whole_training(parts, objective) for case, objective in SCHEDULES.items() if objective.running}
        found[name] = {"epochs": timed, "parts": parts, "whole": whole}
    return found


def _trained(paths: tuple[str, ...], width: int, batch_size: int, steps: int, objective: ByCurvature) -> WeightSteps:
    """Random images and classes, and a network that learns them."""
    generator = torch.Generator().manual_seed(0)
    size = steps * batch_size
    data = torch.randn(size, 3, 32, 32, generator=generator), torch.randint(10, (size,), generator=generator)
    model = build_allconv((3, 32, 32), 10, paths, width, generator=generator)
    problem = Problem(model, as_source(data, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    return WeightSteps(problem, objective, Schedule(batch_size=batch_size, learning_rate=1e-3), generator)


def _epoch(steps: WeightSteps) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(1)
    objective, learns = steps.objective, isinstance(steps.objective, Laplace)

    def run() -> None:
        steps.epoch(1.0, generator)
        if not (learns or objective.turned):
            return
        curvature = steps.curvature(False, generator)
        if objective.turned:
            steps.turn(curvature)
        if learns:
            hyper_step(steps.problem, objective, curvature, True, steps.schedule.batch_size, generator)

    return run


def _parts(paths: tuple[str, ...], width: int, batch_size: int) -> Mapping[str, Callable[[], object]]:
    """One step, and what else there is in an epoch, each on the same batch."""
    generator = torch.Generator().manual_seed(1)
    objective = Laplace(_ONE, running=10, turned=1)
    plain, turned = (_trained(paths, width, batch_size, 2, objective) for _ in range(2))
    batch = next(plain.problem.data.batches(batch_size))
    for steps in (plain, turned):
        steps.optimiser.set(1e-3, torch.ones(len(steps.optimiser.parameters)))
        assert steps.running is not None
        steps.running.add(batch)
    turned.turn(turned.curvature(False, generator))
    assert plain.running is not None
    look = partial(plain.running.add, batch)

    def hyper() -> None:
        hyper_step(plain.problem, objective, plain.curvature(False, generator), True, batch_size, generator)

    def turn() -> None:
        turned.turn(turned.curvature(False, generator))

    return dict(zip(PARTS, (partial(plain.step, batch), look, hyper, turn, partial(turned.step, batch)), strict=True))


def whole_training(parts: Mapping[str, Timing], objective: ByCurvature) -> float:
    """A whole training on as many data as CIFAR-10 has, in trainings by MAP, as the parts say; with the curvature in passing.

    Hyper-steps are as the objective says, so fewer than in the epochs that are measured: none at first and at the end.
    """
    cost = {name: timing.units.median for name, timing in parts.items()}
    moves = [isinstance(objective, Laplace) and objective.moves_at(epoch, _EPOCHS) for epoch in range(1, _EPOCHS + 1)]
    turns = 1 / objective.turned if objective.turned else 0.0
    step = (cost[TURNED] if turns else 1.0) + cost[LOOK] / objective.running
    return step + (cost[HYPER] * sum(moves) / _EPOCHS + cost[TURN] * turns) / _STEPS_OF_CIFAR
