"""The pictures of learned invariance in docs/research: points in the plane, and filter banks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from papers.figures import filters, toy
from symbayes.data.storage import write_whole

#: Called with the share of all work that is done, and what is trained next.
Progress = Callable[[float, str], None]

#: By the name of a picture, the seconds that it takes and what finds it.
STUDIES: dict[str, tuple[float, Callable[[Progress], dict[str, Any]]]] = {
    "toy": (90.0, lambda progress: toy.run(progress=progress)),
    "filters": (120.0, lambda progress: filters.run(progress=progress)),
}


def run(folder: Path, progress: Progress | None = None) -> list[Path]:
    """Train for every picture and write it to a folder."""
    total, done = sum(seconds for seconds, _ in STUDIES.values()), 0.0
    written = []
    for name, (seconds, study) in STUDIES.items():
        found = study(_part(progress, done / total, seconds / total))
        written.append(folder / f"{name}.svg")
        write_whole(written[-1], found["picture"])
        done += seconds
    if progress:
        progress(1.0, "done")
    return written


def _part(progress: Progress | None, start: float, share: float) -> Progress:
    """Progress of a part of the work, as progress of all of it."""

    def say(done: float, what: str) -> None:
        if progress:
            progress(start + share * done, what)

    return say
