"""The gallery: a small network for each way to share weights, trained by the evidence, and a picture of what it learned.

Every study trains on data and returns plain numbers, which `report/pictures.py` draws. The networks are in `small.py`:
four blocks for the shares of paths, and a single layer with a linear map behind it for filters.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from papers.data import load
from papers.demos import sets
from papers.figures import networks as boards
from papers.figures.networks import RELAXATION, board_network, digit_network, filter_network, spelled
from papers.figures.pictures import PICTURES
from papers.rows import refuse_partial
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.storage import write_together
from symbayes.groups.grids import p4
from symbayes.layers.basis import RadialBasis
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.likelihoods.values import Gaussian
from symbayes.training.by_curvature import Laplace
from symbayes.training.fit import fit
from symbayes.training.optimiser import PLAIN
from symbayes.training.result import Result
from symbayes.training.trainer import Schedule

Numbers = dict[str, Any]
#: Called with the share of all work that is done, and what is trained next.
Progress = Callable[[float, str], None]

#: Questions about digits that stand in one of four quadrants: their place does not matter, or it does.
_PLACES = {"which digit?": "placed-digits", "which digit, in which quadrant?": "quadrant-digits"}
_OBJECTIVE = Laplace(Kfac(MonteCarloFisher()), burn_in=0.1, cool_down=0.2, hyper_every=1, damping=0.5, hyper_steps=2)


@dataclass(frozen=True)
class Settings:
    """What all studies have in common."""

    seed: int = 0
    #: Passes over the data, relative to those that the gallery is made with.
    effort: float = 1.0

    def generator(self) -> Generator:
        """For data that are drawn, and for initial weights."""
        return torch.Generator().manual_seed(self.seed)


def run(folder: Path, progress: Progress | None = None, settings: Settings | None = None) -> list[Path]:
    """Train for every picture and draw it; writes the pictures to a folder, and the numbers they show to gallery.json."""
    settings = settings or Settings()
    total = sum(seconds for seconds, _ in STUDIES.values())
    done, numbers = 0.0, {}
    for name, (seconds, study) in STUDIES.items():
        if progress:
            progress(done / total, name)
        numbers[name] = study(settings)
        done += seconds
    texts = {"gallery.json": json.dumps(numbers, ensure_ascii=False, separators=(",", ":")) + "\n"}
    texts |= {f"{name}.svg": PICTURES[name](found) for name, found in numbers.items()}
    write_together({folder / name: text for name, text in texts.items()})
    if progress:
        progress(1.0, "done")
    return [folder / name for name in texts]


def translation(settings: Settings) -> Numbers:
    """F-FC+CONV: which blocks keep translation where the place of a digit does not matter, and where it does."""
    return _relax(_PLACES, ("factored", "conv"), 8, settings)


def rotation(settings: Settings) -> Numbers:
    """F-FC+CONV+GCONV: which blocks keep translation, and which quarter turns as well."""
    questions = {"upright digits": "upright-digits", "shifted digits": "shifted-digits", "turned digits": "turned-digits"}
    return _relax(questions, ("factored", "conv", "gconv"), 2, settings)


def _relax(questions: Mapping[str, str], paths: Sequence[str], width: int, settings: Settings) -> Numbers:
    found = []
    for question, name in questions.items():
        task = load(name)
        model = digit_network(task.classes, paths, width, settings.generator())
        result = _fit(model, task.train, 50, settings)
        found.append({"task": question, **_facts(result, task.test)})
    return {"tasks": found}


def smooth_filters(settings: Settings) -> Numbers:
    """CONV and S-CONV: filters with a weight for every cell, and smooth ones through nine anchors."""
    task, rows = load("placed-digits"), []
    for name in ("CONV", "S-CONV"):
        generator = settings.generator()
        path = (
            SparseConvPath(1, 16, (7, 7), anchors=9, learn_lengthscale=True, generator=generator)
            if name == "S-CONV"
            else ConvPath(1, 16, (7, 7), generator=generator)
        )
        model = filter_network(path, 16, task.classes, generator)
        result = _fit(model, task.train, 20, settings, learning_rate=1e-2)
        filters = path.filters()
        rows.append({"name": name, "maps": _strongest(filters[:, 0], 4), **_anchors(path), **_facts(result, task.test)})
    return {"rows": rows}


def smooth_maps(settings: Settings) -> Numbers:
    """F-FC and S-FC: what the hidden features of a fully connected map see of the canvas."""
    task, rows = load("shifted-digits"), []
    shapes = (1, 16, 16), (16, 8, 8)
    for name in ("F-FC", "S-FC"):
        generator = settings.generator()
        path = (
            SparseFactoredPath(*shapes, anchors=0.125, learn_lengthscale=True, generator=generator)
            if name == "S-FC"
            else FactoredPath(*shapes, generator=generator)
        )
        model = nn.Sequential(path, nn.ReLU(), DensePath(shapes[1], (task.classes,), generator=generator))
        result = _fit(model, task.train, 40, settings, learning_rate=1e-2)
        seen = path.gather.dense_weight()[0].unflatten(1, (16, 16))
        rows.append({"name": name, "maps": _strongest(seen, 3), **_anchors(path.gather), **_facts(result, task.test)})
    return {"rows": rows}


def lengthscales(settings: Settings) -> Numbers:
    """S-FC+S-CONV: ω of every path, and the prior that was learned for it."""
    found = []
    for question, name in _PLACES.items():
        task = load(name)
        model = digit_network(task.classes, ("sparse", "sparse_conv"), 8, settings.generator())
        result = _fit(model, task.train, 30, settings, learning_rate=1e-2)
        omegas = {tensor: abs(omega.item()) for tensor, omega in model.named_parameters() if tensor.endswith("omega")}
        precision, effective = result.evidence.precision, result.evidence.effective
        rows = [
            {
                "tensor": tensor,
                "omega": _short(omega),
                "deviation": _short(precision[tensor] ** -0.5),
                "effective": _short(effective[tensor]),
            }
            for tensor, omega in omegas.items()
        ]
        found.append({"task": question, "rows": rows, **_facts(result, task.test)})
    return {"tasks": found}


def turned_filters(settings: Settings) -> Numbers:
    """GCONV: filters, each in its four turns."""
    task, generator = load("turned-digits"), settings.generator()
    path = GroupConvPath(1, 16, p4(), 5, lifting=True, generator=generator)
    result = _fit(filter_network(path, 16, task.classes, generator), task.train, 40, settings, learning_rate=1e-2)
    by_turn = path.filters().detach()[:, 0].unflatten(0, (-1, 4))  # [c', g, *kernel]
    return {"filters": _strongest(by_turn, 3), **_facts(result, task.test)}


def permutation(settings: Settings) -> Numbers:
    """FC+ORBIT on eight numbers: the tied matrix of a set layer, and what the pooling layer makes of their order."""
    found = []
    for question in sets.TASKS:
        generator = settings.generator()
        data, test = (sets.draw(question, size, generator) for size in (400, 2000))
        model = sets.set_network(("dense", "orbit"), 8, dense_scale=RELAXATION, generator=generator)
        slow = Laplace(Kfac(), cool_down=0.5, hyper_every=2, damping=0.3)
        result = _fit(model, data, 500, settings, 50, 1e-2, likelihood=Gaussian(0.3), objective=slow)
        tied, pooled = (spelled(layer, (8, 8)) for layer in list(model.children())[2:5:2])
        error = result.evaluate(test, by="plug-in")["squared error"] / float(test[1].var())
        matrices = _strongest(tied.transpose(1, 2).flatten(0, 1), 1)
        found.append(
            {
                "task": question,
                "tied": matrices[0],
                "pooled": _list(pooled[0, 0]),
                "error": _short(error),
                **_facts(result),
            }
        )
    return {"tasks": found}


def board_symmetry(settings: Settings) -> Numbers:
    """FC+ORBIT on tic-tac-toe: the weights of a hidden feature from cells to cells, and from its cells to classes."""
    inputs, targets = boards.final_boards()
    order = torch.randperm(len(inputs), generator=settings.generator())
    part, rest = order[:600], order[600:]
    found = []
    for question, classes in boards.TASKS.items():
        model = board_network(16, len(classes), boards.SIDE, settings.generator())
        answers = targets[question]
        result = _fit(model, (inputs[part], answers[part]), 150, settings, 50, 1e-2)
        first, second = (spelled(layer, (channels, 3, 3)) for layer, channels in ((model[0], 2), (model[2], 16)))
        hidden = int((second - second.mean(0)).square().sum((0, 1, 3)).argmax())
        numbers = {
            "cells": _list(first[hidden, :, 0]),
            "classes": _list(second[:, 0, hidden]),
            "names": list(classes),
        }
        found.append({"task": question, **numbers, **_facts(result, (inputs[rest], answers[rest]))})
    return {"tasks": found}


#: What each picture is of, and about how many seconds it takes on one core.
STUDIES: dict[str, tuple[float, Callable[[Settings], Numbers]]] = {
    "translation": (40, translation),
    "smooth_filters": (20, smooth_filters),
    "smooth_maps": (15, smooth_maps),
    "lengthscales": (40, lengthscales),
    "turned_filters": (20, turned_filters),
    "rotation": (75, rotation),
    "permutation": (30, permutation),
    "board_symmetry": (15, board_symmetry),
}


def _fit(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    epochs: int,
    settings: Settings,
    batch_size: int = 100,
    learning_rate: float = 3e-3,
    likelihood: Likelihood | None = None,
    objective: Laplace = _OBJECTIVE,
) -> Result:
    """A model learned by the evidence."""
    schedule = Schedule(max(1, round(settings.effort * epochs)), batch_size, learning_rate, warm_up=0.0)
    result = fit(
        model, data, likelihood=likelihood, objective=objective, optimiser=PLAIN, schedule=schedule, seed=settings.seed,
        progress=False,
    )  # fmt: skip
    return refuse_partial(result)


def _facts(result: Result, test: tuple[Tensor, Tensor] | None = None) -> Numbers:
    """Log evidence per training datum, shares and γ of paths where a layer had a choice, and accuracy on test data."""
    rows = result.symmetries.rows
    layers = [row.layer for row in rows]
    chosen = [row for row in rows if layers.count(row.layer) > 1]
    facts: Numbers = {"log_evidence": _short(result.log_evidence / result.num_data)}
    facts["shares"] = [
        {"layer": row.layer, "path": row.path, "share": _short(row.share), "effective": _short(row.effective)} for row in chosen
    ]
    return facts if test is None else {**facts, "accuracy": _short(result.evaluate(test, by="plug-in")["accuracy"])}


def _anchors(path: nn.Module) -> Numbers:
    """Where the anchors of a smooth path are, in cells from the first, and ω; none for others."""
    basis = getattr(path, "basis", None)
    if not isinstance(basis, RadialBasis):
        return {"anchors": []}
    first = torch.tensor([(size - 1) / 2 for size in basis.grid])
    return {"anchors": _list(basis.locations + first), "omega": _short(basis.omega.item())}


def _strongest(maps: Tensor, count: int) -> Any:
    """Those of some maps whose weights are largest."""
    return _list(maps[maps.flatten(1).norm(dim=1).argsort(descending=True)[:count]])


def _list(values: Tensor) -> Any:
    """As nested lists of short numbers."""
    return [_list(part) for part in values.detach()] if values.ndim else _short(float(values))


def _short(value: float) -> float:
    """With four significant digits: what a picture can show."""
    return float(f"{value:.4g}")
