"""Templates to pages: a page is one file that holds its style and its figures, loads nothing and runs nothing."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects

from symbayes.report.svg import draw
from symbayes.text import minus, number, percent, significant

#: Pixels of a figure that is as wide as the page, on a screen and on a phone; and of one of several side by side.
_WIDE, _NARROW, _SMALL = 940, 358, 400


@dataclass(frozen=True)
class TableCell:
    """A figure, what stands beneath it, and whether it is the best of its row."""

    value: str
    beneath: str = ""
    best: bool = False


@dataclass(frozen=True)
class TableRow:
    """A line of a table: what it is of, and its figures."""

    task: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class FigureTable:
    """Figures side by side, for a page and for a terminal.

    Args:
        columns: Their headings.
        rows: A line each.
        outcome: What came out, in a sentence, from figures.
        legend: What the figures are.
        note: On the estimator, or the like.
        heading: Of the column of what lines are of.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[TableRow, ...] = ()
    outcome: str = ""
    legend: str = ""
    note: str = ""
    heading: str = "task"


def render(template: str, package: str = "symbayes.report", **values: object) -> str:
    """A page from a template of a package, which may build on those of this one."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys([package, "symbayes.report"])]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, significant=significant, minus=minus, percent=percent)
    return environment.get_template(template).render(**values)


def with_notice(page: str, words: str) -> str:
    """A page with a sentence before all else."""
    return page.replace("<main>", f'<main>\n<p class="quiet" role="status">{escape(words)}</p>', 1)


def embed(figure: "plotly.graph_objects.Figure | None", name: str, *, wide: bool = True, label: str = "") -> str:
    """A figure as the inside of a page, empty for None.

    Args:
        figure: By plotly.
        name: Unique in the page.
        wide: Whether it is as wide as the page, and drawn once more for a phone.
        label: What it shows, in words, for those who do not see it.
    """
    if figure is None:
        return ""
    sizes = {"wide": _WIDE, "narrow": _NARROW} if wide else {"small": _SMALL}
    drawn = (f'<div class="{size}">{draw(figure, width, name, label=label)}</div>' for size, width in sizes.items())
    return f'<div id="{name}" class="chart">{"".join(drawn)}</div>'
