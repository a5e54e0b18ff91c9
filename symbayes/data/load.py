"""Tasks by name: scikit-learn's real 8×8 digits on a 16×16 canvas (in quadrants, shifted, turned), and files of others."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from symbayes.data.files import cifar10_images, mnist_images
from symbayes.data.task import Pair, Task

_TRAINING = 1400
_SEED = 1000
_CANVAS = 16

Images = np.ndarray
#: Draws a place for each of some images, and puts them there; what it returns are canvases and the places, as numbers.
Placing = Callable[[Images, np.random.Generator, bool], tuple[Images, np.ndarray]]


def _task(name: str, place: Placing, places_matter: bool = False, test_places: int = 4) -> Task:
    from sklearn.datasets import load_digits  # slow to import

    source = load_digits()
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(source.images))
    images, labels = source.images[order] / 16.0, source.target[order]
    mean, std = images[:_TRAINING].mean() / 4, images[:_TRAINING].std() / 2

    def pair(part: slice, held_out: bool) -> Pair:
        repeats = test_places if held_out else 1
        digits, target = np.tile(images[part], (repeats, 1, 1)), np.tile(labels[part], repeats)
        canvases, places = place(digits, rng, held_out)
        target = target + (10 * places if places_matter else 0)
        inputs = torch.tensor((canvases[:, None] - mean) / std, dtype=torch.float32)
        return inputs, torch.tensor(target, dtype=torch.long)

    train = pair(slice(None, _TRAINING), held_out=False)
    test = pair(slice(_TRAINING, None), held_out=True)
    return Task(name, train, test, 40 if places_matter else 10, background=(float(-mean / std),))


def _paste(digits: Images, tops: np.ndarray, lefts: np.ndarray) -> Images:
    canvases = np.zeros((len(digits), _CANVAS, _CANVAS))
    for canvas, digit, top, left in zip(canvases, digits, tops, lefts, strict=True):
        canvas[top : top + 8, left : left + 8] = digit
    return canvases


def _fourths(count: int, rng: np.random.Generator, held_out: bool) -> np.ndarray:
    """One of four places each: drawn for training, all four in turn for each digit held out."""
    return np.repeat(np.arange(4), count // 4) if held_out else rng.integers(0, 4, count)


def _in_quadrants(digits: Images, rng: np.random.Generator, held_out: bool) -> tuple[Images, np.ndarray]:
    quadrants = _fourths(len(digits), rng, held_out)
    return _paste(digits, 8 * (quadrants // 2), 8 * (quadrants % 2)), quadrants


def _in_the_middle(digits: Images, rng: np.random.Generator, held_out: bool) -> tuple[Images, np.ndarray]:
    middle = np.full(len(digits), 4)
    return _paste(digits, middle, middle), np.zeros(len(digits), dtype=int)


def _anywhere(digits: Images, rng: np.random.Generator, held_out: bool) -> tuple[Images, np.ndarray]:
    tops, lefts = rng.integers(0, 9, (2, len(digits)))
    return _paste(digits, tops, lefts), 9 * tops + lefts


def _turn(digits: Images, rng: np.random.Generator, held_out: bool) -> tuple[Images, np.ndarray]:
    quarters = _fourths(len(digits), rng, held_out)
    turned = np.stack([np.rot90(digit, quarter) for digit, quarter in zip(digits, quarters, strict=True)])
    return _in_the_middle(turned, rng, held_out)[0], quarters


#: By name. Each training digit stands in one place, drawn at random; each test digit in four (the
#: middle is one). All ask which digit it is;
#: "quadrant-digits" asks for the quadrant, too: digit + 10 · quadrant.
DIGITS: dict[str, Callable[[str], Task]] = {
    "placed-digits": partial(_task, place=_in_quadrants),
    "quadrant-digits": partial(_task, place=_in_quadrants, places_matter=True),
    "upright-digits": partial(_task, place=_in_the_middle, test_places=1),
    "shifted-digits": partial(_task, place=_anywhere),
    "turned-digits": partial(_task, place=_turn),
}


#: Tasks that are read from files, by name.
FILES: dict[str, Callable[[Path, bool], Task]] = {
    "mnist": lambda folder, verify: mnist_images(folder, verify).task(),
    "cifar10": lambda folder, verify: cifar10_images(folder, verify).task(),
}


def load(name: str, folder: str | Path | None = None, *, verify: bool = True) -> Task:
    """A task by name: digits on a canvas are embedded, MNIST and CIFAR-10 ("mnist", "cifar10") are read from a folder.

    Digits stand in quadrants ("placed-digits"; "quadrant-digits" asks for the quadrant, too), in the middle ("upright-digits"),
    anywhere ("shifted-digits"), or in the middle by quarter turns ("turned-digits").

    Args:
        name: Of the task.
        folder: Of the files, for tasks that are read from files.
        verify: Whether files must be the originals, by their checksums. Without, other data of the same format can be read.

    Raises:
        KeyError: If there is no such task.
        FileNotFoundError: If a file is missing.
        ValueError: If a folder is needed and none is given, or a file is damaged or not the original.
    """
    if name in DIGITS:
        return DIGITS[name](name)
    if name not in FILES:
        raise KeyError(f"There is no task {name!r}; there are {', '.join([*DIGITS, *FILES])}.")
    return FILES[name](folder_of(name, folder), verify)


def folder_of(name: str, folder: str | Path | None) -> Path:
    """The folder of a task that is read from files.

    Raises:
        ValueError: If none is given.
    """
    if folder is None:
        raise ValueError(
            f"Task {name!r} is read from files: give the folder that holds them, sb.load({name!r}, folder=...) or --data."
        )
    return Path(folder)
