"""`python -m papers table1` and others: experiments of the papers, row by row."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from papers import runs as provenance
from papers.cluster import parse_cluster, run_on_cluster
from papers.data import check_files
from papers.rows import Figures, Options, Paper, TextTable
from papers.runs import FAILED, differences, read_run, run_folder
from papers.tables import PAPERS, assemble, collect, perform
from symbayes.cli.terminal import INTERRUPTED, check_folder, console, writing
from symbayes.cli.workers import DiedError, Ended, run_apart
from symbayes.data.folders import locked
from symbayes.data.storage import DAMAGE, error_words
from symbayes.dynamics.discover import check_device
from symbayes.errors import BusyError

#: The lock of a row, and what is said of one that another process has.
RUNNING, BUSY = ".running", "another process is at work on it; it is left to that"

#: Where jobs of a cluster say what they do, in the folder of runs.
JOBS = "jobs"


def reproduction(what: str) -> Callable[..., None]:
    """The command that runs an experiment of the papers row by row, and sets its figures beside theirs."""
    paper = PAPERS[what]

    def run(
        data: Annotated[Path | None, typer.Option(help="Folder of data sets, as symbayes download fills it.")] = None,
        out: Annotated[Path | None, typer.Option(help="Folder of runs, one for each row; runs/<what> when not given.")] = None,
        task: Annotated[str | None, typer.Option(help="Data sets, or systems of conserved; with commas, as all lists.")] = None,
        rows: Annotated[str | None, typer.Option(help="Of the tables, such as conv,f-fc+conv; of table3: data sets.")] = None,
        versions: Annotated[str | None, typer.Option(help="How images are transformed.")] = None,
        sizes: Annotated[str | None, typer.Option(help="Numbers of training images, or of trajectories.")] = None,
        methods: Annotated[str | None, typer.Option(help="map and evidence, of the tables.")] = None,
        starts: Annotated[str | None, typer.Option(help="First extents, of filters.")] = None,
        noises: Annotated[str | None, typer.Option(help="Of laws, as shares of the spread of each coordinate.")] = None,
        seeds: Annotated[str | None, typer.Option()] = None,
        epochs: Annotated[int | None, typer.Option(help="Passes over the data, if not as usual.", min=1)] = None,
        samples: Annotated[int | None, typer.Option(help="Transformations, if not as usual.", min=1)] = None,
        width: Annotated[int | None, typer.Option(help="Of the network, if not as usual.", min=1)] = None,
        device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
        jobs: Annotated[int, typer.Option(help="Rows at once, each in a process.", min=1)] = 1,
        cluster: Annotated[
            str | None,
            typer.Option(
                help="Rows as jobs, by submitit: local, slurm, or with settings, slurm:gpus_per_node=1,timeout_min=600."
            ),
        ] = None,
        resume: Annotated[
            bool, typer.Option("--resume", help="Skip rows that are finished in the folder of runs, and go on with others.")
        ] = False,
        checkpoint_every: Annotated[
            float, typer.Option(help="Seconds from one checkpoint of a row to the next; 0 for all epochs.", min=0.0)
        ] = 60.0,
        into: Annotated[
            Path | None,
            typer.Option("--collect", help="Run nothing; add the runs there are to results in this folder, such as docs."),
        ] = None,
        commit: Annotated[
            str | None, typer.Option(help="Of this code, to be kept with figures; asked of git if not given.")
        ] = None,
        machine: Annotated[
            str | None, typer.Option(help="What computes, and who shares it, to be kept with figures; found out if not given.")
        ] = None,
    ) -> None:
        out = out or Path("runs") / what
        if into is not None:
            if out.is_dir():  # or there is nothing to collect
                check_folder(into, "--collect")
            _show(paper, into, lambda: collect(what, out, into))
            return
        given = {"task": task, "rows": rows, "versions": versions, "sizes": sizes, "methods": methods, "starts": starts}
        lists = _lists(what, paper, given | {"noises": noises, "seeds": seeds})
        try:
            if cluster is None:
                check_device(device)
            else:
                parse_cluster(cluster)
            rows_of = paper.rows({name: [word.strip() for word in value.split(",")] for name, value in lists.items()})
            todo = list(dict.fromkeys(rows_of))
            for name in dict.fromkeys(row.task for row in todo) if paper.reads_files else ():
                check_files(name, data)
        except (ValueError, KeyError, OSError) as error:
            raise typer.BadParameter(str(error.args[0] if isinstance(error, KeyError) else error)) from error
        check_folder(out)
        chosen = {"data": "FOLDER" if data else None, "epochs": epochs, "samples": samples, "width": width, "device": device}
        words = [f"--{name} {value}" for name, value in (lists | chosen).items() if value is not None]
        stamp = {
            "command": " ".join(["python -m papers", what, *words]),
            "commit": provenance.commit() if commit is None else commit,
            "machine": provenance.machine(device) if machine is None else machine,
            "torch": torch.__version__,
        }
        options = Options(
            samples, epochs, width, device, progress=jobs == 1 and cluster is None, checkpoint_every=checkpoint_every
        )
        failed = 0
        if resume:
            todo = [row for row in todo if not _is_finished(paper, row, out, options)]
        attempts = {row: (what, row, options, data, out, stamp, resume) for row in todo}
        try:
            for index, (row, found) in enumerate(_perform(attempts, jobs, cluster, out), start=1):
                failed += isinstance(found, str) and found != BUSY
                said = found if isinstance(found, str) else paper.words(found)
                console.print(f"{index}/{len(todo)} {escape(_name(row))}: {escape(said)}", highlight=False, soft_wrap=True)
        except KeyboardInterrupt as error:
            console.print("Stopped; the same command with --resume goes on.", highlight=False, soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from error
        _show(paper, out, lambda: assemble(what, out))
        if failed:
            console.print(
                f"{failed} of {len(todo)} rows failed; the same command with --resume tries them again.",
                highlight=False,
                soft_wrap=True,
            )
            raise typer.Exit(1)

    run.__doc__ = f"{paper.title}: run row by row, and set beside the paper's figures."
    return run


def _lists(what: str, paper: Paper, given: Mapping[str, str | None]) -> dict[str, str]:
    strange = [name for name, value in given.items() if value is not None and name not in paper.lists]
    if strange:
        raise typer.BadParameter(f"{what} has no {' or '.join(strange)}, only {', '.join(paper.lists)}.")
    return {name: given[name] or usual for name, usual in paper.lists.items()}


def _name(row: Any) -> str:
    parts = {field.name: getattr(row, field.name) for field in fields(row)}
    return ", ".join(f"seed {value}" if name == "seed" else str(value) for name, value in parts.items() if value is not None)


def _is_finished(paper: Paper, row: Any, out: Path, options: Options) -> bool:
    """Whether a row is finished, as it is asked for; if not so, what is there is said."""
    try:
        found = read_run(run_folder(out, row), paper)
    except ValueError as error:
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        return False
    if found is None:
        return False
    changed = differences(found, options, paper.settings(row, options))
    said = f"finished before with other {', '.join(changed)}; to be run again" if changed else "finished before"
    console.print(f"{escape(_name(row))}: {said}", highlight=False, soft_wrap=True)
    return not changed


def _perform(
    attempts: Mapping[Any, tuple[Any, ...]], jobs: int, cluster: str | None, out: Path
) -> Iterator[tuple[Any, Figures | str]]:
    """Rows with their figures, or with what went wrong, as they come; one whose process died goes on once."""
    if jobs == 1 and cluster is None:
        for row, words in attempts.items():
            yield row, _attempt(*words)
        return
    died: dict[Any, tuple[Any, ...]] = {}
    for todo, again in ((attempts, True), (died, False)):
        for news in _elsewhere(todo, jobs, cluster, out):
            if again and isinstance(news.error, DiedError):
                console.print(f"{escape(_name(news.task))}: {news.error}; it will go on.", highlight=False, soft_wrap=True)
                died[news.task] = (*attempts[news.task][:-1], True)
            else:
                yield news.task, news.value if news.error is None else f"failed: {news.error}"


def _elsewhere(attempts: Mapping[Any, tuple[Any, ...]], jobs: int, cluster: str | None, out: Path) -> Iterator[Ended[Any]]:
    """Rows in other processes: of a cluster, or of this machine."""
    if cluster is not None:
        yield from run_on_cluster(_attempt, attempts, cluster, out / JOBS)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    for news in run_apart(_attempt_apart, attempts, jobs, threads):
        if isinstance(news, Ended):
            yield news


def _attempt_apart(tell: Callable[[Any], None], *words: Any) -> Figures | str:
    return _attempt(*words)


def _attempt(
    what: str, row: Any, options: Options, data: Path | None, out: Path, stamp: Mapping[str, Any], resume: bool
) -> Figures | str:
    """A row, unless another process has finished it meanwhile; if it fails others go on, and why is left in its folder."""
    paper, folder = PAPERS[what], run_folder(out, row)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / RUNNING, BUSY):
            return _attempt_alone(paper, what, row, options, data, out, stamp, resume)
    except BusyError as error:
        return str(error)
    except Exception as error:
        trouble = folder / FAILED
        try:
            trouble.write_text(traceback.format_exc(), encoding="utf-8")
        except OSError:  # there may be no such folder
            return f"failed: {error}"
        return f"failed: {error} ({trouble})"


def _attempt_alone(
    paper: Paper, what: str, row: Any, options: Options, data: Path | None, out: Path, stamp: Mapping[str, Any], resume: bool
) -> Figures:
    folder = run_folder(out, row)
    try:
        found = read_run(folder, paper) if resume else None
    except ValueError:
        found = None
    if found is not None and not differences(found, options, paper.settings(row, options)):
        return found
    return perform(what, row, options, data, out, stamp, resume=resume)


def _show(paper: Paper, out: Path, tabulate: Callable[[], tuple[list[Figures], list[Path], list[str]]]) -> None:
    """Write a table and print it, or say why there is none."""
    try:
        with writing(out):
            figures, written, damaged = tabulate()
    except DAMAGE as error:
        raise typer.BadParameter(f"{error_words(error)}.") from error
    for words in damaged:
        console.print(escape(words), highlight=False, soft_wrap=True)
    console.print(paper.title, style="bold")
    print_table(paper.table(figures))
    console.print(", ".join(str(path) for path in written), highlight=False, soft_wrap=True)


def print_table(content: TextTable) -> None:
    """A table and its notes; cells are broken between words, and never within them: it may be wider than the terminal."""
    table, needed = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0)), 2
    for index, column in enumerate(zip(content.headings, *content.rows, strict=True)):
        parts = column if index == 0 else " ".join(column).split()
        width = max(len(part) for part in parts)
        table.add_column(escape(column[0]), no_wrap=index == 0, justify="right" if index else "left", min_width=width)
        needed += width + 2
    escaped = replace(content, rows=[[escape(cell) for cell in row] for row in content.rows])
    for row in escaped.marked("[bold]", "[/]"):
        table.add_row(*row)
    Console(width=max(console.width, needed)).print(table, soft_wrap=needed > console.width)
    for note in content.notes:
        console.print(escape(note) + "\n", highlight=False)
