"""The pictures of the gallery, from the numbers that `experiments/gallery.py` finds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symbayes.report.page import number
from symbayes.report.plots import path_colours
from symbayes.report.svg import FAINT, LINE, TEXT, Card, largest

Numbers = Mapping[str, Any]

_WIDTH, _MARGIN = 640, 24
#: What a path is called, and what it keeps.
_KEEPS = {
    "factored": "F-FC: no symmetry",
    "dense": "FC: no symmetry",
    "conv": "CONV: translation",
    "gconv": "GCONV: translation and turns",
    "orbit": "ORBIT: the group",
}
_SHARE = "Bars: share of each path in its layer, by effective parameters per weight."


def translation(found: Numbers) -> str:
    """Shares of two paths by block, on two tasks."""
    return _share_picture(found, "F-FC+CONV: every layer decides whether position matters", "8×8 digits on a 16×16 canvas.")


def rotation(found: Numbers) -> str:
    """Shares of three paths by block, on three tasks."""
    return _share_picture(found, "F-FC+CONV+GCONV: shifts, turns, or neither", "Which digit? Asked of three kinds of canvas.")


def _share_picture(found: Numbers, title: str, subtitle: str) -> str:
    tasks = found["tasks"]
    colours = path_colours(tasks[0]["shares"])
    rows = len(_by_layer(tasks[0]["shares"]))
    card = Card(_WIDTH, 176 + 30 * rows, title, subtitle)
    card.legend(_MARGIN, 84, {_KEEPS[path]: colour for path, colour in colours.items()}, 150)
    step = (_WIDTH - 2 * _MARGIN - 56) / len(tasks)
    for index, task in enumerate(tasks):
        left, width = _MARGIN + 56 + index * step, step - 16
        card.text(left, 116, task["task"], bold=True)
        for row, (layer, shares) in enumerate(_by_layer(task["shares"]).items()):
            y = 126 + 30 * row
            if index == 0:
                card.text(_MARGIN, y + 14.5, layer.replace("block", "block "))
            card.shares(left, y, width, shares, colours)
        card.text(left, 142 + 30 * rows, _score(task), size=12, colour=FAINT)
    card.text(_MARGIN, 164 + 30 * rows, _SHARE, size=12, colour=FAINT)
    return card.svg()


def smooth_filters(found: Numbers) -> str:
    """Filters of free and of smooth convolutions."""
    return _map_picture(
        found, "S-CONV: a smooth filter through a few anchors", "The five strongest 7×7 filters; which digit, anywhere?", 12
    )


def smooth_maps(found: Numbers) -> str:
    """What features of free and of smooth fully connected maps see."""
    return _map_picture(
        found, "S-FC: fully connected, and smooth over the canvas", "What four features see of 16×16 cells; which digit?", 7
    )


def _map_picture(found: Numbers, title: str, subtitle: str, cell: int) -> str:
    """A row of maps for every kind of path, with anchors as dots."""
    rows = found["rows"]
    side = cell * len(rows[0]["maps"][0])
    card = Card(_WIDTH, 94 + len(rows) * (side + 24), title, subtitle)
    for index, row in enumerate(rows):
        top, limit = 74 + index * (side + 24), largest(row["maps"])
        anchors = row["anchors"]
        card.text(_MARGIN, top + 14, row["name"], bold=True)
        cells = len(row["maps"][0]) * len(row["maps"][0][0])
        words = [f"{len(anchors)} anchors" if anchors else f"{cells} weights", *_score(row).split(", ")]
        for line, word in enumerate(words):
            card.text(_MARGIN, top + 34 + 18 * line, word, size=12, colour=FAINT)
        for place, values in enumerate(row["maps"]):
            left = _MARGIN + 122 + place * (side + 12)
            card.heatmap(left, top, values, cell, limit)
            for down, right in anchors:
                card.dot(left + cell * (right + 0.5), top + cell * (down + 0.5), cell / 6, "none", TEXT)
    return card.svg()


def lengthscales(found: Numbers) -> str:
    """ω of every path as a dot, and the deviation of its prior as a bar."""
    rows = found["rows"]
    card = Card(_WIDTH, 150 + 24 * len(rows), "Prior on ω: how smooth, learned for every path", "S-FC+S-CONV. " + _score(found))
    left, unit = _MARGIN + 190, (_WIDTH - 2 * _MARGIN - 250) / 1.5
    for tick in (0.0, 0.5, 1.0, 1.5):
        card.line(left + tick * unit, 78, left + tick * unit, 88 + 24 * len(rows), LINE)
        card.text(left + tick * unit, 104 + 24 * len(rows), f"{tick:g}", size=12, anchor="middle", colour=FAINT)
    for index, row in enumerate(rows):
        y = 94 + 24 * index
        card.text(_MARGIN, y + 4, _omega_name(row["tensor"]))
        card.rect(left, y - 6, min(row["deviation"], 1.5) * unit, 12, "#56B4E9")
        card.dot(left + min(row["omega"], 1.5) * unit, y, 5)
    return card.svg()


def _omega_name(tensor: str) -> str:
    block, _, path, *rest = tensor.split(".")
    side = {"gather": ", seen", "scatter": ", given"}.get(rest[0], "")
    return f"{block.replace('block', 'block ')}, {'S-FC' if path == 'sparse' else 'S-CONV'}{side}"


def turned_filters(found: Numbers) -> str:
    """Filters in their four turns."""
    filters, cell = found["filters"], 12
    side = cell * len(filters[0][0])
    card = Card(_WIDTH, 120 + len(filters) * (side + 14), "GCONV: one filter, four turns", f"Turned digits. {_score(found)}")
    for turn in range(4):
        card.text(_left(turn, side) + side / 2, 88, f"{90 * turn}°", anchor="middle", colour=FAINT)
    for index, turns in enumerate(filters):
        top = 98 + index * (side + 14)
        card.text(_MARGIN, top + side / 2, f"filter {index + 1}", bold=True)
        card.text(_MARGIN, top + side / 2 + 18, "49 weights", size=12, colour=FAINT)
        for turn, values in enumerate(turns):
            card.heatmap(_left(turn, side), top, values, cell, largest(turns))
    return card.svg()


def _left(turn: int, side: int) -> float:
    return _MARGIN + 130 + turn * (side + 30)


def permutation(found: Numbers) -> str:
    """Weights of a set layer and of the pooling layer, and shares, on a set and on a sequence."""
    tasks, cell = found["tasks"], 16
    side, step = 8 * cell, (_WIDTH - 2 * _MARGIN) / 2
    card = Card(_WIDTH, 410, "OrbitPath: one weight for each orbit of index pairs", "Eight numbers; is their order of use?")
    colours = path_colours(tasks[0]["shares"])
    for index, task in enumerate(tasks):
        left = _MARGIN + index * step
        card.text(left, 88, _SHORT_NAMES.get(task["task"], task["task"]), bold=True)
        for place, (name, words) in enumerate((("tied", "points → points"), ("pooled", "features × points"))):
            card.text(left + place * (side + 16), 110, words, size=12, colour=FAINT)
            card.heatmap(left + place * (side + 16), 118, task[name], cell, largest([task[name]]))
        for row, (layer, shares) in enumerate(_by_layer(task["shares"]).items()):
            card.text(left, 118 + side + 38 + 30 * row, f"layer {int(layer) // 2 + 1}")
            card.shares(left + 56, 118 + side + 24 + 30 * row, 2 * side + 16 - 56, shares, colours)
    card.legend(_MARGIN, 386, {_KEEPS[path]: colour for path, colour in colours.items()}, 150)
    return card.svg()


_SHORT_NAMES = {"largest": "largest of all", "largest of the first half, less that of the second": "largest of 1-4 less that of 5-8"}


def board_symmetry(found: Numbers) -> str:
    """Weights from cells to cells and from cells to classes on a board, and shares, for two questions."""
    tasks, cell = found["tasks"], 13
    side, step = 3 * cell, (_WIDTH - 2 * _MARGIN) / 2
    card = Card(_WIDTH, 440, "OrbitPath on a board: turns and flips", "Tic-tac-toe.")
    colours = path_colours(tasks[0]["shares"])
    for index, task in enumerate(tasks):
        left = _MARGIN + index * step
        card.text(left, 88, task["task"], bold=True)
        limit = largest([task["cells"]])
        for place, values in enumerate(task["cells"]):
            card.heatmap(left + place % 3 * (side + 5), 118 + place // 3 * (side + 5), _square(values), cell, limit)
        limit = largest([task["classes"]])
        for place, (name, values) in enumerate(zip(task["names"], task["classes"], strict=True)):
            x, y = left + 150 + place % 2 * 70, 118 + place // 2 * 70
            card.heatmap(x, y, _square(values), cell, limit)
            card.text(x, y + side + 14, name, size=12)
        for row, (_, shares) in enumerate(_by_layer(task["shares"]).items()):
            card.text(left, 300 + 30 * row, f"layer {row + 1}")
            card.shares(left + 56, 286 + 30 * row, 200, shares, colours)
        card.text(left, 370, _score(task), size=12, colour=FAINT)
    card.legend(_MARGIN, 416, {_KEEPS[path]: colour for path, colour in colours.items()}, 150)
    return card.svg()


def _square(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[row : row + 3] for row in (0, 3, 6)]


def _by_layer(shares: Sequence[Numbers]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in shares:
        found.setdefault(row["layer"], {})[row["path"]] = row["share"]
    return found


def _score(facts: Numbers) -> str:
    return f"test {number(100 * facts['accuracy'], 1)} %, log evidence {number(facts['log_evidence'], 2)}"


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
