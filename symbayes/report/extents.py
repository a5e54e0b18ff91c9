"""A picture of learned extents against true ones: where they agree, points lie on the diagonal."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, floor
from statistics import mean
from typing import Any

from symbayes.report.page import minus
from symbayes.report.svg import FAINT, LINE, Card, Number

_WIDTH, _LEFT, _RIGHT, _TOP = 640, 24, 616, 78
#: Panels side by side and the gap between them; the space for the ticks of one, its largest side, and what is above and below.
_COLUMNS, _GAP, _TICKS, _SIDE, _ABOVE, _BELOW = 3, 14, 52, 250, 24, 46
#: Room for the words of a tick.
_TICK = 40
#: Of methods, first to last; marks differ, too, so that points in one place can be told apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
_STEPS = {"°": (5, 10, 15, 30, 45, 90), "": tuple(n * 10**p for p in (-2, -1, 0, 1, 2) for n in (1, 2, 5))}


def extents_picture(title: str, subtitle: str, panels: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """An SVG with a square panel for every data set: across the true extent, up the learned one.

    Args:
        title: Of the picture.
        subtitle: Below it.
        panels: Each with a `name`, such as that of the data set; a `unit`; and `points`, each with a `method`, the `truth` and
            what was `learned`. A line goes through the means of each method.
        notes: Lines of words at the bottom.

    Raises:
        ValueError: If there are no panels, or one has no points.
    """
    if not panels or not all(panel["points"] for panel in panels):
        raise ValueError("A picture of extents needs at least one panel, and each panel at least one point; some are missing.")
    methods = list(dict.fromkeys(point["method"] for panel in panels for point in panel["points"]))
    columns = 2 if len(panels) == 4 else min(_COLUMNS, len(panels))
    side = min(_SIDE, (_RIGHT - _LEFT - _GAP * (columns - 1)) / columns - _TICKS)
    step = side + _TICKS + _GAP
    start = (_LEFT + _RIGHT - step * columns + _GAP) / 2
    height = side + _ABOVE + _BELOW
    end = _TOP + 22 + height * ceil(len(panels) / columns)
    card = Card(_WIDTH, round(end + 14 + 17 * len(notes)), title, subtitle)
    _legend(card, methods)
    for index, panel in enumerate(panels):
        left, top = start + index % columns * step + _TICKS, _TOP + 22 + index // columns * height + _ABOVE
        _panel(card, left, top, side, panel, methods)
    for line, words in enumerate(notes):
        card.text(_LEFT, end + 6 + 17 * line, words, size=12, colour=FAINT)
    return card.svg()


def _legend(card: Card, methods: Sequence[str]) -> None:
    """Marks beside the names of methods, on one line."""
    x = _LEFT + 6.0
    for index, method in enumerate(methods):
        _mark(card, x, _TOP - 4.5, index)
        card.text(x + 13, _TOP, method)
        x += 42 + 7.2 * len(method)  # about the width of a letter at this size


def _panel(card: Card, left: Number, top: Number, side: Number, panel: Mapping[str, Any], methods: Sequence[str]) -> None:
    points, unit = panel["points"], panel["unit"]
    values = [point[which] for point in points for which in ("truth", "learned")]
    ticks = _ticks(min(0.0, *values), max(values), unit, side / _TICK)
    room = 0.06 * (ticks[-1] - ticks[0])
    low, high = ticks[0] - room, max(ticks[-1], *values) + room
    scale = side / (high - low)

    def place(truth: Number, learned: Number) -> tuple[Number, Number]:
        return left + (truth - low) * scale, top + side - (learned - low) * scale

    card.text(left, top - 9, panel["name"], bold=True)
    card.rect(left, top, side, side, "#ffffff", LINE)
    for tick in ticks:
        x, y = place(tick, tick)
        card.line(x, top, x, top + side, "#eceff2")
        card.line(left, y, left + side, y, "#eceff2")
        words = minus(f"{tick:g}{'' if unit in ('', '°') else ' '}{unit}")
        card.text(x, top + side + 15, words, size=11, anchor="middle", colour=FAINT)
        card.text(left - 6, y + 4, words, size=11, anchor="end", colour=FAINT)
    card.text(left + side / 2, top + side + 31, "true extent", size=11, anchor="middle", colour=FAINT)
    card.text(left - _TICKS + 6, top + side / 2, "learned extent", size=11, anchor="middle", colour=FAINT, turned=True)
    card.line(*place(low, low), *place(high, high), "#777777", "4 4")
    for index, method in enumerate(methods):
        found: dict[Number, list[Number]] = {}
        for point in points:
            if point["method"] == method:
                found.setdefault(point["truth"], []).append(point["learned"])
        means = [place(truth, mean(learned)) for truth, learned in sorted(found.items())]
        for one, other in pairwise(means):
            card.line(*one, *other, _COLOURS[index % len(_COLOURS)], width=1.2)
    for index, method in reversed(list(enumerate(methods))):  # so that the first is on top
        for point in points:
            if point["method"] == method:
                _mark(card, *place(point["truth"], point["learned"]), index)


def _mark(card: Card, x: Number, y: Number, index: int) -> None:
    """The mark of a method: a dot, a ring, a cross, a plus; then again in other colours."""
    colour = _COLOURS[index % len(_COLOURS)]
    match index % 4:
        case 0:
            card.dot(x, y, 4, colour)
        case 1:
            card.dot(x, y, 6, "none", colour, width=1.8)
        case 2:
            card.line(x - 4.5, y - 4.5, x + 4.5, y + 4.5, colour, width=1.8)
            card.line(x - 4.5, y + 4.5, x + 4.5, y - 4.5, colour, width=1.8)
        case _:
            card.line(x - 6, y, x + 6, y, colour, width=1.8)
            card.line(x, y - 6, x, y + 6, colour, width=1.8)


def _ticks(low: Number, high: Number, unit: str, most: Number) -> list[Number]:
    """Round numbers from the lowest, and so many steps at most."""
    span = max(high - low, 1e-9)
    step = next((step for step in _STEPS.get(unit, _STEPS[""]) if span < most * step), span)
    first, last = floor(low / step + 1e-6), floor(high / step + 1e-6)
    return [step * index for index in range(first, max(last, first + 1) + 1)]
