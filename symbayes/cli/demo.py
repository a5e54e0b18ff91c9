"""`symbayes demo`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from symbayes.cli.out import check_page, writing
from symbayes.cli.terminal import console, paper_table, with_progress
from symbayes.data.whole import write_together
from symbayes.experiments import conserved as conserved_study
from symbayes.experiments import frequency as frequency_study
from symbayes.experiments import groups as group_study
from symbayes.experiments import inference as inference_study
from symbayes.experiments import invariance as invariance_study
from symbayes.experiments import quadrant, waves
from symbayes.experiments import sequences as sequence_study
from symbayes.experiments import sets as set_study
from symbayes.experiments.study import Study, page_runs, run_study
from symbayes.report.comparison import comparison_page
from symbayes.report.invariance import extent_words

#: The studies that can be demonstrated: how to make one, its settings, and how long it takes.
_DEMOS: dict[str, tuple[Callable[[Any], Study], Callable[..., Any], str]] = {
    "quadrant": (quadrant.study, quadrant.Settings, "About five minutes"),
    "groups": (group_study.study, group_study.Settings, "About four minutes"),
    "sets": (set_study.study, set_study.Settings, "About a minute"),
    "sequences": (sequence_study.study, sequence_study.Settings, "About a minute"),
    "elbo": (inference_study.study, inference_study.Settings, "About five minutes"),
    "invariance": (invariance_study.study, invariance_study.Settings, "About eight minutes"),
    "frequency": (frequency_study.study, waves.Settings, "About two minutes"),
    "conserved": (conserved_study.study, conserved_study.Settings, "About three minutes"),
}


def demo(
    out: Annotated[Path, typer.Option(help="Page (a file); replaced if it is there.")] = Path("report.html"),
    groups: Annotated[bool, typer.Option("--groups", help="Instead: which symmetry? Digits upright, shifted, turned.")] = False,
    sets: Annotated[bool, typer.Option("--sets", help="Instead: a set or a sequence? Eight numbers, two tasks.")] = False,
    sequences: Annotated[bool, typer.Option("--sequences", help="Instead: does position matter, in one dimension?")] = False,
    invariance: Annotated[bool, typer.Option("--invariance", help="Instead: how far? Digits turned, shifted, scaled.")] = False,
    elbo: Annotated[bool, typer.Option("--elbo", help="Instead: by Laplace's method and by variational inference.")] = False,
    frequency: Annotated[bool, typer.Option("--frequency", help="Instead: which frequency? A curve through points.")] = False,
    conserved: Annotated[bool, typer.Option("--conserved", help="Instead: what is conserved? Oscillators in motion.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data in every run.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Of the first layer; with --conserved, of hidden ones.", min=1)] = None,
    images: Annotated[int | None, typer.Option(help="Training images, with --invariance.", min=10)] = None,
    seed: Annotated[int, typer.Option(help="For initial weights and the order of data.")] = 0,
) -> None:
    """Learn which symmetries a network should have, from training data alone; by default, whether position matters."""
    flags = {
        "groups": groups,
        "sets": sets,
        "sequences": sequences,
        "invariance": invariance,
        "elbo": elbo,
        "frequency": frequency,
        "conserved": conserved,
    }
    asked = [name for name, flag in flags.items() if flag]
    if len(asked) > 1:
        raise typer.BadParameter(f"{' and '.join(f'--{name}' for name in asked)} are different demos: give one of them.")
    if images is not None and not invariance:
        raise typer.BadParameter("--images is an option of --invariance: the other demos use all the images there are.")
    given = {"epochs": epochs, "width": width, "data": images}
    chosen = {name: value for name, value in given.items() if value is not None}
    make, settings, minutes = _DEMOS[asked[0] if asked else "quadrant"]
    study = make(settings(seed=seed, **chosen))
    check_page(out)
    picture = out.with_suffix(".svg")
    if study.picture is not None:
        if picture == out:
            raise typer.BadParameter(f"--out must be a page, got {out}: the picture beside it is written there. Name another.")
        check_page(picture)
    usual = "" if chosen else f" {minutes} on two cores."
    console.print(study.about, highlight=False)
    console.print(f"\nTraining {len(study.cells)} networks.{usual}\n", highlight=False)
    started = time.perf_counter()
    outcomes = with_progress(lambda progress: run_study(study, progress))
    figures = study.table(outcomes)
    console.print(paper_table(study.title, figures))
    console.print(" ".join(filter(None, [figures["outcome"], figures["legend"], figures["note"]])), highlight=False)
    for outcome in outcomes:
        if outcome.has_choice:
            console.print(f"\n[bold]What {outcome.cell.model} learned on: {outcome.cell.task}[/]")
            for sentence in outcome.summary["words"]:
                console.print(f"  {sentence}", highlight=False)
        if outcome.learned_extents:
            console.print(f"\n[bold]How far {outcome.cell} is invariant[/]")
            for extent in outcome.learned_extents:
                truth = study.truths.get(outcome.cell.task, {}).get(extent["name"])
                console.print(f"  {extent_words(extent, truth)}", highlight=False)
    if study.page is not None:
        page = study.page(outcomes)
    else:
        page = comparison_page(study.title, study.about, figures, page_runs(study, outcomes))
    with writing(out):
        write_together({out: page} | ({} if study.picture is None else {picture: study.picture(outcomes)}))
    seconds = time.perf_counter() - started
    console.print(f"\n{seconds:.0f} s in all. The page with all curves: {out}", highlight=False)
