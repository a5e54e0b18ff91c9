"""How pictures of documents look: cards that are drawn by matplotlib, legible on light and dark pages.

Words stay words, and the same numbers give the same bytes: nothing depends on time or on the fonts at hand.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from io import StringIO
from typing import TYPE_CHECKING, Any, ParamSpec

from symbayes.report.plots import gammas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

P = ParamSpec("P")
Numbers = Mapping[str, Any]

TEXT, FAINT, LINE = "#222222", "#666666", "#d0d7de"
#: Ends of the diverging colour map, which the colour-blind can tell apart.
NEGATIVE, POSITIVE = "#0072B2", "#D55E00"
#: Pixels in a point of print, in which matplotlib measures letters, and in an inch.
_POINT, _INCH = 4 / 3, 96
SMALL, USUAL, LARGE = 12 / _POINT, 13 / _POINT, 17 / _POINT
#: Of a card: its margin, and the height of its title with a subtitle, of a line of words below, of a legend.
_MARGIN, _HEAD, _LINE, _LEGEND = 24, 66, 17, 28
#: Looks of points in plots: what was tried by hand, and where learning ended.
SCANNED: dict[str, Any] = {"color": "#999999", "markerfacecolor": "white", "markeredgecolor": FAINT}
ENDED: dict[str, Any] = {"markeredgecolor": "white", "markersize": 8}
STYLE: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.labelcolor": FAINT,
    "axes.labelsize": SMALL,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": USUAL,
    "axes.titleweight": "bold",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": USUAL,
    "grid.color": "#eeeeee",
    "legend.borderpad": 0,
    "legend.columnspacing": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "symbayes",
    "text.color": TEXT,
    "text.parse_math": False,
    "xtick.color": LINE,
    "xtick.labelcolor": FAINT,
    "xtick.labelsize": 11 / _POINT,
    "ytick.color": LINE,
    "ytick.labelcolor": FAINT,
    "ytick.labelsize": 11 / _POINT,
}


def drawn(draw: "Callable[P, Figure]") -> Callable[P, str]:
    """A function that draws a figure, as one that returns it as SVG."""

    @wraps(draw)
    def picture(*args: P.args, **kwargs: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(STYLE), StringIO() as file:
            figure = draw(*args, **kwargs)
            _settle(figure)
            unknown = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", metadata={**unknown, "Title": figure.get_label()})
            text = file.getvalue()
        return text[text.index("<svg") :]  # so that it may stand in a page, too

    return picture


def _settle(figure: "Figure") -> None:
    """Let axes find their places, and round these: the solver's last digits differ from time to time."""
    from matplotlib.figure import SubFigure
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    parts: Any = figure.findobj(SubFigure)
    for part in parts:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(5))
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position().get_points().round(5)))


def card(
    width: int,
    height: int,
    title: str,
    subtitle: str,
    *,
    notes: Sequence[str] = (),
    legend: Mapping[str, str] | None = None,
    scale: bool = False,
) -> "Figure":
    """A white card, to be filled with axes that find their places themselves.

    Args:
        width: In pixels.
        height: In pixels.
        title: Set at the top, and read out by screen readers.
        subtitle: Below it.
        notes: Lines at the bottom.
        legend: Names of colours, below the subtitle.
        scale: Whether to say at the top what the colours of heatmaps mean.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    size = (width / _INCH, height / _INCH)
    figure = Figure(size, dpi=72, layout="constrained", label=title, facecolor="white", edgecolor=LINE, linewidth=1.5)
    left = _MARGIN / width
    figure.text(left, 1 - 34 / height, title, size=LARGE, weight="bold")
    figure.text(left, 1 - 55 / height, subtitle, color=FAINT)
    for line, words in enumerate(reversed(notes)):
        figure.text(left, (_MARGIN - 6 + _LINE * line) / height, words, size=SMALL, color=FAINT)
    head, foot = _HEAD, _MARGIN - 10 + _LINE * len(notes)
    if legend:
        handles = [Patch(color=colour, label=name) for name, colour in legend.items()]
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(left, 1 - (head + 6) / height), ncols=9, borderaxespad=0
        )
        head += _LEGEND
    if scale:
        bar = figure.add_axes((1 - (_MARGIN + 90) / width, 1 - 55 / height, 32 / width, 12 / height))
        heatmap(bar, [[step / 16 for step in range(-16, 17)]], 1.0, aspect="auto")
        bar.text(-0.12, 0.1, "negative", size=SMALL, color=FAINT, ha="right", transform=bar.transAxes)
        bar.text(1.12, 0.1, "positive", size=SMALL, color=FAINT, transform=bar.transAxes)
        bar.set_in_layout(False)
    engine: Any = figure.get_layout_engine()
    inside = (left, foot / height, 1 - 2 * left, 1 - (head + foot) / height)
    engine.set(rect=inside, w_pad=0.06, h_pad=0.06, wspace=0.02, hspace=0.02)
    return figure


def heatmap(axes: "Axes", values: Sequence[Sequence[float]], limit: float, **look: Any) -> None:
    """Values as coloured cells, the first row on top; colours end at ± the limit."""
    axes.imshow(values, diverging(), vmin=-(limit or 1), vmax=limit or 1, interpolation="none", **look)
    bare(axes)


def bare(axes: "Axes") -> None:
    """A frame all around, and no ticks."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.patch.set(edgecolor="#999999", linewidth=1.5 if axes.images else 0.75)  # images hide the inner half


