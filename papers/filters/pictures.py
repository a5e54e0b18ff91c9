"""The picture of filters that were learned with how far they are moved: a row for each data set, filters in their versions."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from symbayes.invariance.orbit_average import Image
from symbayes.report.images import data_uri
from symbayes.report.svg import FAINT, Card, diverging, largest
from symbayes.text import number

Numbers = Mapping[str, Any]

_WIDTH, _LEFT, _MAPS, _TOP, _SIDE, _GAP = 860, 24, 320, 96, 58, 17
_KINDS = (("rotation", "turns {}°", 0), ("translation", "shifts {} px", 1), ("scale", "scales {} %", 0))


def picture(rows: Sequence[Numbers]) -> str:
    """A row for each data set: the extents learned, bound and test accuracy, and filters from one end to the other.

    Args:
        rows: Each with `data`, `size`, `extents`, `bound`, `accuracy`, `plug_in_accuracy`, `maps` (versions of filters) and
            `likelihood`: figures by maximum likelihood, or None.
    """
    step = _SIDE * max(len(row["maps"]) for row in rows) + _GAP
    end = _TOP + step * len(rows)
    card = Card(
        _WIDTH,
        end + 26,
        "Filters, learned together with how far they are turned, shifted and scaled",
        f"One model on {len(rows)} data sets of {rows[0]['size']:,} digits; all by the gradient of the evidence lower bound",
    )
    card.text(_MAPS, 84, "filters (posterior means) from one end to the other", size=12, colour=FAINT)
    card.scale(_WIDTH - _LEFT, 84)
    for index, row in enumerate(rows):
        top = _TOP + step * index
        card.text(_LEFT, top + 14, f"Digits {row['data']}", bold=True)
        for line, (text, colour) in enumerate(_lines(row)):
            card.text(_LEFT, top + 36 + 18 * line, text, size=12, colour=colour)
        for place, versions in enumerate(row["maps"]):
            limit = largest(versions)
            for version, values in enumerate(versions):
                x, y = _MAPS + (_SIDE + _GAP) * version, top + _SIDE * place
                card.image(x, y, _SIDE - 4, _SIDE - 4, _colour(values, limit))
                card.rect(x, y, _SIDE - 4, _SIDE - 4, "none", "#999999")
    card.text(_LEFT, end + 8, "Test accuracy: averaged over weights of the posterior (by its means).", size=12, colour=FAINT)
    return card.svg()


def _lines(row: Numbers) -> list[tuple[str, str]]:
    lines = [
        (_words(row["extents"]), "#222222"),
        (f"log evidence ≥ {number(row['bound'], 2)} per datum", FAINT),
        (f"test accuracy {_percent(row['accuracy'])} ({_percent(row['plug_in_accuracy'])}) %", FAINT),
    ]
    fitted = row["likelihood"]
    if fitted is not None:
        lines.append(("By maximum likelihood, from small extents:", FAINT))
        lines.append((_words(fitted["extents"]), FAINT))
        lines.append((f"test accuracy {_percent(fitted['accuracy'])} %", FAINT))
    return lines


def _words(extents: Mapping[str, float]) -> str:
    return ", ".join(text.format(number(extents[name], digits)) for name, text, digits in _KINDS)


def _percent(share: float) -> str:
    return number(100 * share, 1)


def _colour(values: Sequence[Sequence[float | int]], limit: float | int) -> str:
    """Values in the colours of heatmaps, as an image: small in the file, whatever its size."""
    colours = (diverging(value, limit) for row in values for value in row)
    pixels = b"".join(bytes.fromhex(colour[1:]) for colour in colours)
    return data_uri(Image(len(values[0]), len(values), 3, b64encode(pixels).decode("ascii")))
