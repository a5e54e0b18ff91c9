"""`symbayes demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from symbayes.cli import quadrant
from symbayes.cli.study import Study, page_runs, run_study
from symbayes.cli.terminal import check_page, console, paper_table, with_progress, writing
from symbayes.data.storage import write_together
from symbayes.report.invariance import extent_words
from symbayes.report.runs import comparison_page


def demo(
    out: Annotated[Path, typer.Option(help="Page (a file); replaced if it is there.")] = Path("report.html"),
    epochs: Annotated[int | None, typer.Option(help="Passes over the data in every run.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Of the first layer.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="For initial weights and the order of data.")] = 0,
) -> None:
    """Learn whether position matters to a network, layer by layer, from training data alone."""
    given = {"epochs": epochs, "width": width}
    chosen = {name: value for name, value in given.items() if value is not None}
    show_study(quadrant.study(quadrant.Settings(seed=seed, **chosen)), out, "" if chosen else "About five minutes")


def show_study(study: Study, out: Path, minutes: str) -> None:
    """Run a study, print its table, and write its page.

    Args:
        study: What there is to run.
        out: The page.
        minutes: How long it takes on two cores; empty where that is not known.
    """
    check_page(out)
    picture = out.with_suffix(".svg")
    if study.picture is not None:
        if picture == out:
            raise typer.BadParameter(f"--out must be a page, got {out}: the picture beside it is written there. Name another.")
        check_page(picture)
    usual = f" {minutes} on two cores." if minutes else ""
    console.print(study.about, highlight=False)
    console.print(f"\nTraining {len(study.cells)} networks.{usual}\n", highlight=False)
    started = time.perf_counter()
    outcomes = with_progress(lambda progress: run_study(study, progress))
    figures = study.table(outcomes)
    console.print(paper_table(study.title, figures))
    console.print(" ".join(filter(None, [figures.outcome, figures.legend, figures.note])), highlight=False)
    for outcome in outcomes:
        if outcome.has_choice:
            console.print(f"\n[bold]What {outcome.cell.model} learned on: {outcome.cell.task}[/]")
            for sentence in outcome.words:
                console.print(f"  {sentence}", highlight=False)
        if outcome.learned_extents:
            console.print(f"\n[bold]How far {outcome.cell} is invariant[/]")
            for extent in outcome.learned_extents:
                truth = study.truths.get(outcome.cell.task, {}).get(extent.name)
                console.print(f"  {extent_words(extent, truth)}", highlight=False)
    if study.page is not None:
        page = study.page(outcomes)
    else:
        page = comparison_page(study.title, study.about, figures, page_runs(study, outcomes))
    with writing(out):
        write_together({out: page} | ({} if study.picture is None else {picture: study.picture(outcomes)}))
    seconds = time.perf_counter() - started
    console.print(f"\n{seconds:.0f} s in all. The page with all curves: {out}", highlight=False)
