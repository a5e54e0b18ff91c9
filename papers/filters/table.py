"""What is made of the rows of `filter_vi`: which starts count, a table, and pictures of filters in their versions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from papers.filters.pictures import picture
from papers.filters.rows import LARGEST, LISTS, VERSIONS, group, key, rows, run, settings_of
from papers.rows import Figures, Paper, TextTable, accuracy_words, spread
from symbayes.data.transform import Ranges
from symbayes.invariance.extents import Extents

#: Versions of each filter that are drawn.
_SEEN = 7
_UNITS = (("rotation", 0, "°"), ("translation", 1, "px"), ("scale", 0, "%"))


def versions(figures: Figures) -> list[list[list[list[float]]]]:
    """The filters of a row, each in versions from one end of what was learned to the other."""
    orbit = Extents(group().starting(**figures["amounts"]))
    reach = {g.name: abs(figures["amounts"][g.extent]) / g.bound for g in orbit.group.generators}
    draws = orbit.even(_SEEN)[0]
    draws = draws[draws[:, orbit.group.names.index(max(reach, key=reach.__getitem__))].argsort()]
    with torch.no_grad():
        moved = orbit.transform(draws[None].float(), torch.tensor(figures["filters"]).float()[:, None] / LARGEST)
    return moved[:, :, 0].tolist()


def chosen(found: Sequence[Figures]) -> list[Figures]:
    """Of the starts of every run by the bound, the one where it is highest."""
    best: dict[tuple[Any, ...], Figures] = {}
    for row in found:
        if row["method"] == "elbo":
            place = (row["task"], row["version"], row["size"], row["seed"])
            if place not in best or row["bound"] > best[place]["bound"]:
                best[place] = row
    return list(best.values())


def table(found: Sequence[Figures]) -> TextTable:
    """The rows as a table, a line for each data set and number of images; figures of several seeds are side by side.

    By the bound, of the start that counts, which is named; by maximum likelihood, of every start.
    """
    places: dict[tuple[str, str, int], list[Figures]] = {}
    for row in chosen(found):
        places.setdefault((row["task"], row["version"], row["size"]), []).append(row)
    heading = ["data", "images", "start", "turns", "shifts", "scales", "log evidence ≥", "test accuracy (plug-in)"]
    lines = []
    for (task, version, size), runs in places.items():
        cells = [" / ".join(dict.fromkeys(run["start"] for run in runs))]
        cells += [" / ".join(f"{run['extents'][name]:.{digits}f} {unit}" for run in runs) for name, digits, unit in _UNITS]
        cells.append(" / ".join(f"{run['bound']:.2f}" for run in runs))
        cells.append(f"{_percent(runs, 'accuracy')} ({_percent(runs, 'plug_in_accuracy')})")
        place = {"task": task, "version": version, "size": size, "method": "likelihood"}
        cells.append("; ".join(_fit(row) for row in found if place.items() <= row.items()))
        lines.append([f"{task}, {done(task, version)}", f"{size:,}", *cells])
    return TextTable([*heading, "by maximum likelihood"], lines)


def _fit(row: Figures) -> str:
    return f"{row['start']}: {words(row['extents'])}, {_percent([row], 'accuracy')}"


def words(extents: Mapping[str, float]) -> str:
    """Extents in one phrase."""
    return ", ".join(f"{extents[name]:.{digits}f} {unit}" for name, digits, unit in _UNITS)


def _percent(runs: Sequence[Figures], what: str) -> str:
    return f"{spread([100 * run[what] for run in runs], 1)} %" if runs else ""


def done(task: str, version: str) -> str:
    """What is done to the images of a version, in words."""
    bounds = {"rotation": 0.0, "translation": 0.0, "scale": 1.0, **VERSIONS[task][version]}
    return " and ".join(Ranges(**bounds).words) or "as they are"


def drawn_rows(found: Sequence[Figures], task: str) -> list[Figures]:
    """What the picture of a task needs, for each version: of the largest data and the first seed there is.

    Beside the run by the bound stands that by maximum likelihood, from small extents, if there is one.
    """
    best: dict[str, Figures] = {}
    for row in sorted((row for row in chosen(found) if row["task"] == task), key=lambda row: (-row["size"], row["seed"])):
        best.setdefault(row["version"], row)
    drawn = []
    for version in sorted(best, key=lambda version: key(best[version])[1]):
        row = best[version]
        same = {**{name: row[name] for name in ("task", "version", "size", "seed")}, "method": "likelihood", "start": "small"}
        fitted = next((other for other in found if same.items() <= other.items()), None)
        drawn.append({**row, "data": done(task, version), "maps": versions(row), "likelihood": fitted})
    return drawn


def pictures(found: Sequence[Figures]) -> dict[str, str]:
    """One for each task that was learned by the bound."""
    tasks = dict.fromkeys(row["task"] for row in found if row["method"] == "elbo")
    return {f"filters_{task}": picture(drawn_rows(found, task)) for task in tasks}


PAPER = Paper(
    "Invariant weights by variational inference",
    "Filters that are turned, shifted and scaled: extents learned by the bound, of several starts the one where it is highest, "
    "and by maximum likelihood.",
    LISTS,
    rows,
    run,
    key,
    table,
    accuracy_words,
    pictures=pictures,
    settings=lambda row, options: {"settings": settings_of(row, options).described()},
)
