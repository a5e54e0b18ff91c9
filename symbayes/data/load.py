"""Tasks by name."""

from collections.abc import Callable
from pathlib import Path

from symbayes.data.digits import DIGITS
from symbayes.data.files import cifar10_images, mnist_images, require
from symbayes.data.published import PUBLISHED
from symbayes.data.sequences import SEQUENCES
from symbayes.data.task import Task

_EMBEDDED: dict[str, Callable[[str], Task]] = {**DIGITS, **SEQUENCES}
_FROM_FILES: dict[str, Callable[[Path, bool], Task]] = {
    "mnist": lambda folder, verify: mnist_images(folder, verify).task(),
    "cifar10": lambda folder, verify: cifar10_images(folder, verify).task(),
    **PUBLISHED,
}


def load(name: str, folder: str | Path | None = None, *, verify: bool = True) -> Task:
    """A task by name: digits on a canvas and sequences are embedded, sets of MNIST and CIFAR-10 are read from a folder.

    Digits stand in quadrants ("placed-digits"; "quadrant-digits" asks for the quadrant, too), in the middle ("upright-digits"),
    anywhere ("shifted-digits"), or in the middle by quarter turns ("turned-digits"). Sequences hold one of four short waves in
    noise ("motifs"; "placed-motifs" asks for its quarter of the sequence, too).

    "mnist" and "cifar10" are whole. As the papers have them: "mnist32" (at 32×32, 50 000 training images), "digit-mnist" and
    "quadrant-mnist" (in a quadrant, which the latter asks for, too), and "rotated-", "translated-" or "scaled-" before either.

    Args:
        name: Of the task.
        folder: Of the files, for tasks that are read from files.
        verify: Whether files must be the originals, by their checksums. Without, other data of the same format can be read.

    Raises:
        KeyError: If there is no such task.
        FileNotFoundError: If a file is missing.
        ValueError: If a folder is needed and none is given, or a file is damaged or not the original.
    """
    if name in _EMBEDDED:
        return _EMBEDDED[name](name)
    found = _checked(name, folder)
    return _FROM_FILES[name](found, verify)


def check_files(name: str, folder: str | Path | None = None) -> None:
    """Raise what `load` would, without building the task: the files must be there, and be the originals."""
    if name not in _EMBEDDED:
        require("cifar10" if name.endswith("cifar10") else "mnist", _checked(name, folder))


def _checked(name: str, folder: str | Path | None) -> Path:
    if name not in _FROM_FILES:
        raise KeyError(f"There is no task {name!r}; there are {', '.join([*_EMBEDDED, *_FROM_FILES])}.")
    if folder is None:
        raise ValueError(
            f"Task {name!r} is read from files: give the folder that holds them, sb.load({name!r}, folder=...) or --data."
        )
    return Path(folder)
