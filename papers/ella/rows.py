"""ELLA's tables (van der Ouderaa, Immer and van der Wilk 2023), a training run for each row, method and seed.

Table 1: digits of MNIST in quadrants. Table 2: CIFAR-10, eleven kinds of layers, and two that the paper speaks of. Table 3:
layers with three paths, on data of different symmetry. Test images are never augmented.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from papers.ella.published import TABLE1, TABLE2, TABLE3, Printed
from papers.ella.recipes import METHODS, Recipe, is_photographs, recipe
from papers.rows import Figures, Options, check_names, keeping, refuse_partial, whole_numbers
from symbayes.data.source import as_source
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.likelihoods.classes import Categorical
from symbayes.models import AllConv, allconv
from symbayes.priors import TensorwisePrior
from symbayes.report.runs import write_page
from symbayes.training.fit import fit
from symbayes.training.record import write_records
from symbayes.training.result import Result
from symbayes.training.trainer import Problem

_log = logging.getLogger("symbayes")

#: In place of a number of training images: all of them.
ALL = "all"
#: Weights of larger networks are not saved: those of FC take half a gigabyte.
LARGEST_SAVED = 20_000_000
#: Images of which settings do not depend on how many there are.
_USUAL = 50_000
#: Anchors of smooth filters, as shares of nine cells: four of S-CONV alone, seven beside S-FC, by the sizes the paper prints.
_FOUR, _SEVEN = 0.5, 0.8
_OMEGA_ALONE = "ω alone"


@dataclass(frozen=True)
class Network:
    """A row of a table: how layers are made, and how they are called."""

    name: str
    paths: tuple[str, ...]
    #: What has a prior whose precision is learned: weights θ, values at anchors u, or lengthscales ω or locations Z as well; or
    #: lengthscales alone.
    prior: str = "θ"
    filter_anchors: float = _FOUR

    def build(self, task: Task, width: int, seed: int, *, equivariant_stride: bool) -> AllConv:
        """The network for a task."""
        return allconv(
            task,
            self.paths,
            width,
            filter_anchors=self.filter_anchors,
            learn_lengthscales=self.prior in ("ω", _OMEGA_ALONE),
            learn_locations=self.prior == "Z",
            equivariant_stride=equivariant_stride,
            generator=torch.Generator().manual_seed(seed),
        )

    def prior_over(self, model: AllConv) -> TensorwisePrior:
        """A precision for every tensor, learned or not."""
        return TensorwisePrior(model, learn=["*omega"] if self.prior == _OMEGA_ALONE else None)


NETWORKS = {
    "fc": Network("FC", ("dense",)),
    "conv": Network("CONV", ("conv",)),
    "fc+conv": Network("FC+CONV", ("dense", "conv")),
    "f-fc": Network("F-FC", ("factored",)),
    "f-fc+conv": Network("F-FC+CONV", ("factored", "conv")),
    "s-fc-u": Network("S-FC", ("sparse",), "u"),
    "s-conv-u": Network("S-CONV", ("sparse_conv",), "u"),
    "s-fc+s-conv-u": Network("S-FC+S-CONV", ("sparse", "sparse_conv"), "u", _SEVEN),
    "s-fc-omega": Network("S-FC", ("sparse",), "ω"),
    "s-conv-omega": Network("S-CONV", ("sparse_conv",), "ω"),
    "s-fc+s-conv-omega": Network("S-FC+S-CONV", ("sparse", "sparse_conv"), "ω", _SEVEN),
    "s-conv-omega-alone": Network("S-CONV", ("sparse_conv",), _OMEGA_ALONE),
    "s-conv-z": Network("S-CONV", ("sparse_conv",), "Z"),
    "mixed": Network("F-FC+CONV+GCONV", ("factored", "conv", "gconv")),
}
TASKS = {
    "digit-mnist": "digit",
    "quadrant-mnist": "digit and quadrant",
    "mnist32": "MNIST",
    "translated-mnist": "translated MNIST",
    "rotated-mnist": "rotated MNIST",
    "cifar10": "CIFAR-10",
    "rotated-cifar10": "rotated CIFAR-10",
}


@dataclass(frozen=True)
class Row:
    """One training run; on all training images when `size` is None."""

    task: str
    network: str
    method: str
    size: int | None
    seed: int


@dataclass(frozen=True)
class Table:
    """What a table is made of.

    Args:
        name: Such as "table1".
        tasks: Data, in the order of the paper.
        networks: In the order of the paper.
        width: Of the networks.
        printed: What the paper prints, by task, network and method.
    """

    name: str
    tasks: tuple[str, ...]
    networks: tuple[str, ...]
    width: int
    printed: Mapping[tuple[str, str, str], Printed]

    @property
    def lists(self) -> dict[str, str]:
        """What a command may choose from; `rows` are the lines of the table: networks, or data where there is one network."""
        lines = {"rows": self.tasks} if len(self.networks) == 1 else {"task": self.tasks, "rows": self.networks}
        return {
            **{name: ",".join(values) for name, values in lines.items()},
            "methods": ",".join(METHODS),
            "sizes": ALL,
            "seeds": "0",
        }

    def rows(self, lists: Mapping[str, Sequence[str]]) -> Iterator[Row]:
        """All combinations.

        Raises:
            ValueError: If a name is not known, or a size or a seed is no number.
        """
        known = {name: usual.split(",") for name, usual in self.lists.items() if name in ("task", "rows", "methods")}
        check_names(**{what: (lists[what], names) for what, names in known.items()})
        tasks, networks = (lists["rows"], self.networks) if len(self.networks) == 1 else (lists["task"], lists["rows"])
        sizes = [None if size == ALL else whole_numbers("sizes", [size])[0] for size in lists["sizes"]]
        order = product(tasks, networks, lists["methods"], sizes, whole_numbers("seeds", lists["seeds"]))
        return (Row(*parts) for parts in order)

    def key(self, found: Figures) -> tuple[Any, ...]:
        """The order of rows, and what makes them the same run: all images come last."""
        size = (1, 0) if found["size"] is None else (0, found["size"])
        task, network = self.tasks.index(found["task"]), self.networks.index(found["network"])
        return task, network, METHODS.index(found["method"]), size, found["seed"]

    def settings(self, row: Row, options: Options) -> Figures:
        """How rows are trained, as figures say it; what the preset makes of it for a network stands under "trained"."""
        return settings(recipe(any_problem(), row.task, row.method, options.epochs), options.width or self.width)

    def run(self, row: Row, whole: Task, options: Options, folder: Path) -> Figures:
        """Train one row and evaluate it on the whole test set; the result is left in the folder."""
        network, width = NETWORKS[row.network], options.width or self.width
        task = whole if row.size is None else whole.subset(row.size, row.seed)
        model = network.build(task, width, row.seed, equivariant_stride=not is_photographs(row.task)).to(options.device)
        prior = network.prior_over(model)
        problem = Problem(model, as_source(task.train, torch.device(options.device)), Categorical().to(options.device), prior)
        chosen = recipe(problem, row.task, row.method, options.epochs)
        result = fit(
            model,
            task.train,
            prior=prior,
            objective=chosen.objective,
            optimiser=chosen.optimiser,
            schedule=chosen.schedule,
            augment=FlipCrop() if chosen.augment else None,
            seed=row.seed,
            progress=options.progress,
            **keeping(folder, options),
        )
        refuse_partial(result)
        trained = {"trained": settings(chosen, width)["settings"]}
        asked = self.settings(row, options)
        return {**asdict(row), **figures(result, task), **asked, **trained, "weights": save(result, folder)}


TABLES = {
    "table1": Table("table1", ("digit-mnist", "quadrant-mnist"), ("fc", "conv", "f-fc+conv"), 10, TABLE1),
    "table2": Table("table2", ("cifar10",), tuple(NETWORKS)[:-1], 10, TABLE2),
    "table3": Table(
        "table3", ("mnist32", "translated-mnist", "rotated-mnist", "cifar10", "rotated-cifar10"), ("mixed",), 2, TABLE3
    ),
}


def figures(result: Result, task: Task) -> Figures:
    """What a result is worth, and what it learned, in plain numbers."""
    evidence, size = result.evidence, result.num_data
    return {
        "images": size,
        **result.evaluate(task.test, by="plug-in"),
        "log_evidence": result.log_evidence / size,
        "standard_error": None if evidence.standard_error is None else evidence.standard_error / size,
        "slack": None if evidence.slack is None else evidence.slack / size,
        "estimator": evidence.estimator,
        "train_nll": -evidence.log_likelihood / size,
        "loss": result.history[-1].loss,
        "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
        "symmetries": [asdict(row) for row in result.symmetries.rows],
        "precision": evidence.precision,
        "effective": evidence.effective,
        "seconds": result.history[-1].seconds,
    }


def any_problem() -> Problem:
    """One with nothing special about it."""
    model = nn.Linear(1, 2)
    data = torch.zeros(_USUAL, 1), torch.zeros(_USUAL, dtype=torch.long)
    return Problem(model, as_source(data, torch.device("cpu")), Categorical(), TensorwisePrior(model))


def settings(recipe: Recipe, width: int) -> Figures:
    """How it was trained."""
    return {
        "epochs": recipe.schedule.epochs,
        "settings": {
            "width": width,
            "batch_size": recipe.schedule.batch_size,
            "learning_rate": recipe.schedule.learning_rate,
            "warm_up": recipe.schedule.warm_up,
            "objective": repr(recipe.objective),
            "optimiser": repr(recipe.optimiser),
            "augment": recipe.augment,
        },
    }


def save(result: Result, folder: Path) -> str:
    """Leave the result in a folder, without its posterior; and without its weights, where they are many. What was done.

    What cannot be written is said, and its figures are not lost with it.
    """
    try:
        return _save(result, folder)
    except OSError as error:
        _log.warning("The result could not be left in %s: %s", folder, error)
        return f"not saved: {error}"


def _save(result: Result, folder: Path) -> str:
    size = sum(parameter.numel() for parameter in result.model.parameters())
    if size <= LARGEST_SAVED:
        replace(result, make_posterior=None).save(folder)
        write_page(folder)
        return "saved"
    write_records(folder, result.summary(), result.history)
    write_page(folder)
    return f"left out: more than {LARGEST_SAVED:,}"
