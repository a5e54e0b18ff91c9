"""What all commands write with: a console, a bar, and tables."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from symbayes.experiments.study import Progress

T = TypeVar("T")
console = Console()


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


def print_markdown(text: str) -> None:
    """Paragraphs and tables; cells are broken between words, and never within them: tables may be wider than the terminal."""
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        if not lines[0].startswith("|"):
            console.print(escape(block) + "\n", highlight=False)
            continue
        headings, _, *rows = ([cell.strip().replace("**", "") for cell in line[1:-1].split("|")] for line in lines)
        table, needed = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0)), 2
        for index, column in enumerate(zip(headings, *rows, strict=True)):
            parts = column if index == 0 else " ".join(column).split()
            width = max(len(part) for part in parts)
            table.add_column(escape(column[0]), no_wrap=index == 0, justify="right" if index else "left", min_width=width)
            needed += width + 2
        for row in rows:
            table.add_row(*map(escape, row))
        Console(width=max(console.width, needed)).print(table, soft_wrap=needed > console.width)


def paper_table(title: str, figures: dict[str, Any]) -> Table:
    """Figures as studies give them, for a terminal; the best are set in bold."""
    table = Table("", title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in figures["columns"]:
        table.add_column(str(column).replace(", ", "\n"), justify="right", no_wrap=True)
    for row in figures["rows"]:
        cells = row["cells"]
        table.add_row(escape(str(row["task"])), *(f"{'[bold]' if cell['best'] else ''}{cell['value']}" for cell in cells))
        if any(cell["beneath"] for cell in cells):
            table.add_row("", *(f"[dim]{cell['beneath']}[/]" for cell in cells))
    return table
