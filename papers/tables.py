"""All experiments of the papers by name, run row by row, and the page of their results."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from papers import laws, lila, noether, verdicts
from papers.data import load
from papers.ella import table as ella_table
from papers.filters.table import PAPER as FILTERS
from papers.rows import CHECKPOINT, Figures, Options, Paper
from papers.runs import finish, merged, read_runs, run_folder, start, tabulated, write_table
from symbayes.data.folders import remove_folder
from symbayes.data.storage import write_together
from symbayes.data.task import Task

PAPERS: dict[str, Paper] = {
    **ella_table.PAPERS,
    "invariance": lila.PAPER,
    "filters": FILTERS,
    "conserved": noether.PAPER,
    "laws": laws.PAPER,
    "verdicts": verdicts.PAPER,
}


def perform(
    what: str, row: Any, options: Options, data: Path | None, out: Path, stamp: Mapping[str, Any], *, resume: bool = False
) -> Figures:
    """Run one row and leave its folder.

    Args:
        what: The name of the experiment.
        row: One of its rows.
        options: What is asked of it.
        data: The folder of data sets.
        out: The folder of runs.
        stamp: What is kept with the figures: the command, the commit, the machine.
        resume: Whether to go on from where an earlier attempt was interrupted.
    """
    paper, folder = PAPERS[what], run_folder(out, row)
    start(folder)
    if not resume:
        remove_folder(folder / CHECKPOINT)
    whole = _load(row.task, data) if paper.reads_files else None
    found = {**paper.run(row, whole, options, folder), **stamp, "asked": options.asked}
    finish(folder, found)
    remove_folder(folder / CHECKPOINT)
    return found


@lru_cache(maxsize=1)
def _load(task: str, data: Path | None) -> Task:
    """Rows on the same task follow each other, and share it."""
    return load(task, data)


def assemble(what: str, out: Path) -> tuple[list[Figures], list[Path], list[str]]:
    """The table of all runs in a folder, written into it: figures, files, and what is damaged."""
    runs = read_runs(out, PAPERS[what])
    return runs.figures, write_table(out / f"{what}.json", PAPERS[what], runs.figures), runs.damaged


def collect(what: str, out: Path, docs: Path) -> tuple[list[Figures], list[Path], list[str]]:
    """Add all runs in a folder to those kept in `docs/results`, and write `docs/results.md` from all that are kept there.

    Returns:
        The figures that are kept of this experiment, the files that were written, and what is damaged.

    Raises:
        ValueError: If there is no folder of runs, or a file of earlier figures is damaged; nothing is written then.
    """
    paper, path = PAPERS[what], docs / "results" / f"{what}.json"
    if not out.is_dir():
        raise ValueError(f"{out} must be a folder of runs, which are to be collected; it is not there. Name theirs by --out.")
    runs = read_runs(out, paper)
    figures = merged(path, runs.figures, paper)
    files = tabulated(path, paper, figures)
    files[docs / "results.md"] = results_page(docs / "results", {what: figures})
    write_together(files)
    return figures, list(files), runs.damaged


def results_page(folder: Path, known: Mapping[str, Sequence[Figures]]) -> str:
    """All tables, from figures that are known by experiment, and those in a folder."""
    parts = [
        "# Results\n",
        "Written by `python -m papers … --collect docs` from the figures in [results](results); "
        "every run is there with its command, seed, commit and machine.\n",
    ]
    for what, paper in PAPERS.items():
        path = folder / f"{what}.json"
        if what in known or path.is_file():
            figures = known[what] if what in known else merged(path, [], paper)
            drawn = [f"![{name}](results/{name}.svg)\n" for name in paper.pictures(figures)]
            parts += [f"## {paper.title}\n", f"{paper.about}\n", paper.table(figures).markdown(), *drawn]
            parts += [*filter(None, [paper.more(figures)]), _sources(figures)]
    return "\n".join(parts)


def _sources(found: Sequence[Figures]) -> str:
    """By commit and machine, the seeds."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for row in found:
        seeds.setdefault((row.get("commit") or "not kept", row.get("machine") or "not kept"), set()).add(row["seed"])
    lines = [f"- commit {c}, {m}, seeds {', '.join(map(str, sorted(s)))}" for (c, m), s in sorted(seeds.items())]
    return "\n".join(lines) + "\n"
