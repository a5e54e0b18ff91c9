"""`python -m papers estimators`, `starts`, `ranks`, `prune`, `structure` and others: what documents are made of."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from papers.data import load
from papers.figures import estimators as estimator_study
from papers.figures import evidence as evidence_study
from papers.figures import pruning as pruning_study
from papers.figures import structure as structure_study
from papers.figures.gallery import run as draw_gallery
from papers.figures.illustrations import run as draw_illustrations
from papers.rows import whole_numbers
from papers.runs import commit
from symbayes.cli.study import Progress
from symbayes.cli.terminal import check_folder, console, with_progress, writing
from symbayes.data.storage import write_whole
from symbayes.data.task import Task
from symbayes.dynamics.discover import check_device


def estimators(
    width: Annotated[int, typer.Option(help="Of the networks; the dense reference grows with its fourth power.", min=1)] = 1,
    epochs: Annotated[int, typer.Option(min=1)] = 40,
    num_data: Annotated[int, typer.Option("--data", help="Training images.", min=10)] = 350,
) -> None:
    """How far KFAC and other estimators are from the full GGN: trace and log-determinant on small relaxed networks."""
    for paths in estimator_study.NETWORKS:
        table = Table("estimator", title=f"{' + '.join(paths)}, width {width}, {num_data} images, {epochs} epochs by MAP")
        for heading in ("trace", *(f"log|I + H/{delta:g}|" for delta in estimator_study.PRECISIONS)):
            table.add_column(heading, justify="right")
        reference: estimator_study.Row | None = None
        with console.status(f"training and decomposing {' + '.join(paths)}"):
            for row in estimator_study.compare(paths, width=width, epochs=epochs, num_data=num_data):
                reference = reference or row
                cells = [_ratio(value, full) for value, full in zip(row.log_det, reference.log_det, strict=True)]
                table.add_row(row.estimator, _ratio(row.trace, reference.trace), *cells)
        console.print(table)


def starts(
    task: Annotated[str, typer.Option(help="Such as quadrant-mnist,rotated-mnist,cifar10, which are read from files.")] = (
        "placed-digits,quadrant-digits"
    ),
    data: Annotated[Path | None, typer.Option(help="Folder of the files of MNIST or CIFAR-10.")] = None,
    width: Annotated[int, typer.Option(help="Of the networks.", min=1)] = 4,
    epochs: Annotated[
        int | None, typer.Option(help="50 on embedded digits, others as in ELLA's tables, when not given.", min=1)
    ] = None,
    size: Annotated[int | None, typer.Option(help="Training images; all when not given.", min=20)] = None,
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 2,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="File for the figures.")] = Path("starts.json"),
) -> None:
    """Whether the start decides: networks with a choice from three starts, by evidence and equivariance errors; MAP beside."""
    tasks = [_loaded(name, data, device) for name in task.split(",")]
    with console.status("training") as status:
        rows = list(evidence_study.starts(tasks, width, epochs, size, range(seeds), device, status.update))
    table = Table("task, seed", "start", "method", "−log evidence", "test NLL", "accuracy", "equivariance errors of layers, %")
    for row in rows:
        errors = " ".join(f"{100 * error:.1f}" for error in row.errors)
        figures = f"{-row.log_evidence:.3f} ± {row.standard_error:.3f}", f"{row.test_nll:.3f}", f"{100 * row.accuracy:.1f} %"
        table.add_row(f"{row.task}, {row.seed}", row.start, row.method, *figures, errors)
    console.print(table)
    _write_figures(out, rows)


def ranks(
    epochs: Annotated[int, typer.Option(min=1)] = 40,
    size: Annotated[int, typer.Option(help="Training images.", min=20)] = 500,
    seed: Annotated[int, typer.Option(help="Of data and weights.")] = 0,
    out: Annotated[Path, typer.Option(help="File for the figures.")] = Path("ranks.json"),
) -> None:
    """Whether the evidence ranks small networks as their test loss does: twelve kinds on each of three tasks."""
    with console.status("training") as status:
        rows = list(evidence_study.ranks(epochs, size, seed, status.update))
    table = Table("task", "network", "−log evidence", "test NLL", "accuracy")
    for row in rows:
        figures = f"{-row.log_evidence:.3f} ± {row.standard_error:.3f}", f"{row.test_nll:.3f}", f"{100 * row.accuracy:.1f} %"
        table.add_row(row.task, row.network, *figures)
    console.print(table)
    for task in dict.fromkeys(row.task for row in rows):
        of_task = [row for row in rows if row.task == task]
        found = evidence_study.correlation(of_task)
        console.print(f"{task}: rank correlation {found:.2f} over {len(of_task)} networks", highlight=False)
    console.print(f"all: rank correlation {evidence_study.correlation(rows):.2f}", highlight=False)
    _write_figures(out, rows)


def prune(
    task: Annotated[str, typer.Option(help="Such as mnist, cifar10, or upright-digits, which are embedded.")] = "mnist",
    data: Annotated[Path | None, typer.Option(help="Folder of the files of MNIST or CIFAR-10.")] = None,
    network: Annotated[str, typer.Option(help=f"One of {', '.join(pruning_study.NETWORKS)}.")] = "small",
    units: Annotated[str, typer.Option(help="channels, weights, or both with a comma.")] = ",".join(pruning_study.UNITS),
    size: Annotated[int | None, typer.Option(help="Training images; all when not given.", min=20)] = None,
    epochs: Annotated[int, typer.Option(help="Of training.", min=1)] = 40,
    tuning: Annotated[int, typer.Option(help="Epochs once a network is pruned.", min=1)] = 5,
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 3,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="File for the figures.")] = Path("prune.json"),
) -> None:
    """How far networks can be pruned: by the surgeon and by magnitude, before and after the same tuning."""
    chosen = tuple(units.split(","))
    if network not in pruning_study.NETWORKS or not set(chosen) <= set(pruning_study.UNITS):
        known = f"{', '.join(pruning_study.NETWORKS)} and units {', '.join(pruning_study.UNITS)}"
        raise typer.BadParameter(f"There are networks {known}; got {network} and {units}.")
    some = _loaded(task, data, device, size)
    with console.status("training") as status:
        networks = pruning_study.trained(some, network, epochs, range(seeds), device, status.update)
        rows = list(pruning_study.prunings(some, networks, network, tuning, chosen, status.update))
    accuracy = sum(row.accuracy_of_whole for row in rows) / len(rows)
    title = f"{task}, {network}: {rows[0].whole:,} parameters, accuracy {100 * accuracy:.1f} % without pruning"
    table = Table("kept", "units", "by", "shots", "operations", "accuracy, %", "tuned, %", title=title)
    for cells in pruning_study.means(rows):
        table.add_row(*cells)
    console.print(table)
    _write_figures(out, rows)


def structure(
    task: Annotated[str, typer.Option(help="cifar10, or placed-digits, which are embedded.")] = "cifar10",
    data: Annotated[Path | None, typer.Option(help="Folder of the files of CIFAR-10.")] = None,
    width: Annotated[int, typer.Option(help="Channels of the first stage.", min=1)] = 16,
    blocks: Annotated[str, typer.Option(help="Of each stage.")] = "2,4,2",
    size: Annotated[int | None, typer.Option(help="Training images; all when not given.", min=20)] = None,
    epochs: Annotated[int, typer.Option(help="Of training.", min=1)] = 40,
    tuning: Annotated[int, typer.Option(help="Epochs once a network is hardened.", min=0)] = 10,
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="File for the figures.")] = Path("structure.json"),
) -> None:
    """Whether matrices become convolutions: a fully connected network, relaxed, learned and hardened."""
    some = _loaded(task, data, device, size)
    try:
        stages = whole_numbers("blocks", blocks.split(","))
        structure_study.fully_connected(some, 1, stages)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with console.status("training") as status:
        rows = list(structure_study.structures(some, width, stages, epochs, tuning, range(seeds), device, status.update))
    table = Table("seed", "off", "−log evidence", "convolutions", "parameters", "accuracy, %", "tuned, %", "test NLL")
    for row in rows:
        accuracies = " → ".join(f"{100 * value:.2f}" for value in row.accuracy)
        tuned = "–" if row.tuned is None else f"{100 * row.tuned:.2f}"
        table.add_row(
            str(row.seed), f"{row.off:g}", f"{-row.log_evidence:.3f}", f"{row.convolutions} of {row.layers}",
            " → ".join(f"{value:,}" for value in row.parameters), accuracies, tuned,
            " → ".join(f"{value:.3f}" for value in row.nll),
        )  # fmt: skip
    console.print(table)
    _write_figures(out, rows)


def _loaded(task: str, data: Path | None, device: str, size: int | None = None) -> Task:
    """A task, or some of its data; the device is checked, too."""
    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"--data must be a folder; {data} is none. How many images there are is --size.")
    try:
        check_device(device)
        whole = load(task, data)
        return whole if size is None else whole.subset(size)
    except (ValueError, KeyError, OSError) as error:
        raise typer.BadParameter(str(error.args[0] if isinstance(error, KeyError) else error)) from error


def _write_figures(out: Path, rows: Sequence[evidence_study.Trained | pruning_study.Row | structure_study.Row]) -> None:
    code = commit()
    with writing(out):
        write_whole(out, json.dumps([{**asdict(row), "commit": code} for row in rows], indent=1) + "\n")
    console.print(f"{out}", highlight=False)


def illustrate(out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("illustrations")) -> None:
    """Draw how far models learn to be invariant: points in the plane, and filters, as SVG. About four minutes."""
    _draw(draw_illustrations, out)


def gallery(out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("gallery")) -> None:
    """Draw what each parameterisation learns: small networks trained by the evidence, as SVG. About five minutes."""
    _draw(draw_gallery, out)


def _draw(work: Callable[[Path, Progress], list[Path]], out: Path) -> None:
    check_folder(out)
    with writing(out):
        drawn = with_progress(lambda progress: work(out, progress))
    for picture in drawn:
        console.print(f"{picture}", highlight=False)


def _ratio(value: float | None, full: float | None) -> str:
    return "" if value is None or full is None else f"{value:,.0f} (×{value / full:.2f})"
