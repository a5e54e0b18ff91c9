"""Laplace's method and variational inference side by side: do they choose the same symmetries, and how sure are they?

The relaxed network of the main demo, F-FC+CONV, learns which digit it sees, and which digit in which quadrant. Its precisions
are learned by Laplace's method, and by the evidence lower bound with a posterior in which all weights are independent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from papers.data import load
from symbayes.cli.demo import MODELS, TASKS
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, broken_words, run_problem
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import as_source
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.posterior.families import MeanField
from symbayes.priors import TensorwisePrior
from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.training.by_curvature import Laplace
from symbayes.training.elbo import Elbo
from symbayes.training.optimiser import PLAIN
from symbayes.training.symmetries import USED, breaking, with_tensors
from symbayes.training.trainer import Objective, Problem, Schedule

_MODEL = "F-FC+CONV"
#: Predictive distributions are for every so many test images.
_EVERY = 10
_ABOUT = (
    "One network learns two tasks on small digits that stand somewhere on a larger canvas: to say which digit it is, or which "
    "digit and in which quadrant. Every layer has a path that shares weights over positions and one that does not. How much of "
    "each is used is learned in two ways: by Laplace's method, which looks at the curvature around one setting of the weights, "
    "and by variational inference, which learns how uncertain every weight is. They estimate the same quantity, and ought to "
    "choose the same symmetries."
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common.

    Args:
        epochs: Of variational inference, which needs more steps; Laplace's method has a third of them.
        width: Channels of the first layer.
        seed: For initial weights and the order of data.
    """

    epochs: int = 150
    width: int = 4
    seed: int = 0


def _laplace(epochs: int) -> tuple[Objective, Schedule]:
    schedule = Schedule(max(1, epochs // 3), batch_size=100, learning_rate=3e-3, warm_up=0.0)
    return Laplace(final_rule=Kfac(), cool_down=0.5, hyper_every=2, damping=0.3), schedule


def _elbo(epochs: int) -> tuple[Objective, Schedule]:
    return Elbo(MeanField()), Schedule(epochs, batch_size=100, learning_rate=5e-3, warm_up=0.0)


#: By the name of the model in the table.
WAYS: dict[str, Callable[[int], tuple[Objective, Schedule]]] = {
    f"{_MODEL}, Laplace": _laplace,
    f"{_MODEL}, ELBO": _elbo,
}
_COST = dict(zip(WAYS, (1.0, 6.0), strict=True))


def study(settings: Settings) -> Study:
    """The table to be made."""
    cells = [Cell(task, way, "evidence", settings.seed, _COST[way]) for task in TASKS for way in WAYS]
    return Study("Two ways to the evidence: one symmetry?", _ABOUT, cells, partial(run_cell, settings), table)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell, and evaluate it at its weights and by the predictive distribution that goes with its posterior."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(cell.seed)
    model = allconv(task, MODELS[_MODEL], settings.width, generator=generator)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    objective, schedule = WAYS[cell.model](settings.epochs)
    some = (task.test[0][::_EVERY], task.test[1][::_EVERY])
    return run_problem(cell, objective.trainer(problem, schedule, PLAIN), task.test, generator, each_epoch, calibrated_on=some)


def table(outcomes: list[Outcome]) -> FigureTable:
    """A row for each task, a column for each way: test accuracy, log evidence, and the blocks that give up translation."""
    rows = []
    for task in TASKS:
        found = {outcome.cell.model: outcome for outcome in outcomes if outcome.cell.task == task}
        best = max(outcome.metrics["accuracy"] for outcome in found.values())
        rows.append(TableRow(task, tuple(_cell(found[way], best) for way in WAYS)))
    estimators = dict.fromkeys(outcome.result.evidence.estimator for outcome in outcomes)
    return FigureTable(
        tuple(WAYS),
        tuple(rows),
        outcome=broken_words(outcomes),
        legend="Test accuracy at the mean of the weights; beneath it the log evidence in nats per training image, and in "
        f"how many blocks a tensor of γ above {USED} breaks translation, with share and γ of its path in the one of most γ.",
        note=f"Log evidence by {', and by '.join(estimators)}: two estimates, and not on one scale.",
    )


def _cell(outcome: Outcome, best: float) -> TableCell:
    rows = [row for row in with_tensors(outcome.result.symmetries) if breaking(row)]
    most = max(rows, key=lambda row: row.effective, default=None)
    broken = "no block"
    if most is not None:
        many = f"{len(rows)} block{'' if len(rows) == 1 else 's'}"
        broken = f"{many}, most {most.layer}: {100 * most.share:.0f} %, γ {most.effective:.1f}"
    accuracy = outcome.metrics["accuracy"]
    return TableCell(f"{100 * accuracy:.1f} %", f"{outcome.log_evidence:.2f}; {broken}", accuracy == best)
