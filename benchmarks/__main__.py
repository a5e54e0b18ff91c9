"""Measure and print: `python -m benchmarks [--out benchmarks.json] [--quick] [--only training]`.

Costs are in gradients: one pass over the data, forward and backward, for the gradient of the mean cross-entropy.
"""

import argparse
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.curvature import FISHERS, Workload
from benchmarks.evidence import measure_evidence
from benchmarks.factored import measure_factored
from benchmarks.hardened import HARDENED, RELAXED, measure_hardened
from benchmarks.invariance import SAMPLES, measure_invariance
from benchmarks.memory import peak_memory
from benchmarks.networks import NETWORKS
from benchmarks.symmetrised import AVERAGED, measure_symmetrised
from benchmarks.timing import Timing, interleaved
from benchmarks.training import PARTS as PARTS_OF_TRAINING
from benchmarks.training import SCHEDULES, measure_training
from benchmarks.variational import CASES, measure_variational

#: The most that our factors may cost, in gradients; the factored path, in products; averages, in plain steps on as many states;
#: hardened networks, in forward passes of strict ones.
TARGETS = {"exact": 5.0, "Monte-Carlo": 2.0, "factored": 2.0, "symmetrised": 1.3, "hardened": 1.05}
#: What `measure_*` below give: figures, and tables of them.
Measured = tuple[dict[str, Any], list[Table]]
#: Networks that peers cannot read; there is nothing to compare on these.
OURS_ONLY = {"allconv-paths"}


@dataclass(frozen=True)
class Settings:
    """What is measured how often."""

    size: int = 500
    batch_size: int = 125
    factored_batch_size: int = 128
    repeats: int = 9
    factored_repeats: int = 15
    hardened_repeats: int = 25
    states: int = 100
    training_width: int = 6
    training_steps: int = 40
    training_batch_size: int = 128
    training_repeats: int = 3


QUICK = Settings(
    size=100, batch_size=50, repeats=3, factored_repeats=3, hardened_repeats=3, states=10,
    training_width=1, training_steps=20, training_batch_size=20, training_repeats=1,
)  # fmt: skip


