"""The picture of filter banks: what was learned on every data set, and a few filters under it."""

from collections.abc import Mapping
from typing import Any

from symbayes.report.svg import FAINT, Card, largest
from symbayes.text import number

Numbers = Mapping[str, Any]

_WIDTH, _LEFT, _MAPS, _TOP, _STEP = 800, 24, 320, 92, 112


def picture(found: Numbers) -> str:
    """A row for each data set: the extents learned, scores without and with them, and filters in their versions."""
    rows = found["rows"]
    title = "Filter banks: how far filters are turned, shifted and scaled"
    end = _TOP + _STEP * len(rows)
    card = Card(_WIDTH, end + 34, title, "One model on five data sets; extents are learned by the evidence, from training data")
    card.text(_MAPS, 80, "two filters, each in versions from one end to the other", size=12, colour=FAINT)
    for index, row in enumerate(rows):
        top = _TOP + _STEP * index
        card.text(_LEFT, top + 14, f"Digits {row['data']}", bold=True)
        plain, learned = row["plain"], row["evidence"]
        lines = (
            (_extents(learned["extents"]), "#222222"),
            (f"log evidence {_change(plain['log_evidence'], learned['log_evidence'], 2)} per datum", FAINT),
            (f"test accuracy {_change(100 * plain['accuracy'], 100 * learned['accuracy'], 1)} %", FAINT),
            (f"by data fit: {_extents(row['fit']['extents'])}", FAINT),
        )
        for line, (words, colour) in enumerate(lines):
            card.text(_LEFT, top + 34 + 17 * line, words, size=12, colour=colour)
        limit = largest(version for versions in row["maps"] for version in versions)
        for place, versions in enumerate(row["maps"]):
            cell = 48 / len(versions[0])
            for version, values in enumerate(versions):
                card.heatmap(_MAPS + 67 * version, top + 52 * place, values, cell, limit)
    words = "Scores: without transformations → with those learned. By data fit: least squares, perfect at any extents."
    card.text(_LEFT, end + 16, words, size=12, colour=FAINT)
    return card.svg()


def _extents(extents: Mapping[str, float]) -> str:
    words = {"rotation": "turns {}°", "translation": "shifts {} px", "scale": "scales {} %"}
    digits = {"rotation": 0, "translation": 1, "scale": 0}
    return ", ".join(text.format(number(extents[name], digits[name])) for name, text in words.items())


def _change(before: float, after: float, digits: int) -> str:
    return f"{number(before, digits)} → {number(after, digits)}"
