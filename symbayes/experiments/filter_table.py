"""What is made of the rows of `filter_vi`: which starts count, a table, and pictures of filters in their versions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from symbayes.experiments.filter_vi import LARGEST, LISTS, METHODS, group, keep, key, rows, run
from symbayes.experiments.rows import Figures, Paper
from symbayes.invariance.extents import Extents
from symbayes.report.filter_vi import picture

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
    """Of the starts of a run, the one of highest bound; by maximum likelihood, of lowest loss."""
    best: dict[tuple[Any, ...], Figures] = {}
    for row in found:
        place = key(row)[:-2] + key(row)[-1:]
        if place not in best or _merit(row) > _merit(best[place]):
            best[place] = row
    return list(best.values())


def _merit(row: Figures) -> float:
    return float(row["bound"]) if row["method"] == "elbo" else -float(row["loss"])


def markdown(found: Sequence[Figures]) -> str:
    """The rows as a table: a line for each data set, of the starts that count, over seeds."""
    places: dict[tuple[str, str, int], dict[str, list[Figures]]] = {}
    for row in chosen(found):
        places.setdefault((row["task"], row["version"], row["size"]), {}).setdefault(row["method"], []).append(row)
    lines = [
        "| data | images | bound: turns | shifts | scales | log evidence ≥ | test accuracy (plug-in) "
        "| likelihood: extents | test accuracy |",
        "|---" * 9 + "|",
    ]
    for (task, version, size), by_method in places.items():
        bound, likelihood = (by_method.get(method, []) for method in METHODS)
        cells = [" / ".join(f"{run['extents'][name]:.{digits}f} {unit}" for run in bound) for name, digits, unit in _UNITS]
        cells.append(" / ".join(f"{run['bound']:.2f}" for run in bound))
        cells.append(f"{_percent(bound, 'accuracy')} ({_percent(bound, 'plug_in_accuracy')})" if bound else "")
        cells.append(" / ".join(words(run["extents"]) for run in likelihood))
        cells.append(_percent(likelihood, "accuracy"))
        lines.append(f"| {task}, {version.replace('_', ' ')} | {size:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def words(extents: Mapping[str, float]) -> str:
    """Extents in one phrase."""
    return ", ".join(f"{extents[name]:.{digits}f} {unit}" for name, digits, unit in _UNITS)


def _percent(runs: Sequence[Figures], what: str) -> str:
    values = [100 * run[what] for run in runs]
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread} %" if values else ""


def drawn_rows(found: Sequence[Figures], task: str) -> list[Figures]:
    """What the picture of a task needs: of its largest data and first seed, a row for each version."""
    rows = [row for row in chosen(found) if row["task"] == task]
    size = max(row["size"] for row in rows)
    seed = min(row["seed"] for row in rows if row["size"] == size)
    by_method = {(r["version"], r["method"]): r for r in rows if (r["size"], r["seed"]) == (size, seed)}
    return [
        {**row, "data": version.replace("_", " "), "maps": versions(row), "likelihood": by_method.get((version, "likelihood"))}
        for (version, method), row in by_method.items()
        if method == "elbo"
    ]


def write(path: Path, found: Sequence[Figures]) -> list[Path]:
    """The table, and a picture for each task that was learned by the bound."""
    written = [path.with_suffix(".md")]
    written[0].write_text(markdown(found), encoding="utf-8")
    for task in dict.fromkeys(row["task"] for row in found if row["method"] == "elbo"):
        written.append(path.with_name(f"{path.stem}_{task}.svg"))
        written[-1].write_text(picture(drawn_rows(found, task)), encoding="utf-8")
    return written


PAPER = Paper(LISTS, rows, run, keep, write)
