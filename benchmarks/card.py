"""How costs grow: `python -m benchmarks.card [--device cuda] [--quick] [--out card.json] [--plot card.svg]`.

In data, width, classes, tokens and paths, each alone: seconds of the gradient over the data, of KFAC by one random column and
by all columns, and of the decomposition of its factors. Below each sweep stands the exponent by which it grew from the first
value to the last; that of arithmetic is 1 in data, and 2 in width, 3 for decompositions. On a CPU there is one thread, time is
that of the processor, and cases are interleaved.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.language import Decoder, Shape, text
from benchmarks.timing import interleaved, seconds_on
from papers import runs as provenance
from papers.drawing import NEGATIVE, POSITIVE, card, drawn, plain
from symbayes.curvature.decompositions import decompose
from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import BlockCurvature, ExactFisher, Fisher, MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.likelihoods.positions import AtPositions, PerPosition
from symbayes.models import build_allconv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENT, ONE, ALL, SOLVE = "gradient", "KFAC, one column", "KFAC, all columns", "decomposition"
COLOURS = {GRADIENT: "#666666", ONE: NEGATIVE, ALL: POSITIVE, SOLVE: "#009E73"}


@dataclass(frozen=True)
class Work:
    """A network with data, and what is to be measured on them."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    likelihood: Likelihood
    batch: int = 125
    parts: tuple[str, ...] = (GRADIENT, ONE, ALL, SOLVE)


