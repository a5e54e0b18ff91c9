"""The figures of the pages: shares of paths, training curves and prior precisions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from plotly.colors import sample_colorscale
from plotly.graph_objects import Bar, Figure, Scatter
from plotly.subplots import make_subplots

from symbayes.text import number
from symbayes.training.record import EvidenceRecord, Record, Summary
from symbayes.training.symmetries import PathRow

Number = float | int

#: Okabe and Ito's colours, which the colour-blind can tell apart. Runs are lines, of which the faintest colours come last.
_PATH_COLOURS = ("#0072B2", "#E69F00", "#56B4E9", "#F0E442", "#CC79A7", "#009E73", "#D55E00", "#000000")
RUN_COLOURS = ("#000000", "#D55E00", "#009E73", "#CC79A7", "#0072B2", "#E69F00", "#56B4E9", "#F0E442")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_TEXT, _GRID = "#222222", "#e3e3e3"
_MANY_LAYERS = 12
_NO_LAYER = "(model)"


@dataclass(frozen=True)
class Run:
    """One training run of a comparison.

    Args:
        task: What was learned.
        model: By what.
        objective: How, such as "MAP" or "evidence".
        learned: Whether its symmetries were learned.
        summary: What was found.
        history: How it got there.
        truth: How far data were in fact transformed, by the names of extents, where it is known.
    """

    task: str
    model: str
    objective: str
    learned: bool
    summary: Summary
    history: Sequence[Record]
    truth: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class CurveRow:
    """Figures of a run in a table, beside how its curve is drawn; `by` is how it predicts."""

    name: str
    colour: str
    pattern: str
    cells: list[str]
    by: str = ""


class Estimate(NamedTuple):
    """An epoch after which the evidence was estimated."""

    epoch: int
    evidence: EvidenceRecord


@dataclass(frozen=True)
class Curve:
    """The history of one run, and how it is drawn."""

    name: str
    history: Sequence[Record]
    num_data: int
    colour: str = _PATH_COLOURS[0]
    dash: str = _DASHES[0]

    def losses(self) -> tuple[list[int], list[float]]:
        """Epochs and the loss per datum."""
        return [record.epoch for record in self.history], [record.loss for record in self.history]

    def evidences(self) -> tuple[list[int], list[float]]:
        """Epochs with an estimate, and the log evidence per datum."""
        found, _ = estimates(self.history)
        return [one.epoch for one in found], [one.evidence.total / self.num_data for one in found]

    def kept(self) -> tuple[list[int], list[float]]:
        """The one of `evidences` whose state was kept."""
        _, index = estimates(self.history)
        epochs, values = self.evidences()
        return epochs[index : index + 1], values[index : index + 1]


def estimates(history: Sequence[Record]) -> tuple[list[Estimate], int]:
    """The epochs with an estimate of the evidence, and the index of the one whose state was kept.

    Where the best state was restored at the end, the last record repeats the estimate of an earlier one, and is left out.
    """
    found = [Estimate(record.epoch, record.evidence) for record in history if record.evidence is not None]
    totals = [one.evidence.total for one in found]
    kept = totals.index(totals[-1]) if totals else 0
    return (found[:-1], kept) if kept < len(found) - 1 else (found, kept)


def layers(rows: Iterable[PathRow]) -> dict[str, list[PathRow]]:
    """The rows of a symmetry table by layer; the model itself, whose name is empty, gets one."""
    found: dict[str, list[PathRow]] = {}
    for row in rows:
        found.setdefault(row.layer or _NO_LAYER, []).append(row)
    return found


def path_colours(places: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A colour for every path that some layer has beside another, from the layer and the name of all paths."""
    by_layer: dict[str, list[str]] = {}
    for layer, path in places:
        by_layer.setdefault(layer, []).append(path)
    paths = dict.fromkeys(path for members in by_layer.values() if len(members) > 1 for path in members)
    return {path: _PATH_COLOURS[index % len(_PATH_COLOURS)] for index, path in enumerate(paths)}


def curves(runs: Sequence[Run]) -> list[Curve]:
    """A curve for every run: the dash is the objective's, the colour the model's where every model has every objective.

    Otherwise every kind of run, a model with an objective, has a colour of its own, as far as there are enough.
    """
    models = list(dict.fromkeys(run.model for run in runs))
    objectives = sorted(dict.fromkeys(run.objective for run in runs), key=lambda name: name != "evidence")
    kinds = list(dict.fromkeys((run.model, run.objective) for run in runs))
    crossed = len(models) > 1 and len(kinds) == len(models) * len(objectives)
    by_model = crossed or len(kinds) > len(RUN_COLOURS)
    return [
        Curve(
            run.model if run.model == run.objective else f"{run.model}, {run.objective}",
            run.history,
            run.summary.num_data,
            RUN_COLOURS[(models.index(run.model) if by_model else kinds.index(kind)) % len(RUN_COLOURS)],
            _DASHES[objectives.index(run.objective) % len(_DASHES)],
        )
        for run in runs
        for kind in [(run.model, run.objective)]
    ]


