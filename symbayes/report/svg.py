"""Figures as SVG, which read without JavaScript, in the colours of the page, on paper and on a phone.

A figure is described by plotly's objects; here they are drawn, as far as pages use them: lines, markers, bars and heatmaps on
linear, logarithmic and named axes, in panels one above the other, with notes, dashed lines and a legend.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from itertools import pairwise
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from symbayes.report.axes import Axis, Number
from symbayes.text import minus

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: Patterns of lines by their names in plotly.
PATTERNS = {"solid": "", "dash": "8 5", "dot": "2 4", "dashdot": "8 4 2 4", "longdash": "12 5", "longdashdot": "12 4 2 4"}
#: Colours that follow the page instead.
_FOLLOW = {"#000000": "currentColor", "black": "currentColor", "white": "var(--page)", "#222222": "currentColor"}
#: Of a letter, in font sizes; and of a line.
_LETTER, _LINE = 0.6, 1.3
#: Room between the parts of a figure, and the length of the lines in a legend.
_GAP, _SWATCH = 6, 26
#: A field of plotly's templates.
_FIELD = re.compile(r"%\{(?P<name>\w+)(?:\[(?P<at>\d+)\])?(?::(?P<form>[^}]*))?\}")


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: Number
    top: Number
    width: Number
    height: Number


class Panel(NamedTuple):
    """Two axes, the traces that are drawn on them, and where."""

    key: tuple[str, str]
    x: Axis
    y: Axis
    box: Box

    def at(self, x: Any, y: Any) -> tuple[float, float]:
        """Where values are, in pixels."""
        return self.pixel(self.x.coordinate(x), self.y.coordinate(y))

    def pixel(self, x: Number, y: Number) -> tuple[float, float]:
        """Where coordinates are, in pixels."""
        box = self.box
        return box.left + box.width * self.x.share(x), box.top + box.height * (1 - self.y.share(y))


def draw(figure: "Figure", width: int, name: str, *, label: str = "") -> str:
    """A figure of so many pixels as SVG.

    Args:
        figure: By plotly.
        width: In pixels; the height is the figure's own.
        name: Unique in the page.
        label: What it shows, in words, for those who do not see it.
    """
    return _Drawing(figure, width, name).svg(label)


class _Drawing:
    def __init__(self, figure: "Figure", width: int, name: str) -> None:
        self.layout: dict[str, Any] = figure.layout.to_plotly_json()
        self.traces: list[dict[str, Any]] = [trace.to_plotly_json() for trace in figure.data]
        self.width, self.height, self.name = width, float(self.layout.get("height") or 400), name
        self.size = min(13.0, float(self.layout.get("font", {}).get("size", 13)))
        self.parts: list[str] = []

    def svg(self, label: str) -> str:
        legend, rows = self._legend()
        panels = self._panels(top=max(12.0, rows * self.size * 1.6 + _GAP))
        for panel in panels:
            self._frame(panel)
            self._draw(panel)
        self._notes(panels)
        self.parts += legend
        body = "".join(self.parts)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height:g}" width="{self.width}" height="{self.height:g}" role="img" '
            f'aria-label="{escape(label or self.name)}" font-size="{self.size:g}">{body}</svg>'
        )

    # Where things are.

    def _panels(self, top: Number) -> list[Panel]:
        keys = list(dict.fromkeys((trace.get("xaxis", "x"), trace.get("yaxis", "y")) for trace in self.traces))
        x_axes, y_axes = (self._axes([key[at] for key in keys], "xy"[at]) for at in (0, 1))
        given = self.layout.get("margin", {})
        bottom = max((self._below(axis) for axis in x_axes.values()), default=20.0)
        if any(axis.settings.get("side") == "top" for axis in x_axes.values()):
            longest = max(len(words) for axis in x_axes.values() for _, words in axis.ticks(99))
            top, bottom = longest * self.size * _LETTER + 2 * _GAP, 10.0
        left = max((self._beside(axis) for axis in y_axes.values()), default=20.0)
        right = max(14.0, float(given.get("r", 14)) if self._has_notes_beside() else 14.0)
        whole = Box(left, top, max(40.0, self.width - left - right), max(40.0, self.height - top - bottom))
        found = []
        for key in keys:
            x, y = x_axes[key[0]], y_axes[key[1]]
            (x0, x1), (y0, y1) = (axis.settings.get("domain") or (0.0, 1.0) for axis in (x, y))
            box = Box(
                whole.left + x0 * whole.width,
                whole.top + (1 - y1) * whole.height,
                (x1 - x0) * whole.width,
                (y1 - y0) * whole.height,
            )
            if y.settings.get("scaleanchor"):
                side = min(box.width, box.height)
                box = Box(box.left, box.top, side, side)
            found.append(Panel(key, x, y, box))
        return found

    def _axes(self, keys: Sequence[str], letter: str) -> dict[str, Axis]:
        """By key, with the values of all axes that should match."""
        settings = {key: self.layout.get(f"{letter}axis{key[1:]}", {}) for key in dict.fromkeys(keys)}
        root = {key: one.get("matches", key) for key, one in settings.items()}
        values: dict[str, list[Any]] = {}
        from_zero, tight = False, any(trace["type"] == "heatmap" for trace in self.traces)
        for trace in self.traces:
            key = trace.get(f"{letter}axis", letter)
            values.setdefault(root[key], []).extend(_shown(trace, letter))
            across = "h" if letter == "x" else "v"
            from_zero = from_zero or (trace["type"] == "bar" and trace.get("orientation", "v") == across)
        ends = {root[key]: one["range"] for key, one in settings.items() if one.get("range")}
        return {
            key: Axis(
                {**one, **({"range": ends[root[key]]} if root[key] in ends else {})},
                values[root[key]],
                from_zero=from_zero,
                tight=tight,
            )
            for key, one in settings.items()
        }

    def _below(self, axis: Axis) -> float:
        labels = 0.0 if axis.settings.get("showticklabels") is False else self.size * 1.5
        return labels + self.size * 1.5 * len(_lines(_title(axis))) + _GAP

    def _beside(self, axis: Axis) -> float:
        longest = max((len(words) for _, words in axis.ticks(8)), default=0)
        return min(0.45 * self.width, longest * self.size * _LETTER + 2 * _GAP) + (self.size * 1.5 if _title(axis) else 0)

    def _has_notes_beside(self) -> bool:
        notes = self.layout.get("annotations") or ()
        return any(note.get("xanchor") == "left" for note in notes)

    # What is drawn.

    def _frame(self, panel: Panel) -> None:
        """Grid, ticks and titles."""
        x, y, box = panel.x, panel.y, panel.box
        on_top = x.settings.get("side") == "top"
        most_x = int(min(x.settings.get("nticks") or 10, box.width / (6 * self.size)))
        for at, words in x.ticks(max(2, most_x)):
            left = panel.pixel(at, 0)[0]
            if x.settings.get("showgrid", True):
                self._line((left, box.top), (left, box.top + box.height), "grid")
            if x.settings.get("showticklabels", True):
                if on_top:
                    self._text(
                        left + self.size * 0.35, box.top - _GAP, words, "start", angle=-90, size=_tick_size(x, self.size)
                    )
                else:
                    self._text(left, box.top + box.height + self.size * 1.2, words, "middle")
        most_y = int(min(y.settings.get("nticks") or 8, box.height / (2.2 * self.size)))
        for at, words in y.ticks(max(2, most_y)):
            height = panel.pixel(0, at)[1]
            if y.settings.get("showgrid", True):
                self._line((box.left, height), (box.left + box.width, height), "grid")
            room = int((box.left - (self.size * 1.5 if _title(y) else 0)) / (self.size * _LETTER)) - 1
            short = words if len(words) <= room else f"{words[: max(1, room - 1)]}…"
            self._text(box.left - _GAP, height + self.size * 0.35, short, "end", size=_tick_size(y, self.size))
        self._line((box.left, box.top + box.height), (box.left + box.width, box.top + box.height), "axis")
        for index, words in enumerate(_lines(_title(x))):
            shift = self.size * (1.2 + 1.4 * (index + bool(x.settings.get("showticklabels", True))))
            self._text(box.left + box.width / 2, box.top + box.height + shift, words, "middle")
        if _title(y):
            self._text(self.size, box.top + box.height / 2, _title(y), "middle", angle=-90)

    def _draw(self, panel: Panel) -> None:
        box = panel.box
        window = (
            f"{box.left:.1f} {box.top - 7:.1f} {box.width + 7:.1f} {box.height + 14:.1f}"  # of which nothing is seen outside
        )
        left, top, wide, high = window.split()
        self.parts.append(f'<svg x="{left}" y="{top}" width="{wide}" height="{high}" viewBox="{window}">')
        own = [trace for trace in self.traces if (trace.get("xaxis", "x"), trace.get("yaxis", "y")) == panel.key]
        ends: dict[float, Number] = {}
        for trace in own:
            if trace["type"] == "bar":
                self._bars(panel, trace, ends)
            elif trace["type"] == "heatmap":
                self._cells(panel, trace)
            else:
                self._scatter(panel, trace)
        for shape in self.layout.get("shapes") or ():
            if shape.get("yref", "y").split()[0] == panel.key[1]:
                height = panel.at(0, shape["y0"])[1]
                self._line((box.left, height), (box.left + box.width, height), "", shape.get("line"))
        self.parts.append("</svg>")

    def _scatter(self, panel: Panel, trace: Mapping[str, Any]) -> None:
        points = [panel.at(x, y) for x, y in zip(trace["x"], trace["y"], strict=True)]
        values = list(zip(trace["x"], trace["y"], strict=True))
        mode = trace.get("mode", "lines")
        if "lines" in mode:
            for run in _runs(_thinned(points, 2 * self.width)):
                path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
                self.parts.append(f'<path d="{path}" fill="none" {_stroke(trace.get("line", {}))}>{_tip(trace)}</path>')
        if "markers" in mode:
            marker = trace.get("marker", {})
            sizes = marker.get("size", 6)
            for at, ((x, y), value) in enumerate(zip(points, values, strict=True)):
                if isfinite(x) and isfinite(y):
                    radius = (sizes[at] if isinstance(sizes, list | tuple) else sizes) / 2
                    look = f'fill="{_colour(marker.get("color"))}" fill-opacity="{marker.get("opacity", 1):g}"'
                    tip = _tip(trace, x=value[0], y=value[1], customdata=_item(trace.get("customdata"), at))
                    if marker.get("symbol") == "diamond":
                        corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
                        outline = "L".join(f"{left:.1f} {top:.1f}" for left, top in corners)
                        shape = f'<path d="M{outline}z"'
                    else:
                        shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
                    tag = shape[1:].split()[0]
                    self.parts.append(f"{shape} {look}>{tip}</{tag}>")

    def _bars(self, panel: Panel, trace: Mapping[str, Any], ends: dict[float, Number]) -> None:
        """Bars, each on what lies below it where they are stacked: `ends` says how far that goes."""
        lies = trace.get("orientation") == "h"
        along, across = (panel.x, panel.y) if lies else (panel.y, panel.x)
        lengths, places = (trace["x"], trace["y"]) if lies else (trace["y"], trace["x"])
        box, look = panel.box, f'fill="{_colour(trace.get("marker", {}).get("color"))}"'
        texts = trace.get("text") or [""] * len(lengths)
        for index, (length, place, words) in enumerate(zip(lengths, places, texts, strict=True)):
            if length is None or not isfinite(length):
                continue
            at = across.coordinate(place)
            start = ends.get(at, 0.0) if not along.is_log else along.low
            end = start + length if not along.is_log else along.coordinate(length)
            if self.layout.get("barmode") == "stack":
                ends[at] = end
            near, far = sorted(along.share(one) for one in (start, end))
            side = abs(across.share(at + 0.38) - across.share(at - 0.38))
            middle = across.share(at)
            said = f"{length:.0f} %" if trace.get("texttemplate") else str(words or "")
            x, y = (length, place) if lies else (place, length)
            tip = _tip(trace, x=x, y=y, customdata=_item(trace.get("customdata"), index))
            if lies:
                left, top = box.left + near * box.width, box.top + (1 - middle - side / 2) * box.height
                wide, high = (far - near) * box.width, side * box.height
                self.parts.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" {look}>{tip}</rect>'
                )
                if wide > len(said) * self.size * _LETTER + 4:
                    style = "on-dark" if _is_dark(trace.get("marker", {}).get("color")) else "on-light"
                    self._text(left + wide / 2, top + high / 2 + self.size * 0.35, said, "middle", style=style)
            else:
                left, top = box.left + (middle - side / 2) * box.width, box.top + (1 - far) * box.height
                wide, high = side * box.width, (far - near) * box.height
                self.parts.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" {look}>{tip}</rect>'
                )
                if said and (trace.get("textangle") or wide > 0.8 * len(said) * self.size * _LETTER):
                    turned = trace.get("textangle") or 0
                    shift = self.size * 0.35 if turned else 0.0
                    self._text(left + wide / 2 + shift, top - 4, said, "start" if turned else "middle", angle=turned, size=11)

    def _cells(self, panel: Panel, trace: Mapping[str, Any]) -> None:
        scale, low, high = trace["colorscale"], float(trace["zmin"]), float(trace["zmax"])
        rows, box = trace["z"], panel.box
        names = [dict(axis.ticks(99)) for axis in (panel.x, panel.y)]
        wide, high_ = box.width / len(rows[0]), box.height / len(rows)
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                colour = _between(scale, (value - low) / ((high - low) or 1.0))
                tip = _tip(trace, x=names[0].get(j, j), y=names[1].get(i, i), z=value)
                self.parts.append(
                    f'<rect x="{box.left + j * wide:.1f}" y="{box.top + i * high_:.1f}" width="{wide + 0.3:.1f}" '
                    f'height="{high_ + 0.3:.1f}" fill="{colour}">{tip}</rect>'
                )

    def _notes(self, panels: Sequence[Panel]) -> None:
        by_y = {panel.key[1]: panel for panel in panels}
        lefts, rights = [panel.box.left for panel in panels], [panel.box.left + panel.box.width for panel in panels]
        tops, bottoms = [panel.box.top for panel in panels], [panel.box.top + panel.box.height for panel in panels]
        for note in self.layout.get("annotations") or ():
            panel = by_y.get(str(note.get("yref", "y")).split()[0], panels[0])
            x, y, across, up = note.get("x", 0), note.get("y", 0), note.get("xref", "x"), note.get("yref", "y")
            if across == "paper" or across.endswith("domain"):
                ends = (min(lefts), max(rights)) if across == "paper" else (panel.box.left, panel.box.left + panel.box.width)
                left = ends[0] + x * (ends[1] - ends[0])
            else:
                left = panel.pixel(panel.x.coordinate(x) if isinstance(x, str) else float(x), 0)[0]
            if up == "paper":
                top = max(bottoms) - y * (max(bottoms) - min(tops))
            else:
                # Notes on log axes are placed by logarithms.
                top = panel.pixel(0, panel.y.coordinate(y) if isinstance(y, str) else float(y))[1]
            angle = note.get("textangle", 0)
            if angle and across == "paper":
                left = max(rights) + self.size * 0.4
            lines = _lines(note["text"])
            size = min(self.size, float(note.get("font", {}).get("size", self.size)))
            top += {"middle": self.size * 0.35, "top": self.size, "bottom": -4.0}.get(
                note.get("yanchor", "middle"), self.size * 0.35
            )
            top -= (len(lines) - 1) * size * _LINE / 2
            anchor = {"left": "start", "right": "end"}.get(note.get("xanchor", "center"), "middle")
            for index, words in enumerate(lines):
                place = left + float(note.get("xshift", 0)), top + index * size * _LINE
                self._text(*place, words, "middle" if angle else anchor, angle=angle, size=size)

    def _legend(self) -> tuple[list[str], int]:
        """Names beside how they are drawn, in as many rows as it takes."""
        if not self.layout.get("showlegend", len(self.traces) > 1):
            return [], 0
        drawn, kept = self.parts, list[str]()
        self.parts = kept
        left, row, seen = 4.0, 0, set[str]()
        for trace in self.traces:
            name = unescape(trace.get("name") or "")
            if not name or trace.get("showlegend") is False or name in seen:
                continue
            seen.add(name)
            room = _SWATCH + _GAP + len(name) * self.size * _LETTER + 14
            if left + room > self.width and left > 4:
                left, row = 4.0, row + 1
            top = (row + 0.8) * self.size * 1.6
            if trace["type"] == "bar":
                colour = _colour(trace.get("marker", {}).get("color"))
                kept.append(f'<rect x="{left:.1f}" y="{top - 9:.1f}" width="14" height="11" fill="{colour}"/>')
            else:
                line = trace.get("line") or {"color": trace.get("marker", {}).get("color")}
                self._line((left, top - 4), (left + _SWATCH, top - 4), "", line)
            self._text(left + _SWATCH + _GAP, top, name, "start")
            left += room
        self.parts = drawn
        return kept, row + 1 if seen else 0

    def _line(
        self, start: tuple[Number, Number], end: tuple[Number, Number], style: str, line: Mapping[str, Any] | None = None
    ) -> None:
        look = _stroke(line) if line else f'class="{style}"'
        self.parts.append(f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" {look}/>')

    def _text(
        self, x: Number, y: Number, words: str, anchor: str, *, angle: Number = 0, size: Number | None = None, style: str = ""
    ) -> None:
        turn = f' transform="rotate({angle:g} {x:.1f} {y:.1f})"' if angle else ""
        own = f' font-size="{size:g}"' if size is not None and size != self.size else ""
        of = f' class="{style}"' if style else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{own}{of}{turn}>{escape(unescape(words))}</text>'
        )


def _shown(trace: Mapping[str, Any], letter: str) -> list[Any]:
    """The values of a trace along an axis, and as far as stacked bars go."""
    if trace["type"] == "heatmap":
        count = len(trace["z"][0]) if letter == "x" else len(trace["z"])
        return [-0.5, count - 0.5]
    return [value for value in trace.get(letter) or () if value is not None]


def _title(axis: Axis) -> str:
    title = axis.settings.get("title") or {}
    return str((title.get("text") if isinstance(title, dict) else title) or "")


def _lines(words: str) -> list[str]:
    return words.split("<br>") if words else []


def _tick_size(axis: Axis, usual: Number) -> float:
    return float(axis.settings.get("tickfont", {}).get("size", usual))


def _runs(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Points without gaps, of two or more each."""
    run: list[tuple[float, float]] = []
    for point in [*points, (float("nan"), 0.0)]:
        if all(map(isfinite, point)):
            run.append(point)
        else:
            if len(run) > 1:
                yield run
            run = []


