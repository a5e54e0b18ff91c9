"""What is conserved in trajectories: the page and the table of quantities that were found."""

from collections.abc import Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

from plotly.graph_objects import Figure

from symbayes.report.discovery_plots import error_line, generator_cards, level_lines, portrait, singular_bars, training_lines
from symbayes.report.page import embed, number, render, significant
from symbayes.report.svg import Number

Found = Mapping[str, Any]

_UNKNOWN = "–"
#: Percent below which nothing is told apart.
_LEAST = 0.001
#: What the model was given to find, by kind.
_KINDS = {
    "quadratic": "{quantities} quadratic quantities along whose flows it is averaged",
    "neural": "{quantities} quantities, each a network, along whose flows it is averaged",
    "fixed": "{quantities} quantities that were given, not learned",
    "none": "no symmetry",
}
#: Sets of data in words, by key of `errors`.
_SETS = {
    "held out": "held-out trajectories of the data",
    "test": "new trajectories",
    "moved": "new trajectories, moved elsewhere",
    "wider": "new trajectories that start farther out",
}


def discovery_table(found: Found) -> dict[str, Any]:
    """A row for each quantity: its strength, how far it varies on held-out trajectories, its drift, and its bracket."""
    quantities = found["quantities"]
    columns = {
        "strength": [_known(one["strength"]) for one in quantities],
        "variation, held out": [percent(one["variation"], one["error"]) for one in quantities],
        "drift": [percent(one.get("drift")) for one in quantities],
        "bracket, true energy": [_known(one["bracket"], 2) for one in quantities],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell != _UNKNOWN for cell in cells)}
    cells = [[{"value": cells[at], "beneath": "", "best": False} for cells in shown.values()] for at in range(len(quantities))]
    error = ", ± a standard error" if any(one["error"] is not None for one in quantities) else ""
    legend = (
        f"Variation: how far a quantity moves along a trajectory, relative to the size of its terms{error}, on "
        f"{_counted(found['held_out'], 'trajectory', 'trajectories')} that nothing was learned from."
    )
    if "drift" in shown:
        legend += (
            f" Drift: how far it moves {_followed(found)}, relative to what a quadratic of random coefficients does in the "
            "same degrees of freedom; up to 12.5 % it is confirmed, unless the time is too short for that one to move."
        )
    if "strength" in shown:
        legend = f"Strength: the singular value of its direction among all that were learned. {legend}"
    if "bracket, true energy" in shown:
        legend += (
            " Bracket: how fast the true motion changes it, relative to its slope and the speed; zero where it is conserved."
        )
    return {
        "columns": list(shown),
        "rows": [{"task": _formula(one), "cells": row} for one, row in zip(quantities, cells, strict=True)],
        "legend": legend if quantities else "",
        "note": ". ".join([headline(found), *filter(None, [_truth(found)])]) + ".",
    }


def discovery_page(found: Found, compared: Mapping[str, Any] | None = None) -> str:
    """A page that opens offline.

    Args:
        found: What was learned from trajectories, as numbers, words and lists; None or an empty list where something is
            not known. Without `quantities` the page says that none was found.
        compared: A table of several models, to stand at the top.
    """
    quantities, truth = found["quantities"], found["truth"] or {}
    strengths, threshold, count = found["singular_values"], found["threshold"] or 0.0, found["count"] or 0
    series = [(f"{at}: {_formula(one)}", level_lines(found["times"], one["series"])) for at, one in enumerate(quantities, 1)]
    return render(
        "discovery.html",
        found=found,
        compared=compared,
        noise=_noise(found["noise"]),
        headline=headline(found),
        verdict=_verdict(found),
        truth=_truth(found),
        model=_model(found["model"]),
        table=discovery_table(found),
        quantities=[_quantity(one) for one in quantities],
        rates=any(one["rate"] is not None for one in quantities),
        bars=embed(singular_bars(strengths, threshold, count, truth.get("parallelness")), "bars", buttons=False),
        training=embed(training_lines(found["history"], threshold, count), "training", buttons=False),
        generators=generator_cards(found["generators"], found["names"], strengths, count),
        series=_panels("series", series),
        portraits=_panels("portrait", [(" and ".join(one["names"]), portrait(one)) for one in found["portraits"]]),
        rollout=_rollout(found),
        evidence=_evidence(found),
        errors=_errors(found["errors"] or {}),
    )


def _noise(values: Sequence[Number] | None) -> str:
    """Of coordinates: one number where they have the same."""
    return ", ".join(dict.fromkeys(significant(value) for value in values or ()))


def _confirmed(found: Found) -> int:
    """How many quantities held-out trajectories agree on."""
    return sum(one["confirmed"] for one in found["quantities"])


def _formula(quantity: Mapping[str, Any]) -> str:
    doubt = "too short to tell" if quantity.get("too_short") else "not confirmed"
    return str(quantity["formula"]) if quantity["confirmed"] else f"{quantity['formula']} ({doubt})"


def _followed(found: Found) -> str:
    """Along what quantities were followed, and for how long; the time is not known of what was saved before it was kept."""
    count, followed = found["held_out"], found.get("followed")
    if followed and followed["from_start"]:
        return f"along the whole trajectory of {significant(followed['time'])} time units"
    of = f" of {significant(followed['time'])} time units" if followed else ""
    return f"on {_counted(count, 'held-out trajectory', 'held-out trajectories')}{of}"


