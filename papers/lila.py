"""LILA's experiment (Immer et al. 2022): invariances of MNIST and CIFAR-10 as they are, turned, shifted and scaled.

Learned by the evidence, against none and against Augerino's regulariser, on subsets of the training data and the whole test
set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from papers.rows import (
    Figures,
    Options,
    Paper,
    TextTable,
    accuracy_words,
    check_names,
    keeping,
    refuse_partial,
    spread,
    whole_numbers,
)
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.task import Task
from symbayes.groups.discrete import mirror
from symbayes.groups.lie import affine2d
from symbayes.invariance.discrete_average import DiscreteAverage
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.models import lenet, residual
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Augerino, Laplace, Map
from symbayes.training.fit import fit
from symbayes.training.optimiser import Optimiser
from symbayes.training.trainer import Objective, Schedule

#: How images are transformed, by name: LILA's amounts.
VERSIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotated_90": {"rotation": 90.0},
    "rotated_180": {"rotation": 180.0},
    "translated": {"translation": 8.0},
    "scaled": {"scale": 2.0},
}
#: What is done, and how it is called. With mirrors, probabilities of both are learned beside extents.
_WORDS = {
    "none": "none, MAP",
    "none_evidence": "none, evidence",
    "augerino": "Augerino",
    "learned": "learned",
    "learned_mirrors": "learned, and mirrors",
}
METHODS = tuple(_WORDS)


@dataclass(frozen=True)
class Row:
    """One training run."""

    task: str
    version: str
    size: int
    method: str
    seed: int


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Args:
        samples: Transformations of each image; with mirrors half as many, each under all four of them.
        epochs: Passes over the data; None for `default_epochs`, which grow as the data get fewer.
        width: Of the residual network for CIFAR-10.
        device: Where to compute.
    """

    samples: int = 16
    epochs: int | None = None
    width: int = 8
    device: str = "cpu"


def default_epochs(size: int, digits: bool = True) -> int:
    """Fewer data, more passes; photographs need more of them than digits."""
    if not digits:
        return 300 if size <= 1000 else 200 if size <= 10_000 else 100
    return 150 if size <= 1000 else 100 if size <= 2500 else 60 if size <= 10_000 else 30


def rows(
    task: str, versions: Sequence[str], sizes: Sequence[int], methods: Sequence[str], seeds: Sequence[int]
) -> Iterator[Row]:
    """All combinations.

    Raises:
        ValueError: If a version or a method is not known.
    """
    check_names(versions=(versions, list(VERSIONS)), methods=(methods, METHODS))
    return (Row(task, v, size, m, seed) for v in versions for size in sizes for m in methods for seed in seeds)


