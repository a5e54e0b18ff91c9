"""A set or a sequence: the same eight numbers with a target that ignores their order, and one that depends on it.

A network of orbit layers cannot see the order (DeepSets), a fully connected one has to learn that it does not matter; the
relaxed network has both and learns from the evidence which to use. Every cell of the table is one training run of some seconds.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import torch
from torch import Generator, Tensor, nn

from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, model_table, run_problem
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import as_source
from symbayes.groups.permutation import symmetric
from symbayes.layers.dense import DensePath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from symbayes.report.page import FigureTable
from symbayes.training.by_curvature import Laplace
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem, Schedule

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
    #: The first, and how many from there; the table has means over them.
    seed: int = 0
    seeds: int = 1
    #: Of the dense paths beside orbits, relative to a map that keeps the variance.
    dense_scale: float = 0.1
    learning_rate: float = 1e-2


_ABOUT = (
    "Three models learn two tasks on the same eight numbers: the largest of them, for which their order does not matter, and "
    "the largest of the first half less the largest of the second, for which it does. ORBIT shares its weights over all "
    "permutations of the numbers, so it cannot see their order; FC has to learn that it does not matter. The relaxed model has "
    "both kinds of path in every layer, and learns from the evidence which to use; it should not see the order on the first "
    "task, and see it on the second."
)


def study(settings: Settings) -> Study:
    """The table to be made."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    cells = [Cell(task, model, seed=seed) for task in TASKS for model in MODELS for seed in seeds]
    return Study("A set or a sequence? Learned from training data", _ABOUT, cells, partial(run_cell, settings), table)


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
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (in_shape, out_shape) in enumerate(shapes, start=1):
        chosen: dict[str, nn.Module] = {}
        if "dense" in paths:
            scale = dense_scale if "orbit" in paths else 1.0
            chosen["dense"] = DensePath(in_shape, out_shape, scale=scale, generator=generator)
        if "orbit" in paths:
            acting = group if out_shape[1] == POINTS else group.pooled()
            chosen["orbit"] = OrbitPath(in_shape[0], out_shape[0], acting, generator=generator)
        layers[f"layer{number}"] = RelaxedLayer(chosen)
        layers[f"after{number}"] = nn.ReLU() if number < len(shapes) else nn.Flatten()
    return nn.Sequential(layers)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell and evaluate it."""
    generator = torch.Generator().manual_seed(cell.seed)
    data, test = (draw(cell.task, size, generator) for size in (settings.num_data, 2000))
    model = set_network(MODELS[cell.model], settings.width, dense_scale=settings.dense_scale, generator=generator)
    problem = Problem(model, as_source(data, torch.device("cpu")), Gaussian(0.3), TensorwisePrior(model))
    schedule = Schedule(settings.epochs, batch_size=50, learning_rate=settings.learning_rate, warm_up=0.0)
    objective = Laplace(Kfac(), cool_down=0.5, hyper_every=2, damping=0.3)
    outcome = run_problem(cell, objective.trainer(problem, schedule, PLAIN), test, generator, each_epoch)
    error = outcome.metrics["squared error"] / float(test[1].var())
    effect = _order_effect(model, test[0], generator)
    return replace(outcome, metrics={**outcome.metrics, "error": error, "order effect": effect})


@torch.no_grad()
def _order_effect(model: nn.Module, inputs: Tensor, generator: Generator) -> float:
    """E (f(x) − f(g x))² / (2 var f) over permutations g: 0 where the order does not matter, 1 where it is all that does."""
    order = torch.rand(len(inputs), 1, POINTS, generator=generator).argsort(2)
    outputs = model(inputs)
    return float((outputs - model(inputs.gather(2, order))).square().mean() / (2 * outputs.var()))


def table(outcomes: list[Outcome]) -> FigureTable:
    """A row for each task, a column for each model; means over seeds."""
    return model_table(
        outcomes,
        lambda runs: (
            f"{mean(outcome.metrics['error'] for outcome in runs):.3f}",
            f"{mean(outcome.metrics['order effect'] for outcome in runs):.2f}",
        ),
        "Test error as a share of the variance of the targets (1 is no better than their mean); beneath it the log evidence in "
        "nats per training datum, and how much the order of its inputs changes an output (0: not at all).",
    )
