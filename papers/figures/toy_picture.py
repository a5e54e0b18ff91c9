"""The picture of points in the plane: classes by extents that are fixed and learned, and how they were learned."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from papers.drawing import ENDED, NEGATIVE, POSITIVE, SCANNED, TEXT, Numbers, bare, card, diverging, drawn, pairs, plain
from symbayes.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"evidence": "#009E73", "training loss": "#CC79A7"}
_ANGLES = (0, 45, 90, 135, 180)


@drawn
def picture(found: Numbers) -> "Figure":
    """Four panels side by side with their scores, then extents over epochs, and the evidence over extents."""
    data, extent = len(found["data"]), found["settings"]["extent"]
    figure = card(
        976,
        712,
        "How far should it be invariant to turns?",
        f"{data} points of two classes on three rings; each was turned by up to ±{number(extent)}°. "
        "A perceptron 2–50–2, averaged over turns of its input",
        notes=[
            f"Log evidence by {found['runs'][0]['estimator']}, in nats for each training point. "
            f"Test accuracy of {number(found['settings']['test'])} fresh points; no run was chosen by it.",
            "Panels of what was learned show, of several starts, the run of highest evidence and that of lowest training loss.",
        ],
    )
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.2, 1], hspace=0.04)[:, 0]
    shown = panels(found["runs"])
    for axes, (title, one) in zip(above.subplots(1, len(shown)), shown.items(), strict=True):
        _panel(axes, title, one, found)
    left, right = below.subplots(1, 2)
    _epochs(left, found)
    _evidence(right, found)
    return figure


def panels(runs: Sequence[Numbers]) -> dict[str, Numbers]:
    """The runs that have a panel, by title; of several starts, the one that is best by what it was learned by."""
    fixed = [one for one in runs if one["by"] == "fixed"]
    learned = {by: [one for one in runs if one["by"] == by] for by in _COLOURS}
    return {
        "No invariance": fixed[0],
        "Learned by the training loss": min(learned["training loss"], key=lambda one: one["training"]["loss"]),
        "Learned by the evidence": max(learned["evidence"], key=lambda one: one["log_evidence"]),
        "A full circle, by hand": fixed[-1],
    }


def _panel(axes: "Axes", title: str, one: Numbers, found: Numbers) -> None:
    reach = found["reach"]
    sides = (-reach, reach, -reach, reach)
    pale = diverging(0.55)  # so that points stand out
    axes.imshow(one["surface"], pale, vmin=0, vmax=1, interpolation="bilinear", extent=sides)
    for label, colour in enumerate((NEGATIVE, POSITIVE)):
        points = [(x, y) for x, y, kind in found["data"] if kind == label]
        axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
    bare(axes)
    axes.set_title(title)
    how = "fixed" if one["by"] == "fixed" else f"from {number(one['start'])}°"
    rows = {
        "turns": f"{_turns(one['extent'])}, {how}",
        "log evidence": number(one["log_evidence"], 2),
        "training loss": number(one["training"]["loss"], 3),
        "test accuracy": f"{number(100 * one['test']['accuracy'], 1)} %",
    }
    pairs(axes, rows, ("log evidence", "test accuracy"))


def _turns(extent: float) -> str:
    words = number(extent)
    return "0°" if words in ("0", "−0") else f"±{words}°"


def _epochs(axes: "Axes", found: Numbers) -> None:
    """Extents as they were learned, from every start."""
    axes.axhline(found["settings"]["extent"], color=TEXT, linestyle="--", linewidth=1, label="the data")
    for by, colour in _COLOURS.items():
        runs = [one for one in found["runs"] if one["by"] == by]
        for index, one in enumerate(runs):
            axes.plot([one["start"], *one["history"]], color=colour, label="" if index else f"by the {by}")
    plain(axes, "Extent over epochs, from several starts")
    axes.set(xlim=(0, found["settings"]["epochs"]), ylim=(-2, 182), yticks=_ANGLES, yticklabels=[f"{a}°" for a in _ANGLES])


def _evidence(axes: "Axes", found: Numbers) -> None:
    """The evidence of networks trained at fixed extents, and where learning by the evidence ended."""
    axes.axvline(found["settings"]["extent"], color=TEXT, linestyle="--", linewidth=1)
    fixed, learned = ([one for one in found["runs"] if one["by"] == by] for by in ("fixed", "evidence"))
    axes.plot(*_points(fixed), "o-", **SCANNED, label="trained at a fixed extent")
    axes.plot(*_points(learned), "o", color=_COLOURS["evidence"], **ENDED, label="where learning ended")
    plain(axes, "Log evidence over extents")
    axes.set(xlim=(-3, 183), xticks=_ANGLES, xticklabels=[f"{a}°" for a in _ANGLES])


def _points(runs: Sequence[Numbers]) -> tuple[list[float], list[float]]:
    return [one["extent"] for one in runs], [one["log_evidence"] for one in runs]
