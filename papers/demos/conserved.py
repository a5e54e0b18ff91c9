"""What is conserved? Oscillators by three networks: plain, with learned symmetries, and with those known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from papers.noether import LEARNED, METHODS, SETTINGS, Row, confirmed_on, figures, lasting, learn
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study
from symbayes.dynamics.systems import TESTS
from symbayes.dynamics.systems import system as by_name
from symbayes.report.discovery import discovery_page
from symbayes.report.page import number, significant

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
    """One cell; its figures are in the summary, and all that was discovered, where it was learned."""
    method = next(method for method, words in _WORDS.items() if words == cell.model)
    row = Row(cell.task, method, cell.seed)
    search = replace(SETTINGS[cell.task].search, width=settings.width)
    found = learn(row, lasting(search, row, settings.epochs), each_epoch=each_epoch)
    summary: dict[str, Any] = {"words": [], "extents": [], "figures": figures(row, found)}
    if method == LEARNED:
        summary |= {"words": [str(quantity) for quantity in found.quantities], "discovery": found.summary()}
    return Outcome(cell, {}, summary, [])


def table(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A row for each system and network."""
    rows = []
    for outcome in outcomes:
        found = outcome.summary["figures"]
        same = [other.summary["figures"] for other in outcomes if other.cell.task == outcome.cell.task]
        lowest = min(other["negative_elbo"] for other in same)
        learned = found["method"] == LEARNED
        terms = " + ".join(number(found[name], 2) for name in ("nll", "kl"))
        cells = [_cell(number(found["negative_elbo"], 2), terms, found["negative_elbo"] == lowest)]
        cells += [_error(found, [other["errors"][name]["sampled"] for other in same], name) for name in TESTS]
        cells.append(_cell(f"{found['count']} of {found['truth']}" if learned else "–", ""))
        rows.append({"task": f"{outcome.cell.task}, {outcome.cell.model}", "cells": cells})
    return {
        "columns": ["−ELBO / N", *TESTS, "confirmed"],
        "rows": rows,
        "outcome": _outcome(outcomes),
        "legend": "−ELBO / N: what a pair of states costs, in nats; the lower, the better; beneath it, as the misfit "
        "and the divergence. Mean squared errors one step ahead, by draws of weights, and beneath them at their mean: on fresh "
        "trajectories, on some that are moved, and on some that start farther out. Confirmed: how many of the quadratics that "
        f"were found hold on {confirmed_on([one.summary['figures'] for one in outcomes])}, of those known to be conserved.",
        "note": "The lowest of a system is set in bold.",
    }


def _outcome(outcomes: Sequence[Outcome]) -> str:
    """Of every system: which network costs least, and how many quantities are confirmed."""
    parts = []
    for system in dict.fromkeys(outcome.cell.task for outcome in outcomes):
        by_model = {o.cell.model: o.summary["figures"] for o in outcomes if o.cell.task == system}
        least = min(by_model, key=lambda model: float(by_model[model]["negative_elbo"]))
        learned = [of for of in by_model.values() if of["method"] == LEARNED]
        counts = "".join(f", {of['count']} of {of['truth']} quadratics confirmed" for of in learned)
        parts.append(f"{system}: lowest −ELBO / N by the {least}{counts}")
    return f"{'; '.join(parts)}."


def page(outcomes: Sequence[Outcome]) -> str:
    """What was discovered in the last system, beneath the table of all."""
    learned = [outcome for outcome in outcomes if "discovery" in outcome.summary]
    return discovery_page(learned[-1].summary["discovery"], table(outcomes))


def _cell(value: str, beneath: str, best: bool = False) -> dict[str, Any]:
    return {"value": value, "beneath": beneath, "best": best}


def _error(found: dict[str, Any], all_of_them: Sequence[float], name: str) -> dict[str, Any]:
    by = found["errors"][name]
    return _cell(significant(by["sampled"]), significant(by["plug-in"]), by["sampled"] == min(all_of_them))
