"""What all commands write with: a console, a bar, tables; and where they write."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar
from uuid import uuid4

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from symbayes.cli.study import Progress
from symbayes.data.folders import locked, remove_folder
from symbayes.errors import BusyError, NotFiniteError
from symbayes.report.page import FigureTable
from symbayes.training.checkpoint import RUNNING, is_checkpoint, parts_of

P = ParamSpec("P")
T = TypeVar("T")
console = Console()
#: The exit code of a command that was stopped by Ctrl-C.
INTERRUPTED = 130


def catch_failures(command: Callable[P, T]) -> Callable[P, T]:
    """Let a command say in a sentence that numbers are not finite, or that another process is in its way, and exit with 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt as error:
            console.print("Stopped.", highlight=False)
            raise typer.Exit(INTERRUPTED) from error
        except (NotFiniteError, BusyError) as error:
            console.print(escape(str(error)), highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error

    return run


def with_progress(work: Callable[[Progress], list[T]]) -> list[T]:
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


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> Table:
    """Columns under bold headings, the first `left` of them flush left."""
    table = Table(box=None, header_style="bold")
    for at, heading in enumerate(headings):
        table.add_column(escape(heading), justify="left" if at < left else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def paper_table(title: str, figures: FigureTable) -> Table:
    """Figures as studies give them, for a terminal; the best are set in bold."""
    table = Table("", title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in figures.columns:
        table.add_column(column.replace(", ", "\n"), justify="right", no_wrap=True)
    for row in figures.rows:
        table.add_row(escape(row.task), *(f"{'[bold]' if cell.best else ''}{cell.value}" for cell in row.cells))
        if any(cell.beneath for cell in row.cells):
            table.add_row("", *(f"[dim]{cell.beneath}[/]" for cell in row.cells))
    return table


#: Options of commands that train in a folder of their own.
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a result that is in the folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted in the folder.")]
CheckpointEvery = Annotated[
    float, typer.Option(help="Seconds from one checkpoint to the next, each after an epoch; 0 for all.", min=0.0)
]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="On a GPU, the same numbers every time; slower.")]
#: Where in the folder of a command training is kept until its result is saved.
CHECKPOINT = "checkpoint"


@contextmanager
def run_folder(out: Path, *, holds: Sequence[str], overwrite: bool, resume: bool) -> Iterator[Path]:
    """The folder of a training, for this process alone; what is there is gone on with or replaced, on request.

    Args:
        out: Made if it is not there.
        holds: Names by which it is known to hold a result.
        overwrite: Whether what is there may be replaced.
        resume: Whether training may go on from what is there.

    Returns:
        Where training is kept until its result is saved.

    Raises:
        BusyError: If another process has the folder.
    """
    if overwrite and resume:
        raise typer.BadParameter("--resume goes on from what --overwrite would replace; use one of them.")
    check_folder(out)
    with locked(out / RUNNING, f"Another process is at work in {out}. Wait until it ends, or name another folder."):
        checkpoint = out / CHECKPOINT
        begun = any(map(is_checkpoint, parts_of(checkpoint)))
        if begun and not (overwrite or resume):
            raise typer.BadParameter(
                f"{out} holds a training that was interrupted ({CHECKPOINT}). Go on with it: --resume. Or begin anew: "
                "--overwrite."
            )
        check_folder(out, holds=() if begun else holds, overwrite=overwrite)
        if not begun or overwrite:
            remove_folder(checkpoint)
        if resume:
            said = "Going on from its checkpoint." if begun else "There is no checkpoint to go on from: training begins."
            console.print(f"{out}: {said}", highlight=False, soft_wrap=True)
        yield checkpoint


def stopped(out: Path) -> typer.Exit:
    """What to raise after a command was stopped, and its partial result saved."""
    console.print(
        f"Stopped. The partial result is in {out}; the same command with --resume goes on.", highlight=False, soft_wrap=True
    )
    return typer.Exit(INTERRUPTED)


def check_folder(out: Path, option: str = "--out", *, holds: Sequence[str] = (), overwrite: bool = False) -> None:
    """Refuse a folder that cannot be made or written to, or that holds what would be lost; one that is not there is made.

    Args:
        out: The folder.
        option: By which it was given.
        holds: Names that may not be in it.
        overwrite: Unless they may.
    """
    with _refusing(f"{option} must be a folder that can be made and written to, got {out}"):
        there = [name for name in holds if (out / name).exists()]
        if there and not overwrite:
            raise typer.BadParameter(
                f"{out} holds a result already ({there[0]}). Name another folder, or replace it: --overwrite."
            )
        _try(out / f".{uuid4().hex}")


def check_page(out: Path) -> None:
    """Refuse a page that is a folder or a device, or in a folder that cannot be written to, which is made."""
    with _refusing(f"--out must be a page (a file) that can be written, got {out}"):
        if out.exists() and not out.is_file():
            raise typer.BadParameter(f"--out must be a page (a file), got {out}, which is none. Name one, such as report.html.")
        _try(out.with_name(f".{out.name}.{uuid4().hex}"))


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say what could not be written, and end."""
    try:
        yield
    except OSError as error:
        words = f"{out} could not be written: {error.strerror or error}. No file is half written. Make room, or name another."
        console.print(escape(words), highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def _refusing(must: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{must}: {error.strerror or error}. Name another.") from error


def _try(probe: Path) -> None:
    """Write a file as others will be written, and take it away."""
    probe.parent.mkdir(parents=True, exist_ok=True)
    try:
        probe.write_bytes(b"\0")
    finally:
        probe.unlink(missing_ok=True)
