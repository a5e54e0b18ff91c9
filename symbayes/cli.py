"""The command line: words to objects, records to a terminal."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from symbayes.data.load import load
from symbayes.evidence.elbo import Elbo
from symbayes.evidence.objective import Laplace, Map, Objective
from symbayes.experiments import estimators as estimator_study
from symbayes.experiments import frequency as frequency_study
from symbayes.experiments import groups as group_study
from symbayes.experiments import inference as inference_study
from symbayes.experiments import invariance as invariance_study
from symbayes.experiments import lila, quadrant, waves
from symbayes.experiments import sequences as sequence_study
from symbayes.experiments import sets as set_study
from symbayes.experiments.filter_table import PAPER as FILTERS
from symbayes.experiments.gallery import run as draw_gallery
from symbayes.experiments.illustrations import run as draw_illustrations
from symbayes.experiments.rows import Options
from symbayes.experiments.study import Progress, Study, page_runs, run_study
from symbayes.models.allconv import allconv
from symbayes.report.comparison import comparison_page
from symbayes.report.invariance import extent_words
from symbayes.report.run import run_page
from symbayes.training.fit import fit as fit_model

_HELP = "Learn the symmetries of neural networks from training data."
app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False)
console = Console()
T = TypeVar("T")
#: Test data on which `fit` looks at calibration: linearised predictions of large networks take a while.
_CALIBRATED = 200
#: The studies that can be demonstrated: how to make one, its settings, and how long it takes.
_DEMOS: dict[str, tuple[Callable[[Any], Study], Callable[..., Any], str]] = {
    "quadrant": (quadrant.study, quadrant.Settings, "About five minutes"),
    "groups": (group_study.study, group_study.Settings, "About four minutes"),
    "sets": (set_study.study, set_study.Settings, "About a minute"),
    "sequences": (sequence_study.study, sequence_study.Settings, "About a minute"),
    "elbo": (inference_study.study, inference_study.Settings, "About five minutes"),
    "invariance": (invariance_study.study, invariance_study.Settings, "About eight minutes"),
    "frequency": (frequency_study.study, waves.Settings, "About two minutes"),
}
#: What `reproduce` knows.
_PAPERS = {"lila": lila.PAPER, "filters": FILTERS}


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    groups: Annotated[bool, typer.Option("--groups", help="Instead: which symmetry? Digits upright, shifted, turned.")] = False,
    sets: Annotated[bool, typer.Option("--sets", help="Instead: a set or a sequence? Eight numbers, two tasks.")] = False,
    sequences: Annotated[bool, typer.Option("--sequences", help="Instead: does position matter, in one dimension?")] = False,
    invariance: Annotated[bool, typer.Option("--invariance", help="Instead: how far? Digits turned, shifted, scaled.")] = False,
    elbo: Annotated[bool, typer.Option("--elbo", help="Instead: by Laplace's method and by variational inference.")] = False,
    frequency: Annotated[bool, typer.Option("--frequency", help="Instead: which frequency? A curve through points.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data in every run.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Channels of the first layer.", min=1)] = None,
    images: Annotated[int | None, typer.Option(help="Training images, with --invariance.", min=10)] = None,
    seed: Annotated[int, typer.Option(help="For initial weights and the order of data.")] = 0,
) -> None:
    """Learn which symmetries a network should have, from training data alone; by default, whether position matters."""
    flags = {
        "groups": groups,
        "sets": sets,
        "sequences": sequences,
        "invariance": invariance,
        "elbo": elbo,
        "frequency": frequency,
    }
    asked = [name for name, flag in flags.items() if flag]
    if len(asked) > 1:
        raise typer.BadParameter(f"{' and '.join(f'--{name}' for name in asked)} are different demos: give one of them.")
    if images is not None and not invariance:
        raise typer.BadParameter("--images is an option of --invariance: the other demos use all the images there are.")
    given = {"epochs": epochs, "width": width, "data": images}
    chosen = {name: value for name, value in given.items() if value is not None}
    make, settings, minutes = _DEMOS[asked[0] if asked else "quadrant"]
    study = make(settings(seed=seed, **chosen))
    usual = "" if chosen else f" {minutes} on two cores."
    console.print(study.about, highlight=False)
    console.print(f"\nTraining {len(study.cells)} networks.{usual}\n", highlight=False)
    started = time.perf_counter()
    outcomes = _with_progress(lambda progress: run_study(study, progress))
    figures = study.table(outcomes)
    console.print(_paper_table(study.title, figures))
    console.print(f"{figures['legend']} {figures['note']}", highlight=False)
    for outcome in outcomes:
        if outcome.has_choice:
            console.print(f"\n[bold]What {outcome.cell.model} learned on: {outcome.cell.task}[/]")
            for sentence in outcome.summary["words"]:
                console.print(f"  {sentence}", highlight=False)
        if outcome.learned_extents:
            console.print(f"\n[bold]How far {outcome.cell} is invariant[/]")
            for extent in outcome.learned_extents:
                truth = study.truths.get(outcome.cell.task, {}).get(extent["name"])
                console.print(f"  {extent_words(extent, truth)}", highlight=False)
    if study.page is not None:
        page = study.page(outcomes)
    else:
        page = comparison_page(study.title, study.about, figures, page_runs(study, outcomes))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    if study.picture is not None:
        out.with_suffix(".svg").write_text(study.picture(outcomes), encoding="utf-8")
    seconds = time.perf_counter() - started
    console.print(f"\n{seconds:.0f} s in all. The page with all curves: {out}", highlight=False)


@app.command()
def fit(
    task: Annotated[
        str,
        typer.Argument(help="placed-digits, quadrant-digits, turned-digits, motifs, …, mnist, cifar10."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the result.")],
    data: Annotated[Path | None, typer.Option(help="Folder that holds the files of mnist or cifar10.")] = None,
    paths: Annotated[
        str, typer.Option(help="Of every block: dense, factored, sparse, conv, sparse_conv, gconv; with commas.")
    ] = "factored,conv",
    group: Annotated[str, typer.Option(help="Of gconv paths: p4, p4m, flips or cube.")] = "p4",
    width: Annotated[int, typer.Option(min=1)] = 10,
    epochs: Annotated[int, typer.Option(min=1)] = 60,
    by: Annotated[str, typer.Option(help="'evidence' by Laplace's method, 'elbo', or 'map' for a fixed prior.")] = "evidence",
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train the paper's network on a task, and save the result with its page."""
    objectives: dict[str, Objective] = {"evidence": Laplace(), "elbo": Elbo(), "map": Map()}
    if by not in objectives:
        raise typer.BadParameter(f"--by must be one of {', '.join(objectives)}, got {by!r}.")
    loaded = load(task, data)
    model = allconv(loaded, paths.split(","), width, group=group, generator=torch.Generator().manual_seed(seed)).to(device)
    console.print(str(loaded), highlight=False)
    console.print(model.description, highlight=False)
    result = fit_model(model, loaded.train, objective=objectives[by], epochs=epochs, seed=seed)
    console.print(result.symmetries)
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.evaluate(loaded.test).items())
    per_datum = result.log_evidence / result.num_data
    console.print(f"test: {metrics}; log evidence {per_datum:.4f} per datum ({result.evidence.estimator})", highlight=False)
    calibration = result.calibration((loaded.test[0][:_CALIBRATED], loaded.test[1][:_CALIBRATED]))
    console.print(calibration)
    result.save(out, calibration)
    console.print(f"Saved to {out}", highlight=False)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Where a result was saved.")]) -> None:
    """Rebuild the page of a saved result."""
    try:
        summary = json.loads((folder / "result.json").read_text())
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise typer.BadParameter(f"{folder} must hold result.json and history.jsonl of a saved result ({error}).") from error
    (folder / "report.html").write_text(run_page(summary, history), encoding="utf-8")
    console.print(f"{folder / 'report.html'}", highlight=False)


