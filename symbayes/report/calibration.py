"""Whether predictions are as sure as they should be: a plot against the diagonal, and scores as a table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plotly.graph_objects import Figure, Scatter

from symbayes.report.page import embed, number, significant
from symbayes.report.plots import PATTERNS, Curve, label, style

#: As `Calibration` is in a summary.
Measured = Mapping[str, Any]

_DIAGONAL = "#888888"
#: Of the axes, for classes and for values.
_TITLES = {
    "classes": ("confidence (%)", "accuracy (%)"),
    "values": ("level of the interval (%)", "targets inside (%)"),
}
#: By field of `Calibration`: the heading, and how the number is written.
_SCORES: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", lambda value: f"{number(100 * value, 1)} %"),
    "ece": ("calibration error", lambda value: f"{number(100 * value, 1)} %"),
    "brier": ("Brier score", lambda value: number(value, 3)),
    "rmse": ("root mean squared error", significant),
    "nll": ("negative log-likelihood", lambda value: number(value, 3)),
}


def run_calibration(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the page of a run shows of its calibration; None where it was not measured."""
    measured = summary.get("calibration")
    if not measured:
        return None
    return {
        "of": measured["of"],
        "by": measured["by"],
        "num_data": measured["num_data"],
        "scores": [(heading, write(measured[key])) for key, (heading, write) in _SCORES.items() if measured[key] is not None],
        "plot": embed(reliability([(Curve("run", [], measured["num_data"]), measured)]), "reliability", buttons=False),
    }


def task_calibration(runs: Sequence[Mapping[str, Any]], curves: Sequence[Curve], name: str) -> dict[str, Any] | None:
    """What the page of a comparison shows of the calibration of one task; None where no run has it.

    Args:
        runs: Of the task, as `comparison_page` takes them.
        curves: How each is drawn.
        name: Of the task, unique in the page.
    """
    pairs = zip(runs, curves, strict=True)
    chosen = [(curve, run["summary"]["calibration"]) for run, curve in pairs if run["summary"].get("calibration")]
    if not chosen:
        return None
    keys = [key for key in _SCORES if any(measured[key] is not None for _, measured in chosen)]
    rows = []
    for curve, measured in chosen:
        cells = ["" if measured[key] is None else _SCORES[key][1](measured[key]) for key in keys]
        look = {"name": curve.name, "colour": curve.colour, "pattern": PATTERNS[curve.dash]}
        rows.append({**look, "cells": cells, "by": measured["by"]})
    kinds = list(dict.fromkeys(measured["of"] for _, measured in chosen))
    plots = [reliability([pair for pair in chosen if pair[1]["of"] == kind]) for kind in kinds]
    return {
        "columns": [_SCORES[key][0] for key in keys],
        "rows": rows,
        "kinds": kinds,
        "plots": [embed(plot, f"{name}_{index}", buttons=False) for index, plot in enumerate(plots)],
    }


def reliability(chosen: Sequence[tuple[Curve, Measured]]) -> Figure:
    """How often predictions hold against how often they say they do; calibrated ones lie on the diagonal.

    A dot for every bin of confidence, of an area that grows with the predictions in it; or for every level of intervals.
    """
    figure = Figure()
    ends = [0, 100]
    diagonal = {"color": _DIAGONAL, "dash": "5px,4px", "width": 1.5}
    figure.add_trace(Scatter(x=ends, y=ends, mode="lines", line=diagonal, showlegend=False, hoverinfo="skip"))
    for curve, measured in chosen:
        said, held = ("level", "coverage") if measured["of"] == "values" else ("confidence", "accuracy")
        rows = measured["rows"]
        counts = [row.get("count", 0) for row in rows]
        total = sum(counts)
        words = f"%{{x:.1f}} % {said}, %{{y:.1f}} % {held}" + ("<br>%{customdata:,} predictions" if total else "")
        figure.add_trace(
            Scatter(
                x=[100 * row[said] for row in rows],
                y=[100 * row[held] for row in rows],
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
    x, y = _TITLES[chosen[0][1]["of"]]
    axis = {"range": [-2, 102], "dtick": 20, "tick0": 0, "fixedrange": True}
    figure.update_xaxes(title=x, **axis)
    figure.update_yaxes(title=y, **axis)
    several = len(chosen) > 1
    figure.update_layout(showlegend=several, margin={"t": 50 if several else 16})
    return figure
