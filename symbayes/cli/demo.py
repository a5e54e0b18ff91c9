"""`symbayes demo`: ELLA's Table 1 on embedded digits: which digit, and in which quadrant, by FC, CONV and F-FC+CONV."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from symbayes.cli.study import Cell, EachEpoch, Outcome, Study, accuracy_table, page_runs, run_problem, run_study
from symbayes.cli.terminal import check_page, console, paper_table, with_progress, writing
from symbayes.data.load import load
from symbayes.data.source import as_source
from symbayes.data.storage import write_together
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.priors import TensorwisePrior
from symbayes.report.invariance import extent_words
from symbayes.report.page import FigureTable
from symbayes.report.runs import comparison_page
from symbayes.training.fit import preset
from symbayes.training.trainer import Problem

TASKS = {"digit": "placed-digits", "digit and quadrant": "quadrant-digits"}
MODELS = {"FC": ("dense",), "CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
OBJECTIVES = ("MAP", "evidence")
_COST = {"FC": 1.3, "CONV": 1.0, "F-FC+CONV": 2.6, "MAP": 1.0, "evidence": 2.0}
_ABOUT = (
    "Three models learn two tasks on small digits that stand somewhere on a larger canvas: to say which digit it is, or which "
    "digit and in which quadrant of the canvas. CONV shares its weights over positions, so it cannot see where a digit is; FC "
    "has no symmetry, and must learn each position by itself. The learned model has both kinds of path in every layer and "
    "chooses between them, layer by layer, from the training data alone. It should share weights over positions on the first "
    "task, and not in every layer on the second."
)


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 50
    width: int = 4
    seed: int = 0


def study(settings: Settings) -> Study:
    """The table to be made."""
    cells = [
        Cell(task, model, objective, settings.seed, _COST[model] * _COST[objective])
        for task in TASKS
        for objective in OBJECTIVES
        for model in MODELS
    ]
    title = "Does position matter? Learned from training data"
    return Study(title, _ABOUT, cells, partial(run_cell, settings), table)


def run_cell(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """Train one cell as `sb.fit` does, or by MAP, and evaluate it; the evidence at the end is by one rule for all cells."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(cell.seed)
    model = allconv(task, MODELS[cell.model], settings.width, generator=generator)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    usual = preset(problem, epochs=settings.epochs)
    usual = usual.by_map() if cell.objective == "MAP" else usual
    trainer = usual.objective.trainer(problem, usual.schedule, usual.optimiser)
    return run_problem(cell, trainer, task.test, generator, each_epoch)


def table(outcomes: list[Outcome]) -> FigureTable:
    """The outcomes as the table of the paper: a row for each task, a column for each model and objective."""
    return accuracy_table(outcomes, [(model, objective) for objective in OBJECTIVES for model in MODELS])


def demo(
    out: Annotated[Path, typer.Option(help="Page (a file); replaced if it is there.")] = Path("report.html"),
    epochs: Annotated[int | None, typer.Option(help="Passes over the data in every run.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Of the first layer.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="For initial weights and the order of data.")] = 0,
) -> None:
    """Learn whether position matters to a network, layer by layer, from training data alone."""
    given = {"epochs": epochs, "width": width}
    chosen = {name: value for name, value in given.items() if value is not None}
    show_study(study(Settings(seed=seed, **chosen)), out, "" if chosen else "About eight minutes")


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
    console.print(f"\n{seconds:.0f} s in all. The page: {out}", highlight=False)
