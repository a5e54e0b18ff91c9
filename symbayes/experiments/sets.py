"""A set or a sequence: the same eight numbers with a target that ignores their order, and one that depends on it.

A network of orbit layers cannot see the order (DeepSets), a fully connected one has to learn that it does not matter; the
relaxed network has both and learns from the evidence which to use. Every cell of the table is one training run of some seconds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from symbayes.curvature.kfac import Kfac
from symbayes.evidence.objective import Laplace
from symbayes.experiments.cells import Cell, EachEpoch, Outcome, Progress, rows_of_means, run_in_turn, trained
from symbayes.groups.actions import symmetric
from symbayes.layers.dense import DensePath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods import Gaussian
from symbayes.training.loop import Schedule

POINTS, NOISE = 8, 0.1
MODELS = {"FC": ("dense",), "ORBIT": ("orbit",), "FC+ORBIT": ("dense", "orbit")}


def _largest(numbers: Tensor) -> Tensor:
    return numbers.amax(1)


def _first_against_rest(numbers: Tensor) -> Tensor:
    return numbers[:, : POINTS // 2].amax(1) - numbers[:, POINTS // 2 :].amax(1)


TASKS = {"largest": _largest, "largest of the first half, less that of the second": _first_against_rest}


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 500
    width: int = 8
    num_data: int = 400
    seeds: int = 1
    #: Of the dense paths beside orbits, relative to a map that keeps the variance.
    dense_scale: float = 0.1
    learning_rate: float = 1e-2


@dataclass(frozen=True)
class SetOutcome(Outcome):
    """What a cell gave on test data."""

    #: Mean squared error, relative to the variance of the targets.
    error: float
    nll: float
    #: E (f(x) − f(g x))² / (2 var f) over permutations g: 0 where the order does not matter, 1 where it is all that does.
    order_effect: float

    @property
    def orbit_share(self) -> float:
        """Of the orbit paths, in the layer where it is smallest."""
        return self.smallest_share("orbit")


def cells(seeds: int = 1) -> list[Cell]:
    """All runs, row by row of the table."""
    return [Cell(task, model, seed) for task in TASKS for model in MODELS for seed in range(seeds)]


def draw(task: str, size: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Numbers [n, 1, 8] from a standard normal, and targets [n, 1] with noise."""
    numbers = torch.randn(size, POINTS, generator=generator)
    targets = TASKS[task](numbers) + NOISE * torch.randn(size, generator=generator)
    return numbers[:, None], targets[:, None]


def set_network(
    paths: tuple[str, ...], width: int, *, dense_scale: float = 1.0, generator: Generator | None = None
) -> nn.Module:
    """Two layers that keep the points and one that pools them, each with the paths named; outputs [n, 1]."""
    group = symmetric(POINTS)
    shapes = [((1, POINTS), (width, POINTS)), ((width, POINTS), (width, POINTS)), ((width, POINTS), (1, 1))]
    layers: list[nn.Module] = []
    for in_shape, out_shape in shapes:
        chosen: dict[str, nn.Module] = {}
        if "dense" in paths:
            scale = dense_scale if "orbit" in paths else 1.0
            chosen["dense"] = DensePath(in_shape, out_shape, scale=scale, generator=generator)
        if "orbit" in paths:
            acting = group if out_shape[1] == POINTS else group.pooled()
            chosen["orbit"] = OrbitPath(in_shape[0], out_shape[0], acting, generator=generator)
        layers += [RelaxedLayer(chosen), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Flatten())


def run_cell(cell: Cell, settings: Settings, each_epoch: EachEpoch | None = None) -> SetOutcome:
    """Train one cell and evaluate it. The seed is that of data and weights."""
    generator = torch.Generator().manual_seed(cell.seed)
    data, test = (draw(cell.task, size, generator) for size in (settings.num_data, 2000))
    model = set_network(MODELS[cell.model], settings.width, dense_scale=settings.dense_scale, generator=generator)
    schedule = Schedule(settings.epochs, batch_size=50, learning_rate=settings.learning_rate)
    result = trained(model, data, Gaussian(0.3), Laplace(Kfac()), schedule, generator, each_epoch)
    metrics = result.evaluate(test)
    error = metrics["squared error"] / float(test[1].var())
    return SetOutcome(cell, result.summary(), error, metrics["nll"], _order_effect(model, test[0], generator))


@torch.no_grad()
def _order_effect(model: nn.Module, inputs: Tensor, generator: Generator) -> float:
    order = torch.rand(len(inputs), 1, POINTS, generator=generator).argsort(2)
    outputs = model(inputs)
    return float((outputs - model(inputs.gather(2, order))).square().mean() / (2 * outputs.var()))


def run_all(settings: Settings, progress: Progress | None = None) -> list[SetOutcome]:
    """All runs, one after the other."""
    return run_in_turn(cells(settings.seeds), lambda cell: run_cell(cell, settings), progress)


def table(outcomes: list[SetOutcome]) -> dict[str, Any]:
    """A row for each task, a column for each model; means over seeds. The best is that of highest evidence."""
    estimator = outcomes[0].summary["evidence"]["estimator"]
    return {
        "columns": list(MODELS),
        "rows": rows_of_means(outcomes, ("error", "nll", "log_evidence", "order_effect", "orbit_share")),
        "note": "Test error as a share of the variance of the targets (1 is no better than their mean); log evidence per "
        f"training datum by {estimator}; how much the order of its inputs changes an output; share of the orbit paths "
        "in the layer where it is smallest.",
    }


def learned(outcomes: list[SetOutcome]) -> list[SetOutcome]:
    """The runs whose symmetry was learned; their words are in their summaries."""
    return [outcome for outcome in outcomes if outcome.cell.model == "FC+ORBIT"]
