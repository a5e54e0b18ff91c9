"""The picture of filters that were learned with how far they are moved: a row for each data set, filters in their versions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from papers.drawing import FAINT, TEXT, Numbers, card, drawn, filter_rows, largest
from symbayes.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (("rotation", "turns {}°", 0), ("translation", "shifts {} px", 1), ("scale", "scales {} %", 0))


@drawn
def picture(rows: Sequence[Numbers]) -> "Figure":
    """A row for each data set: the extents learned, bound and test accuracy, and filters from one end to the other.

    Args:
        rows: Each with `data`, `size`, `extents`, `bound`, `accuracy`, `plug_in_accuracy`, `maps` (versions of filters) and
            `likelihood`: figures by maximum likelihood, or None.
    """
    figure = card(
        860,
        136 + (58 * max(2, *(len(row["maps"]) for row in rows)) + 20) * len(rows),
        "Filters, learned together with how far they are turned, shifted and scaled",
        f"One model on {len(rows)} data sets of {rows[0]['size']:,} digits; all by the gradient of the evidence lower bound",
        notes=[
            "Filters are posterior means, in versions from one end of what was learned to the other.",
            "Test accuracy: averaged over weights of the posterior (by its means).",
        ],
        scale=True,
    )
    limits = [[largest(versions) for versions in row["maps"]] for row in rows]
    filter_rows(figure, [(f"Digits {row['data']}", _lines(row), row["maps"]) for row in rows], limits)
    return figure


def _lines(row: Numbers) -> list[tuple[str, str]]:
    lines = [
        (_words(row["extents"]), TEXT),
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