@app.command()
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


@app.command()
def illustrate(out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("illustrations")) -> None:
    """Draw how far models learn to be invariant: points in the plane, and filters, as SVG. About four minutes."""
    for picture in _with_progress(lambda progress: draw_illustrations(out, progress)):
        console.print(f"{picture}", highlight=False)


@app.command()
def gallery(out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("gallery")) -> None:
    """Draw what each parameterisation learns: small networks trained by the evidence, as SVG. About five minutes."""
    for picture in _with_progress(lambda progress: draw_gallery(out, progress)):
        console.print(f"{picture}", highlight=False)


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="lila: invariances of networks, against none and Augerino. filters: of weights, by a variational bound."
        ),
    ],
    task: Annotated[str, typer.Option(help="mnist or cifar10; for filters mnist or upright-digits.")],
    out: Annotated[Path, typer.Option(help="File of results; rows of other runs in it are kept.")],
    data: Annotated[Path | None, typer.Option(help="Folder that holds the files of the task.")] = None,
    versions: Annotated[str | None, typer.Option(help="How images are transformed; with commas.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of training images; with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="With commas.")] = None,
    starts: Annotated[str | None, typer.Option(help="First extents, of filters; with commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="With commas.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data, if not as usual.", min=1)] = None,
    samples: Annotated[int | None, typer.Option(help="Transformations, if not as usual.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    commit: Annotated[str, typer.Option(help="Of this code, to be kept with the results.")] = "",
) -> None:
    """Run an experiment of the papers on real data, and keep its figures with the command that made them."""
    if what not in _PAPERS:
        raise typer.BadParameter(f"There are {' and '.join(map(repr, _PAPERS))} to reproduce, got {what!r}.")
    paper = _PAPERS[what]
    given = {"versions": versions, "sizes": sizes, "methods": methods, "starts": starts, "seeds": seeds}
    strange = [name for name, value in given.items() if value is not None and name not in paper.lists]
    if strange:
        raise typer.BadParameter(f"{what} has no {' or '.join(strange)}, only {', '.join(paper.lists)}.")
    lists = {name: given[name] or usual for name, usual in paper.lists.items()}
    try:
        todo = list(paper.rows(task, {name: value.split(",") for name, value in lists.items()}))
        whole = load(task, data)
    except (ValueError, KeyError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if max(row.size for row in todo) > len(whole.train[0]):
        raise typer.BadParameter(
            f"--sizes must be at most {len(whole.train[0])}, the training images of {task}; got {lists['sizes']}."
        )
    words = {"task": task, **lists, "samples": samples, "device": device, "epochs": epochs}
    command = f"symbayes reproduce {what} " + " ".join(
        f"--{name} {value}" for name, value in words.items() if value is not None
    )
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else device
    for index, row in enumerate(todo, start=1):
        found = paper.run(row, whole, Options(samples, epochs, device))
        rows = paper.keep(out, {**found, "command": command, "commit": commit, "machine": machine, "torch": torch.__version__})
        learned = ", ".join(f"{name} {value:.3g}" for name, value in found["extents"].items())
        console.print(
            f"{index}/{len(todo)} {', '.join(str(value) for value in vars(row).values())}: "
            f"{100 * found['accuracy']:.2f} %, {found['seconds']:.0f} s {learned}",
            highlight=False,
        )
    console.print(", ".join(str(file) for file in [out, *paper.write(out, rows)]), highlight=False)


def _with_progress(work: Callable[[Progress], list[T]]) -> list[T]:
    """Work with a bar on a terminal, and with a line now and then where there is none (a file, a log)."""
    started, said = time.perf_counter(), 0.0

    def say(share: float, what: str) -> None:
        nonlocal said
        if share - said >= 0.05:
            said, elapsed = share, time.perf_counter() - started
            left = elapsed * (1 - share) / share
            console.print(f"{100 * share:3.0f} %, {elapsed:.0f} s elapsed, about {left:.0f} s left; {what}", highlight=False)

    if not console.is_terminal:
        return work(say)
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn())
    with Bar(*columns, TextColumn("left; {task.description}"), console=console) as bar:
        task_id = bar.add_task("starting", total=1.0)
        return work(lambda share, what: bar.update(task_id, completed=share, description=what))


def _ratio(value: float | None, full: float | None) -> str:
    return "" if value is None or full is None else f"{value:,.0f} (×{value / full:.2f})"


def _paper_table(title: str, figures: dict[str, Any]) -> Table:
    table = Table("", title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in figures["columns"]:
        table.add_column(str(column).replace(", ", "\n"), justify="right", no_wrap=True)
    for row in figures["rows"]:
        cells = row["cells"]
        table.add_row(str(row["task"]), *(f"{'[bold]' if cell['best'] else ''}{cell['value']}" for cell in cells))
        if any(cell["beneath"] for cell in cells):
            table.add_row("", *(f"[dim]{cell['beneath']}[/]" for cell in cells))
    return table
