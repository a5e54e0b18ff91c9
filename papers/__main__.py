"""`python -m papers`: the tables of the papers on the real data, demos beside the main one, and the pictures of documents."""

from importlib.util import find_spec

import typer

from papers.demos.command import demo
from papers.figures.commands import estimators, gallery, illustrate, prune, ranks, starts, structure
from papers.reproduce import reproduction
from papers.tables import PAPERS
from symbayes.cli.terminal import catch_failures

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def check() -> None:
    """What the papers show, made again."""
    if find_spec("matplotlib") is None:  # said before hours of training, not after
        raise typer.BadParameter("Pictures are drawn by matplotlib, which is not installed: pip install -e '.[papers]'.")


for name in PAPERS:
    app.command(name)(catch_failures(reproduction(name)))
for command in (demo, estimators, starts, ranks, prune, structure, illustrate, gallery):
    app.command()(catch_failures(command))

if __name__ == "__main__":
    app()
