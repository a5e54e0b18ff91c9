"""Pages of training runs: of one, and of several side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from symbayes.data.folders import holds
from symbayes.data.storage import DAMAGE, write_whole
from symbayes.dynamics.summary import DISCOVERY, read_discovery
from symbayes.report.calibration import run_calibration, task_calibration
from symbayes.report.discovery import discovery_page
from symbayes.report.invariance import invariance_headline, run_invariance, task_invariance
from symbayes.report.network import drawn_layers
from symbayes.report.page import FigureTable, TableCell, TableRow, embed, render
from symbayes.report.plots import (
    Curve,
    Number,
    Run,
    curves,
    estimates,
    layers,
    path_colours,
    precision_curves,
    share_bars,
    training_curves,
)
from symbayes.text import number, significant
from symbayes.training.convergence import below_map, judge, same_estimator
from symbayes.training.record import Record, Summary, damaged, read_records
from symbayes.training.symmetries import headline, symmetry_words

#: The page of a folder.
PAGE = "report.html"


def make_page(folder: Path) -> str:
    """Make the page of a result or a discovery from what was saved in a folder.

    Raises:
        FileNotFoundError: If the folder holds neither.
        ValueError: If what it holds is damaged.
    """
    found = read_discovery(folder) if holds(folder, DISCOVERY) else read_records(folder)
    try:
        return run_page(*found) if isinstance(found, tuple) else discovery_page(found)
    except DAMAGE as error:  # each part is what it should be, and they do not go together
        raise damaged(folder, error) from error


def write_page(folder: Path) -> None:
    """Leave the page that `make_page` makes in the folder itself."""
    write_whole(folder / PAGE, make_page(folder))


def run_page(summary: Summary, history: Sequence[Record], *, truth: Mapping[str, Number] | None = None) -> str:
    """The page of one training run, which opens offline: its evidence, what was learned, and how it got there.

    Args:
        summary: What was found; words are made anew from its figures, since earlier ones claimed too much.
        history: The records of training, one for each epoch.
        truth: How far data were in fact transformed, by the names of extents, where it is known.
    """
    rows = summary.symmetries
    curve = Curve("run", history, summary.num_data)
    colours = path_colours((row.layer, row.path) for row in rows)
    return render(
        "run.html",
        summary=summary,
        converged=judge(history, summary.num_data, is_partial=summary.is_partial, floor=summary.floor),
        headline=headline(rows) or invariance_headline(summary.extents) or _worth(summary),
        network_layers=drawn_layers(rows, colours),
        colours=colours,
        layers=layers(rows),
        words=symmetry_words(rows, summary.evidence.effective),
        history=history,
        decisions=[(record.epoch, record.decision) for record in history if record.decision is not None],
        estimates=len(estimates(history)[0]),
        shares=embed(share_bars(rows, colours), "shares", label="shares of the paths of every layer"),
        curves=embed(training_curves([curve]), "curves", label="loss and log evidence over epochs"),
        invariance=run_invariance(summary, history, truth),
        calibration=run_calibration(summary),
        precisions=embed(precision_curves(history, rows), "precisions", label="prior precisions over epochs"),
    )


def _worth(summary: Summary) -> str:
    """What the model is worth on data that were held out, in a sentence; empty if that is not known."""
    found = summary.held_out
    if found is None:
        return ""
    name, value = next(iter(found.metrics.items()))
    return f"{name[:1].upper()}{name[1:]} {_written(name, value)} on {number(found.num_data)} data that were held out."


def comparison_page(title: str, about: str, table: FigureTable, runs: Sequence[Run]) -> str:
    """The page of a comparison, which opens offline: a table, what the learned models chose, and how all of them trained.

    Args:
        title: Of the page.
        about: What is compared, in a few sentences.
        table: Tasks by models.
        runs: What the table was made of.
    """
    chosen = [run for run in runs if run.learned and run.objective in ("evidence", run.model)]
    colours = path_colours((f"{at} {row.layer}", row.path) for at, run in enumerate(chosen) for row in run.summary.symmetries)
    learned = []
    for index, run in enumerate(chosen):
        rows, effective = run.summary.symmetries, run.summary.evidence.effective
        shares = embed(share_bars(rows, colours), f"shares{index}", label="shares of the paths of every layer")
        learned.append((run, headline(rows), drawn_layers(rows, colours), symmetry_words(rows, effective), shares))
    by_task: dict[str, list[tuple[Run, Curve]]] = {}
    for run, curve in zip(runs, curves(runs), strict=True):
        by_task.setdefault(run.task, []).append((run, curve))
    drawn = {task: [curve for _, curve in found] for task, found in by_task.items()}
    invariances = {
        task: task_invariance([run for run, _ in found], drawn[task], f"extents{index}")
        for index, (task, found) in enumerate(by_task.items())
    }
    calibrations = {
        task: task_calibration([run for run, _ in found], drawn[task], f"reliability{index}")
        for index, (task, found) in enumerate(by_task.items())
    }
    return render(
        "comparison.html",
        title=title,
        about=about,
        table=table,
        learned=learned,
        colours=colours,
        plots={task: embed(training_curves(found), f"curves{index}") for index, (task, found) in enumerate(drawn.items())},
        invariances={task: found for task, found in invariances.items() if found},
        calibrations={task: found for task, found in calibrations.items() if found},
        doubts=_doubts(runs),
        estimators=list(dict.fromkeys(run.summary.evidence.estimator for run in runs)),
    )


def side_by_side(folders: Sequence[Path]) -> str:
    """The page of several results that were saved, a column for each.

    Raises:
        FileNotFoundError: If a folder holds none.
        ValueError: If one is damaged.
    """
    names = [folder.name for folder in folders]
    named = [str(folder) if names.count(folder.name) > 1 else folder.name for folder in folders]
    found = [read_records(folder) for folder in folders]
    runs = [
        Run("all runs", name, name, any(row.relaxes for row in summary.symmetries), summary, history)
        for name, (summary, history) in zip(named, found, strict=True)
    ]
    summaries = [summary for summary, _ in found]
    metrics = dict.fromkeys(name for one in summaries if one.held_out is not None for name in one.held_out.metrics)
    rows = [
        _figures(name, [None if one.held_out is None else one.held_out.metrics.get(name) for one in summaries])
        for name in metrics
    ]
    doubt = _apart(summaries)
    rows.append(_figures("log evidence per datum", [one.evidence.total / one.num_data for one in summaries], mark=not doubt))
    rows.append(TableRow("converged", tuple(TableCell("yes" if not _reasons(run) else "no") for run in runs)))
    legend = f"Metrics are of data that were held out, where they were saved. {doubt}".strip()
    table = FigureTable(tuple(named), tuple(rows), legend=legend, heading="")
    return comparison_page(f"{len(runs)} runs side by side", "", table, runs)


def _apart(summaries: Sequence[Summary]) -> str:
    """Why evidences of runs are not to be compared; empty if they are."""
    if len({one.num_data for one in summaries}) > 1:
        return "Runs have learned from different data: their evidences are not to be compared."
    first = summaries[0].evidence
    if any(not same_estimator(first, one.evidence) for one in summaries):
        return "Evidences are by different estimators, and not to be compared."
    return ""


def _figures(name: str, values: Sequence[float | None], *, mark: bool = True) -> TableRow:
    """A line of the table, the best of which is marked: the most of accuracy and evidence, the least of all else."""
    known = [value for value in values if value is not None]
    best = max(known) if "accuracy" in name or "evidence" in name else min(known)
    cells = (TableCell("–" if one is None else _written(name, one), best=mark and one == best) for one in values)
    return TableRow(name, tuple(cells))


def _written(name: str, value: float) -> str:
    return f"{number(100 * value, 1)} %" if name == "accuracy" else significant(value, 4)


def _reasons(run: Run) -> list[str]:
    summary = run.summary
    found = judge(run.history, summary.num_data, is_partial=summary.is_partial, floor=summary.floor)
    return list(found.reasons)


def _doubts(runs: Sequence[Run]) -> list[str]:
    """What speaks against runs: that they have not converged, or that learning by the evidence ended below MAP."""
    said = []
    for run in runs:
        summary, reasons = run.summary, _reasons(run)
        others = [
            other.summary.evidence
            for other in runs
            if (other.task, other.model, other.objective) == (run.task, run.model, "MAP")
        ]
        if run.objective == "evidence" and any(below_map(summary.evidence, other) for other in others):
            reasons.append("its evidence is below that of MAP, so that learning by it has failed")
        if reasons:
            name = run.model if run.objective == run.model else f"{run.model} by {run.objective} on {run.task}"
            said.append(f"{name}: {'; '.join(reasons)}")
    return said
