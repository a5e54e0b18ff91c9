"""`python -m papers estimators`, `illustrate` and `gallery`: what documents are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from papers.figures import estimators as estimator_study
from papers.figures.gallery import run as draw_gallery
from papers.figures.illustrations import run as draw_illustrations
from symbayes.cli.study import Progress
from symbayes.cli.terminal import check_folder, console, with_progress, writing


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
