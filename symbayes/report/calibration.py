"""Whether predictions are as sure as they should be: a plot against the diagonal, and scores as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plotly.graph_objects import Figure, Scatter

from symbayes.posterior.predict import Calibration
from symbayes.report.page import embed
from symbayes.report.plots import Curve, CurveRow, Run, label, style
from symbayes.report.svg import PATTERNS
from symbayes.scores import CoverageRow
from symbayes.text import number, significant
from symbayes.training.record import Summary

_DIAGONAL = "#888888"
#: Of the axes, for classes and for values.
_TITLES = {
    "classes": ("confidence (%)", "accuracy (%)"),
    "values": ("level of the interval (%)", "targets inside (%)"),
}
#: By heading: the score, and how it is written.
_SCORES: dict[str, tuple[Callable[[Calibration], float | None], Callable[[float], str]]] = {
    "accuracy": (lambda found: found.accuracy, lambda value: f"{number(100 * value, 1)} %"),
    "calibration error": (lambda found: found.ece, lambda value: f"{number(100 * value, 1)} %"),
    "Brier score": (lambda found: found.brier, lambda value: number(value, 3)),
    "root mean squared error": (lambda found: found.rmse, significant),
    "negative log-likelihood": (lambda found: found.nll, lambda value: number(value, 3)),
    "plug-in": (lambda found: found.nll_plug_in, lambda value: number(value, 3)),
}


def _score(measured: Calibration, heading: str) -> str:
    """A score as it is written; empty where it has none."""
    read, write = _SCORES[heading]
    value = read(measured)
    return "" if value is None else write(value)


@dataclass(frozen=True)
class RunCalibration:
    """What the page of a run shows of its calibration: scores by name, and a plot."""

    of: str
    by: str
    num_data: int
    scores: list[tuple[str, str]]
    plot: str


def run_calibration(summary: Summary) -> RunCalibration | None:
    """Of one run; None where it was not measured."""
    measured = summary.calibration
    if measured is None:
        return None
    scores = [(heading, _score(measured, heading)) for heading in _SCORES if _score(measured, heading)]
    plot = embed(reliability([(Curve("run", [], measured.num_data), measured)]), "reliability", wide=False)
    return RunCalibration(measured.of, measured.by, measured.num_data, scores, plot)


@dataclass(frozen=True)
class TaskCalibration:
    """What the page of a comparison shows of the calibration of one task."""

    columns: list[str]
    rows: list[CurveRow]
    kinds: list[str]
    plots: list[str]


def task_calibration(runs: Sequence[Run], curves: Sequence[Curve], name: str) -> TaskCalibration | None:
    """What the page of a comparison shows of the calibration of one task; None where no run has it.

    Args:
        runs: Of the task, as `comparison_page` takes them.
        curves: How each is drawn.
        name: Of the task, unique in the page.
    """
    pairs = zip(runs, curves, strict=True)
    chosen = [(curve, run.summary.calibration) for run, curve in pairs if run.summary.calibration is not None]
    if not chosen:
        return None
    columns = [heading for heading in _SCORES if any(_score(measured, heading) for _, measured in chosen)]
    rows = [
        CurveRow(
            curve.name, curve.colour, PATTERNS[curve.dash], [_score(measured, heading) for heading in columns], measured.by
        )
        for curve, measured in chosen
    ]
    kinds = list(dict.fromkeys(str(measured.of) for _, measured in chosen))
    plots = [reliability([pair for pair in chosen if pair[1].of == kind]) for kind in kinds]
    return TaskCalibration(
        columns, rows, kinds, [embed(plot, f"{name}_{index}", wide=False) for index, plot in enumerate(plots)]
    )


def reliability(chosen: Sequence[tuple[Curve, Calibration]]) -> Figure:
    """How often predictions hold against how often they say they do; calibrated ones lie on the diagonal.

    A dot for every bin of confidence, of an area that grows with the predictions in it; or for every level of intervals.
    """
    figure = Figure()
    ends = [0, 100]
    diagonal = {"color": _DIAGONAL, "dash": "5px,4px", "width": 1.5}
    figure.add_trace(Scatter(x=ends, y=ends, mode="lines", line=diagonal, showlegend=False, hoverinfo="skip"))
    for curve, measured in chosen:
        said, held = ("level", "coverage") if measured.of == "values" else ("confidence", "accuracy")
        points = [
            (row.level, row.coverage, 0) if isinstance(row, CoverageRow) else (row.confidence, row.accuracy, row.count)
            for row in measured.rows
        ]
        counts = [count for *_, count in points]
        total = sum(counts)
        words = f"%{{x:.1f}} % {said}, %{{y:.1f}} % {held}" + ("<br>%{customdata:,} predictions" if total else "")
        figure.add_trace(
            Scatter(
                x=[100 * x for x, *_ in points],
                y=[100 * y for _, y, _ in points],
                customdata=counts,
                name=label(curve.name),
                mode="lines+markers",
                line={"color": curve.colour, "dash": curve.dash, "width": 2},
                marker={
                    "color": curve.colour,
                    "size": [5 + 20 * (count / total) ** 0.5 for count in counts] if total else 8,
                    "opacity": 0.7,
                    "line": {"color": "white", "width": 1},
                },
                hovertemplate=words,
            )
        )
    style(figure, 440)
    x, y = _TITLES[chosen[0][1].of]
    axis = {"range": [-2, 102], "dtick": 20, "tick0": 0, "fixedrange": True}
    figure.update_xaxes(title=x, **axis)
    figure.update_yaxes(title=y, **axis)
    several = len(chosen) > 1
    figure.update_layout(showlegend=several, margin={"t": 50 if several else 16})
    return figure