def share_bars(rows: Iterable[PathRow], colours: Mapping[str, str]) -> Figure | None:
    """A bar of 100 % for each layer with more than one path, the first layer on top; None where there is no such layer.

    Beside it is γ of every path: a share of weights does not see biases, and a bar of no width may be of many parameters.
    """
    chosen = {layer: members for layer, members in layers(rows).items() if len(members) > 1}
    if not chosen:
        return None
    figure = Figure()
    for path, colour in colours.items():
        found = {layer: row for layer, members in chosen.items() for row in members if row.path == path}
        figure.add_trace(
            Bar(
                name=label(path),
                x=[100 * row.share for row in found.values()],
                y=[label(layer) for layer in found],
                customdata=[number(row.effective, 1) for row in found.values()],
                orientation="h",
                marker={"color": colour, "line": {"color": "white", "width": 1}},
                texttemplate="%{x:.0f} %",
                textposition="inside",
                insidetextanchor="middle",
                hovertemplate="%{y}: %{x:.1f} %, γ %{customdata}",
            )
        )
    style(figure, 110 + 30 * len(chosen))
    shown = [path for path in colours if any(row.path == path for members in chosen.values() for row in members)]
    beside = {layer: gammas({row.path: row.effective for row in members}, shown) for layer, members in chosen.items()}
    for layer, words in beside.items():
        place = {"x": 100, "xanchor": "left", "xshift": 6, "y": label(layer), "yanchor": "middle", "showarrow": False}
        figure.add_annotation(text=words, font={"size": 12}, **place)
    room = {"r": 24 + 7 * max(map(len, beside.values()))}
    figure.update_layout(
        barmode="stack", bargap=0.25, uniformtext={"minsize": 11, "mode": "hide"}, showlegend=True, margin=room
    )
    title = "share of γ per weight (%)<br>right: γ, in the order of the legend"
    figure.update_xaxes(title=title, range=[0, 100], dtick=25, fixedrange=True)
    order = [label(layer) for layer in chosen]
    figure.update_yaxes(
        autorange="reversed", type="category", categoryorder="array", categoryarray=order, showgrid=False, fixedrange=True
    )
    return figure


def gammas(effective: Mapping[str, float | None], paths: Iterable[str]) -> str:
    """γ of the paths of a layer in the order of a legend, to stand beside their shares: "γ 60.3 | 15.2"; empty if not known."""
    known = [effective.get(path) for path in paths]
    written = ["–" if one is None else number(one, 1 if one < 99.95 else 0) for one in known]
    return f"γ {' | '.join(written)}" if any(one is not None for one in known) else ""


def training_curves(runs: Sequence[Curve]) -> Figure:
    """Loss above log evidence, both per datum, over epochs; evidence only where some run has it more than once.

    A diamond marks the state that was kept.
    """
    has_evidence = any(len(run.evidences()[0]) > 1 for run in runs)
    figure = make_subplots(rows=2 if has_evidence else 1, cols=1, shared_xaxes=True, vertical_spacing=0.07)
    for run in runs:
        look = {"name": label(run.name), "legendgroup": run.name, "hovertemplate": "%{y:.4g}"}
        line = {"color": run.colour, "dash": run.dash, "width": 2}
        epochs, values = run.losses()
        figure.add_trace(Scatter(x=epochs, y=values, mode="lines", line=line, **look), row=1, col=1)
        if has_evidence:
            epochs, values = run.evidences()
            figure.add_trace(Scatter(x=epochs, y=values, mode="lines", line=line, showlegend=False, **look), row=2, col=1)
            epochs, values = run.kept()
            diamond = {"color": run.colour, "size": 11, "symbol": "diamond"}
            look["hovertemplate"] = "%{y:.4g}, kept"
            figure.add_trace(
                Scatter(x=epochs, y=values, mode="markers", marker=diamond, showlegend=False, **look), row=2, col=1
            )
    style(figure, 640 if has_evidence else 330)
    losses = [loss for run in runs for loss in run.losses()[1]]
    figure.update_yaxes(title="loss (nats per datum)", **log_axis(losses), row=1, col=1)
    if has_evidence:
        figure.update_yaxes(title="log evidence (nats per datum)", row=2, col=1)
    figure.update_xaxes(tickformat="d")
    figure.update_xaxes(title="epoch", row=2 if has_evidence else 1, col=1)
    figure.update_layout(showlegend=len(runs) > 1, hovermode="x unified" if len(runs) > 1 else "closest")
    return figure


