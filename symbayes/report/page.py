"""Templates to pages: a page is one file that holds its style and plotly.js, and loads nothing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects

from symbayes.text import minus, number, percent, significant

#: plotly.js has a button that uploads a chart, unless it is told not to.
_CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "plotlyServerURL": "",
    "responsive": True,
    "showSendToCloud": False,
}


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
    """

    columns: tuple[str, ...] = ()
    rows: tuple[TableRow, ...] = ()
    outcome: str = ""
    legend: str = ""
    note: str = ""


def render(template: str, package: str = "symbayes.report", **values: object) -> str:
    """A page from a template of a package, which may build on those of this one."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys([package, "symbayes.report"])]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, significant=significant, minus=minus, percent=percent)
    return environment.get_template(template).render(plotlyjs=get_plotlyjs(), **values)


def embed(figure: "plotly.graph_objects.Figure | None", name: str, *, buttons: bool = True) -> str:
    """A figure as the inside of a page, empty for None; `name` is unique there, and `buttons` are plotly's own."""
    if figure is None:
        return ""
    from plotly.io import to_html

    config = _CONFIG if buttons else {**_CONFIG, "displayModeBar": False}
    html: str = to_html(
        figure, config, include_plotlyjs=False, full_html=False, default_height=figure.layout.height, div_id=name
    )
    return html