def run_row(row: Row, whole: Task, settings: Settings, keep: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train one row and evaluate it on the whole test set: figures in plain numbers.

    Args:
        row: Which.
        whole: Its task, before it is transformed.
        settings: Of the experiment.
        keep: Where its training is kept, as `keeping` says it; nowhere when None.
    """
    task = whole.transformed(**VERSIONS[row.version])
    task = task if row.size == len(task.train[0]) else task.subset(row.size, row.seed)
    generator = torch.Generator().manual_seed(row.seed)
    digits = row.task == "mnist"
    net = lenet(task, generator=generator) if digits else residual(task, 8, settings.width, generator=generator)
    model: nn.Module = net
    if row.method in ("augerino", "learned"):
        model = OrbitAverage(net, affine2d(), settings.samples, seed=row.seed)
    elif row.method == "learned_mirrors":
        averaged = OrbitAverage(net, affine2d(), max(2, settings.samples // 2), seed=row.seed)
        model = DiscreteAverage(averaged, [mirror("x"), mirror("y")])
    model = model.to(settings.device)
    epochs = settings.epochs or default_epochs(row.size, digits)
    # Fixup begins with outputs and many weights at zero: under a prior of precision 1 they would hardly leave it.
    prior = TensorwisePrior(model, 1.0 if digits else 0.1)
    batch = max(16, min(250 if digits else 125, row.size // 16))
    schedule = Schedule(epochs, batch, learning_rate=5e-3 if digits else 1e-2, warm_up=0.0 if digits else 0.05)
    result = fit(
        model,
        task.train,
        prior=prior,
        objective=objective(row.method, 1 if digits else 5),
        optimiser=Optimiser(running=0),  # an eigenbasis for all methods, by passes over the data
        schedule=schedule,
        seed=row.seed,
        progress=False,
        **(keep or {}),
    )
    refuse_partial(result)
    return {
        **asdict(row),
        **result.evaluate(task.test, by="plug-in"),
        "log_evidence": result.log_evidence / row.size,
        "extents": result.history[-1].extents,
        "epochs": epochs,
        "samples": settings.samples,
        "seconds": result.history[-1].seconds,
    }


def objective(method: str, every: int) -> Objective:
    """What a method maximises, with a hyper-step after every so many epochs."""
    rule = Kfac(MonteCarloFisher())
    match method:
        case "learned" | "learned_mirrors":
            return Laplace(rule, hyper_every=every, damping=0.5, cool_down=0.2, extent_rate=0.2, extent_share=0.25)
        case "none_evidence":
            return Laplace(rule, hyper_every=every, damping=0.5, cool_down=0.2)
        case "augerino":
            return Augerino(rule)
        case _:
            return Map(rule)


def key(row: Figures) -> tuple[Any, ...]:
    """The order of rows, and what makes them the same run."""
    return row["task"], list(VERSIONS).index(row["version"]), row["size"], METHODS.index(row["method"]), row["seed"]


def table(found: Sequence[dict[str, Any]]) -> TextTable:
    """The rows as a table: test accuracy by method, mean and deviation over seeds, and what was learned."""
    places: dict[tuple[str, str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in found:
        places.setdefault((row["task"], row["version"], row["size"]), {}).setdefault(row["method"], []).append(row)
    lines, best = [], []
    for (task, version, size), by_method in places.items():
        cells = [_accuracy(by_method[m]) if m in by_method else "" for m in METHODS]
        place = [f"{task}, {version.replace('_', ' ')}", f"{size:,}"]
        highest = max((_mean(by_method[m], "accuracy"), index) for index, m in enumerate(METHODS) if m in by_method)[1]
        learned = [_extents(by_method[m]) for m in METHODS if m in by_method and m.startswith("learned")]
        lines.append([*place, *cells, "; ".join(learned)])
        best.append(len(place) + highest)
    return TextTable(["data", "images", *(_WORDS[m] for m in METHODS), "what was learned"], lines, best=best)


def _accuracy(runs: list[dict[str, Any]]) -> str:
    return f"{spread([100 * run['accuracy'] for run in runs], 1)} % ({_mean(runs, 'log_evidence'):.2f})"


def _extents(runs: list[dict[str, Any]]) -> str:
    units = {g.extent: g.symbol for g in affine2d().generators}
    means = {name.rpartition(".")[2]: mean(run["extents"][name] for run in runs) for name in runs[0]["extents"]}
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g} {units.get(name, '%')}" for name, value in means.items())


def _mean(runs: list[dict[str, Any]], what: str) -> float:
    return mean(run[what] for run in runs)


def _rows(lists: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    sizes, seeds = (whole_numbers(name, lists[name]) for name in ("sizes", "seeds"))
    found = [rows(task, lists["versions"], sizes, lists["methods"], seeds) for task in lists["task"]]
    return chain.from_iterable(found)


def _run(row: Row, whole: Task, options: Options, folder: Path) -> Figures:
    width = options.width or Settings.width
    settings = Settings(options.samples or Settings.samples, options.epochs, width, options.device)
    return run_row(row, whole, settings, keeping(folder, options))


PAPER = Paper(
    "Invariance learning",
    "Test accuracy (log evidence per image) on subsets of MNIST and CIFAR-10, as they are and transformed: extents of "
    "invariance learned by the evidence, by Augerino's regulariser, and none.",
    {
        "task": "mnist",
        "versions": ",".join(VERSIONS),
        "sizes": "312,1250,5000",
        "methods": ",".join(METHODS[:4]),
        "seeds": "0",
    },
    _rows,
    _run,
    key,
    table,
    accuracy_words,
)
