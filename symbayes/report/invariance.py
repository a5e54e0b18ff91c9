"""How far models are invariant: extents in words, in tables and over epochs, and data under the learned transformations."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import PIL.Image
from plotly.graph_objects import Figure, Scatter

from symbayes.invariance.extents import ExtentSummary
from symbayes.invariance.orbit_average import Image
from symbayes.report.page import embed
from symbayes.report.plots import Curve, CurveRow, Number, Run, label, style
from symbayes.report.svg import PATTERNS
from symbayes.text import listed, number
from symbayes.training.live import Live
from symbayes.training.record import Record, Summary

_TRUTH = "#666666"
#: By unit: decimals, and what a panel shows at least, so that noise around zero looks as small as it is.
_DECIMALS = {"°": 1, "px": 2, "%": 1}
_LEAST = {"°": 10.0, "px": 1.0, "%": 10.0}
#: Steps between the ticks of angles.
_DEGREES = (2, 5, 15, 30, 45, 90)
#: Pillow's names for the kind of colour, by channels.
_MODES = {1: "L", 3: "RGB"}
#: By unit: extents below are little, and are not named where what was learned is said in a sentence.
_LITTLE = {"°": 2.0, "px": 0.25, "%": 5.0}
_OTHERWISE = 0.02
#: An extent that is so near to its bound is at it.
_AT_BOUND = 0.999


@dataclass(frozen=True)
class RunInvariance:
    """What the page of a run shows of its extents: sentences, captions and figures, whether the truth is known, and images."""

    words: list[str]
    panels: list[tuple[str, str]]
    truth: bool
    orbits: list[list[str]]


def run_invariance(
    summary: Summary | Live, history: Sequence[Record], truth: Mapping[str, Number] | None = None
) -> RunInvariance | None:
    """Of one run; None where it has no extents."""
    extents = summary.extents
    if not extents:
        return None
    known = truth or {}
    return RunInvariance(
        [extent_words(extent, known.get(extent.name)) for extent in extents],
        _panels([Curve("extent", history, summary.num_data)], extents, known, "extents"),
        any(extent.name in known for extent in extents),
        _pictures(summary),
    )


@dataclass(frozen=True)
class TaskInvariance:
    """What the page of a comparison shows of the extents of one task; images by the name of a run."""

    columns: list[str]
    rows: list[CurveRow]
    panels: list[tuple[str, str]]
    orbits: list[tuple[str, list[list[str]]]]


def task_invariance(runs: Sequence[Run], curves: Sequence[Curve], name: str) -> TaskInvariance | None:
    """What the page of a comparison shows of the extents of one task; None where no run has some.

    Args:
        runs: Of the task, as `comparison_page` takes them.
        curves: How each is drawn.
        name: Of the task, unique in the page.
    """
    chosen = [(run, curve) for run, curve in zip(runs, curves, strict=True) if run.summary.extents]
    if not chosen:
        return None
    extents = {extent.name: extent for run, _ in chosen for extent in run.summary.extents}
    truth = {extent: value for run in reversed(runs) for extent, value in run.truth.items() if extent in extents}
    rows = []
    for run, curve in chosen:
        found = {extent.name: amount(extent.value, extent.unit) for extent in run.summary.extents}
        cells = [found.get(extent, "") for extent in extents]
        rows.append(CurveRow(curve.name, curve.colour, PATTERNS[curve.dash], cells))
    if truth:
        cells = [amount(truth[extent], extents[extent].unit, short=True) if extent in truth else "" for extent in extents]
        rows.append(CurveRow("truth", _TRUTH, "5 4", cells))
    learned = [
        (run, curve) for run, curve in chosen if run.objective == "evidence" and _move(run.history) and _pictures(run.summary)
    ]
    return TaskInvariance(
        [extent_name(extent) for extent in extents],
        rows,
        _panels([curve for _, curve in chosen], list(extents.values()), truth, name),
        [(curve.name, _pictures(run.summary)) for run, curve in learned],
    )


def extent_words(extent: ExtentSummary, truth: Number | None = None) -> str:
    """An extent as a sentence: how far, to which side, and whether it could go no further."""
    value, unit = extent.value, extent.unit
    least = 10.0 ** -_decimals(unit)
    words = f"up to {amount(value, unit)} to either side"
    if abs(value) < least / 2:
        words = f"not at all (less than {amount(least, unit)})"
    elif extent.is_probability:
        words = f"with a probability of {amount(value, unit)}"
    elif extent.one_sided:
        words = f"from 0 to {amount(value, unit)}"
    if extent.bound is not None and abs(value) >= _AT_BOUND * extent.bound:
        words += ", at its bound"
    known = "" if truth is None else f" (truth: {amount(truth, unit, short=True)})"
    return f"{extent_name(extent.name)}: {words}{known}"


def invariance_headline(extents: Sequence[ExtentSummary]) -> str:
    """What was learned of all extents, in a sentence; empty where none was learned."""
    learned = [extent for extent in extents if extent.learned]
    if not learned:
        return ""
    large = [extent for extent in learned if abs(extent.value) >= _LITTLE.get(extent.unit, _OTHERWISE)]
    names, units = [extent_name(one.name) for one in learned], dict.fromkeys(one.unit for one in learned if one not in large)
    below = f"below {listed([amount(_LITTLE.get(unit, _OTHERWISE), unit, short=True) for unit in units])}" if units else ""
    if not large:
        return f"The data ask for no augmentation by {listed(names)} ({below})."
    rest = f"; all else is little ({below})" if below else ""
    return f"The data ask for augmentation by {listed([extent_words(one).replace(':', '', 1) for one in large])}{rest}."


def extent_name(name: str) -> str:
    """The name of an extent as people write it: "translation x"; what stands before a dot is a module's, and stays."""
    module, dot, last = name.rpartition(".")
    return f"{module}{dot}{last.replace('_', ' ').replace('+', ' + ')}"


