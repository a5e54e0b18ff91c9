"""ELLA's Table 3 on embedded digits: fully connected, convolutional and group-convolutional paths side by side.

Every layer may keep quarter turns and translation (GCONV), translation alone (CONV), or nothing (FC). Digits upright in the
middle of a canvas, anywhere on it, and turned by quarter turns ask for different symmetries; the evidence is to find them.
"""

from dataclasses import dataclass
from functools import partial

import torch

from papers.data import load
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, broken_words, run_problem
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import as_source
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.priors import TensorwisePrior
from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.training.by_curvature import Laplace, Map
from symbayes.training.optimiser import PLAIN
from symbayes.training.symmetries import shares_over_layers
from symbayes.training.trainer import Objective, Problem, Schedule

TASKS = {"upright": "upright-digits", "shifted": "shifted-digits", "turned": "turned-digits"}
#: By the names of the paper.
PATHS = {"FC": "factored", "CONV": "conv", "GCONV": "gconv"}
MODEL = "F-FC+CONV+GCONV"
_COST = {"MAP": 1.0, "evidence": 3.0}
_ABOUT = (
    "One network learns three versions of the same digits: upright in the middle of a canvas, anywhere on it, and turned by "
    "quarter turns. Every layer is a sum of three paths: a group convolution, which has the symmetry of quarter turns and "
    "translation (p4), a convolution, which has that of translation alone, and a fully connected path, which has none. Paths "
    "that break a symmetry begin switched off; the evidence, which sees training data only, should switch them on where they "
    "pay: not where digits are turned."
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 50
    width: int = 2
    seed: int = 0
    #: Of the paths that break a symmetry, relative to the group convolution.
    relaxation: float = 0.1


def study(settings: Settings) -> Study:
    """The table to be made."""
    cells = [Cell(task, MODEL, objective, settings.seed, _COST[objective]) for task in TASKS for objective in _COST]
    return Study("Which symmetry? Learned from training data", _ABOUT, cells, partial(run_cell, settings), table)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell and evaluate it; precisions move often, so that a path that does not pay is gone after some epochs."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(cell.seed)
    paths = tuple(PATHS.values())
    model = allconv(task, paths, settings.width, relaxation=settings.relaxation, generator=generator)
    rule, final = Kfac(MonteCarloFisher()), Kfac()
    by_evidence = cell.objective == "evidence"
    objective: Objective = Map(rule, final)
    if by_evidence:
        objective = Laplace(rule, final, hyper_every=1, damping=0.5, cool_down=0.2)
    prior = TensorwisePrior(model, symmetric_start=by_evidence)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), prior)
    schedule = Schedule(settings.epochs, batch_size=100, learning_rate=3e-3, warm_up=0.0)
    return run_problem(cell, objective.trainer(problem, schedule, PLAIN), task.test, generator, each_epoch)


def table(outcomes: list[Outcome]) -> FigureTable:
    """As the paper prints it: fit by MAP and by evidence, then the share of every kind of path, mean (min–max) over layers."""
    rows = []
    for task in TASKS:
        fixed, learned = (
            next(o for o in outcomes if (o.cell.task, o.cell.objective) == (task, objective)) for objective in _COST
        )
        written = [(f"{100 * o.metrics['accuracy']:.1f} %", f"{o.metrics['nll']:.3f}") for o in (fixed, learned)]
        written.append((f"{-learned.log_evidence:.3f}", ""))
        shares = shares_over_layers(learned.result.symmetries)
        for path in PATHS.values():
            written.append((shares[path].share, f"γ {shares[path].effective:,.1f}"))
        rows.append(TableRow(task, tuple(TableCell(value, beneath) for value, beneath in written)))
    return FigureTable(
        ("MAP", "evidence", "−log, evidence", *(f"{kind}, %" for kind in PATHS)),
        tuple(rows),
        outcome=broken_words(outcomes),
        legend="Test accuracy and, beneath it, NLL; the evidence in nats per training image. Of every kind of path its "
        "effective parameters per weight relative to the sum over the layer, mean (smallest–largest) over layers; beneath it "
        "their number γ in all layers.",
        note=f"Evidence by {outcomes[0].result.evidence.estimator}.",
    )
