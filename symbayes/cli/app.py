"""The command line: words to objects, records to a terminal."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

import symbayes
from symbayes.cli.demo import demo
from symbayes.cli.discover import discover
from symbayes.cli.doctor import doctor
from symbayes.cli.fit import fit, report
from symbayes.cli.plan import plan
from symbayes.cli.terminal import catch_failures, check_folder, console
from symbayes.cli.watch import watch
from symbayes.data.files import download as fetch

app = typer.Typer(no_args_is_help=True, add_completion=True)


def download(
    name: Annotated[str, typer.Argument(help="mnist (11 MB) or cifar10 (170 MB).")],
    to: Annotated[Path, typer.Option(help="Folder for the files; made if it is not there.")],
    address: Annotated[str | None, typer.Option(help="Of another place that holds the same files.")] = None,
) -> None:
    """Fetch MNIST or CIFAR-10 from where they are published; files are checked, and whole ones are not fetched again."""
    check_folder(to, "--to")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bars: dict[str, TaskID] = {}

        def show(part: str, here: int, whole: int) -> None:
            if part not in bars:
                bars[part] = bar.add_task(part, total=whole or None)
            bar.update(bars[part], completed=here)

        try:
            paths = fetch(name, to, show, address)
        except (KeyError, OSError, ValueError) as error:
            raise typer.BadParameter(str(error.args[0] if isinstance(error, KeyError) else error)) from error
    console.print(f"{len(paths)} files of {name} are in {paths[0].parent}", highlight=False)


for command in (demo, fit, plan, discover, report, watch, download, doctor):
    app.command()(catch_failures(command))


def _say_version(asked: bool) -> bool:
    if asked:
        console.print(f"symbayes {symbayes.__version__}, torch {torch.__version__}", highlight=False)
        raise typer.Exit
    return asked


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which this is.")
    ] = False,
) -> None:
    """Learn the symmetries of neural networks from training data."""