def amount(value: Number, unit: str, *, short: bool = False) -> str:
    """A number with its unit; without zeros at the end where it is to be short."""
    digits = number(round(value, _decimals(unit)) + 0.0, _decimals(unit))  # no minus before a zero
    shown = digits.rstrip("0").rstrip(".") if short else digits
    return f"{shown}{'' if unit in ('', '°') else ' '}{unit}"


def kept_extents(history: Sequence[Record]) -> tuple[list[Record], int]:
    """The records with extents, and the index of the one whose state was kept.

    Where an earlier state was restored at the end, the last record repeats its extents, and is left out.
    """
    found = [record for record in history if record.extents]
    if not found:
        return [], 0
    first = next(index for index, record in enumerate(found) if record.extents == found[-1].extents)
    restored = any(record.extents != found[-1].extents for record in found[first:])
    return (found[:-1], first) if restored else (found, len(found) - 1)


def extent_panel(curves: Sequence[Curve], extent: ExtentSummary, truth: Number | None = None) -> Figure:
    """One extent over epochs: a line for every curve that has it, a diamond where its state was kept, and the truth dashed."""
    name, unit = extent.name, extent.unit
    suffix = "" if not unit else unit if unit == "°" else f" {unit}"
    figure, seen = Figure(), [] if truth is None else [truth]
    for curve in curves:
        records, index = kept_extents(curve.history)
        points = [(record.epoch, record.extents[name]) for record in records if name in record.extents]
        if not points:
            continue
        seen += [value for _, value in points]
        look = {"name": label(curve.name), "legendgroup": curve.name, "showlegend": False}
        look["hovertemplate"] = f"%{{y:.{_decimals(unit)}f}}{label(suffix)}"
        line = {"color": curve.colour, "dash": curve.dash, "width": 2}
        figure.add_trace(Scatter(x=[x for x, _ in points], y=[y for _, y in points], mode="lines", line=line, **look))
        kept = [(x, y) for x, y in points if x == records[index].epoch]
        diamond = {"color": curve.colour, "size": 9, "symbol": "diamond"}
        look["hoverinfo"], look["hovertemplate"] = "skip", None
        figure.add_trace(Scatter(x=[x for x, _ in kept], y=[y for _, y in kept], mode="markers", marker=diamond, **look))
    style(figure, 220)
    low, high = min([0.0, *seen]), max([_LEAST.get(unit, 0.0), *seen])
    room = 0.07 * (high - low) or 1.0
    axis = {"range": [low - room, high + room], "fixedrange": True, "nticks": 6}
    if unit == "°":
        axis |= {"ticksuffix": "°", "dtick": next((step for step in _DEGREES if high - low <= 5 * step), 90), "tick0": 0}
    figure.update_yaxes(**axis)
    figure.update_xaxes(title={"text": "epoch", "font": {"size": 12}, "standoff": 4}, fixedrange=True, nticks=7, tickformat="d")
    right = 12
    if truth is not None:
        right = 52
        figure.add_hline(y=truth, line={"color": _TRUTH, "dash": "5px,4px", "width": 1.5})
        place = {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 4, "y": truth, "yanchor": "middle", "showarrow": False}
        words = f"truth<br>{label(amount(truth, unit, short=True))}"
        figure.add_annotation(text=words, align="left", font={"size": 11, "color": "#555555"}, **place)
    figure.update_layout(
        font={"size": 12},
        margin={"l": 40, "r": right, "t": 10, "b": 40},
        hovermode="x unified" if len(curves) > 1 else "closest",
        hoverlabel={"font": {"size": 11}},
    )
    return figure


def _panels(
    curves: Sequence[Curve], extents: Sequence[ExtentSummary], truth: Mapping[str, Number], name: str
) -> list[tuple[str, str]]:
    """Captions and figures, one for each extent."""
    found = []
    for index, extent in enumerate(extents):
        caption = extent_name(extent.name) + (f" ({extent.unit})" if extent.unit else "")
        found.append((caption, embed(extent_panel(curves, extent, truth.get(extent.name)), f"{name}_{index}", wide=False)))
    return found


def data_uri(image: Image) -> str:
    """An image as the source of an `img` that loads nothing.

    Raises:
        ValueError: If it has other channels, or more or fewer pixels than it says.
    """
    width, height, channels = image.width, image.height, image.channels
    if channels not in _MODES:
        raise ValueError(f"An image must have 1 channel (grey) or 3 (red, green, blue), got {channels}.")
    pixels, file = b64decode(image.pixels, validate=True), BytesIO()
    if width < 1 or height < 1 or len(pixels) != width * height * channels:
        raise ValueError(f"An image of {width} × {height} × {channels} must have as many bytes of pixels, got {len(pixels)}.")
    PIL.Image.frombytes(_MODES[channels], (width, height), pixels).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode('ascii')}"


def _pictures(summary: Summary | Live) -> list[list[str]]:
    """Rows of images, as their sources; the first of a row is the datum itself."""
    return [[data_uri(image) for image in row] for row in summary.orbits if row]


def _move(history: Sequence[Record]) -> bool:
    """Whether extents were learned; a fixed guess stays what it is."""
    records, _ = kept_extents(history)
    return any(record.extents != records[0].extents for record in records)


def _decimals(unit: str) -> int:
    return _DECIMALS.get(unit, 3)
