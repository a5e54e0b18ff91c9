"""What training has found so far, for those who watch it: a file that is replaced while training goes on."""

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from symbayes.data.storage import DAMAGE, dump_json, error_words, from_json, read_json, write_whole
from symbayes.invariance.extents import ExtentSummary, describe_extents
from symbayes.invariance.orbit_average import Image
from symbayes.layout import Layout
from symbayes.training.rebuild import model_words
from symbayes.training.record import Record
from symbayes.training.symmetries import PathRow, symmetries
from symbayes.training.trainer import Problem

#: The file, beside a checkpoint, and its version.
LIVE, FORMAT = "live.json", 1
#: Seconds from one to the next at least, and how many times as long as it took to write one.
_EVERY, _TIMES = 1.0, 20


@dataclass(frozen=True, kw_only=True)
class Live:
    """A training that is under way."""

    format: int
    model: str
    num_data: int
    likelihood: str
    prior: str
    #: By the last hyper-step; empty before the first. Nothing is measured on data before training ends.
    symmetries: tuple[PathRow, ...]
    extents: tuple[ExtentSummary, ...]
    history: tuple[Record, ...]
    #: As in a summary; none before training ends.
    orbits: tuple[tuple[Image, ...], ...] = ()


class LiveFile:
    """Says now and then how far a training is; what cannot be written is said once, and training goes on.

    Args:
        folder: For the file, which is replaced as a whole.
        problem: What is learned.
    """

    def __init__(self, folder: Path, problem: Problem) -> None:
        self.path, self.problem = folder / LIVE, problem
        self._due, self._failed = 0.0, False

    def forget(self) -> None:
        """Remove what an earlier training left."""
        self.path.unlink(missing_ok=True)

    def offer(self, history: Sequence[Record], *, now: bool = False) -> None:
        """Write if it is time, or asked for."""
        started = time.monotonic()
        if started < self._due and not now:
            return
        try:
            found = dump_json(self._describe(history), Live, LIVE)
            write_whole(self.path, json.dumps(found))
        except (OSError, *DAMAGE) as error:
            if not self._failed:
                warnings.warn(f"{self.path} cannot be written ({error_words(error)}), so that nobody can watch.", stacklevel=2)
            self._failed = True
        ended = time.monotonic()
        self._due = ended + max(_EVERY, _TIMES * (ended - started))

    def _describe(self, history: Sequence[Record]) -> Live:
        model, evidence = self.problem.model, next((one.evidence for one in reversed(history) if one.evidence), None)
        rows = () if evidence is None else symmetries(Layout.of(model).tensors, evidence.precision, evidence.effective).rows
        return Live(
            format=FORMAT,
            model=model_words(model),
            num_data=self.problem.data.size,
            likelihood=type(self.problem.likelihood).__name__,
            prior=type(self.problem.prior).__name__,
            symmetries=rows,
            extents=tuple(describe_extents(model)),
            history=tuple(history),
        )


def read_live(folder: Path) -> Live | None:
    """What `LiveFile` wrote; None where there is none, or none with an epoch.

    Raises:
        ValueError: If it is damaged, or of another version.
    """
    try:
        found = read_json(folder / LIVE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    form = found.get("format") if isinstance(found, dict) else None
    if form != FORMAT:
        raise ValueError(f"{folder / LIVE} has format {form}; this version reads format {FORMAT}")
    live: Live = from_json(found, Live, LIVE)
    return live if live.history else None