def _thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """About so many points: of neighbours the first, the highest and the lowest, gaps, and the end."""
    if len(points) <= most:
        return list(points)
    every, kept = ceil(3 * len(points) / most), {len(points) - 1}
    for start in range(0, len(points), every):
        some = range(start, min(start + every, len(points)))
        finite = [at for at in some if all(map(isfinite, points[at]))]
        gaps = [at for at in some if at not in finite][:1]
        ends = [min(finite, key=lambda at: points[at][1]), max(finite, key=lambda at: points[at][1])] if finite else []
        kept |= {start, *ends, *gaps}
    return [points[at] for at in sorted(kept)]


def _colour(given: Any) -> str:
    return _FOLLOW.get(str(given), str(given)) if given else "currentColor"


def _is_dark(colour: Any) -> bool:
    red, green, blue = _rgb(str(colour))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 128


def _stroke(line: Mapping[str, Any]) -> str:
    dash = str(line.get("dash", "solid"))
    pattern = PATTERNS.get(dash, dash.replace("px", "").replace(",", " "))
    dashed = f' stroke-dasharray="{pattern}"' if pattern else ""
    return f'stroke="{_colour(line.get("color"))}" stroke-width="{line.get("width", 2):g}"{dashed}'


def _item(values: Sequence[Any] | None, index: int) -> Any:
    return None if values is None else values[index]


