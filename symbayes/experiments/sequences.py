"""Whether position matters in a sequence: the same noisy sequences, asked for a motif, and for a motif and its quarter.

An all-convolutional 1-d network (CONV) is exactly invariant under cyclic shifts, so it cannot see the quarter; a fully
connected one (FC) has to learn a motif anew at every place. The relaxed network has both paths in every block, and learns from
the evidence which to use. Every cell of the table is one training run of some ten seconds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.data.load import load
from symbayes.evidence.objective import Laplace
from symbayes.experiments.cells import Cell, EachEpoch, Outcome, Progress, rows_of_means, run_in_turn, trained
from symbayes.likelihoods import Categorical
from symbayes.models import allconv
from symbayes.training.loop import Schedule

TASKS = {"motif": "motifs", "motif and quarter": "placed-motifs"}
MODELS = {"FC": ("dense",), "CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
QUARTER = 16
_MEASURES = ("accuracy", "nll", "log_evidence", "position_effect", "conv_share", "broken_blocks")


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 100
    width: int = 4
    seeds: int = 1


@dataclass(frozen=True)
class SequenceOutcome(Outcome):
    """What a cell gave on test data."""

    accuracy: float
    nll: float
    #: How far predictions move, in total variation, when a sequence is shifted by whole quarters: 0 where place does not
    #: matter, 1 where every prediction becomes another.
    position_effect: float

    @property
    def conv_share(self) -> float:
        """Of the convolution, in the block where it is smallest."""
        return self.smallest_share("conv")

    @property
    def broken(self) -> list[str]:
        """The blocks that break translation: where the data determine at least one parameter of a path that does."""
        rows = [row for row in self.summary["symmetries"] if row["path"] in ("dense", "factored")]
        return [row["layer"] for row in rows if row["effective"] >= 1]

    @property
    def broken_blocks(self) -> int:
        return len(self.broken)


def cells(seeds: int = 1) -> list[Cell]:
    """All runs, row by row of the table."""
    return [Cell(task, model, seed) for task in TASKS for model in MODELS for seed in range(seeds)]


def run_cell(cell: Cell, settings: Settings, each_epoch: EachEpoch | None = None) -> SequenceOutcome:
    """Train one cell and evaluate it. The data are the same for all seeds; weights, batches and columns are not."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(cell.seed)
    model = allconv(task, MODELS[cell.model], settings.width, generator=generator)
    # After every epoch and nearly to the end: with fewer hyper-steps more blocks stay broken (docs/research/sequences.md).
    objective = Laplace(Kfac(MonteCarloFisher()), Kfac(), frequency=1, damping=0.5, cool_down=0.2)
    schedule = Schedule(settings.epochs, batch_size=100)
    result = trained(model, task.train, Categorical(), objective, schedule, generator, each_epoch)
    metrics = result.evaluate(task.test)
    effect = _position_effect(model, task.test[0])
    return SequenceOutcome(cell, result.summary(), metrics["accuracy"], metrics["nll"], effect)


@torch.no_grad()
def _position_effect(model: nn.Module, inputs: Tensor) -> float:
    before = model(inputs).softmax(1)
    moved = [model(inputs.roll(by, 2)).softmax(1) for by in range(QUARTER, inputs.shape[2], QUARTER)]
    return float(torch.stack([(after - before).abs().sum(1).mean() / 2 for after in moved]).mean())


def run_all(settings: Settings, progress: Progress | None = None) -> list[SequenceOutcome]:
    """All runs, one after the other."""
    return run_in_turn(cells(settings.seeds), lambda cell: run_cell(cell, settings), progress)


def table(outcomes: list[SequenceOutcome]) -> dict[str, Any]:
    """A row for each task, a column for each model; means over seeds. The best is that of highest evidence."""
    estimator = outcomes[0].summary["evidence"]["estimator"]
    return {
        "columns": list(MODELS),
        "rows": rows_of_means(outcomes, _MEASURES),
        "note": f"Test accuracy; log evidence per training sequence by {estimator}; how far predictions move when a sequence "
        "is shifted by whole quarters; share of the convolution in the block where it is smallest; how many of eight blocks "
        "break translation with at least one effective parameter.",
    }


def learned(outcomes: list[SequenceOutcome]) -> list[SequenceOutcome]:
    """The runs whose symmetry was learned; their words are in their summaries."""
    return [outcome for outcome in outcomes if outcome.cell.model == "F-FC+CONV"]
