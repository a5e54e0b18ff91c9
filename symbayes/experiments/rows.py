"""Experiments of the papers as rows of a file: a row for each run, kept with the command, seed and commit that made it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symbayes.data.load import load

#: The figures of one run, in plain numbers.
Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What a command asks of all runs.

    Args:
        samples: Transformations; None for what the experiment usually has.
        epochs: Passes over the data; None for what the experiment usually has.
        device: Where to compute.
    """

    samples: int | None = None
    epochs: int | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Paper:
    """An experiment of a paper.

    Args:
        lists: By name, what a command may choose from or count up, with commas, and what it has when nothing is chosen.
        rows: The runs of a task for given lists.
        run: One of them, from what was loaded.
        keep: Adds its figures to a file; all figures there.
        write: What is made of all figures, as files beside that one.
        words: The figures of a run in a line.
        load: What a task is, from its name and the folder of its files.
    """

    lists: Mapping[str, str]
    rows: Callable[[str, Mapping[str, Sequence[str]]], Iterator[Any]]
    run: Callable[[Any, Any, Options], Figures]
    keep: Callable[[Path, Figures], list[Figures]]
    write: Callable[[Path, Sequence[Figures]], list[Path]]
    words: Callable[[Figures], str]
    load: Callable[[str, Path | None], Any] = load


def accuracy_words(found: Figures) -> str:
    """Of a run on images: its accuracy, and the extents it learned."""
    learned = ", ".join(f"{name} {value:.3g}" for name, value in found["extents"].items())
    return f"{100 * found['accuracy']:.2f} %, {found['seconds']:.0f} s {learned}"


def check_names(**asked: tuple[Sequence[str], Sequence[str]]) -> None:
    """Refuse names that are not known.

    Args:
        **asked: By what they are: the names, and those that are known.

    Raises:
        ValueError: Naming the first.
    """
    for what, (names, known) in asked.items():
        for name in names:
            if name not in known:
                raise ValueError(f"{what} must be among {', '.join(known)}; got {name!r}.")


def kept(path: Path, found: Figures, key: Callable[[Figures], tuple[Any, ...]]) -> list[Figures]:
    """Add a row to the file, in place of an older one of the same key; all rows, in order of their keys.

    Raises:
        ValueError: If the file is there and is no list of rows.
    """
    known: list[Figures] = []
    if path.is_file():
        try:
            known = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} must hold the rows of earlier runs; it is damaged ({error}). Move it away.") from error
    ordered = sorted([*(row for row in known if key(row) != key(found)), found], key=key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in ordered) + "\n]\n")
    return ordered