def precision_curves(history: Sequence[Record], rows: Sequence[PathRow]) -> Figure | None:
    """Prior precisions of weight tensors over epochs, a panel for each path; None with fewer than two hyper-steps."""
    steps, _ = estimates(history)
    if len(steps) < 2:
        return None
    epochs = [step.epoch for step in steps]
    names = [name for name in steps[-1].evidence.precision if not name.endswith("bias")]
    places = {name: _place(name, rows) for name in names}
    order = list(dict.fromkeys(layer for layer, _ in places.values()))
    paths = list(dict.fromkeys(path for _, path in places.values()))
    shades = sample_colorscale("Viridis", [0.25 + 0.65 * index / max(1, len(order) - 1) for index in range(len(order))])
    titles = [label(path) for path in paths]
    figure = make_subplots(
        len(paths), 1, shared_xaxes=True, shared_yaxes="all", vertical_spacing=0.15 / len(paths), row_titles=titles
    )
    seen: list[tuple[str, str]] = []
    for name, (layer, path) in places.items():
        trace = Scatter(
            x=epochs,
            y=[step.evidence.precision[name] for step in steps],
            name=label(layer),
            legendgroup=layer,
            showlegend=all(layer != shown for shown, _ in seen),
            mode="lines",
            line={"color": shades[order.index(layer)], "dash": _DASHES[seen.count((layer, path)) % len(_DASHES)], "width": 2},
            hovertemplate=f"{label(name)}: %{{y:.3g}}, epoch %{{x}}<extra></extra>",
        )
        figure.add_trace(trace, row=paths.index(path) + 1, col=1)
        seen.append((layer, path))
    style(figure, 120 + 220 * len(paths))
    values = [step.evidence.precision[name] for step in steps for name in names]
    figure.update_layout(showlegend=1 < len(order) <= _MANY_LAYERS)
    figure.update_yaxes(title="precision δ", **log_axis(values))
    figure.update_xaxes(tickformat="d")
    figure.update_xaxes(title="epoch", row=len(paths), col=1)
    return figure


def _place(name: str, rows: Sequence[PathRow]) -> tuple[str, str]:
    """Layer and path of a weight tensor, of which its name starts with the first and may go on with the second."""
    for row in rows:
        prefix = f"{row.layer}." if row.layer else ""
        if name.startswith(f"{prefix}paths.{row.path}."):
            return row.layer or _NO_LAYER, row.path
    owner = name.rpartition(".")[0]
    return owner or _NO_LAYER, next((row.path for row in rows if row.layer == owner), "")


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """A log axis whose ticks do not crowd; a linear one where values are not positive."""
    if min(values) <= 0:
        return {"type": "linear"}
    ratio = max(values) / min(values)
    return {"type": "log", "exponentformat": "power", "dtick": 1 if ratio > 100 else "D2" if ratio > 10 else None}


def style(
    figure: Figure, height: int, *, x: Mapping[str, Any] | None = None, y: Mapping[str, Any] | None = None, **layout: Any
) -> None:
    """The look of all figures, and what one of them has of its own: of every x axis, of every y axis, and of its layout."""
    axis = {"gridcolor": _GRID, "zeroline": False, "automargin": True, "linecolor": "#888888", "ticks": "outside", "ticklen": 4}
    axis["title"] = {"font": {"size": 14}}
    usual: dict[str, Any] = {
        "template": None,
        "height": height,
        "font": {"family": _FONT, "size": 14, "color": _TEXT},
        "plot_bgcolor": "white",
        "paper_bgcolor": "white",
        "margin": {"l": 60, "r": 24, "t": 50, "b": 50},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "dragmode": False,
    }
    for name in ("font", "margin"):
        layout[name] = {**usual[name], **layout.get(name, {})}
    # All at once: plotly takes longer for many updates than for all that they say.
    names = [name for name in figure.layout.to_plotly_json() if name.startswith(("xaxis", "yaxis"))] or ["xaxis", "yaxis"]
    axes = {name: {**axis, **((x if name.startswith("x") else y) or {})} for name in names}
    figure.update_layout(**{**usual, **layout, **axes})


def label(text: str) -> str:
    """Text that plotly shows as it is, not as markup."""
    return escape(text)
