"""Tasks by name."""

from collections.abc import Callable
from pathlib import Path

from symbayes.data.digits import DIGITS
from symbayes.data.files import cifar10, mnist
from symbayes.data.sequences import SEQUENCES
from symbayes.data.task import Task

_EMBEDDED: dict[str, Callable[[str], Task]] = {**DIGITS, **SEQUENCES}
_FROM_FILES: dict[str, Callable[[Path], Task]] = {"mnist": mnist, "cifar10": cifar10}


def load(name: str, folder: str | Path | None = None) -> Task:
    """A task by name: digits on a canvas and sequences are embedded, "mnist" and "cifar10" lie in a folder.

    Digits stand in quadrants ("placed-digits"; "quadrant-digits" asks for the quadrant, too), in the middle ("upright-digits"),
    anywhere ("shifted-digits"), or in the middle by quarter turns ("turned-digits"). Sequences hold one of four short waves in
    noise ("motifs"; "placed-motifs" asks for its quarter of the sequence, too).

    Raises:
        KeyError: If there is no such task.
        ValueError: If a folder is needed and none is given.
    """
    if name in _EMBEDDED:
        return _EMBEDDED[name](name)
    if name not in _FROM_FILES:
        raise KeyError(f"There is no task {name!r}; there are {', '.join([*_EMBEDDED, *_FROM_FILES])}.")
    if folder is None:
        raise ValueError(f"Task {name!r} is read from files: give the folder that holds them, sb.load({name!r}, folder=...).")
    return _FROM_FILES[name](Path(folder))
