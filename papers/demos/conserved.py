"""What is conserved? Oscillators by three networks: plain, with learned symmetries, and with those known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from papers.noether import LEARNED, METHODS, SETTINGS, Row, confirmed_on, figures, lasting, learn
from papers.rows import Figures
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study
from symbayes.dynamics.summary import DiscoverySummary
from symbayes.dynamics.systems import TESTS
from symbayes.dynamics.systems import system as by_name
from symbayes.report.discovery import discovery_page
from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.text import number, significant

_WORDS = {"plain": "plain network", "learned": "learned symmetries", "oracle": "known symmetries"}


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Args:
        systems: The systems.
        epochs: Passes over the data; as many as is usual for a system when None.
        width: Of the network of the energy.
        seed: For data, initial weights and draws.
    """

    systems: tuple[str, ...] = ("oscillator", "2-oscillators")
    epochs: int | None = None
    width: int = 50
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """What a cell gave: figures as the table of the paper has them, and all of a discovery."""

    figures: Figures
    discovery: DiscoverySummary | None = None


def study(settings: Settings) -> Study:
    """Every network on every system."""
    cost = {"plain": 1.0, "learned": 4.0, "oracle": 4.0}
    cells = [
        Cell(system, _WORDS[method], "evidence", settings.seed, cost=cost[method] * by_name(system).degrees)
        for system in settings.systems
        for method in METHODS
    ]
    return Study(
        "What is conserved? Learned from trajectories",
        "One oscillator and two, by Hamiltonian networks: plain; averaged over flows of observables that are learned by the "
        "evidence; and over those of the symmetries known beforehand. An observable along whose flow the energy stays the same "
        "is conserved. Those should be left, and symmetries should lower what a pair of states costs.",
        cells,
        partial(work, settings),
        table,
        page=page,
    )


def work(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """One cell; its figures, and all that was discovered where it was learned."""
    method = next(method for method, words in _WORDS.items() if words == cell.model)
    row = Row(cell.task, method, cell.seed)
    search = replace(SETTINGS[cell.task].search, width=settings.width)
    found = learn(row, lasting(search, row, settings.epochs), each_epoch=each_epoch)
    if method != LEARNED:
        return Outcome(cell, {}, found=Found(figures(row, found)))
    words = tuple(str(quantity) for quantity in found.quantities)
    return Outcome(cell, {}, words=words, found=Found(figures(row, found), found.summary()))


def table(outcomes: Sequence[Outcome]) -> FigureTable:
    """A row for each system and network."""
    rows = []
    for outcome in outcomes:
        found = outcome.found.figures
        same = [other.found.figures for other in outcomes if other.cell.task == outcome.cell.task]
        lowest = min(other["negative_elbo"] for other in same)
        learned = found["method"] == LEARNED
        terms = " + ".join(number(found[name], 2) for name in ("nll", "kl"))
        cells = [TableCell(number(found["negative_elbo"], 2), terms, found["negative_elbo"] == lowest)]
        cells += [_error(found, [other["errors"][name]["sampled"] for other in same], name) for name in TESTS]
        cells.append(TableCell(f"{found['count']} of {found['truth']}" if learned else "–"))
        rows.append(TableRow(f"{outcome.cell.task}, {outcome.cell.model}", tuple(cells)))
    return FigureTable(
        ("−ELBO / N", *TESTS, "confirmed"),
        tuple(rows),
        outcome=_outcome(outcomes),
        legend="−ELBO / N: what a pair of states costs, in nats; the lower, the better; beneath it, as the misfit "
        "and the divergence. Mean squared errors one step ahead, by draws of weights, and beneath them at their mean: on fresh "
        "trajectories, on some that are moved, and on some that start farther out. Confirmed: how many of the quadratics that "
        f"were found hold on {confirmed_on([one.found.figures for one in outcomes])}, of those known to be conserved.",
        note="The lowest of a system is set in bold.",
    )


def _outcome(outcomes: Sequence[Outcome]) -> str:
    """Of every system: which network costs least, and how many quantities are confirmed."""
    parts = []
    for system in dict.fromkeys(outcome.cell.task for outcome in outcomes):
        by_model = {o.cell.model: o.found.figures for o in outcomes if o.cell.task == system}
        least = min(by_model, key=lambda model: float(by_model[model]["negative_elbo"]))
        learned = [of for of in by_model.values() if of["method"] == LEARNED]
        counts = "".join(f", {of['count']} of {of['truth']} quadratics confirmed" for of in learned)
        parts.append(f"{system}: lowest −ELBO / N by the {least}{counts}")
    return f"{'; '.join(parts)}."


def page(outcomes: Sequence[Outcome]) -> str:
    """What was discovered in the last system, beneath the table of all."""
    learned = [outcome.found.discovery for outcome in outcomes if outcome.found.discovery is not None]
    return discovery_page(learned[-1], table(outcomes))


def _error(found: Figures, all_of_them: Sequence[float], name: str) -> TableCell:
    by = found["errors"][name]
    return TableCell(significant(by["sampled"]), significant(by["plug-in"]), by["sampled"] == min(all_of_them))
