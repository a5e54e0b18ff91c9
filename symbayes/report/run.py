"""The page of one training run: its evidence, what was learned, and how it got there."""

from collections.abc import Sequence
from typing import Any

from symbayes.report.page import embed, render
from symbayes.report.plots import Curve, estimates, layers, path_colours, precision_curves, share_bars, training_curves


def run_page(summary: dict[str, Any], history: Sequence[dict[str, Any]]) -> str:
    """A page that opens offline.

    Args:
        summary: What `Result.summary` returns.
        history: The records of training as dictionaries, one for each epoch.
    """
    rows = summary["symmetries"]
    curve = Curve("run", history, summary["num_data"])
    return render(
        "run.html",
        summary=summary,
        layers=layers(rows),
        history=history,
        estimates=len(estimates(history)[0]),
        shares=embed(share_bars(rows, path_colours(rows)), "shares"),
        curves=embed(training_curves([curve]), "curves"),
        precisions=embed(precision_curves(history, rows), "precisions"),
    )
