"""The picture of filter banks: what was learned on every data set, and a few filters under it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from papers.drawing import FAINT, TEXT, Numbers, card, drawn, filter_rows, largest
from symbayes.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawn
def picture(found: Numbers) -> "Figure":
    """A row for each data set: the extents learned, scores without and with them, and filters in their versions."""
    rows = found["rows"]
    figure = card(
        800,
        126 + 112 * len(rows),
        "Filter banks: how far filters are turned, shifted and scaled",
        "One model on five data sets; extents are learned by the evidence, from training data",
        notes=[
            "Two filters of each bank, in versions from one end of what was learned to the other.",
            "Scores: without transformations → with those learned. By data fit: least squares, perfect at any extents.",
        ],
    )
    limits = [[largest(version for versions in row["maps"] for version in versions)] * len(row["maps"]) for row in rows]
    filter_rows(figure, [(f"Digits {row['data']}", _lines(row), row["maps"]) for row in rows], limits)
    return figure


def _lines(row: Numbers) -> list[tuple[str, str]]:
    plain, learned = row["plain"], row["evidence"]
    return [
        (_extents(learned["extents"]), TEXT),
        (f"log evidence {_change(plain['log_evidence'], learned['log_evidence'], 2)} per datum", FAINT),
        (f"test accuracy {_change(100 * plain['accuracy'], 100 * learned['accuracy'], 1)} %", FAINT),
        (f"by data fit: {_extents(row['fit']['extents'])}", FAINT),
    ]


def _extents(extents: Mapping[str, float]) -> str:
    words = {"rotation": "turns {}°", "translation": "shifts {} px", "scale": "scales {} %"}
    digits = {"rotation": 0, "translation": 1, "scale": 0}
    return ", ".join(text.format(number(extents[name], digits[name])) for name, text in words.items())


def _change(before: float, after: float, digits: int) -> str:
    return f"{number(before, digits)} → {number(after, digits)}"