def largest(maps: Iterable[Sequence[Sequence[float]]]) -> float:
    """The largest absolute value: the limit of colours that several heatmaps share."""
    return max((abs(value) for values in maps for row in values for value in row), default=0.0)


def share_bars(axes: "Axes", layers: Mapping[str, Mapping[str, Numbers]], colours: Mapping[str, str]) -> None:
    """A bar of 100 % for each layer, split by its paths, the first on top; beside it is γ of each path, where it is known.

    Parts wide enough hold their number.
    """
    from matplotlib.colors import to_rgb

    for place, by_path in enumerate(layers.values()):
        start = 0.0
        for path, row in by_path.items():
            bar = axes.barh(place, row["share"], 0.7, left=start, color=colours[path])
            ink = "white" if sum(to_rgb(colours[path])) < 1.3 else TEXT
            words = f"{100 * row['share']:.0f} %" if row["share"] > 0.2 else ""
            axes.bar_label(bar, [words], label_type="center", color=ink, size=SMALL)
            start += row["share"]
        known = {path: row.get("effective") for path, row in by_path.items()}
        beside = gammas(known, [path for path in colours if path in by_path])
        axes.annotate(beside, (1, place), (4, 0), textcoords="offset points", va="center", size=11 / _POINT, color=FAINT)
    axes.set(xlim=(0, 1), ylim=(len(layers) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(layers)), list(layers))
    axes.tick_params(length=0, labelsize=USUAL, labelcolor=TEXT)
    axes.spines[:].set_visible(False)


def filter_rows(
    figure: "Figure",
    rows: Sequence[tuple[str, Sequence[tuple[str, str]], Sequence[Sequence[Sequence[Sequence[float]]]]]],
    limits: Sequence[Sequence[float]],
) -> None:
    """Filters in their versions, in a block for each row that words stand beside.

    Args:
        figure: To draw on.
        rows: A title, words with colours, and the versions of every filter.
        limits: Of colours, by row and filter.
    """
    blocks = figure.subfigures(len(rows), 2, squeeze=False, width_ratios=[0.42, 0.58], hspace=0.03)
    for (beside, block), (title, words, maps), row_limits in zip(blocks, rows, limits, strict=True):
        aside(beside.subplots(), title, words)
        grid = block.subplots(len(maps), len(maps[0]), squeeze=False)
        for places, versions, limit in zip(grid, maps, row_limits, strict=True):
            for axes, values in zip(places, versions, strict=True):
                heatmap(axes, values, limit)


def aside(axes: "Axes", title: str, words: Sequence[tuple[str, str]]) -> None:
    """Words beside heatmaps, below each other and each with a colour."""
    axes.set_axis_off()
    axes.set_title(title, y=1, va="top", pad=0)
    for line, (text, colour) in enumerate(words, 1):
        place = (0, -_LINE * line / _POINT)
        axes.annotate(text, (0, 1), place, "axes fraction", "offset points", va="top", size=SMALL, color=colour)


def pairs(axes: "Axes", rows: Mapping[str, str], bold: Sequence[str] = ()) -> None:
    """Names at the left and values at the right, below axes."""
    for line, (name, value) in enumerate(rows.items(), 1):
        look: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "size": SMALL}
        down = -_LINE * line / _POINT
        axes.annotate(name, (0, 0), (0, down), color=FAINT, **look)
        axes.annotate(value, (1, 0), (0, down), ha="right", weight="bold" if name in bold else "normal", **look)


def plain(axes: "Axes", title: str) -> None:
    """The look of a plot with a legend below it, of what has a name."""
    axes.set_title(title)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=9, borderaxespad=0, handlelength=1.6)


@cache
def diverging(depth: float = 1.0) -> "Colormap":
    """From one end through white to the other, in so few steps that files stay small; with less depth the ends are paler."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    pale = [[1 + depth * (channel - 1) for channel in to_rgb(end)] for end in (NEGATIVE, "white", POSITIVE)]
    return LinearSegmentedColormap.from_list("diverging", pale, 33)