def _tip(trace: Mapping[str, Any], **values: Any) -> str:
    """What is shown under the pointer: plotly's template with these values; of a line, what it is."""
    name, template = unescape(trace.get("name") or ""), (trace.get("hovertemplate") or "").replace("<extra></extra>", "")
    if not values:
        words = unescape(template.partition("%{")[0]).rstrip(": ") or name
    else:
        filled = _FIELD.sub(lambda found: _filled(found, values), template) if template else ""
        words = ", ".join(filter(None, [name, unescape(filled.replace("<br>", ", "))]))
    return f"<title>{escape(words)}</title>" if words else ""


def _filled(found: re.Match[str], values: Mapping[str, Any]) -> str:
    value = values.get(found["name"])
    value = value[int(found["at"])] if found["at"] and value is not None else value
    form = found["form"] if isinstance(value, int | float) else ""
    return minus(format(value, form or "")) if isinstance(value, int | float) else str(value or "")


def _between(scale: Sequence[Sequence[Any]], share: Number) -> str:
    """A colour of a scale of hexadecimal ones, mixed of its neighbours."""
    share = min(1.0, max(0.0, share))
    for (low, first), (high, second) in pairwise(scale):
        if share <= high:
            part = (share - low) / ((high - low) or 1.0)
            mixed = (round((1 - part) * a + part * b) for a, b in zip(_rgb(first), _rgb(second), strict=True))
            return "#" + "".join(f"{one:02x}" for one in mixed)
    return str(scale[-1][1])


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
