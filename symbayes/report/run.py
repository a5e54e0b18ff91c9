"""The page of one training run: its evidence, what was learned, and how it got there."""

from collections.abc import Mapping, Sequence
from typing import Any

from symbayes.report.calibration import run_calibration
from symbayes.report.invariance import run_invariance
from symbayes.report.page import embed, render
from symbayes.report.plots import Curve, estimates, layers, path_colours, precision_curves, share_bars, training_curves
from symbayes.report.svg import Number
from symbayes.training.verdicts import symmetry_words


def run_page(summary: dict[str, Any], history: Sequence[dict[str, Any]], *, truth: Mapping[str, Number] | None = None) -> str:
    """A page that opens offline.

    Args:
        summary: What `Result.summary` returns; words are made anew from its figures, since earlier ones claimed too much.
        history: The records of training as dictionaries, one for each epoch.
        truth: How far data were in fact transformed, by the names of extents, where it is known.
    """
    rows = summary["symmetries"]
    curve = Curve("run", history, summary["num_data"])
    return render(
        "run.html",
        summary=summary,
        layers=layers(rows),
        words=symmetry_words(rows, summary["evidence"]["effective"]),
        history=history,
        estimates=len(estimates(history)[0]),
        shares=embed(share_bars(rows, path_colours(rows)), "shares"),
        curves=embed(training_curves([curve]), "curves"),
        invariance=run_invariance(summary, history, truth),
        calibration=run_calibration(summary),
        precisions=embed(precision_curves(history, rows), "precisions"),
    )
