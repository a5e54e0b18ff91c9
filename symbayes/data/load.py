"""Tasks by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from symbayes.data.digits import digits
from symbayes.data.files import cifar10, mnist
from symbayes.data.task import Task

_EMBEDDED: dict[str, Callable[[str], Task]] = {
    "placed-digits": partial(digits, quadrant_matters=False),
    "quadrant-digits": partial(digits, quadrant_matters=True),
}
_FROM_FILES: dict[str, Callable[[Path], Task]] = {"mnist": mnist, "cifar10": cifar10}


def load(name: str, folder: str | Path | None = None) -> Task:
    """A task by name: "placed-digits" and "quadrant-digits" are embedded, "mnist" and "cifar10" lie in a folder.

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