def images(count: int, width: int = 32, classes: int = 10) -> Work:
    """Three convolutions of a width on images of 16 × 16 pixels, and a matrix."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for c_in in (3, width, width):
        layers += [nn.Conv2d(c_in, width, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes))
    return Work(model, torch.randn(count, 3, 16, 16), torch.arange(count) % classes, Categorical())


def tokens(length: int) -> Work:
    """A small decoder on sequences of a length."""
    torch.manual_seed(0)
    inputs, targets = text(64, length, 0)
    model = AtPositions(Decoder(Shape(256, length, 64, 2, 4)), channels_last=True)
    return Work(model, inputs, targets, PerPosition(Categorical(), 256), 16, (GRADIENT, ONE))


def paths(names: Sequence[str]) -> Work:
    """ELLA's network, narrow, with a sum of paths in every layer."""
    model = build_allconv((3, 32, 32), 10, tuple(names), 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    return Work(model, torch.randn(125, 3, 32, 32), torch.arange(125) % 10, Categorical())


#: What grows: its values, by which the work is made.
SWEEPS: dict[str, dict[int, Callable[[], Work]]] = {
    "data": {count: partial(images, count) for count in (125, 250, 500, 1000, 2000)},
    "width": {width: partial(images, 125, width) for width in (16, 32, 64, 128, 256)},
    "classes": {classes: partial(images, 125, 32, classes) for classes in (2, 5, 10, 20, 50)},
    "tokens": {length: partial(tokens, length) for length in (16, 32, 64, 128, 256)},
    "paths": {
        1: partial(paths, ("conv",)),
        2: partial(paths, ("factored", "conv")),
        3: partial(paths, ("factored", "sparse", "conv")),
    },
}


def measure(work: Work, device: torch.device, repeats: int) -> dict[str, float]:
    """Seconds of every part."""
    model = work.model.to(device).eval()
    data, weights = TensorSource(work.inputs, work.targets, device), list(model.parameters())
    kept: dict[str, BlockCurvature] = {}

    def gradient() -> None:
        with evaluating(model):
            for inputs, targets in data.batches(work.batch):
                torch.autograd.grad(-work.likelihood.log_prob(model(inputs), targets).sum(), weights)

    @torch.no_grad()
    def factors(fisher: Fisher) -> None:
        draws = torch.Generator(device).manual_seed(0)
        rule = Kfac(fisher, batch_size=work.batch)
        kept["last"] = rule.curvature(model, data, work.likelihood, generator=draws)

    def solve() -> None:
        blocks = kept["last"].blocks.values()
        for factor in (part for block in blocks for part in vars(block).values()):
            for name in ("eigenvalues", "eigenvectors"):
                getattr(factor, "__dict__", {}).pop(name, None)
        decompose(blocks)

    every: dict[str, Callable[[], object]] = {
        GRADIENT: gradient,
        ONE: lambda: factors(MonteCarloFisher()),
        ALL: lambda: factors(ExactFisher()),
        SOLVE: solve,
    }
    cases = {name: every[name] for name in work.parts}
    if device.type == "cpu":
        return {name: timing.seconds.median for name, timing in interleaved(cases, GRADIENT, repeats).items()}
    return {name: seconds_on(device, case, repeats) for name, case in cases.items()}


def exponents(found: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """By which each part grows, from the first value to the last."""
    (first, start), (last, end) = min(found.items()), max(found.items())
    return {name: log(end[name] / start[name]) / log(last / first) for name in start}


@drawn
def picture(found: Mapping[str, Mapping[int, Mapping[str, float]]], words: str) -> "Figure":
    """A plot for each sweep, both axes in logarithms, with a dotted line for growth in proportion."""
    figure = card(
        1000, 640, "How costs grow", words, legend=COLOURS, notes=["Dotted: in proportion. Both axes are logarithmic."]
    )
    grid = figure.subplots(2, 3).flatten()
    for axes, (name, by_value) in zip(grid, found.items(), strict=False):
        values = list(by_value)
        for part in next(iter(by_value.values())):
            seconds = [row[part] for row in by_value.values()]
            axes.plot(values, seconds, color=COLOURS[part], marker="o", markersize=4)
        start = min(by_value[values[0]].values())
        axes.plot(values, [start * value / values[0] for value in values], color="#999999", linestyle=":")
        plain(axes, name)
        axes.set(xscale="log", yscale="log", ylabel="seconds")
        axes.set_xticks(values, [str(value) for value in values])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
    for axes in grid[len(found) :]:
        axes.set_axis_off()
    return figure


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.card", description=__doc__)
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument("--sweeps", default=",".join(SWEEPS), help="which, with commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the first three values of each, once")
    parser.add_argument("--out", type=Path, default=Path("card.json"), help="where to write the figures")
    parser.add_argument("--plot", type=Path, default=Path("card.svg"), help="where to draw them")
    asked = parser.parse_args()
    if asked.device == "cpu":
        torch.set_num_threads(1)
    about = {"commit": provenance.commit(), "machine": provenance.machine(asked.device), "torch": torch.__version__}
    device, found = torch.device(asked.device), dict[str, dict[int, dict[str, float]]]()
    for name in asked.sweeps.split(","):
        values = list(SWEEPS[name])[:3] if asked.quick else list(SWEEPS[name])
        found[name] = {value: measure(SWEEPS[name][value](), device, 1 if asked.quick else asked.repeats) for value in values}
        Console().print(table(name, found[name]))
    grows: dict[str, Any] = {name: exponents(of_sweep) for name, of_sweep in found.items()}
    asked.out.write_text(json.dumps({"about": about, "seconds": found, "exponents": grows}, indent=1) + "\n")
    asked.plot.write_text(picture(found, ", ".join(str(words) for words in about.values())))


def table(name: str, found: Mapping[int, Mapping[str, float]]) -> Table:
    """Seconds by value, in gradients beside, and the exponent of each part below."""
    shown = Table(title=f"seconds (and gradients), by {name}", title_justify="left")
    parts = list(next(iter(found.values())))
    for heading in (name, *parts):
        shown.add_column(heading, justify="right")
    for value, row in found.items():
        shown.add_row(str(value), *(f"{row[part]:.3g} ({row[part] / row[GRADIENT]:.2f})" for part in parts))
    shown.add_row("exponent", *(f"{exponent:.2f}" for exponent in exponents(found).values()))
    return shown


if __name__ == "__main__":
    main()
