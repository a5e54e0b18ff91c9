"""The command line: words to objects, records to a terminal."""

import typer

from symbayes.cli.demo import demo
from symbayes.cli.discover import discover
from symbayes.cli.download import download
from symbayes.cli.fit import fit, report
from symbayes.cli.pictures import estimators, gallery, illustrate
from symbayes.cli.reproduce import reproduce

_HELP = "Learn the symmetries of neural networks from training data."
app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False)
for command in (demo, fit, discover, report, estimators, illustrate, gallery, download, reproduce):
    app.command()(command)
