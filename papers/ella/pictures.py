"""What every block of a network chose, as a picture: shares of its paths, and their effective parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from symbayes.report.plots import gammas
from symbayes.report.svg import FAINT, Card
from symbayes.text import number

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
#: The least width; where things are; a bar, and what stands beside it.
_WIDTH, _LEFT, _LABELS, _TOP, _STEP, _BAR, _BESIDE = 760, 24, 62, 128, 28, 150, 130


def choices_picture(runs: Sequence[Mapping[str, Any]]) -> str:
    """A column of bars for each run, a bar for each block; three runs stand side by side.

    Args:
        runs: With a `title`, the rows of `symmetries`, `accuracy` and `log_evidence`.
    """
    colours = list(_COLOURS.values())
    by_run = [_blocks(run["symmetries"]) for run in runs]
    deep = max(len(blocks) for blocks in by_run)
    band = _STEP * deep + 72
    width = max(_WIDTH, _LEFT + _LABELS + (_BAR + _BESIDE) * min(3, len(runs)))
    subtitle = "Learned by the evidence. Bars: share of γ per weight. Beside them: γ of each path, biases too"
    card = Card(width, _TOP - 24 + band * -(-len(runs) // 3), "Which path does each block use?", subtitle)
    kinds = sorted({_KINDS[path] for blocks in by_run for rows in blocks.values() for path in rows})
    card.legend(_LEFT, 86, {list(_COLOURS)[kind]: colours[kind] for kind in kinds})
    for index, (run, blocks) in enumerate(zip(runs, by_run, strict=True)):
        top, left = _TOP + band * (index // 3), _LEFT + _LABELS + (_BAR + _BESIDE) * (index % 3)
        card.text(left, top - 10, run["title"], bold=True)
        for row, (layer, by_path) in enumerate(blocks.items()):
            y = top + _STEP * row
            if index % 3 == 0:
                card.text(_LEFT, y + 14.5, layer.replace("block", "block "))
            shares = {path: found["share"] for path, found in by_path.items()}
            card.shares(left, y, _BAR, shares, {path: colours[_KINDS[path]] for path in shares})
            beside = gammas({path: found["effective"] for path, found in by_path.items()}, by_path)
            card.text(left + _BAR + 6, y + 14.5, beside, size=11, colour=FAINT)
        score = f"test {number(100 * run['accuracy'], 1)} %, −log evidence {number(-run['log_evidence'], 2)}"
        card.text(left, top + _STEP * deep + 12, score, size=12, colour=FAINT)
    return card.svg()


def _blocks(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["path"] in _KINDS:
            found.setdefault(row["layer"], {})[row["path"]] = row
    return found
