"""The pictures of the gallery, from the numbers that `gallery.py` finds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from papers.drawing import FAINT, TEXT, Numbers, aside, card, drawn, heatmap, largest, share_bars
from symbayes.report.plots import path_colours
from symbayes.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 640
#: Names of paths in a legend.
_PATHS = {
    "factored": "F-FC: no symmetry",
    "conv": "CONV: shifts",
    "gconv": "GCONV: shifts and quarter turns",
    "dense": "FC: no symmetry",
    "orbit": "ORBIT: all of it",
}
_EVIDENCE = "Log evidence per training datum."


@drawn
def translation(found: Numbers) -> "Figure":
    """Shares of two paths by block, on two tasks."""
    title = "F-FC + CONV: every layer decides whether position matters"
    return _share_picture(found, title, "Digits in one of four quadrants of a canvas")


@drawn
def rotation(found: Numbers) -> "Figure":
    """Shares of three paths by block, on three tasks."""
    title = "F-FC + CONV + GCONV: shifts, turns, or neither"
    return _share_picture(found, title, "Which digit? In the middle, anywhere, or in the middle and turned")


def _share_picture(found: Numbers, title: str, subtitle: str) -> "Figure":
    tasks, colours = found["tasks"], _colours(found)
    height = 220 + 30 * len(_by_layer(tasks[0]["shares"]))
    figure = card(_WIDTH, height, title, subtitle, notes=[_bars(found), _EVIDENCE], legend=_legend(colours))
    for axes, task in zip(figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0], tasks, strict=True):
        share_bars(axes, _by_layer(task["shares"]), colours)
        axes.set_title(task["task"])
        axes.set_xlabel("\n".join(_score(task)), loc="left")
    return figure


@drawn
def smooth_filters(found: Numbers) -> "Figure":
    """Filters of free and of smooth convolutions."""
    title = "S-CONV: a filter that is smooth between a few anchors"
    return _map_picture(found, title, "The strongest 7×7 filters; which digit?")


@drawn
def smooth_maps(found: Numbers) -> "Figure":
    """What features of free and of smooth fully connected maps see."""
    title = "S-FC: fully connected, and smooth over the canvas"
    return _map_picture(found, title, "What features see of 16×16 cells; which digit, anywhere?")


def _map_picture(found: Numbers, title: str, subtitle: str) -> "Figure":
    """A row of maps for every kind of path, with anchors as circles."""
    rows = found["rows"]
    count = len(rows[0]["maps"])
    notes = [f"Circles: anchors; their values and ω give the weights of all cells. {_EVIDENCE}"]
    height = 100 + len(rows) * (460 // count + 10)
    figure = card(_WIDTH, height, title, subtitle, notes=notes, scale=True)
    grid = figure.subplots(len(rows), 1 + count, squeeze=False, width_ratios=[1.1 * count / 4, *[1] * count])
    for (words, *places), row in zip(grid, rows, strict=True):
        anchors, cells = row["anchors"], len(row["maps"][0]) * len(row["maps"][0][0])
        known = [f"{len(anchors)} anchors", f"ω = {number(row['omega'], 2)}"] if anchors else [f"{cells} weights"]
        aside(words, row["name"], [(text, FAINT) for text in (*known, *_score(row))])
        for axes, values in zip(places, row["maps"], strict=True):
            heatmap(axes, values, largest(row["maps"]))
            if anchors:
                axes.scatter([x for _, x in anchors], [y for y, _ in anchors], 12, "none", edgecolors=TEXT, linewidths=0.75)
    return figure


@drawn
def lengthscales(found: Numbers) -> "Figure":
    """ω of every path as a dot, and the deviation of its prior as a bar."""
    tasks, most = found["tasks"], 1.25
    notes = [
        "Dots: ω in units of 1 / cell, hollow where the data leave it open. As ω → 0 a path keeps all shifts.",
        f"Bars: deviation of its prior, pale where off the scale. {_EVIDENCE}",
    ]
    height = 190 + 22 * len(tasks[0]["rows"])
    figure = card(_WIDTH, height, "Prior on ω: how smooth each path is", "S-FC + S-CONV, all ω = 1 at the start", notes=notes)
    for axes, task in zip(figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0], tasks, strict=True):
        rows = task["rows"]
        deviations, places = [row["deviation"] for row in rows], range(len(rows))
        axes.barh(places, deviations, 0.45, color=["#56B4E9" if value < most else "#d6ecf8" for value in deviations])
        inside = ["white" if row["effective"] <= 0.5 else TEXT for row in rows]
        omegas = [min(row["omega"], most) for row in rows]
        axes.scatter(omegas, places, 36, inside, edgecolors=TEXT, linewidths=0.75, zorder=3, clip_on=False)
        axes.set(xlim=(0, most), ylim=(len(rows) - 0.5, -0.5), xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"])
        axes.set_yticks(places, [_omega_name(row["tensor"]) for row in rows])
        axes.tick_params("y", labelcolor=TEXT, length=0)
        axes.grid(axis="x", color="#999999", linestyle=(0, (3, 3)))
        axes.set_axisbelow(True)
        axes.set_title(task["task"])
        axes.set_xlabel(", ".join(_score(task)), loc="left")
    return figure


def _omega_name(tensor: str) -> str:
    block, _, path, *rest = tensor.split(".")
    side = {"gather": ", seen", "scatter": ", given"}.get(rest[0], "")
    return f"{block.replace('block', 'block ')}, {'S-FC' if path == 'sparse' else 'S-CONV'}{side}"


@drawn
def turned_filters(found: Numbers) -> "Figure":
    """Filters in their turns."""
    filters = found["filters"]
    subtitle = f"Which digit, turned or not? {', '.join(_score(found))}"
    figure = card(_WIDTH, 110 + 98 * len(filters), "GCONV: one filter in four turns", subtitle, scale=True)
    grid = figure.subplots(len(filters), 1 + len(filters[0]), squeeze=False)
    for index, ((words, *places), turns) in enumerate(zip(grid, filters, strict=True)):
        aside(words, f"filter {index + 1}", [(f"{len(turns[0]) ** 2} weights", FAINT)])
        for turn, (axes, values) in enumerate(zip(places, turns, strict=True)):
            heatmap(axes, values, largest(turns))
            if index == 0:
                axes.set_title(f"{90 * turn}°", loc="center", color=FAINT, weight="normal")
    return figure


@drawn
def permutation(found: Numbers) -> "Figure":
    """Weights of a set layer and of the pooling layer, and shares, on a set and on a sequence."""
    titles = ("largest of 8 numbers", "largest of 1 to 4, less that of 5 to 8")
    title = "OrbitPath on a set: one weight for each orbit of index pairs"
    colours = _colours(found)
    subtitle = "Does the order of numbers matter?"
    figure = card(_WIDTH, 450, title, subtitle, notes=[_bars(found)], legend=_legend(colours), scale=True)
    for part, words, task in zip(figure.subfigures(1, 2, squeeze=False, wspace=0.06)[0], titles, found["tasks"], strict=True):
        part.suptitle(words, x=0, ha="left", weight="bold", size="medium")
        above, below = part.subfigures(2, 1, height_ratios=[1.5, 1])
        names = {"tied": "layer 2:\npoints to points", "pooled": "layer 3:\nfeatures × points"}
        for axes, (name, what) in zip(above.subplots(1, 2), names.items(), strict=True):
            heatmap(axes, task[name], largest([task[name]]))
            axes.set_xlabel(what)
        _layer_bars(below.subplots(), task, colours, f"test error {number(100 * task['error'], 1)} % of the variance")
    return figure


@drawn
def board_symmetry(found: Numbers) -> "Figure":
    """Weights from cells to cells and from cells to classes on a board, and shares, for two questions."""
    title, subtitle = "OrbitPath on a board: turns and flips share weights", "Tic-tac-toe at the end of a game"
    words = "One hidden feature: what each of its nine cells sees of the ×, and what they say to each class."
    colours = _colours(found)
    figure = card(_WIDTH, 460, title, subtitle, notes=[words, _bars(found)], legend=_legend(colours), scale=True)
    for part, task in zip(figure.subfigures(1, 2, squeeze=False, wspace=0.06)[0], found["tasks"], strict=True):
        part.suptitle(task["task"], x=0, ha="left", weight="bold", size="medium")
        above, below = part.subfigures(2, 1, height_ratios=[1.6, 1])
        cells, classes = above.subfigures(1, 2, width_ratios=[1.2, 1])
        for axes, values in zip(cells.subplots(3, 3).flat, task["cells"], strict=True):
            heatmap(axes, _square(values), largest([task["cells"]]))
        cells.supxlabel("cells to cells", size="small", color=FAINT)
        places = classes.subplots(2, 2).flat
        for axes in places:
            axes.set_axis_off()
        for axes, name, values in zip(classes.axes, task["names"], task["classes"], strict=False):
            axes.set_axis_on()
            heatmap(axes, _square(values), largest([task["classes"]]))
            axes.set_xlabel(name, color=TEXT)
        classes.supxlabel("cells to classes", size="small", color=FAINT)
        _layer_bars(below.subplots(), task, colours, ", ".join(_score(task)))
    return figure


def _layer_bars(axes: "Axes", task: Numbers, colours: Mapping[str, str], score: str) -> None:
    layers = _by_layer(task["shares"]).values()
    share_bars(axes, {f"layer {index}": by_path for index, by_path in enumerate(layers, 1)}, colours)
    axes.set_xlabel(score, loc="left")


def _bars(found: Numbers) -> str:
    kept = "γ beside them" if "effective" in found["tasks"][0]["shares"][0] else "γ itself was not kept"
    return f"Bars: share of γ per weight of each path in its layer, which sees no bias; {kept}."


def _colours(found: Numbers) -> dict[str, str]:
    return path_colours((row["layer"], row["path"]) for row in found["tasks"][0]["shares"])


def _legend(colours: Mapping[str, str]) -> dict[str, str]:
    return {_PATHS[path]: colour for path, colour in colours.items()}


def _square(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[row : row + 3] for row in (0, 3, 6)]


def _by_layer(shares: Sequence[Numbers]) -> dict[str, dict[str, Numbers]]:
    found: dict[str, dict[str, Numbers]] = {}
    for row in shares:
        found.setdefault(row["layer"].replace("block", "block "), {})[row["path"]] = row
    return found


def _score(facts: Numbers) -> tuple[str, str]:
    return f"test {number(100 * facts['accuracy'], 1)} %", f"log evidence {number(facts['log_evidence'], 2)}"


#: By name.
PICTURES: dict[str, Callable[[Numbers], str]] = {
    "translation": translation,
    "smooth_filters": smooth_filters,
    "smooth_maps": smooth_maps,
    "lengthscales": lengthscales,
    "turned_filters": turned_filters,
    "rotation": rotation,
    "permutation": permutation,
    "board_symmetry": board_symmetry,
}
