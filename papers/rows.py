"""Experiments of the papers as rows: what there is to run, how one row is run, and what is made of all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NotRequired, TypedDict, TypeVar

from symbayes.data.storage import DAMAGE, check_form, error_words
from symbayes.dynamics.energy import EnergyDiscovery
from symbayes.training.checkpoint import Checkpoint
from symbayes.training.result import Result

Whole = TypeVar("Whole", Result, EnergyDiscovery)

#: The figures of one run, in plain numbers.
Figures = dict[str, Any]


class _Kept(TypedDict):
    """What figures of all experiments have."""

    seed: int
    asked: NotRequired[dict[str, int | None]]
    commit: NotRequired[str | None]
    machine: NotRequired[str | None]


@dataclass(frozen=True)
class Options:
    """What a command asks of all runs; None is for what the experiment usually has.

    Args:
        samples: Transformations.
        epochs: Passes over the data.
        width: Of the network.
        device: Where to compute.
        progress: Whether a run may say how far it is.
        checkpoint_every: Seconds from one checkpoint of a run to the next.
    """

    samples: int | None = None
    epochs: int | None = None
    width: int | None = None
    device: str = "cpu"
    progress: bool = False
    checkpoint_every: float = 60.0

    @property
    def asked(self) -> dict[str, int | None]:
        """What makes a run another run: not where it was computed."""
        return {"samples": self.samples, "epochs": self.epochs, "width": self.width}


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are written already, and paragraphs beneath it.

    Args:
        headings: Of the columns.
        rows: A cell for each column.
        notes: Paragraphs.
        best: By row, the column to be set in bold; none when empty.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    best: Sequence[int] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(
                    f"A row must have a cell for each of {len(self.headings)} columns, got {len(row)}: {list(row)}."
                )
        if self.best and len(self.best) != len(self.rows):
            raise ValueError(f"best must name a column for each of {len(self.rows)} rows, got {len(self.best)}.")

    def marked(self, before: str, after: str) -> list[list[str]]:
        """The rows, with something around their best cells."""
        rows = [list(row) for row in self.rows]
        for row, column in zip(rows, self.best, strict=False):
            row[column] = f"{before}{row[column]}{after}"
        return rows

    def markdown(self) -> str:
        """As text for a file."""
        lines = (self.headings, ["---"] * len(self.headings), *self.marked("**", "**"))
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return "\n".join([table, *(f"{note}\n" for note in self.notes)])


@dataclass(frozen=True)
class Paper:
    """An experiment of a paper. A row is a frozen dataclass with a `task` and whatever else tells runs apart.

    Args:
        title: Of its table.
        about: What the table shows, in a few sentences.
        lists: By name, what a command may choose from or count up, with commas, and what it has when nothing is chosen.
        rows: The runs for given lists.
        run: One of them, from its data; it may leave more in the folder of the run.
        key: The order of rows, and what makes figures those of the same run.
        table: The table, from all figures there are.
        words: The figures of a run in a line.
        more: What else there is to say, beneath the table in a file, as markdown.
        pictures: By name, SVG from all figures there are.
        reads_files: Whether tasks are data sets, to be loaded by name.
        settings: How a row is trained now, as its figures say it: a run that was trained otherwise is another run.
    """

    title: str
    about: str
    lists: Mapping[str, str]
    rows: Callable[[Mapping[str, Sequence[str]]], Iterator[Any]]
    run: Callable[[Any, Any, Options, Path], Figures]
    key: Callable[[Figures], tuple[Any, ...]]
    table: Callable[[Sequence[Figures]], TextTable]
    words: Callable[[Figures], str]
    more: Callable[[Sequence[Figures]], str] = lambda found: ""
    pictures: Callable[[Sequence[Figures]], dict[str, str]] = lambda found: {}
    reads_files: bool = True
    settings: Callable[[Any, Options], Figures] = lambda row, options: {}

    def check(self, found: Any) -> None:
        """Refuse what are no figures of a run: what tables are made of must be made of them alone.

        Raises:
            ValueError: Saying what is wrong.
        """
        try:
            check_form(found, _Kept, "figures")
            first, *rest = self.key(found)
            numbers = [number for part in rest for number in (part if isinstance(part, tuple) else (part,))]
            if not isinstance(first, int | str) or not all(isinstance(number, int) for number in numbers):
                raise TypeError("sizes must be whole numbers")  # or runs could not be sorted
            self.table([found])
            self.more([found])
            self.words(found)
        except DAMAGE as error:
            raise ValueError(error_words(error)) from error


#: Where in the folder of a run its training is kept until it is finished.
CHECKPOINT = "checkpoint"


def kept(folder: Path | None, options: Options | None = None, part: str = "") -> Checkpoint | None:
    """Where a run keeps its training, from where it goes on; None for one without a folder.

    Args:
        folder: Of the run.
        options: Which say how often.
        part: Of several trainings in a run.
    """
    every = Options().checkpoint_every if options is None else options.checkpoint_every
    return None if folder is None else Checkpoint(folder / CHECKPOINT / part, every, resume=True)


def keeping(folder: Path | None, options: Options | None = None, part: str = "") -> dict[str, Any]:
    """The same for `fit` and `discover`."""
    found = kept(folder, options, part)
    return {} if found is None else {"checkpoint": found.folder, "checkpoint_every": found.every, "resume": found.resume}


def refuse_partial(result: Whole) -> Whole:
    """What a run gave, if it was not stopped.

    Raises:
        KeyboardInterrupt: If it was: a run is whole, or goes on later.
    """
    if result.is_partial:
        raise KeyboardInterrupt
    return result


def accuracy_words(found: Figures) -> str:
    """Of a run on images: its accuracy, and the extents it learned."""
    learned = ", ".join(f"{name} {value:.3g}" for name, value in found["extents"].items())
    return f"{100 * found['accuracy']:.2f} %, {found['seconds']:.0f} s {learned}"


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the standard deviation where there are several."""
    around = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{around}"


def whole_numbers(what: str, words: Sequence[str]) -> list[int]:
    """Numbers of a list.

    Raises:
        ValueError: Naming the first that is none.
    """
    for word in words:
        if not word.strip().isdecimal():
            raise ValueError(f"{what} must be whole numbers, with commas between them; got {word!r}.")
    return [int(word) for word in words]


def shares(what: str, words: Sequence[str]) -> list[float]:
    """Numbers of a list that are zero or more.

    Raises:
        ValueError: Naming the first that is none.
    """
    found = []
    for word in words:
        try:
            value = float(word)
        except ValueError:
            value = -1.0
        if not 0 <= value < inf:
            raise ValueError(f"{what} must be numbers of zero or more, with commas between them; got {word!r}.")
        found.append(value)
    return found


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
