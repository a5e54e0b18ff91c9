"""Whether position matters in a sequence: the same noisy sequences, asked for a motif, and for a motif and its quarter.

An all-convolutional 1-d network (CONV) is exactly invariant under cyclic shifts, so it cannot see the quarter; a fully
connected one (FC) has to learn a motif anew at every place. The relaxed network has both paths in every block, and learns from
the evidence which to use. Every cell of the table is one training run of some ten seconds.
"""

from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import torch
from torch import Tensor, nn

from papers.data import load
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, model_table, run_problem
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import as_source
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.priors import TensorwisePrior
from symbayes.report.page import FigureTable
from symbayes.training.by_curvature import Laplace
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem, Schedule

TASKS = {"motif": "motifs", "motif and quarter": "placed-motifs"}
MODELS = {"FC": ("dense",), "CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
QUARTER = 16
_COST = {"FC": 1.0, "CONV": 1.0, "F-FC+CONV": 2.0}
_ABOUT = (
    "Three models learn two tasks on the same sequences, each with a short motif somewhere in noise: which motif it is, for "
    "which its place does not matter, and which motif in which quarter, for which it does. CONV is exactly invariant under "
    "cyclic shifts, so it cannot see the place; FC has to learn every place anew. The relaxed model has both kinds of path in "
    "every block, and learns from the evidence which to use; it should not see the place on the first task, and see it on the "
    "second."
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 100
    width: int = 4
    #: The first, and how many from there; the table has means over them. The data are the same for all.
    seed: int = 0
    seeds: int = 1


def study(settings: Settings) -> Study:
    """The table to be made."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    cells = [Cell(task, model, seed=seed, cost=_COST[model]) for task in TASKS for model in MODELS for seed in seeds]
    return Study("Does position matter? Learned from training data", _ABOUT, cells, partial(run_cell, settings), table)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell and evaluate it."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(cell.seed)
    model = allconv(task, MODELS[cell.model], settings.width, generator=generator)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    # After every epoch and nearly to the end: with fewer hyper-steps more blocks stay broken (docs/research/sequences.md).
    objective = Laplace(Kfac(MonteCarloFisher()), Kfac(), hyper_every=1, damping=0.5, cool_down=0.2)
    schedule = Schedule(settings.epochs, batch_size=100, learning_rate=3e-3, warm_up=0.0)
    outcome = run_problem(cell, objective.trainer(problem, schedule, PLAIN), task.test, generator, each_epoch)
    return replace(outcome, metrics={**outcome.metrics, "position effect": _position_effect(model, task.test[0])})


@torch.no_grad()
def _position_effect(model: nn.Module, inputs: Tensor) -> float:
    """How far predictions move, in total variation, when sequences shift by whole quarters: 0 not at all, 1 altogether."""
    before = model(inputs).softmax(1)
    moved = [model(inputs.roll(by, 2)).softmax(1) for by in range(QUARTER, inputs.shape[2], QUARTER)]
    return float(torch.stack([(after - before).abs().sum(1).mean() / 2 for after in moved]).mean())


def broken_blocks(outcome: Outcome) -> list[str]:
    """The blocks that break translation: where the data determine at least one parameter of a path that does."""
    rows = [row for row in outcome.result.symmetries if row.path in ("dense", "factored")]
    return [row.layer for row in rows if row.effective >= 1]


def table(outcomes: list[Outcome]) -> FigureTable:
    """A row for each task, a column for each model; means over seeds."""
    return model_table(
        outcomes,
        lambda runs: (
            f"{100 * mean(outcome.metrics['accuracy'] for outcome in runs):.1f} %",
            f"{mean(outcome.metrics['position effect'] for outcome in runs):.2f}, "
            f"{mean(len(broken_blocks(outcome)) for outcome in runs):.1f}",
        ),
        "Test accuracy; beneath it the log evidence in nats per training sequence, how far predictions move when a sequence is "
        "shifted by whole quarters (0: not at all), and how many of eight blocks break translation with at least one effective "
        "parameter.",
    )