def headline(found: Found) -> str:
    """What was found, and on what it was confirmed or not, without a full stop."""
    count, many, title, on = _confirmed(found), len(found["quantities"]), found["title"], _followed(found)
    if not many:
        return f"No conserved quantity found in {title}"
    if count:
        rest = f"; {number(many - count)} more {_given(found)} and not confirmed" if count < many else ""
        return f"{_counted(count, 'conserved quantity', 'conserved quantities')} in {title}, {on}{rest}"
    if all(one.get("too_short") for one in found["quantities"]):
        return f"Too short to tell what is conserved in {title}, {on}; {number(many)} {_given(found)}"
    return f"No conserved quantity in {title} is confirmed {on}; {number(many)} {_given(found)}"


def _given(found: Found) -> str:
    return "given" if found.get("model", {}).get("kind") == "fixed" else "found"


def _verdict(found: Found) -> str:
    """Of the rows of the table, in a sentence or two."""
    count, many = _confirmed(found), len(found["quantities"])
    words = f"Each row is a quantity that was {_given(found)}. "
    if count == many:
        return f"{words}{'It is' if many == 1 else 'All are'} confirmed {_followed(found)}."
    which = "None is" if not count else f"{number(count)} of {number(many)} {'is' if count == 1 else 'are'}"
    return f"{words}{which} confirmed {_followed(found)}{'; the others are marked' if count else ''}."


def _truth(found: Found) -> str:
    """What is known to be there, beside what was confirmed; empty where nothing is known."""
    if found["truth"] is None:
        return ""
    count, known = _confirmed(found), found["truth"]["count"]
    other = "" if count == known else ", another number than was confirmed"
    return f"{_counted(known, 'conserved quadratic')} {'is' if known == 1 else 'are'} known to be there{other}"


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


def _quantity(one: Found) -> dict[str, Any]:
    """A row of the page: cells beyond those of the table, and terms with their coefficients."""
    terms = [
        {
            "monomial": term["monomial"],
            "learned": measured(term["learned"]),
            "fitted": measured(term["fitted"], term["error"]),
        }
        for term in one["terms"] or []
    ]
    return {"rate": percent(one["rate"], one["rate_error"]), "terms": terms}


def _model(model: Found) -> dict[str, str]:
    """What was learned and how, in words."""
    energy = "an energy"
    if model["width"] and model["hidden"]:
        energy += f" as a network with {_counted(model['hidden'], 'hidden layer')} of {_counted(model['width'], 'unit')}"
    learned = _KINDS[model["kind"]].format(quantities=model["quantities"])
    ways = []
    if model["samples"] and model["kind"] != "none":
        ways.append(f"averaged over {_counted(model['samples'], 'transformation')} (measure {model['measure']})")
    ways.append(f"integrator {model['integrator']}")
    ways.append(f"{_counted(model['updates'], 'update')} in {number(model['seconds'])} s")
    return {"learned": f"{energy}, and {learned}", "ways": "; ".join(ways)}


def _rollout(found: Found) -> dict[str, Any] | None:
    """Energies and errors of a long motion; None where there was none."""
    rollout = found["rollout"]
    if not rollout or not rollout["times"]:
        return None
    times = rollout["times"]
    lines = [
        ("learned energy along the learned motion", level_lines(times, rollout["energy"])),
        ("true energy along the learned motion", level_lines(times, rollout["true_energy"] or [])),
        ("distance to the true motion", error_line(times, rollout["error"])),
    ]
    span = max(found["times"], default=0)
    return {
        "panels": _panels("rollout", lines),
        "until": significant(times[-1]),
        "longer": number(times[-1] / span) if span and times[-1] >= 2 * span else "",
        "drift": percent(rollout["drift"]),
        "integrator": rollout["integrator"],
        "true_energy": bool(rollout["true_energy"]),
        "error": bool(rollout["error"]),
    }


def _evidence(found: Found) -> list[tuple[str, str, str]]:
    """Terms of the bound: name, per pair and in total."""
    evidence, pairs = found["evidence"], found["pairs"]
    names = {
        "nll": "negative log-likelihood of the data",
        "kl": "divergence of the posterior from the prior",
        "negative_elbo": "negative evidence lower bound",
    }
    known = [(name, evidence[key]) for key, name in names.items() if evidence and evidence[key] is not None]
    return [(name, number(value, 2), number(value * pairs, 1)) for name, value in known]


def _errors(errors: Mapping[str, Found]) -> list[tuple[str, str, str]]:
    """A row for each set of data: by both predictors."""
    return [(_SETS.get(name, name), _known(by.get("sampled"), 2), _known(by.get("plug-in"), 2)) for name, by in errors.items()]


def _panels(name: str, figures: Sequence[tuple[str, Figure | None]]) -> list[tuple[str, str]]:
    """Captions and figures, of those that there are."""
    return [
        (caption, embed(figure, f"{name}_{index}", buttons=False))
        for index, (caption, figure) in enumerate(figures)
        if figure is not None
    ]


def _known(value: Number | None, digits: int = 3) -> str:
    return _UNKNOWN if value is None or not isfinite(value) else significant(value, digits)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or f'{one}s'}"
