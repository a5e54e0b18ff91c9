"""Seconds on one device alone: `python -m benchmarks.gpu --device cuda [--out gpu.json] [--rows conv,f-fc+conv,fc+conv]`.

For rows of Table 2, on as many random images as CIFAR-10 has: an epoch by plain MAP, and by MAP and evidence as in the table,
with all that belongs to it (augmentation, running curvature, its eigenbasis, hyper-steps); and KFAC over all data, by all
columns and by one, with the decomposition of its factors. All other benchmarks give ratios (`python -m benchmarks`).
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table

from papers import runs as provenance
from papers.ella.recipes import METHODS, recipe
from papers.ella.rows import NETWORKS, TABLES
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import ExactFisher, MonteCarloFisher, log_det_of
from symbayes.data.source import DataSource, as_source
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.likelihoods.classes import Categorical
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import ByCurvature, Laplace, Map
from symbayes.training.fit import fit
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem

#: Epochs of a training, and those that are counted: not the first, in which steps are captured and precisions do not move, and
#: not the last, to which a pass over all data belongs.
_EPOCHS, _COUNTED = 17, slice(3, 16)
_TABLE = TABLES["table2"]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="where to compute")
    parser.add_argument("--rows", default="conv,f-fc+conv,fc+conv", help="of Table 2, with commas")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=_TABLE.width)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="where to write the figures")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    data = _random_images(asked.images)
    about = {"commit": provenance.commit(), "machine": provenance.machine(asked.device), "torch": torch.__version__}
    found: dict[str, dict[str, float]] = {}
    for row in asked.rows.split(","):
        found[row] = dict(_measured(row, data, asked.width, device))
        asked.out.write_text(
            json.dumps({"about": about | {"images": asked.images, "width": asked.width}, **found}, indent=2) + "\n"
        )
        Console(width=120).print(_table(row, found[row]))


def _random_images(size: int) -> Task:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, 3, 32, 32, generator=generator), torch.randint(10, (size,), generator=generator)
    return Task("random images", images, images, 10)


def _measured(row: str, data: Task, width: int, device: torch.device) -> Iterator[tuple[str, float]]:
    """What takes how long, in seconds."""
    for name in ("plain MAP", *(f"{method} of the table" for method in METHODS)):
        model = NETWORKS[row].build(data, width, 0, equivariant_stride=False).to(device)
        prior = TensorwisePrior(model)
        problem = Problem(model, as_source(data.train, device), Categorical().to(device), prior)
        how = recipe(problem, "cifar10", "evidence" if "evidence" in name else "map", _EPOCHS)
        if isinstance(how.objective, Laplace):  # epochs alike, of which none is for a search
            how = replace(how, objective=replace(how.objective, search=None))
        how = replace(how, objective=Map(), optimiser=PLAIN) if name == "plain MAP" else how
        assert isinstance(how.objective, ByCurvature)
        result = fit(
            model,
            data.train,
            prior=prior,
            objective=replace(how.objective, final_rule=None),
            optimiser=how.optimiser,
            schedule=how.schedule,
            augment=FlipCrop(),
            progress=False,
        )
        ends = [record.seconds for record in result.history][_COUNTED]
        yield f"an epoch, {name}", (ends[-1] - ends[0]) / (len(ends) - 1)
    model = NETWORKS[row].build(data, width, 0, equivariant_stride=False).to(device)
    source, prior = as_source(data.train, device), TensorwisePrior(model)
    for fisher in (ExactFisher(), MonteCarloFisher()):
        passes, decompositions = zip(*(_kfac(Kfac(fisher), model, source, prior) for _ in range(3)), strict=True)
        yield f"KFAC, {fisher}", median(passes)
        yield f"its decomposition, {fisher}", median(decompositions)


def _kfac(rule: Kfac, model: torch.nn.Module, source: DataSource, prior: TensorwisePrior) -> tuple[float, float]:
    """Seconds of a pass over all data, and of the decomposition of its factors."""
    device = next(model.parameters()).device
    with torch.no_grad():
        started = _now(device)
        curvature = rule.curvature(model, source, Categorical(), generator=torch.Generator(device).manual_seed(0))
        passed = _now(device)
        log_det_of(curvature.blocks, prior.precisions())
        return passed - started, _now(device) - passed


def _now(device: torch.device) -> float:
    """Once all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def _table(row: str, found: dict[str, float]) -> Table:
    table = Table(title=NETWORKS[row].name, title_justify="left")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    for name, seconds in found.items():
        table.add_row(name, f"{seconds:.2f}")
    return table


if __name__ == "__main__":
    main()
