"""A study: a table whose cells are training runs, each on its own in a process, and what was learned in them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from torch import Generator

from symbayes.cli.workers import Ended, run_apart
from symbayes.data.source import Data
from symbayes.invariance.extents import ExtentSummary
from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.report.plots import Run
from symbayes.training.fit import learn
from symbayes.training.record import Record, Summary
from symbayes.training.symmetries import USED, broken_layers
from symbayes.training.trainer import Trainer


@dataclass(frozen=True)
class Cell:
    """One run: a task, a model, and how its prior is treated ("MAP" or "evidence")."""

    task: str
    model: str
    objective: str = "evidence"
    seed: int = 0
    #: Relative to other cells, to order them and to say how long the rest will take.
    cost: float = field(default=1.0, compare=False)

    def __str__(self) -> str:
        return f"{self.model} by {self.objective} on {self.task}"


@dataclass(frozen=True)
class Outcome:
    """What a cell gave.

    Args:
        cell: That was run.
        metrics: On test data.
        summary: Of its result, where it has one.
        history: Of its training.
        words: What was learned, a sentence each.
        found: What a study of its own kind keeps, where its cells give something else than a result.
    """

    cell: Cell
    metrics: dict[str, float]
    summary: Summary | None = None
    history: tuple[Record, ...] = ()
    words: tuple[str, ...] = ()
    found: Any = None

    @property
    def result(self) -> Summary:
        """The summary of its result.

        Raises:
            ValueError: If it has none.
        """
        if self.summary is None:
            raise ValueError(f"{self.cell} gave no result of training. Its study must make its own table and page.")
        return self.summary

    @property
    def log_evidence(self) -> float:
        """Per training datum."""
        return self.result.evidence.total / self.result.num_data

    @property
    def has_choice(self) -> bool:
        """Whether its layers could choose between paths, and learned to by the evidence."""
        return self.cell.objective == "evidence" and bool(self.words)

    @property
    def learned_extents(self) -> list[ExtentSummary]:
        """How far its model is invariant, if that was learned by the evidence."""
        extents = self.summary.extents if self.summary is not None else ()
        return [extent for extent in extents if extent.learned and self.cell.objective == "evidence"]


#: Called after every epoch of a run.
EachEpoch = Callable[[Record], None]
#: Called with the share of all work that is done, and what was just being trained.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Study:
    """What there is to run, and to say of it.

    Args:
        title: Of the page.
        about: What is asked and expected, in a few sentences: not what comes out, which is not known before.
        cells: In the order of the table.
        work: Runs one cell; it must be possible to pickle.
        table: Outcomes as the page and the terminal show them.
        truths: The extents of invariance that should be learned, by task and name, where they are known.
        page: Makes the page of outcomes, where it is not that of a comparison.
        picture: Makes a picture of them as SVG, to lie beside the page.
    """

    title: str
    about: str
    cells: list[Cell]
    work: Callable[[Cell, EachEpoch], Outcome]
    table: Callable[[list[Outcome]], FigureTable]
    truths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    page: Callable[[list[Outcome]], str] | None = None
    picture: Callable[[list[Outcome]], str] | None = None


def run_problem(
    cell: Cell,
    trainer: Trainer[Any],
    test: Data,
    generator: Generator,
    each_epoch: EachEpoch,
    *,
    calibrated_on: Data | None = None,
) -> Outcome:
    """Train as a cell asks for, and evaluate it; and say whether its predictive distribution is calibrated, on some data."""
    result = learn(trainer, generator=generator, each_epoch=each_epoch)
    summary = result.summary(None if calibrated_on is None else result.calibration(calibrated_on, samples=32))
    return Outcome(cell, result.evaluate(test, by="plug-in"), summary, result.history, summary.words)


def run_study(study: Study, progress: Progress, workers: int | None = None) -> list[Outcome]:
    """All cells, the costly ones first, in as many processes as there are cores; outcomes in the order of the table."""
    todo = sorted(study.cells, key=lambda cell: -cell.cost)
    total, outcomes = sum(cell.cost for cell in todo), dict[Cell, Outcome]()
    done: dict[Cell, float] = dict.fromkeys(todo, 0.0)
    jobs = workers or min(len(todo), os.cpu_count() or 1)
    for news in run_apart(_run_cell, {cell: (study.work, cell) for cell in todo}, jobs):
        if isinstance(news, Ended):
            if news.error is not None:
                raise news.error
            outcomes[news.task] = news.value
            continue
        done[news.task] = news.what
        progress(sum(cell.cost * share for cell, share in done.items()) / total, str(news.task))
    progress(1.0, "done")
    return [outcomes[cell] for cell in study.cells]


def _run_cell(tell: Callable[[float], None], work: Callable[[Cell, EachEpoch], Outcome], cell: Cell) -> Outcome:
    return work(cell, lambda record: tell(record.epoch / (record.epochs + 1)))


def accuracy_table(outcomes: list[Outcome], columns: Sequence[tuple[str, str]]) -> FigureTable:
    """A row for each task and a column for each model and objective: test accuracy, in bold the best, if some are worse."""
    rows = []
    for task in dict.fromkeys(outcome.cell.task for outcome in outcomes):
        found = {(o.cell.model, o.cell.objective): o for o in outcomes if o.cell.task == task}
        scores = [outcome.metrics["accuracy"] for outcome in found.values()]
        cells = [
            TableCell(
                f"{100 * found[column].metrics['accuracy']:.1f} %",
                f"{found[column].log_evidence:.2f}",
                min(scores) < found[column].metrics["accuracy"] == max(scores),
            )
            for column in columns
        ]
        rows.append(TableRow(task, tuple(cells)))
    estimator = outcomes[0].result.evidence.estimator
    return FigureTable(
        tuple(f"{model}, {objective}" for model, objective in columns),
        tuple(rows),
        outcome=broken_words(outcomes),
        legend="Test accuracy, and beneath it the log evidence in nats per training image.",
        note=f"Log evidence by {estimator}, for every model at the weights and precisions kept.",
    )


def model_table(outcomes: list[Outcome], write: Callable[[list[Outcome]], tuple[str, str]], legend: str) -> FigureTable:
    """A row for each task and a column for each model, over seeds; the best of a row has the highest evidence.

    Args:
        outcomes: Of all cells.
        write: The value of a cell, and what stands beneath it after the evidence, from the outcomes of its seeds.
        legend: What the two are.
    """
    by_place: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        by_place.setdefault(outcome.cell.task, {}).setdefault(outcome.cell.model, []).append(outcome)
    rows = []
    for task, by_model in by_place.items():
        evidence = {model: mean(outcome.log_evidence for outcome in runs) for model, runs in by_model.items()}
        cells = []
        for model, runs in by_model.items():
            value, beneath = write(runs)
            best = evidence[model] == max(evidence.values())
            cells.append(TableCell(value, f"{evidence[model]:.2f}, {beneath}", best))
        rows.append(TableRow(task, tuple(cells)))
    return FigureTable(
        tuple(next(iter(by_place.values()))),
        tuple(rows),
        outcome=broken_words(outcomes),
        legend=f"{legend} The highest evidence of a row is set in bold.",
        note=f"Log evidence by {outcomes[0].result.evidence.estimator}.",
    )


def broken_words(outcomes: Sequence[Outcome]) -> str:
    """In how many layers of each model that had a choice a symmetry is broken, over seeds; empty where none had."""
    found: dict[str, list[tuple[int, int]]] = {}
    for outcome in outcomes:
        if outcome.has_choice:
            broken, layers = broken_layers(outcome.result.symmetries)
            found.setdefault(f"{outcome.cell.model} on {outcome.cell.task}", []).append((len(broken), layers))
    parts = [f"{', '.join(str(broken) for broken, _ in of)} of {of[0][1]} in {name}" for name, of in found.items()]
    return f"Layers in which a tensor of γ above {USED} breaks a symmetry: {'; '.join(parts)}." if parts else ""


def page_runs(study: Study, outcomes: list[Outcome]) -> list[Run]:
    """The outcomes as the page wants them."""
    return [
        Run(
            outcome.cell.task,
            outcome.cell.model,
            outcome.cell.objective,
            outcome.has_choice,
            outcome.result,
            outcome.history,
            study.truths.get(outcome.cell.task, {}),
        )
        for outcome in outcomes
    ]
