"""The picture of points in the plane: classes by extents that are fixed and learned, and how they were learned."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import Any

from symbayes.invariance.orbit_average import Image
from symbayes.report.images import data_uri
from symbayes.report.svg import FAINT, LINE, NEGATIVE, POSITIVE, TEXT, Card
from symbayes.text import number

Numbers = Mapping[str, Any]

_WIDTH, _LEFT, _SIDE, _STEP, _TOP = 976, 24, 214, 238, 100
#: The two plots below the panels: where they are, and how large.
_PLOT_TOP, _PLOT_HEIGHT, _PLOT_WIDTH, _PLOTS = 450, 170, 400, (62, 552)
_COLOURS = {"evidence": "#009E73", "training loss": "#CC79A7"}


def picture(found: Numbers) -> str:
    """Four panels side by side with their scores, then extents over epochs, and the evidence over extents."""
    data, extent = len(found["data"]), found["settings"]["extent"]
    subtitle = (
        f"{data} points of two classes on three rings; each was turned by up to ±{number(extent)}°. "
        "A perceptron 2–50–2, averaged over turns of its input"
    )
    card = Card(_WIDTH, _PLOT_TOP + _PLOT_HEIGHT + 100, "How far should it be invariant to turns?", subtitle)
    for index, (title, one) in enumerate(panels(found["runs"]).items()):
        _panel(card, _LEFT + _STEP * index, title, one, found)
    _epochs(card, found)
    _evidence(card, found)
    notes = (
        f"Log evidence by {found['runs'][0]['estimator']}, in nats for each training point. "
        f"Test accuracy of {number(found['settings']['test'])} fresh points; no run was chosen by it.",
        "Panels of what was learned show, of several starts, the run of highest evidence and that of lowest training loss.",
    )
    for line, words in enumerate(notes):
        card.text(_LEFT, _PLOT_TOP + _PLOT_HEIGHT + 66 + 17 * line, words, size=12, colour=FAINT)
    return card.svg()


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


def _panel(card: Card, left: float | int, title: str, one: Numbers, found: Numbers) -> None:
    card.text(left, _TOP - 10, title, bold=True)
    card.image(left, _TOP, _SIDE, _SIDE, data_uri(_image(one["surface"])))
    unit = _SIDE / 2 / found["reach"]
    for x, y, label in found["data"]:
        across, down = left + _SIDE / 2 + unit * x, _TOP + _SIDE / 2 - unit * y
        card.dot(across, down, 2.6, POSITIVE if label else NEGATIVE, "#ffffff", width=0.8)
    card.rect(left, _TOP, _SIDE, _SIDE, "none", "#999999")
    how = "fixed" if one["by"] == "fixed" else f"from {number(one['start'])}°"
    rows = (
        ("turns", f"{_turns(one['extent'])}, {how}"),
        ("log evidence", number(one["log_evidence"], 2)),
        ("training loss", number(one["training"]["loss"], 3)),
        ("test accuracy", f"{number(100 * one['test']['accuracy'], 1)} %"),
    )
    for line, (name, value) in enumerate(rows):
        y = _TOP + _SIDE + 22 + 18 * line
        card.text(left, y, name, size=12, colour=FAINT)
        card.text(left + _SIDE, y, value, anchor="end", bold=name in ("log evidence", "test accuracy"))


def _turns(extent: float) -> str:
    words = number(extent)
    return "0°" if words in ("0", "−0") else f"±{words}°"


def _image(surface: Sequence[Sequence[float]]) -> Image:
    """Probabilities as colours: white at one half, half way to the colour of a class at 0 and 1, so that points stand out."""
    ends = [[int(end[at : at + 2], 16) for at in (1, 3, 5)] for end in (NEGATIVE, POSITIVE)]
    pixels = bytearray()
    for row in surface:
        for value in row:
            depth = 0.55 * abs(2 * value - 1)
            pixels += bytes(round(255 + (channel - 255) * depth) for channel in ends[value > 0.5])
    encoded = b64encode(bytes(pixels)).decode("ascii")
    return Image(len(surface[0]), len(surface), 3, encoded)


def _epochs(card: Card, found: Numbers) -> None:
    """Extents as they were learned, from every start."""
    epochs = found["settings"]["epochs"]
    left = _PLOTS[0]
    across, down = _axes(card, left, "Extent over epochs, from several starts", (0, epochs), (0, 180))
    for tick in (0, 45, 90, 135, 180):
        _tick(card, left, down(tick), f"{tick}°")
    for share in (0, 0.25, 0.5, 0.75, 1):
        card.text(across(share * epochs), _PLOT_TOP + _PLOT_HEIGHT + 16, number(share * epochs), size=11, anchor="middle",
                  colour=FAINT)  # fmt: skip
    extent = found["settings"]["extent"]
    card.line(left, down(extent), left + _PLOT_WIDTH, down(extent), TEXT, "5 4", 1.2)
    for one in found["runs"]:
        if one["by"] != "fixed":
            curve = [(0, one["start"]), *enumerate(one["history"], start=1)]
            step = max(1, len(curve) // 200)
            kept = curve[::step] + curve[-1:]
            card.curve([(across(epoch), down(value)) for epoch, value in kept], _COLOURS[one["by"]], 2)
    y = _PLOT_TOP + _PLOT_HEIGHT + 38
    card.legend(left, y, {f"by the {by}": colour for by, colour in _COLOURS.items()})
    card.line(left + 320, y - 4, left + 342, y - 4, TEXT, "5 4", 1.2)
    card.text(left + 349, y, "the data")


def _evidence(card: Card, found: Numbers) -> None:
    """The evidence of networks trained at fixed extents, and where learning by the evidence ended."""
    fixed = [one for one in found["runs"] if one["by"] == "fixed"]
    learned = [one for one in found["runs"] if one["by"] == "evidence"]
    values = [one["log_evidence"] for one in fixed + learned]
    margin = 0.08 * (max(values) - min(values) or 1.0)
    low, high = min(values) - margin, max(values) + margin
    left = _PLOTS[1]
    across, down = _axes(card, left, "Log evidence over extents", (0, 180), (low, high))
    for tenth in range(ceil(10 * low), floor(10 * high) + 1):
        _tick(card, left, down(tenth / 10), number(tenth / 10, 1))
    for tick in (0, 45, 90, 135, 180):
        card.text(across(tick), _PLOT_TOP + _PLOT_HEIGHT + 16, f"{tick}°", size=11, anchor="middle", colour=FAINT)
    extent = across(found["settings"]["extent"])
    card.line(extent, _PLOT_TOP, extent, _PLOT_TOP + _PLOT_HEIGHT, TEXT, "5 4", 1.2)
    card.curve([(across(one["extent"]), down(one["log_evidence"])) for one in fixed], "#999999", 1.5)
    for one in fixed:
        card.dot(across(one["extent"]), down(one["log_evidence"]), 4, "#ffffff", FAINT, width=1.5)
    for one in learned:
        card.dot(across(one["extent"]), down(one["log_evidence"]), 5, _COLOURS["evidence"], "#ffffff")
    y = _PLOT_TOP + _PLOT_HEIGHT + 38
    card.dot(left + 10, y - 4, 4, "#ffffff", FAINT, width=1.5)
    card.text(left + 22, y, "trained at a fixed extent")
    card.dot(left + 206, y - 4, 5, _COLOURS["evidence"], "#ffffff")
    card.text(left + 218, y, "where learning ended")


_Scale = Callable[[float | int], float]
_Range = tuple[float | int, float | int]


def _axes(card: Card, left: float | int, title: str, across: _Range, up: _Range) -> tuple[_Scale, _Scale]:
    """A frame, and what takes values to pixels."""
    card.text(left - 38, _PLOT_TOP - 14, title, bold=True)
    card.rect(left, _PLOT_TOP, _PLOT_WIDTH, _PLOT_HEIGHT, "none", LINE)
    return (
        lambda value: left + _PLOT_WIDTH * (value - across[0]) / (across[1] - across[0]),
        lambda value: _PLOT_TOP + _PLOT_HEIGHT * (up[1] - value) / (up[1] - up[0]),
    )


def _tick(card: Card, left: float | int, y: float, words: str) -> None:
    card.line(left, y, left + _PLOT_WIDTH, y, "#eeeeee")
    card.text(left - 7, y + 4, words, size=11, anchor="end", colour=FAINT)
