"""The figures of what was sought: singular values, generators, and quantities and motion over time."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log10
from typing import Any

from plotly.graph_objects import Bar, Figure, Scatter
from plotly.subplots import make_subplots

from symbayes.report.page import significant
from symbayes.report.plots import RUN_COLOURS, label, log_axis, style
from symbayes.report.svg import FAINT, Card, Number, largest

Numbers = Sequence[Number]
History = Sequence[Mapping[str, Any]]

STRONG, WEAK = "#0072B2", "#AAAAAA"
#: Of directions: by strength, which does not say what is conserved.
_ABOVE, _BELOW = "above the threshold", "below the threshold"
_THRESHOLD = {"color": "#D55E00", "dash": "5px,4px", "width": 1.5}
#: From so many bars on, their numbers are turned; from so many, they are left out.
_TURNED, _CROWDED = 11, 40
#: How far below the threshold an axis goes at most: what is zero up to rounding would squeeze the rest.
_DEPTH = 1e-3
#: Of the range of an axis, what of the largest value it spans at least, so that noise looks as small as it is.
_LEAST = 0.2
#: Lines that are not zoomed into have no more points than can be seen.
_POINTS = 1500
#: The side of a heatmap, in pixels.
_CELLS = 224


def singular_bars(values: Numbers, threshold: Number, count: int, parallelness: Numbers | None = None) -> Figure | None:
    """Singular values on a log axis, the first `count` in colour; how parallel each is to the truth above it."""
    if not values or max(values) <= 0:
        return None
    low = max(min(values), _DEPTH * threshold, 1e-12 * max(values)) / 2
    texts = [f"{value:.2f}" for value in parallelness or []] + [""] * len(values)
    figure = make_subplots(1, 1)
    for name, colour, places in (
        (_ABOVE, STRONG, range(min(count, len(values)))),
        (_BELOW, WEAK, range(min(count, len(values)), len(values))),
    ):
        if not places:
            continue
        known = [f"<br>parallelness {texts[at]}" if texts[at] else "" for at in places]
        figure.add_trace(
            Bar(
                name=name,
                x=[at + 1 for at in places],
                y=[max(values[at], 1.2 * low) for at in places],
                text=[texts[at] for at in places] if len(values) < _CROWDED else None,
                textposition="outside",
                textangle=-90 if len(values) >= _TURNED else 0,
                textfont={"size": 11},
                constraintext="none",
                cliponaxis=False,
                marker={"color": colour},
                customdata=[[significant(values[at]), more] for at, more in zip(places, known, strict=True)],
                hovertemplate="%{x}: %{customdata[0]}%{customdata[1]}",
            )
        )
    style(figure, 380)
    high = max(max(values), threshold)
    ends = [log10(low), log10(high) + (0.3 if len(values) >= _TURNED else 0.16) * log10(high / low)]
    figure.update_yaxes(title="singular value", **log_axis([low, high]), range=ends)
    figure.update_xaxes(title="direction, strongest first", dtick=1 if len(values) < 16 else None, tickformat="d")
    figure.update_layout(font={"size": 12}, bargap=0.25, showlegend=True)
    _mark(figure, threshold)
    return figure


def training_lines(history: History, threshold: Number, count: int) -> Figure | None:
    """Singular values over epochs on a log axis, and below them the negative bound; None with fewer than two records."""
    strengths = [record for record in history if any(value > 0 for value in record.get("singular_values") or [])]
    bounds = [record for record in history if record.get("negative_elbo") is not None]
    if max(len(strengths), len(bounds)) < 2:
        return None
    figure = make_subplots(rows=2 if strengths and bounds else 1, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    row = 1
    if strengths:
        epochs = [record["epoch"] for record in strengths]
        for at in reversed(range(len(strengths[-1]["singular_values"]))):
            found = [record["singular_values"][at] for record in strengths]
            line = {"color": STRONG if at < count else WEAK, "width": 2 if at < count else 1.5}
            look = {"mode": "lines", "line": line, "showlegend": False, "hovertemplate": f"{at + 1}: %{{y:.3g}}<extra></extra>"}
            figure.add_trace(Scatter(x=epochs, y=[max(value, 1e-12) for value in found], **look), row=1, col=1)
        every = [value for record in strengths for value in record["singular_values"] if value > _DEPTH * threshold]
        every += [threshold] if threshold > 0 else []
        low, high = min(every), max(every)
        figure.update_yaxes(
            title="singular value", **log_axis([low, high]), range=[log10(low / 1.3), log10(high * 1.3)], row=1, col=1
        )
        row += 1
    if bounds:
        epochs, found = [record["epoch"] for record in bounds], [record["negative_elbo"] for record in bounds]
        look = {"mode": "lines", "line": {"color": RUN_COLOURS[0], "width": 2}, "showlegend": False}
        figure.add_trace(Scatter(x=epochs, y=found, hovertemplate="%{y:.4g}<extra></extra>", **look), row=row, col=1)
        # The first of them may be a thousand times the last.
        low, high = _ends(found[len(found) // 10 :], 0.0)
        figure.update_yaxes(title="negative bound", range=[low, high], row=row, col=1)
    style(figure, 380)
    figure.update_xaxes(title="epoch", row=2 if strengths and bounds else 1, col=1)
    if strengths:
        _mark(figure, threshold)
    figure.update_layout(font={"size": 12}, margin={"t": 20})
    return figure


def generator_cards(generators: Sequence[Sequence[Numbers]], names: Sequence[str], strengths: Numbers, count: int) -> list[str]:
    """A heatmap for every generator, of one scale: rows are coordinates that move, columns what moves them."""
    limit, labels = largest(generators), [*map(_short, names), "1"]
    titles = [f"{index + 1}: strength {significant(value)}" for index, value in enumerate(strengths[: len(generators)])]
    return [
        _generator(matrix, labels, title, index < count, limit)
        for index, (matrix, title) in enumerate(zip(generators, titles, strict=True))
    ]


def _generator(matrix: Sequence[Numbers], names: Sequence[str], title: str, strong: bool, limit: Number) -> str:
    gutter = 14 + round(6.6 * max(len(name) for name in names))
    cell = _CELLS / len(names)
    size = max(7, min(11, int(cell)))
    top = 60 + gutter
    card = Card(gutter + _CELLS + 38, round(top + _CELLS + 18), title, _ABOVE if strong else _BELOW)
    card.heatmap(gutter + 20, top, matrix, cell, limit)
    every = max(1, round(0.5 + 7 / cell))  # labels of very many coordinates would lie on each other
    for index, name in enumerate(names):
        if index % every == 0 or index == len(names) - 1:
            middle = (index + 0.5) * cell
            card.text(gutter + 15, top + middle + 0.35 * size, name, size=size, anchor="end", colour=FAINT)
            card.text(gutter + 20 + middle + 0.35 * size, top - 6, name, size=size, colour=FAINT, turned=True)
    return card.svg()


def level_lines(times: Numbers, series: Sequence[Numbers], title: str = "") -> Figure | None:
    """A line for every trajectory, on one axis that shows all of them; None where there are none."""
    if not series or not times:
        return None
    figure = Figure()
    step = 1 + len(times) // _POINTS
    for index, values in enumerate(series):
        line = {"color": RUN_COLOURS[index % len(RUN_COLOURS)], "width": 1.8}
        look = {"mode": "lines", "line": line, "hovertemplate": "%{y:.4g} at %{x:.4g}<extra></extra>"}
        figure.add_trace(Scatter(x=times[::step], y=values[::step], **look))
    _small(figure)
    low, high = _ends((value for values in series for value in values), _LEAST)
    figure.update_yaxes(range=[low, high], title=_small_title(title))
    return figure


def error_line(times: Numbers, errors: Numbers | None) -> Figure | None:
    """The distance to the true motion on a log axis, where it is known and not zero."""
    points = [(x, y) for x, y in zip(times, errors or [], strict=False) if isfinite(y) and y > 0]
    if not points:
        return None
    look = {"mode": "lines", "line": {"color": RUN_COLOURS[1], "width": 1.8}}
    hover = "%{y:.3g} at %{x:.4g}<extra></extra>"
    figure = Figure(Scatter(x=[x for x, _ in points], y=[y for _, y in points], hovertemplate=hover, **look))
    _small(figure)
    figure.update_yaxes(title=_small_title("rms distance"), **log_axis([y for _, y in points]))
    return figure


def portrait(found: Mapping[str, Any]) -> Figure:
    """A coordinate against its momentum: dots are data, lines the learned motion."""
    figure = Figure()
    for name, look in (
        ("model", {"mode": "lines", "line": {"color": "#56B4E9", "width": 2}}),
        ("data", {"mode": "markers", "marker": {"color": "#000000", "size": 4, "opacity": 0.65}}),
    ):
        # A gap between one trajectory and the next.
        points = [point for line in found[name] or [] for point in [*line, (None, None)]]
        hover = "%{x:.3g}, %{y:.3g}<extra></extra>"
        figure.add_trace(
            Scatter(
                x=[x for x, _ in points], y=[y for _, y in points], name=name, hovertemplate=hover, connectgaps=False, **look
            )
        )
    _small(figure, 330)
    first, second = (label(name) for name in found["names"])
    figure.update_xaxes(title=_small_title(first))
    figure.update_yaxes(title=_small_title(second))
    figure.update_layout(showlegend=False)
    return figure


def _ends(values: Iterable[Number], least: float) -> tuple[float, float]:
    """Of an axis that shows all values, and spans at least that share of the largest."""
    found = [value for value in values if isfinite(value)] or [0.0]
    low, high = min(found), max(found)
    span = max(1.16 * (high - low), least * max(abs(low), abs(high))) or 1.0
    middle = (low + high) / 2
    return middle - span / 2, middle + span / 2


def _mark(figure: Figure, threshold: Number) -> None:
    """The threshold of the first panel, dashed, and its name at the right; nothing where there is none."""
    if threshold <= 0:
        return
    figure.add_hline(y=threshold, line=_THRESHOLD, row=1, col=1)
    # Of a log axis, notes are placed by logarithms.
    place = {"x": 1, "xref": "x domain", "xanchor": "right", "y": log10(threshold), "yref": "y", "yanchor": "bottom"}
    words = f"threshold {significant(threshold)}"
    figure.add_annotation(text=words, showarrow=False, font={"size": 12, "color": "#A04000"}, **place)


def _small(figure: Figure, height: int = 230) -> None:
    """The look of one of many panels."""
    style(figure, height)
    figure.update_layout(
        font={"size": 12}, margin={"l": 40, "r": 12, "t": 10, "b": 40}, showlegend=False, hoverlabel={"font": {"size": 11}}
    )
    figure.update_xaxes(title=_small_title("time"), nticks=7)
    figure.update_yaxes(nticks=6)


def _small_title(words: str) -> dict[str, Any]:
    return {"text": words, "font": {"size": 12}, "standoff": 4}


def _short(name: str) -> str:
    """Beside a heatmap there is room for a few letters."""
    return name if len(name) <= 8 else f"{name[:7]}…"
