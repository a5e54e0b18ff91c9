"""Tables of quantities: how sure each is, how far it varies, and what was known of it."""

from math import floor, isfinite, log10

from symbayes.dynamics.summary import DiscoverySummary, QuantitySummary
from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.report.plots import Number
from symbayes.text import counted, number, significant

_UNKNOWN = "–"
#: Percent below which nothing is told apart.
_LEAST = 0.001


def discovery_table(found: DiscoverySummary) -> FigureTable:
    """A row for each quantity: its strength, how far it varies on held-out trajectories, its drift, and its bracket."""
    quantities, tests = found.quantities, [one.verdict for one in found.quantities]
    of_terms = tests if found.model.kind == "terms" else [None for _ in tests]
    columns = {
        "sure": [_UNKNOWN if test is None else test.sureness() if not test.reason else "?" for test in tests],
        "strength": [known_words(one.strength) for one in quantities],
        "variation, held out": [percent(one.variation, one.error) for one in quantities],
        "at most": [_UNKNOWN if test is None else percent(test.most) for test in of_terms],
        "tolerance": [_UNKNOWN if test is None else percent(test.tolerance) for test in of_terms],
        "trend": [_UNKNOWN if test is None else percent(test.trend) for test in of_terms],
        "drift": [percent(one.drift) for one in quantities],
        "bracket, true energy": [known_words(one.bracket, 2) for one in quantities],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell != _UNKNOWN for cell in cells)}
    rows = [
        TableRow(formula_words(one), tuple(TableCell(cells[at]) for cells in shown.values()))
        for at, one in enumerate(quantities)
    ]
    if found.model.kind == "terms":
        return FigureTable(
            tuple(shown), tuple(rows), legend=_sure_legend(found) if quantities else "", note=f"{found.headline()}."
        )
    error = ", ± a standard error" if any(one.error is not None for one in quantities) else ""
    legend = (
        f"Variation: how far a quantity moves along a trajectory, relative to the size of its terms{error}, on "
        f"{counted(found.held_out, 'trajectory', 'trajectories')} that nothing was learned from."
    )
    if "drift" in shown:
        legend += (
            f" Drift: how far it moves {found.followed_words()}, relative to what a quadratic of random coefficients does in "
            "the same degrees of freedom; up to 12.5 % it is confirmed, unless the time is too short for that one to move."
        )
    if "sure" in shown:
        legend += (
            " Sure: the probability that it varies by less than an eighth of what quadratics do, each held-out trajectory "
            "counting once: one minus the rate of false discoveries among all that are as sure; confirmed from 95 % on."
        )
    if "strength" in shown:
        legend = f"Strength: the singular value of its direction among all that were learned. {legend}"
    if "bracket, true energy" in shown:
        legend += (
            " Bracket: how fast the true motion changes it, relative to its slope and the speed; zero where it is conserved."
        )
    return FigureTable(
        tuple(shown),
        tuple(rows),
        legend=legend if quantities else "",
        note=". ".join([found.headline(), *filter(None, [truth_words(found)])]) + ".",
    )


def _sure_legend(found: DiscoverySummary) -> str:
    """What the columns are, where quantities were tested."""
    bracket = (
        " Bracket: how fast the true motion changes it, relative to its slope and the speed; zero where it is conserved."
        if any(one.bracket is not None for one in found.quantities)
        else ""
    )
    return (
        "Sure: the probability that it is conserved, one minus the rate of false discoveries among all that are as sure, by "
        f"tests in which each of {counted(found.held_out, 'held-out trajectory', 'held-out trajectories')} counts once. "
        "Variation: its standard deviation along a trajectory, less what noise adds, relative to its spread over all; at most: "
        "the upper limit of 95 %. The hypothesis that is rejected is that it varies by more than the tolerance. Trend: how "
        "far it moves in one direction, as far as trajectories have that in common; friction "
        "shows here first."
        f"{bracket}"
    )


def confirmed_count(found: DiscoverySummary) -> int:
    """How many quantities held-out trajectories agree on."""
    return sum(one.confirmed for one in found.quantities)


def formula_words(quantity: QuantitySummary) -> str:
    """The formula, and why it is not confirmed if it is not."""
    if quantity.confirmed:
        return f"{quantity.formula} (follows from those above)" if quantity.follows else quantity.formula
    reason = quantity.verdict.reason if quantity.verdict is not None else ""
    trend = "a trend" if quantity.verdict is not None and quantity.verdict.has_trend else ""
    doubt = reason or trend or ("too short to tell" if quantity.too_short else "not confirmed")
    return f"{quantity.formula} ({doubt})"


def truth_words(found: DiscoverySummary) -> str:
    """What is known to be there, beside what was confirmed; empty where nothing is known."""
    if found.truth is None:
        return ""
    count, known = confirmed_count(found), found.truth.count
    other = "" if count == known else ", another number than was confirmed"
    return f"{counted(known, 'conserved quadratic')} {'is' if known == 1 else 'are'} known to be there{other}"


def measured(value: Number | None, error: Number | None = None) -> str:
    """A number with its standard error, to the first digit of that: "1.0003 ± 0.0004"."""
    if value is None or not isfinite(value):
        return _UNKNOWN
    if not error or not isfinite(error):
        return significant(value)
    digits = max(0, -floor(log10(error)))
    return f"{number(value, digits)} ± {number(error, digits)}" if digits < 7 else significant(value)


def percent(value: Number | None, error: Number | None = None) -> str:
    """A share with its standard error: "0.4 % ± 0.1"."""
    if value is None or not isfinite(value):
        return _UNKNOWN
    if 100 * (value + (error or 0)) < _LEAST:
        return f"< {_LEAST} %"
    amount, sign, spread = measured(100 * value, None if error is None else 100 * error).partition(" ± ")
    return f"{amount} %{sign}{spread}"


def known_words(value: Number | None, digits: int = 3) -> str:
    """A number, or a dash where it is not known."""
    return _UNKNOWN if value is None or not isfinite(value) else significant(value, digits)
