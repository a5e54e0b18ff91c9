"""`python -m papers`: the tables of the papers on the real data, demos beside the main one, and the pictures of documents."""

import typer

from papers.demos.command import demo
from papers.figures.commands import estimators, gallery, illustrate
from papers.reproduce import reproduction
from papers.tables import PAPERS
from symbayes.cli.terminal import catch_divergence

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What the papers show, made again.")
for name in PAPERS:
    app.command(name)(catch_divergence(reproduction(name)))
for command in (demo, estimators, illustrate, gallery):
    app.command()(catch_divergence(command))

if __name__ == "__main__":
    app()
