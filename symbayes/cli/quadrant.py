"""ELLA's Table 1 on embedded digits: which digit, and which digit in which quadrant, by FC, CONV and F-FC+CONV."""

from dataclasses import dataclass
from functools import partial

import torch

from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, accuracy_table, run_problem
from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.data.load import load
from symbayes.data.source import as_source
from symbayes.likelihoods import Categorical
from symbayes.models import allconv
from symbayes.priors import TensorwisePrior
from symbayes.report.page import FigureTable
from symbayes.training.by_curvature import Laplace, Map
from symbayes.training.optimiser import PLAIN
from symbayes.training.problem import Problem
from symbayes.training.trainer import Objective, Schedule

TASKS = {"digit": "placed-digits", "digit and quadrant": "quadrant-digits"}
MODELS = {"FC": ("dense",), "CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
OBJECTIVES = ("MAP", "evidence")
_COST = {"FC": 1.3, "CONV": 1.0, "F-FC+CONV": 2.6, "MAP": 1.0, "evidence": 2.0}
_ABOUT = (
    "Three models learn two tasks on small digits that stand somewhere on a larger canvas: to say which digit it is, or which "
    "digit and in which quadrant of the canvas. CONV shares its weights over positions, so it cannot see where a digit is; FC "
    "has no symmetry, and must learn each position by itself. The learned model has both kinds of path in every layer and "
    "chooses between them, layer by layer, from the training data alone. It should share weights over positions on the first "
    "task, and not in every layer on the second."
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 50
    width: int = 8
    seed: int = 0


def study(settings: Settings) -> Study:
    """The table to be made."""
    cells = [
        Cell(task, model, objective, settings.seed, _COST[model] * _COST[objective])
        for task in TASKS
        for objective in OBJECTIVES
        for model in MODELS
    ]
    title = "Does position matter? Learned from training data"
    return Study(title, _ABOUT, cells, partial(run_cell, settings), table)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell and evaluate it. The evidence at the end is by KFAC with the exact Fisher, for all cells alike."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(cell.seed)
    model = allconv(task, MODELS[cell.model], settings.width, generator=generator)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    rule, final = Kfac(MonteCarloFisher()), Kfac()
    objective: Objective = Map(rule, final)
    if cell.objective == "evidence":
        objective = Laplace(rule, final, cool_down=0.5, hyper_every=2, damping=0.3)
    schedule = Schedule(settings.epochs, batch_size=100, learning_rate=3e-3, warm_up=0.0)
    return run_problem(cell, objective.trainer(problem, schedule, PLAIN), task.test, generator, each_epoch)


def table(outcomes: list[Outcome]) -> FigureTable:
    """The outcomes as the table of the paper: a row for each task, a column for each model and objective."""
    return accuracy_table(outcomes, [(model, objective) for objective in OBJECTIVES for model in MODELS])
