"""What every block of a network chose, as a picture: shares of its paths, and their effective parameters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from papers.drawing import Numbers, card, drawn, share_bars
from symbayes.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Short names of paths.
PATH_NAMES = {
    "dense": "FC",
    "factored": "F-FC",
    "sparse": "S-FC",
    "conv": "CONV",
    "sparse_conv": "S-CONV",
    "gconv": "GCONV",
}
#: By how much symmetry a path has: none, shifts, shifts and turns.
_COLOURS = {
    "fully connected: no symmetry": "#0072B2",
    "convolution: shifts": "#E69F00",
    "group convolution: and turns": "#56B4E9",
}
_KINDS = {"dense": 0, "factored": 0, "sparse": 0, "conv": 1, "sparse_conv": 1, "gconv": 2}
#: Runs side by side, and the width of each.
_COLUMNS, _WIDTH = 3, 290


@drawn
def choices_picture(runs: Sequence[Numbers]) -> "Figure":
    """A column of bars for each run, a bar for each block; three runs stand side by side.

    Args:
        runs: With a `title`, the rows of `symmetries`, `accuracy` and `log_evidence`.
    """
    by_run = [_blocks(run["symmetries"]) for run in runs]
    kinds = sorted({_KINDS[path] for blocks in by_run for rows in blocks.values() for path in rows})
    names, colours = list(_COLOURS), {path: list(_COLOURS.values())[kind] for path, kind in _KINDS.items()}
    across, down = max(2, min(_COLUMNS, len(runs))), -(-len(runs) // _COLUMNS)
    figure = card(
        max(760, 60 + _WIDTH * across),
        120 + (28 * max(map(len, by_run)) + 60) * down,
        "Which path does each block use?",
        "Learned by the evidence. Bars: share of γ per weight. Beside them: γ of each path, biases too",
        legend={names[kind]: _COLOURS[names[kind]] for kind in kinds},
    )
    places = figure.subplots(down, across, squeeze=False).flatten()
    for axes, run, blocks in zip(places, runs, by_run, strict=False):
        share_bars(axes, blocks, colours)
        axes.set_title(run["title"])
        score = f"test {number(100 * run['accuracy'], 1)} %, −log evidence {number(-run['log_evidence'], 2)}"
        axes.set_xlabel(score, loc="left")
    for axes in places[len(runs) :]:
        axes.set_axis_off()
    return figure


def _blocks(rows: Sequence[Numbers]) -> dict[str, dict[str, Numbers]]:
    found: dict[str, dict[str, Numbers]] = {}
    for row in rows:
        if row["path"] in _KINDS:
            found.setdefault(row["layer"].replace("block", "block "), {})[row["path"]] = row
    return found
