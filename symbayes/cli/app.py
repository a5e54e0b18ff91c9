"""The command line: words to objects, records to a terminal."""

from typing import Annotated

import torch
import typer

import symbayes
from symbayes.cli.demo import demo
from symbayes.cli.discover import discover
from symbayes.cli.download import download
from symbayes.cli.fit import fit, report
from symbayes.cli.terminal import console

app = typer.Typer(no_args_is_help=True, add_completion=False)
for command in (demo, fit, discover, report, download):
    app.command()(command)


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
