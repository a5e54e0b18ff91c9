"""How far should a network be invariant? Digits turned, shifted and scaled, and one model that may learn all six generators."""

from dataclasses import dataclass, replace
from functools import partial
from math import log, radians
from typing import Any

import torch
from torch import Generator, nn

from papers.data import load
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, accuracy_table, run_problem
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import as_source
from symbayes.data.task import Task
from symbayes.groups.lie import affine2d
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.likelihoods.classes import Categorical
from symbayes.models import small_cnn
from symbayes.priors import TensorwisePrior
from symbayes.report.page import FigureTable
from symbayes.training.by_curvature import Augerino, Laplace, Map
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Objective, Problem, Schedule

#: How digits are transformed, by the name of the task.
TASKS: dict[str, dict[str, Any]] = {
    "upright": {},
    "turned by up to 45°": {"rotation": 45.0},
    "turned by up to 90°": {"rotation": 90.0},
    "turned by up to 180°": {"rotation": 180.0},
    "shifted by up to 3 px": {"translation": 3.0},
    "scaled by up to 60 %": {"scale": 1.6},
}
#: What should be learned, where it is known.
TRUTHS: dict[str, dict[str, float]] = {
    "turned by up to 45°": {"rotation": 45.0},
    "turned by up to 90°": {"rotation": 90.0},
    "turned by up to 180°": {"rotation": 180.0},
    "shifted by up to 3 px": {"translation_x": 3.0, "translation_y": 3.0},
    "scaled by up to 60 %": {"scale_x": 60.0, "scale_y": 60.0},
}
#: A model and what it is trained by: the columns of the table.
COLUMNS = (
    ("no invariance", "MAP"),
    ("no invariance", "evidence"),
    ("a usual guess", "evidence"),
    ("learned", "training loss"),
    ("learned", "evidence"),
)
#: What people would try by hand: 15°, 1 pixel, 10 %; no shear.
GUESS = {"rotation": radians(15), "translation": 1 / 8, "scale": log(1.1), "shear": 0.0}
_COST = {"no invariance": 0.1, "a usual guess": 0.9, "learned": 1.0, "MAP": 1.0, "evidence": 1.6, "training loss": 0.9}
_ABOUT = (
    "Small digits in the middle of a canvas were turned, shifted or scaled at random, by different amounts. One convolutional "
    "network is averaged over transformations of its input, and learns how far each of six affine generators should go: two "
    "shifts, rotation, two scales and shear. The evidence should find what was done to the data, from training data alone; the "
    "training loss should not, because it never gains by a function that can change less."
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common.

    Args:
        epochs: Passes over the data.
        width: Channels of the first map.
        seed: For initial weights, the choice of data, their order and all draws.
        data: Training images.
        samples: Transformations of each image.
    """

    epochs: int = 60
    width: int = 8
    seed: int = 0
    data: int = 500
    samples: int = 10


def study(settings: Settings) -> Study:
    """The table to be made."""
    cells = [
        Cell(task, model, objective, settings.seed, _COST[model] * _COST[objective])
        for task in TASKS
        for model, objective in COLUMNS
    ]
    title = "How far should it be invariant? Learned from training data"
    return Study(title, _ABOUT, cells, partial(run_cell, settings), table, TRUTHS)


def digits(task: str, data: int, seed: int) -> Task:
    """Digits in the middle of a canvas under the transformations of a task; so many for training."""
    return load("upright-digits").transformed(**TASKS[task]).subset(data, seed)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell and evaluate it."""
    task = digits(cell.task, settings.data, cell.seed)
    generator = torch.Generator().manual_seed(cell.seed)
    model = build(cell.model, task, settings, generator)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    schedule = Schedule(settings.epochs, batch_size=25, learning_rate=1e-2, warm_up=0.0)
    return run_problem(cell, objective(cell.objective).trainer(problem, schedule, PLAIN), task.test, generator, each_epoch)


def build(model: str, task: Task, settings: Settings, generator: Generator) -> nn.Module:
    """The network of a column."""
    net = small_cnn(task, settings.width, generator=generator)
    if model == "no invariance":
        return net
    group = affine2d().starting(**GUESS) if model == "a usual guess" else affine2d()
    averaged = OrbitAverage(net, group, settings.samples, seed=settings.seed)
    averaged.orbit.requires_grad_(model == "learned")
    return averaged


def objective(name: str) -> Objective:
    """What a column is trained by."""
    rule = Kfac(MonteCarloFisher())
    match name:
        case "evidence":
            # The fit comes first: extents that move before there is one grow without reason, and then it never comes.
            return Laplace(
                rule, burn_in=0.15, cool_down=0.2, hyper_every=2, damping=0.5, extent_rate=0.3, extent_steps=2, extent_share=0.5
            )
        case "training loss":
            return Augerino(rule, strength=0.0, extent_rate=0.02)
        case _:
            return Map(rule)


def table(outcomes: list[Outcome]) -> FigureTable:
    """A row for each task and a column for each model and objective."""
    return replace(accuracy_table(outcomes, COLUMNS), outcome=_outcome(outcomes))


def _outcome(outcomes: list[Outcome]) -> str:
    """How many extents came out as they should, by what they were learned by."""
    parts = []
    for by in (name for model, name in COLUMNS if model == "learned"):
        found = [
            (o.cell.task, e) for o in outcomes if (o.cell.model, o.cell.objective) == ("learned", by) for e in o.result.extents
        ]
        known = [(e.value, TRUTHS[task][e.name]) for task, e in found if e.name in TRUTHS.get(task, {})]
        parts.append(f"{sum(abs(value - truth) <= truth / 4 for value, truth in known)} of {len(known)} by the {by}")
    return f"Extents that end within a quarter of how far data were transformed: {', '.join(parts)}."
