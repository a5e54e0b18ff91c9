"""Pages of discoveries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import Any

from plotly.graph_objects import Bar, Figure, Heatmap, Scatter
from plotly.subplots import make_subplots

from symbayes.dynamics.quantity import Term
from symbayes.dynamics.summary import DiscoveryRecord, DiscoverySummary, Portrait, QuantitySummary
from symbayes.report.page import FigureTable, embed, render
from symbayes.report.plots import RUN_COLOURS, Number, label, log_axis, style
from symbayes.report.quantities import (
    confirmed_count,
    discovery_table,
    formula_words,
    known_words,
    measured,
    percent,
    truth_words,
)
from symbayes.text import counted, listed, number, significant

Numbers = Sequence[Number]

STRONG, WEAK = "#0072B2", "#AAAAAA"
#: Of directions: by strength, which does not say what is conserved.
_ABOVE, _BELOW = "above the threshold", "below the threshold"
_THRESHOLD = {"color": "#D55E00", "dash": "5px,4px", "width": 1.5}
#: From so many bars on, their numbers are turned; from so many, they are left out.
_TURNED, _CROWDED = 11, 40
#: How far below the threshold an axis goes at most: what is zero up to rounding would squeeze the rest.
_DEPTH = 1e-3
#: Of the range of an axis, what of the largest value it spans at least, so that noise looks as small as it is.
_LEAST_RANGE = 0.2
#: Lines that are not zoomed into have no more points than can be seen.
_POINTS = 1500
#: Of heatmaps: from negative through 0 to positive, which the colour-blind can tell apart.
_DIVERGING = ((0.0, "#0072B2"), (0.5, "#ffffff"), (1.0, "#D55E00"))
#: The side of a heatmap at least, in pixels.
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


def training_lines(history: Sequence[DiscoveryRecord], threshold: Number, count: int) -> Figure | None:
    """Singular values over epochs on a log axis, and below them the negative bound; None with fewer than two records."""
    strengths = [record for record in history if any(value > 0 for value in record.singular_values)]
    bounds = [(record.epoch, record.negative_elbo) for record in history if record.negative_elbo is not None]
    if max(len(strengths), len(bounds)) < 2:
        return None
    figure = make_subplots(rows=2 if strengths and bounds else 1, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    row = 1
    if strengths:
        epochs = [record.epoch for record in strengths]
        for at in reversed(range(len(strengths[-1].singular_values))):
            found = [record.singular_values[at] for record in strengths]
            line = {"color": STRONG if at < count else WEAK, "width": 2 if at < count else 1.5}
            look = {"mode": "lines", "line": line, "showlegend": False, "hovertemplate": f"{at + 1}: %{{y:.3g}}<extra></extra>"}
            figure.add_trace(Scatter(x=epochs, y=[max(value, 1e-12) for value in found], **look), row=1, col=1)
        every = [value for record in strengths for value in record.singular_values if value > _DEPTH * threshold]
        every += [threshold] if threshold > 0 else []
        low, high = min(every), max(every)
        figure.update_yaxes(
            title="singular value", **log_axis([low, high]), range=[log10(low / 1.3), log10(high * 1.3)], row=1, col=1
        )
        row += 1
    if bounds:
        epochs, found = [epoch for epoch, _ in bounds], [bound for _, bound in bounds]
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


def generator_map(matrix: Sequence[Numbers], names: Sequence[str], limit: Number) -> Figure:
    """A generator as a heatmap: rows are coordinates that move, columns what moves them; colours end at ± the limit."""
    hover = "%{y} moved by %{x}: %{z:.3g}<extra></extra>"
    figure = Figure(
        Heatmap(z=matrix, zmin=-(limit or 1), zmax=limit or 1, colorscale=_DIVERGING, showscale=False, hovertemplate=hover)
    )
    labels, cell = [*map(_short, names), "1"], _CELLS / (len(names) + 1)
    every = max(1, round(0.5 + 7 / cell))  # labels of very many coordinates would lie on each other
    places = [at for at in range(len(labels)) if at % every == 0 or at == len(names)]
    ticks = {"tickvals": places, "ticktext": [label(labels[at]) for at in places], "tickfont": {"size": max(7, min(11, cell))}}
    frame = {"title": None, "showgrid": False, "mirror": True, "ticks": "", "fixedrange": True, "constrain": "domain"}
    x = {"side": "top", "tickangle": -90, **ticks, **frame}
    _small(figure, _CELLS + 76, x=x, y={"autorange": "reversed", "scaleanchor": "x", **ticks, **frame}, margin={"b": 10})
    return figure


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
    low, high = _ends((value for values in series for value in values), _LEAST_RANGE)
    _small(figure, y={"range": [low, high], "title": _small_title(title)})
    return figure


def error_line(times: Numbers, errors: Numbers | None) -> Figure | None:
    """The distance to the true motion on a log axis, where it is known and not zero."""
    points = [(x, y) for x, y in zip(times, errors or [], strict=False) if isfinite(y) and y > 0]
    if not points:
        return None
    look = {"mode": "lines", "line": {"color": RUN_COLOURS[1], "width": 1.8}}
    hover = "%{y:.3g} at %{x:.4g}<extra></extra>"
    figure = Figure(Scatter(x=[x for x, _ in points], y=[y for _, y in points], hovertemplate=hover, **look))
    _small(figure, y={"title": _small_title("rms distance"), **log_axis([y for _, y in points])})
    return figure


def portrait(found: Portrait) -> Figure:
    """A coordinate against its momentum: dots are data, lines the learned motion."""
    figure = Figure()
    for name, lines, look in (
        ("model", found.model, {"mode": "lines", "line": {"color": "#56B4E9", "width": 2}}),
        ("data", found.data, {"mode": "markers", "marker": {"color": "#000000", "size": 4, "opacity": 0.65}}),
    ):
        # A gap between one trajectory and the next.
        points = [point for line in lines for point in [*line, (None, None)]]
        hover = "%{x:.3g}, %{y:.3g}<extra></extra>"
        figure.add_trace(
            Scatter(
                x=[x for x, _ in points], y=[y for _, y in points], name=name, hovertemplate=hover, connectgaps=False, **look
            )
        )
    first, second = (_small_title(label(name)) for name in found.names)
    _small(figure, 330, x={"title": first}, y={"title": second})
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


def _small(
    figure: Figure,
    height: int = 230,
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    margin: Mapping[str, int] | None = None,
) -> None:
    """The look of one of many panels."""
    style(
        figure,
        height,
        x={"title": _small_title("time"), "nticks": 7, **(x or {})},
        y={"nticks": 6, **(y or {})},
        font={"size": 12},
        margin={"l": 40, "r": 12, "t": 10, "b": 40, **(margin or {})},
        showlegend=False,
        hoverlabel={"font": {"size": 11}},
    )


def _small_title(words: str) -> dict[str, Any]:
    return {"text": words, "font": {"size": 12}, "standoff": 4}


def _short(name: str) -> str:
    """Beside a heatmap there is room for a few letters."""
    return name if len(name) <= 8 else f"{name[:7]}…"


#: What the model was given to find, by kind.
_KINDS = {
    "quadratic": "{quantities} quadratic quantities along whose flows it is averaged",
    "neural": "{quantities} quantities, each a network, along whose flows it is averaged",
    "fixed": "{quantities} quantities that were given, not learned",
    "none": "no symmetry",
}
#: Sets of data in words, by key of `errors`.
_SETS = {
    "held out": "held-out trajectories of the data",
    "test": "new trajectories",
    "moved": "new trajectories, moved elsewhere",
    "wider": "new trajectories that start farther out",
}


def discovery_page(found: DiscoverySummary, compared: FigureTable | None = None) -> str:
    """A page that opens offline.

    Args:
        found: What was learned from trajectories. Without quantities the page says that none was found.
        compared: A table of several models, to stand at the top.
    """
    quantities, strengths = found.quantities, found.singular_values
    parallelness = found.truth.parallelness if found.truth is not None else None
    threshold, count = found.threshold or 0.0, found.count or 0
    series = [(f"{at}: {formula_words(one)}", level_lines(found.times, one.series)) for at, one in enumerate(quantities, 1)]
    return render(
        "discovery.html",
        found=found,
        compared=compared,
        noise=_noise(found.noise),
        headline=found.headline(),
        verdict=_verdict(found),
        truth=truth_words(found),
        model=_model(found),
        table=discovery_table(found),
        quantities=[_row(one) for one in quantities],
        rates=any(one.rate is not None for one in quantities),
        bars=embed(singular_bars(strengths, threshold, count, parallelness), "bars", wide=False),
        training=embed(training_lines(found.history, threshold, count), "training", wide=False),
        generators=_panels("generator", _generators(found)),
        series=_panels("series", series),
        portraits=_panels("portrait", [(" and ".join(one.names), portrait(one)) for one in found.portraits]),
        rollout=_rollout(found),
        evidence=_evidence(found),
        errors=_errors(found.errors),
    )


def _noise(values: Sequence[Number] | None) -> str:
    """Of coordinates: one number where they have the same."""
    return ", ".join(dict.fromkeys(significant(value) for value in values or ()))


def _verdict(found: DiscoverySummary) -> str:
    """Of the rows of the table, in a sentence or two."""
    count, many, on = confirmed_count(found), len(found.quantities), found.followed_words()
    words = f"Each row is a quantity that was {found.given}. "
    if count == many > 0:
        return f"{words}{'It is' if many == 1 else 'All are'} confirmed {on}."
    which = "None is" if not count else f"{number(count)} of {number(many)} {'is' if count == 1 else 'are'}"
    return f"{words}{which} confirmed {on}{'; the others are marked' if count else ''}."


@dataclass(frozen=True)
class _Coefficients:
    """A term of a formula, written."""

    monomial: str
    learned: str
    fitted: str


@dataclass(frozen=True)
class _Row:
    """A row of the page: cells beyond those of the table, and terms with their coefficients."""

    rate: str
    terms: list[_Coefficients]


def _row(one: QuantitySummary) -> _Row:
    return _Row(percent(one.rate, one.rate_error), [_coefficients(term) for term in one.terms])


def _coefficients(term: Term) -> _Coefficients:
    return _Coefficients(term.monomial, measured(term.learned), measured(term.fitted, term.error))


@dataclass(frozen=True)
class _Model:
    """What was learned and how, in words."""

    learned: str
    ways: str


def _model(found: DiscoverySummary) -> _Model:
    model = found.model
    if model.kind == "terms":
        kinds = listed(found.libraries) if found.libraries else "no"
        judged = f"{counted(model.quantities, 'sum')} judged; {number(model.seconds, 1)} s"
        return _Model(f"sums of terms from the libraries {kinds}", judged)
    energy = "an energy"
    if model.width and model.hidden:
        energy += f" as a network with {counted(model.hidden, 'hidden layer')} of {counted(model.width, 'unit')}"
    learned = _KINDS[model.kind].format(quantities=model.quantities)
    ways = []
    if model.samples and model.kind != "none":
        ways.append(f"averaged over {counted(model.samples, 'transformation')} (measure {model.measure})")
    ways.append(f"integrator {model.integrator}")
    ways.append(f"{counted(model.updates, 'update')} in {number(model.seconds)} s")
    return _Model(f"{energy}, and {learned}", "; ".join(ways))


@dataclass(frozen=True)
class _Rollout:
    """Energies and errors of a long motion."""

    panels: list[tuple[str, str]]
    until: str
    longer: str
    drift: str
    integrator: str
    error: bool


def _rollout(found: DiscoverySummary) -> _Rollout | None:
    """None where there was none."""
    rollout = found.rollout
    if rollout is None or not rollout.times:
        return None
    times = rollout.times
    lines = [
        ("learned energy along the learned motion", level_lines(times, rollout.energy)),
        ("true energy along the learned motion", level_lines(times, rollout.true_energy or [])),
        ("distance to the true motion", error_line(times, rollout.error)),
    ]
    span = max(found.times, default=0)
    return _Rollout(
        _panels("rollout", lines),
        until=significant(times[-1]),
        longer=number(times[-1] / span) if span and times[-1] >= 2 * span else "",
        drift=percent(rollout.drift),
        integrator=rollout.integrator,
        error=bool(rollout.error),
    )


def _evidence(found: DiscoverySummary) -> list[tuple[str, str, str]]:
    """Terms of the bound: name, per pair and in total."""
    if found.evidence is None:
        return []
    terms = {
        "negative log-likelihood of the data": found.evidence.nll,
        "divergence of the posterior from the prior": found.evidence.kl,
        "negative evidence lower bound": found.evidence.negative_elbo,
    }
    return [(name, number(one, 2), number(one * found.pairs, 1)) for name, one in terms.items() if one is not None]


def _errors(errors: Mapping[str, Mapping[str, float | None]]) -> list[tuple[str, str, str]]:
    """A row for each set of data: by both predictors."""
    return [
        (_SETS.get(name, name), known_words(by.get("sampled"), 2), known_words(by.get("plug-in"), 2))
        for name, by in errors.items()
    ]


def _generators(found: DiscoverySummary) -> list[tuple[str, Figure | None]]:
    """Captions and heatmaps, all in the same colours."""
    limit = max((abs(value) for matrix in found.generators for row in matrix for value in row), default=0.0)
    captions = [
        f"{at}: strength {significant(value)}, {_ABOVE if at <= (found.count or 0) else _BELOW}"
        for at, value in enumerate(found.singular_values[: len(found.generators)], 1)
    ]
    maps = (generator_map(matrix, found.names, limit) for matrix in found.generators)
    return list(zip(captions, maps, strict=True))


def _panels(name: str, figures: Sequence[tuple[str, Figure | None]]) -> list[tuple[str, str]]:
    """Captions and figures, of those that there are."""
    return [
        (caption, embed(figure, f"{name}_{index}", wide=False))
        for index, (caption, figure) in enumerate(figures)
        if figure is not None
    ]
