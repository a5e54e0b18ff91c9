"""A folder for each row of an experiment, tables from folders, and where figures come from.

A row is finished when its folder holds figures.json, which is written last and at once. So rows can be run in pieces, by
several processes and on several machines, and copied together.
"""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from papers.rows import Figures, Options, Paper
from symbayes.data.storage import DAMAGE, check_form, error_words, read_json, write_together, write_whole


def commit(package: Path = Path(__file__).parent) -> str:
    """Of the checkout the code lies in, with a note where files have changed since; empty where there is none."""

    def git(*words: str) -> str | None:
        try:
            said = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return said.stdout.strip()

    found = git("rev-parse", "--short", "HEAD") if git("ls-files", "--error-unmatch", ".") is not None else None
    if found is None:
        return ""
    return f"{found}, with changes" if git("status", "--porcelain", "--untracked-files=no") else found


def machine(device: str) -> str:
    """What computes: the name of a graphics card, or the kind and number of cores."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{device}, {platform.machine()}, {os.cpu_count()} cores"


#: In the folder of a run: its figures, or why there are none.
FIGURES, FAILED = "figures.json", "failed.txt"


def run_folder(out: Path, row: Any) -> Path:
    """Where a row leaves what it found."""
    return out / "_".join("all" if value is None else str(value) for value in vars(row).values())


def start(folder: Path) -> None:
    """Make the folder of a run that begins; an older run in it is no longer finished."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FIGURES, FAILED):
        (folder / name).unlink(missing_ok=True)


def finish(folder: Path, found: Figures) -> None:
    """Write the figures of a run."""
    write_whole(folder / FIGURES, json.dumps(found, indent=1) + "\n")


@dataclass(frozen=True)
class Runs:
    """The figures of finished runs, and in words what is wrong with other folders."""

    figures: list[Figures]
    damaged: list[str]


def read_run(folder: Path, paper: Paper) -> Figures | None:
    """The figures of a run; None if it is not finished.

    Raises:
        ValueError: If they are damaged.
    """
    path = folder / FIGURES
    if not path.is_file():
        return None
    try:
        found: Figures = read_json(path)
        paper.check(found)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or of another experiment ({error}). Run its row again, or give each experiment its own folder."
        ) from error
    return found


def read_runs(out: Path, paper: Paper) -> Runs:
    """All runs in a folder, in order."""
    figures, damaged = [], []
    for folder in sorted(out.iterdir()) if out.is_dir() else []:
        try:
            found = read_run(folder, paper)
        except ValueError as error:
            damaged.append(str(error))
        else:
            figures += [] if found is None else [found]
    return Runs(sorted(figures, key=paper.key), damaged)


def differences(found: Figures, options: Options, settings: Figures) -> list[str]:
    """In what a finished row is not as it is asked for now: what the command says, and how it would be trained."""
    asked = [name for name, value in options.asked.items() if found.get("asked", {}).get(name) != value]
    trained = [name for name, value in settings.items() if found.get(name) != value]
    return list(dict.fromkeys([*asked, *trained]))


def merged(path: Path, found: Sequence[Figures], paper: Paper) -> list[Figures]:
    """Figures together with those of a file, of which those of the same runs are left out; in order.

    Raises:
        ValueError: If the file is there and is no list of figures.
    """
    known: list[Figures] = []
    if path.is_file():
        new = {paper.key(row) for row in found}
        try:
            known = read_json(path)
            check_form(known, list[Figures], path.name)
            for row in known:
                paper.check(row)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} must hold the figures of earlier runs; it is damaged ({error}). Move it away.") from error
        known = [row for row in known if paper.key(row) not in new]
    return sorted([*known, *found], key=paper.key)


def tabulated(path: Path, paper: Paper, found: Sequence[Figures]) -> dict[Path, str]:
    """Figures as a JSON file, a run on each line, and beside it the table and pictures: contents by file.

    Raises:
        ValueError: If runs do not go together, though each is whole.
    """
    try:
        texts = {f"{path.stem}.md": "\n".join(filter(None, [paper.table(found).markdown(), paper.more(found)]))}
        texts |= {f"{name}.svg": picture for name, picture in paper.pictures(found).items()}
    except DAMAGE as error:
        raise ValueError(
            f"The runs for {path} do not make one table with its pictures ({error_words(error)}). Move those away that are "
            "damaged."
        ) from error
    rows = "[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n"
    return {path: rows, **{path.with_name(name): content for name, content in texts.items()}}


def write_table(path: Path, paper: Paper, found: Sequence[Figures]) -> list[Path]:
    """Write these files."""
    files = tabulated(path, paper, found)
    write_together(files)
    return list(files)