def main() -> None:
    """Run all measurements, print their tables and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks.json"), help="where to write the figures")
    parser.add_argument("--quick", action="store_true", help="few data and repeats, to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="what to measure, when not everything")
    arguments = parser.parse_args()
    settings = QUICK if arguments.quick else Settings()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="curvlinops|backpack|laplace|asdl")
    console = Console(width=None if sys.stdout.isatty() else 120)

    figures: dict[str, Any] = {"about": about(), "settings": asdict(settings)}
    for name in arguments.only or PARTS:
        figures[name], tables = PARTS[name](settings)
        for table in tables:
            console.print(table)
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    console.print(f"Written to {arguments.out}.")


def about() -> dict[str, Any]:
    """Versions and machine."""
    return {
        "versions": {name: _version(name) for name in ("torch", "curvlinops-for-pytorch", "laplace-torch", "symbayes")}
        | {"python": platform.python_version()},
        "commit": _said(["git", "describe", "--always", "--dirty", "--abbrev=40"]),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "time": "of the processor, in seconds; quartiles of interleaved repeats",
        "memory": "peak resident set of a fresh process, less that before the case, in bytes",
    }


def measure_networks(settings: Settings) -> Measured:
    """Curvature, on every network."""
    found = {name: measure_network(name, settings) for name in NETWORKS}
    return found, [curvature_table(NETWORKS[name].title, figures) for name, figures in found.items()]


def measure_network(name: str, settings: Settings) -> dict[str, Any]:
    """Time and memory of every case on one network."""
    peer = name not in OURS_ONLY
    work = Workload(NETWORKS[name], settings.size, settings.batch_size)
    cases = work.cases(peer) | {"eigenvalues": work.eigenvalues()}
    timings = interleaved(cases, "gradient", settings.repeats)
    measured: dict[str, Any] = {case: asdict(timing) for case, timing in timings.items()}
    for case in cases:
        if case != "eigenvalues":
            measured[case]["memory"] = peak_memory(name, case, settings.size, settings.batch_size)
    differences = {fisher: work.difference(fisher) for fisher in ("exact", "empirical")} if peer else {}
    return {"cases": measured, "relative_differences": differences}


def measure_evidences(settings: Settings) -> dict[str, Any]:
    """The evidence, on every network that a peer can read."""
    chosen = {name: network for name, network in NETWORKS.items() if name not in OURS_ONLY}
    how = (settings.size, settings.batch_size, settings.repeats)
    return {name: measure_evidence(network, *how) for name, network in chosen.items()}


def measure_factored_paths(settings: Settings) -> dict[str, Any]:
    """The factored path by block, and all blocks together, against the cheaper layout of its products."""
    blocks = measure_factored(settings.factored_batch_size, settings.factored_repeats)
    found: dict[str, Any] = {}
    for block, timings in blocks.items():
        bound = min(timings["products"].seconds.median, timings["products by channel"].seconds.median)
        path = timings["path"].seconds.median
        found[block] = {"bound": bound, "path": path, "ratio": path / bound}
        found[block]["cases"] = {case: asdict(timing) for case, timing in timings.items()}
    ratio = sum(block["path"] for block in found.values()) / sum(block["bound"] for block in found.values())
    return {"blocks": found, "ratio": ratio, "target": TARGETS["factored"]}


def measure_rest(measure: Callable[[Settings], Any], table: Callable[[Any], Table], settings: Settings) -> Measured:
    """What has one table."""
    found = _plain(measure(settings))
    return found, [table(found)]


def curvature_table(title: str, found: dict[str, Any]) -> Table:
    """Ours beside the peer, in gradients and megabytes."""
    cases = found["cases"]
    unit = cases["gradient"]
    table = Table(
        title=f"{title} (a gradient: {1e3 * unit['seconds']['median']:.1f} ms, {_megabytes(unit)} MB)", title_justify="left"
    )
    for column in ("KFAC factors", "ours", "target", "curvlinops", "ours, MB", "curvlinops, MB"):
        table.add_column(column, justify="left" if column == "KFAC factors" else "right")
    for fisher in FISHERS:
        ours, theirs = cases[f"ours {fisher}"], cases.get(f"curvlinops {fisher}")
        target = TARGETS.get(fisher)
        table.add_row(
            f"{fisher} Fisher",
            _coloured(ours, target),
            f"≤ {target:g}" if target else "",
            _gradients(theirs),
            _megabytes(ours),
            _megabytes(theirs),
        )
    table.add_row("eigenvalues of the factors", _gradients(cases["eigenvalues"]))
    return table


def evidence_table(found: dict[str, Any]) -> Table:
    """Ours beside the peer, in gradients, and the evidence itself."""
    table = Table(title="The log evidence by exact KFAC, in gradients", title_justify="left")
    for column in ("network", "ours", "laplace-torch", "log evidence", "laplace-torch"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for name, figures in found.items():
        costs = (_gradients(figures["cases"][case]) for case in ("ours", "laplace-torch"))
        table.add_row(NETWORKS[name].title, *costs, *(f"{value:.3f}" for value in figures["log evidence"].values()))
    return table


def factored_table(found: dict[str, Any]) -> Table:
    """The factored path beside its products."""
    table = Table(title="F-FC, forward and backward", title_justify="left")
    for column in ("block", "products, ms", "path, ms", "ratio", "target"):
        table.add_column(column, justify="left" if column == "block" else "right")
    for block, figures in found["blocks"].items():
        table.add_row(block, *(f"{1e3 * figures[case]:.2f}" for case in ("bound", "path")), f"{figures['ratio']:.2f}")
    colour = "green" if found["ratio"] <= found["target"] else "red"
    table.add_row("all", "", "", f"[{colour}]{found['ratio']:.2f}[/]", f"≤ {found['target']:g}")
    return table


def invariance_table(found: dict[str, Any]) -> Table:
    """What an epoch that learns extents adds to a plain one."""
    table = Table(title=f"LeNet averaged over {SAMPLES} transformations, in gradients of the same", title_justify="left")
    table.add_column("part")
    table.add_column("gradients", justify="right")
    for case in found:
        table.add_row(case, _gradients(found[case]))
    return table


def _columns(title: str, first: str, networks: Iterable[str]) -> Table:
    """A table without lines: names in the first column, then one for each network."""
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for network in networks:
        table.add_column(network, justify="right")
    return table


def variational_table(found: dict[str, Any]) -> Table:
    """What a step of the bound costs."""
    table = _columns("A step of the evidence lower bound, in gradients", "family", found)
    for case in CASES:
        table.add_row(case, *(_gradients(timings[case]) for timings in found.values()))
    return table


def symmetrised_table(found: dict[str, Any]) -> Table:
    """What averaging an energy over transformations costs."""
    table = Table(title="A Hamiltonian network averaged over 100 transformations", title_justify="left")
    table.add_column("in plain steps on 100 times the states", justify="right")
    table.add_column("target", justify="right")
    table.add_row(_coloured(found[AVERAGED], TARGETS["symmetrised"]), f"≤ {TARGETS['symmetrised']:g}")
    return table


def hardened_table(found: dict[str, Any]) -> Table:
    """What hardened networks take beside those that were written by hand."""
    table = Table(title="A forward pass, in passes of the strict network", title_justify="left")
    for column in ("network", "relaxed", "hardened", "target"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for network, cases in found.items():
        target = TARGETS["hardened"]
        table.add_row(network, _gradients(cases[RELAXED]), _coloured(cases[HARDENED], target), f"≤ {target:g}")
    return table


def training_table(found: dict[str, Any]) -> Table:
    """What an epoch of every schedule costs, and its parts."""
    table = _columns("Training with learned symmetries, an epoch in epochs of MAP", "schedule", found)
    for case in SCHEDULES:
        table.add_row(case, *(_gradients(figures["epochs"][case]) for figures in found.values()))
    table.add_section()
    for part in PARTS_OF_TRAINING[1:]:
        table.add_row(f"{part}, in steps", *(_gradients(figures["parts"][part]) for figures in found.values()))
    table.add_section()
    for case in next(iter(found.values()))["whole"]:
        table.add_row(f"50 000 data, from these: {case}", *(f"{figures['whole'][case]:.2f}" for figures in found.values()))
    return table


def _plain(found: Any) -> Any:
    """Timings as dictionaries."""
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    return asdict(found) if isinstance(found, Timing) else found


def _gradients(case: dict[str, Any] | None) -> str:
    if case is None:
        return "–"
    units = case["units"]
    return f"{units['median']:.2f} ({units['low']:.2f} … {units['high']:.2f})"


def _coloured(case: dict[str, Any], target: float | None) -> str:
    if target is None:
        return _gradients(case)
    return f"[{'green' if case['units']['median'] <= target else 'red'}]{_gradients(case)}[/]"


def _megabytes(case: dict[str, Any] | None) -> str:
    return "–" if case is None or case.get("memory") is None else f"{case['memory'] / 1e6:.0f}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _said(command: list[str]) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return answer.stdout.strip() or "unknown"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


#: All measurements, by name.
PARTS: dict[str, Callable[[Settings], Measured]] = {
    "curvature": measure_networks,
    "evidence": partial(measure_rest, measure_evidences, evidence_table),
    "factored": partial(measure_rest, measure_factored_paths, factored_table),
    "invariance": partial(measure_rest, lambda s: measure_invariance(s.size, s.batch_size, s.repeats), invariance_table),
    "variational": partial(measure_rest, lambda s: measure_variational(s.batch_size, s.repeats), variational_table),
    "symmetrised": partial(measure_rest, lambda s: measure_symmetrised(s.states, s.repeats), symmetrised_table),
    "hardened": partial(measure_rest, lambda s: measure_hardened(s.batch_size, s.hardened_repeats), hardened_table),
    "training": partial(
        measure_rest,
        lambda s: measure_training(s.training_width, s.training_batch_size, s.training_steps, s.training_repeats),
        training_table,
    ),
}

if __name__ == "__main__":
    main()
