"""The pictures of the gallery, from the numbers that `experiments/gallery.py` finds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symbayes.report.plots import gammas, path_colours
from symbayes.report.svg import FAINT, LINE, TEXT, Card, Number, largest
from symbayes.text import number

Numbers = Mapping[str, Any]

_WIDTH, _LEFT, _RIGHT = 640, 24, 616
#: Names of paths in a legend.
_PATHS = {
    "factored": "F-FC: no symmetry",
    "conv": "CONV: shifts",
    "gconv": "GCONV: shifts and quarter turns",
    "dense": "FC: no symmetry",
    "orbit": "ORBIT: all of it",
}
_BARS = "Bars: share of γ per weight of each path in its layer, which sees no bias; "
#: The height of a line of words below a bar.
_LINE = 14
_NOT_KEPT = "γ itself was not kept"
_EVIDENCE = "Log evidence per training datum."


def translation(found: Numbers) -> str:
    """Shares of two paths by block, on two tasks."""
    title = "F-FC + CONV: every layer decides whether position matters"
    return _share_picture(found, title, "Digits in one of four quadrants of a canvas")


def rotation(found: Numbers) -> str:
    """Shares of three paths by block, on three tasks."""
    title = "F-FC + CONV + GCONV: shifts, turns, or neither"
    return _share_picture(found, title, "Which digit? In the middle, anywhere, or in the middle and turned")


def _share_picture(found: Numbers, title: str, subtitle: str) -> str:
    tasks = found["tasks"]
    colours = path_colours((row["layer"], row["path"]) for row in tasks[0]["shares"])
    known = "effective" in tasks[0]["shares"][0]
    pitch = 30 + _LINE * known
    end = 128 + pitch * len(_by_layer(tasks[0]["shares"]))
    card = Card(_WIDTH, end + 72 + 17, title, subtitle)
    _legend(card, 86, colours)
    start = _LEFT + 62
    step = (_RIGHT + 18 - start) / len(tasks)
    for index, task in enumerate(tasks):
        left = start + index * step
        card.text(left, 118, task["task"], bold=True)
        for row, (layer, by_path) in enumerate(_by_layer(task["shares"]).items()):
            y = 128 + pitch * row
            if index == 0:
                card.text(_LEFT, y + 14.5, layer.replace("block", "block "))
            card.shares(left, y, step - 18, _shares(by_path), colours)
            if known:
                card.text(left, y + 20 + 11, _gammas(by_path, colours), size=11, colour=FAINT)
        for line, words in enumerate(_score(task)):
            card.text(left, end + 12 + 15 * line, words, size=12, colour=FAINT)
    for line, words in enumerate((f"{_BARS}{'γ beneath' if known else _NOT_KEPT}.", _EVIDENCE)):
        card.text(_LEFT, end + 54 + 17 * line, words, size=12, colour=FAINT)
    return card.svg()


def smooth_filters(found: Numbers) -> str:
    """Filters of free and of smooth convolutions."""
    title = "S-CONV: a filter that is smooth between a few anchors"
    return _map_picture(found, title, "The strongest 7×7 filters; which digit?", 15)


def smooth_maps(found: Numbers) -> str:
    """What features of free and of smooth fully connected maps see."""
    title = "S-FC: fully connected, and smooth over the canvas"
    return _map_picture(found, title, "What features see of 16×16 cells; which digit, anywhere?", 9)


def _map_picture(found: Numbers, title: str, subtitle: str, cell: int) -> str:
    """A row of maps for every kind of path, with anchors as circles."""
    rows = found["rows"]
    side = cell * len(rows[0]["maps"][0])
    step = side + 22
    card = Card(_WIDTH, 102 + len(rows) * step, title, subtitle)
    card.scale(_RIGHT, 55)
    gap = (_RIGHT - 146 - side) / (len(rows[0]["maps"]) - 1)
    for index, row in enumerate(rows):
        top, limit, anchors = 78 + index * step, largest(row["maps"]), row["anchors"]
        cells = len(row["maps"][0]) * len(row["maps"][0][0])
        weights = f"{len(anchors)} anchors" if anchors else f"{cells} weights"
        lengthscale = [f"ω = {number(row['omega'], 2)}"] if anchors else []
        card.text(_LEFT, top + 14, row["name"], bold=True)
        for line, words in enumerate([weights, *lengthscale, *_score(row)]):
            card.text(_LEFT, top + 34 + 18 * line, words, size=12, colour=FAINT)
        for place, values in enumerate(row["maps"]):
            left = 146 + place * gap
            card.heatmap(left, top, values, cell, limit)
            for down, right in anchors:
                card.dot(left + cell * (right + 0.5), top + cell * (down + 0.5), 2.2, "none", TEXT)
    words = f"Circles: anchors; their values and ω give the weights of all cells. {_EVIDENCE}"
    card.text(_LEFT, 88 + len(rows) * step, words, size=12, colour=FAINT)
    return card.svg()


def lengthscales(found: Numbers) -> str:
    """ω of every path as a dot, and the deviation of its prior as a bar."""
    tasks, most = found["tasks"], 1.25
    end = 106 + 22 * len(tasks[0]["rows"])
    card = Card(_WIDTH, end + 96, "Prior on ω: how smooth each path is", "S-FC + S-CONV, all ω = 1 at the start")
    step = (_RIGHT - 160) / len(tasks)
    for column, task in enumerate(tasks):
        left, unit = 160 + column * step, (step - 24) / most
        card.text(left, 86, task["task"], bold=True)
        for tick in (0.0, 0.5, 1.0):
            card.line(left + tick * unit, 96, left + tick * unit, end, "#999999" if tick == 1 else LINE, "3 3" if tick else "")
            card.text(left + tick * unit, end + 15, f"{tick:g}", size=12, anchor="middle", colour=FAINT)
        for index, row in enumerate(task["rows"]):
            y = 110 + 22 * index
            if column == 0:
                card.text(_LEFT, y + 4.5, _omega_name(row["tensor"]), size=12)
            card.rect(left, y - 5, min(row["deviation"], most) * unit, 10, "#56B4E9" if row["deviation"] < most else "#d6ecf8")
            known = row["effective"] > 0.5
            card.dot(left + min(row["omega"], most) * unit, y, 4, TEXT if known else "#ffffff", TEXT)
        card.text(left, end + 36, ", ".join(_score(task)), size=12, colour=FAINT)
    notes = (
        "Dots: ω in units of 1 / cell, hollow where the data leave it open. As ω → 0 a path keeps all shifts.",
        f"Bars: deviation of its prior, pale where off the scale. {_EVIDENCE}",
    )
    for line, words in enumerate(notes):
        card.text(_LEFT, end + 62 + 17 * line, words, size=12, colour=FAINT)
    return card.svg()


def _omega_name(tensor: str) -> str:
    block, _, path, *rest = tensor.split(".")
    side = {"gather": ", seen", "scatter": ", given"}.get(rest[0], "")
    return f"{block.replace('block', 'block ')}, {'S-FC' if path == 'sparse' else 'S-CONV'}{side}"


def turned_filters(found: Numbers) -> str:
    """Filters in their turns."""
    filters, cell = found["filters"], 17
    side = cell * len(filters[0][0])
    subtitle = f"Which digit, turned or not? {', '.join(_score(found))}"
    card = Card(_WIDTH, 112 + len(filters) * (side + 14), "GCONV: one filter in four turns", subtitle)
    card.scale(_RIGHT, 55)
    gap = (_RIGHT - 146 - side) / 3
    for index, turns in enumerate(filters):
        top = 102 + index * (side + 14)
        card.text(_LEFT, top + side / 2, f"filter {index + 1}", bold=True)
        card.text(_LEFT, top + side / 2 + 18, f"{len(turns[0]) ** 2} weights", size=12, colour=FAINT)
        for turn, values in enumerate(turns):
            left = 146 + turn * gap
            if index == 0:
                card.text(left + side / 2, 92, f"{90 * turn}°", anchor="middle", colour=FAINT)
            card.heatmap(left, top, values, cell, largest(turns))
    return card.svg()


def permutation(found: Numbers) -> str:
    """Weights of a set layer and of the pooling layer, and shares, on a set and on a sequence."""
    titles = ("largest of 8 numbers", "largest of 1 to 4, less that of 5 to 8")
    card = Card(
        _WIDTH, 422, "OrbitPath on a set: one weight for each orbit of index pairs", "Does the order of numbers matter?"
    )
    card.scale(_RIGHT, 55)
    colours = path_colours((row["layer"], row["path"]) for row in found["tasks"][0]["shares"])
    for left, title, task in zip((_LEFT, 334), titles, found["tasks"], strict=True):
        card.text(left, 86, title, bold=True)
        for x, name, words in ((0, "tied", "layer 2: points to points"), (146, "pooled", "layer 3: features × points")):
            card.heatmap(left + x, 98, task[name], 17, largest([task[name]]))
            card.text(left + x, 250, words, size=11, colour=FAINT)
        _layer_bars(card, left, 264, task, colours)
        card.text(left + 54, 264 + 96, f"test error {number(100 * task['error'], 1)} % of the variance", size=12, colour=FAINT)
    _legend(card, 386, colours)
    card.text(_LEFT, 408, _kept(found), size=12, colour=FAINT)
    return card.svg()


def board_symmetry(found: Numbers) -> str:
    """Weights from cells to cells and from cells to classes on a board, and shares, for two questions."""
    subtitle = "Tic-tac-toe at the end of a game"
    card = Card(_WIDTH, 436, "OrbitPath on a board: turns and flips share weights", subtitle)
    card.scale(_RIGHT, 55)
    colours = path_colours((row["layer"], row["path"]) for row in found["tasks"][0]["shares"])
    for left, task in zip((_LEFT, 334), found["tasks"], strict=True):
        card.text(left, 86, task["task"], bold=True)
        for place, values in enumerate(task["cells"]):
            x, y = left + place % 3 * 48, 98 + place // 3 * 48
            card.heatmap(x, y, _square(values), 14, largest([task["cells"]]))
        card.text(left, 254, "cells to cells", size=11, colour=FAINT)
        for place, (name, values) in enumerate(zip(task["names"], task["classes"], strict=True)):
            x, y = left + 168 + place % 2 * 62, 98 + place // 2 * 72
            card.heatmap(x, y, _square(values), 14, largest([task["classes"]]))
            card.text(x + 21, y + 57, name, size=12, anchor="middle")
        card.text(left + 168, 254, "cells to classes", size=11, colour=FAINT)
        _layer_bars(card, left, 270, task, colours)
        card.text(left + 54, 342, ", ".join(_score(task)), size=12, colour=FAINT)
    _legend(card, 374, colours)
    words = "One hidden feature: what each of its nine cells sees of the ×, and what they say to each class."
    card.text(_LEFT, 400, words, size=12, colour=FAINT)
    card.text(_LEFT, 418, _kept(found), size=12, colour=FAINT)
    return card.svg()


def _layer_bars(card: Card, left: Number, top: Number, task: Numbers, colours: Mapping[str, str]) -> None:
    for row, by_path in enumerate(_by_layer(task["shares"]).values()):
        words = _gammas(by_path, colours)
        card.text(left, top + 14.5 + 28 * row, f"layer {row + 1}")
        card.shares(left + 54, top + 28 * row, 150 if words else 228, _shares(by_path), colours)
        if words:
            card.text(left + 54 + 156, top + 14.5 + 28 * row, words, size=11, colour=FAINT)


def _kept(found: Numbers) -> str:
    return f"{_BARS}{'γ beside them' if 'effective' in found['tasks'][0]['shares'][0] else _NOT_KEPT}."


def _legend(card: Card, y: Number, colours: Mapping[str, str]) -> None:
    card.legend(_LEFT, y, {_PATHS[path]: colour for path, colour in colours.items()})


def _square(values: Sequence[Number]) -> list[Sequence[Number]]:
    return [values[row : row + 3] for row in (0, 3, 6)]


def _by_layer(shares: Sequence[Numbers]) -> dict[str, dict[str, Numbers]]:
    found: dict[str, dict[str, Numbers]] = {}
    for row in shares:
        found.setdefault(row["layer"], {})[row["path"]] = row
    return found


def _shares(by_path: Mapping[str, Numbers]) -> dict[str, Number]:
    return {path: row["share"] for path, row in by_path.items()}


def _gammas(by_path: Mapping[str, Numbers], paths: Mapping[str, str]) -> str:
    return gammas({path: row.get("effective") for path, row in by_path.items()}, paths)


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
