"""A set or a sequence: the same eight numbers with a target that ignores their order, and one that depends on it.

A network of orbit layers cannot see the order (DeepSets), a fully connected one has to learn that it does not matter; the
relaxed network has both and learns from the evidence which to use. Every cell of the table is one training run of some seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Generator, Tensor, nn

from symbayes.curvature.kfac import Kfac
from symbayes.data.source import as_source
from symbayes.evidence.objective import Laplace
from symbayes.groups.actions import symmetric
from symbayes.layers.dense import DensePath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods import Gaussian
from symbayes.priors import TensorwisePrior
from symbayes.training.loop import Schedule, train
from symbayes.training.problem import Problem
from symbayes.training.record import Record
from symbayes.training.result import Result

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
class Cell:
    """One run: a task, a model, and the seed of its data and weights."""

    task: str
    model: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.model} on {self.task}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a cell gave on test data, and the summary of its result."""

    cell: Cell
    #: Mean squared error, relative to the variance of the targets.
    error: float
    nll: float
    #: E (f(x) − f(g x))² / (2 var f) over permutations g: 0 where the order does not matter, 1 where it is all that does.
    order_effect: float
    summary: dict[str, Any]

    @property
    def log_evidence(self) -> float:
        """Per training datum."""
        return float(self.summary["evidence"]["total"] / self.summary["num_data"])

    @property
    def orbit_share(self) -> float:
        """Of the orbit paths, in the layer where it is smallest."""
        return min((float(row["share"]) for row in self.summary["symmetries"] if row["path"] == "orbit"), default=0.0)


#: Called with the share of all work that is done, and what is trained next.
Progress = Callable[[float, str], None]


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


def run_cell(cell: Cell, settings: Settings, each_epoch: Callable[[Record], None] | None = None) -> Outcome:
    """Train one cell and evaluate it."""
    generator = torch.Generator().manual_seed(cell.seed)
    data, test = (draw(cell.task, size, generator) for size in (settings.num_data, 2000))
    model = set_network(MODELS[cell.model], settings.width, dense_scale=settings.dense_scale, generator=generator)
    problem = Problem(model, as_source(data, torch.device("cpu")), Gaussian(0.3), TensorwisePrior(model))
    history = []
    schedule = Schedule(settings.epochs, batch_size=50, learning_rate=settings.learning_rate)
    for record in train(problem, Laplace(Kfac()), schedule, generator=generator):
        history.append(record)
        if each_epoch:
            each_epoch(record)
    result = Result(model, problem.likelihood, problem.prior, tuple(history), problem.data.size)
    metrics = result.evaluate(test)
    error = metrics["squared error"] / float(test[1].var())
    return Outcome(cell, error, metrics["nll"], _order_effect(model, test[0], generator), result.summary())


@torch.no_grad()
def _order_effect(model: nn.Module, inputs: Tensor, generator: Generator) -> float:
    order = torch.rand(len(inputs), 1, POINTS, generator=generator).argsort(2)
    outputs = model(inputs)
    return float((outputs - model(inputs.gather(2, order))).square().mean() / (2 * outputs.var()))


def run_all(settings: Settings, progress: Progress | None = None) -> list[Outcome]:
    """All runs, one after the other."""
    todo = cells(settings.seeds)
    outcomes = []
    for done, cell in enumerate(todo):
        if progress:
            progress(done / len(todo), str(cell))
        outcomes.append(run_cell(cell, settings))
    return outcomes


def table(outcomes: list[Outcome]) -> dict[str, Any]:
    """A row for each task, a column for each model; means over seeds. The best is that of highest evidence."""
    rows = []
    for task in TASKS:
        of_models = [[o for o in outcomes if (o.cell.task, o.cell.model) == (task, model)] for model in MODELS]
        entries = [
            {
                "error": mean(outcome.error for outcome in runs),
                "nll": mean(outcome.nll for outcome in runs),
                "log_evidence": mean(outcome.log_evidence for outcome in runs),
                "order_effect": mean(outcome.order_effect for outcome in runs),
                "orbit_share": mean(outcome.orbit_share for outcome in runs),
            }
            for runs in of_models
        ]
        best = max(entry["log_evidence"] for entry in entries)
        rows.append({"task": task, "cells": [{**entry, "best": entry["log_evidence"] == best} for entry in entries]})
    estimator = outcomes[0].summary["evidence"]["estimator"]
    return {
        "columns": list(MODELS),
        "rows": rows,
        "note": "Test error as a share of the variance of the targets (1 is no better than their mean); log evidence per "
        f"training datum by {estimator}; how much the order of its inputs changes an output; share of the orbit paths "
        "in the layer where it is smallest.",
    }


def learned(outcomes: list[Outcome]) -> list[Outcome]:
    """The runs whose symmetry was learned; their words are in their summaries."""
    return [outcome for outcome in outcomes if outcome.cell.model == "FC+ORBIT"]
