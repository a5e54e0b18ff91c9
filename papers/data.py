"""Data sets of the papers: versions of MNIST and CIFAR-10, and embedded sequences.

Every image is moved once, so these sets are as fixed as their sources: training images by draws of seed 1, test images of
seed 0; read bilinearly with nothing outside, and cut down to whole numbers, as stored images are. Sets of MNIST have 50 000
training images, drawn from the 60 000 with seed 711.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Generator, Tensor
from torch.nn import functional

from symbayes.data.files import Images, cifar10_images, mnist_images, require
from symbayes.data.load import DIGITS, FILES, folder_of
from symbayes.data.task import Pair, Task
from symbayes.data.transform import Ranges, reading, resample

_SIDE = 32
_TRAINING, _ORDER_SEED = 50_000, 711
_TEST_SEED, _TRAIN_SEED = 0, 1
_QUADRANT_SEED = 1000
#: Images that are moved at once, in double precision.
_AT_ONCE = 5000

#: How far images are moved, by kind. Shifts are published as 8/14 of the way from the centre of an image to the middle of its
#: outermost pixels (MNIST), or to its edge (CIFAR-10).
_SPREADS: Mapping[str, Mapping[str, Ranges]] = {
    "mnist": {
        "rotated": Ranges(180.0, 0.0, 1.0),
        "translated": Ranges(0.0, 8 / 14 * 27 / 2, 1.0),
        "scaled": Ranges(0.0, 0.0, 2.0),
    },
    "cifar10": {
        "rotated": Ranges(180.0, 0.0, 1.0),
        "translated": Ranges(0.0, 8 / 14 * 32 / 2, 1.0),
        "scaled": Ranges(0.0, 0.0, 2.0),
    },
}


def moved(images: UInt8[Tensor, "n c h w"], spread: Ranges, seed: int) -> UInt8[Tensor, "n c h w"]:
    """Every image turned, shifted and scaled once; zero outside, cut down to whole numbers."""
    maps = reading(spread.draw(len(images), Generator().manual_seed(seed)))
    parts = zip(images.split(_AT_ONCE), maps.split(_AT_ONCE), strict=True)
    return torch.cat([resample(part.double(), maps, (0.0,)).clamp(0, 255).to(torch.uint8) for part, maps in parts])


def in_quadrants(images: UInt8[Tensor, "n 1 h w"], seed: int) -> tuple[UInt8[Tensor, "n 1 side side"], Int[Tensor, " n"]]:
    """Every image in one quadrant of a canvas of twice its size, which is then read at 32×32; and the quadrants.

    They are upper left, upper right, lower left and lower right. Pixels are read bilinearly between four others, the rest is
    left out.
    """
    n, _, height, width = images.shape
    quadrants = torch.randint(0, 4, (n,), generator=Generator().manual_seed(seed))
    canvas = images.new_zeros(n, 1, 2, height, 2, width)
    canvas[torch.arange(n), :, quadrants // 2, :, quadrants % 2] = images
    canvases = canvas.view(n, 1, 2 * height, 2 * width).split(_AT_ONCE)
    return torch.cat([_resize(part.float()).round().to(torch.uint8) for part in canvases]), quadrants


def _resize(images: Tensor) -> Tensor:
    return functional.interpolate(images, (_SIDE, _SIDE), mode="bilinear", align_corners=False)


def _of_mnist(task: Task, name: str) -> Task:
    """With the training images that the papers have, at their size."""
    chosen = torch.randperm(len(task.train[0]), generator=Generator().manual_seed(_ORDER_SEED))[:_TRAINING]

    def sized(images: Tensor) -> Tensor:
        return images if images.shape[-1] == _SIDE else torch.cat([_resize(part) for part in images.split(_AT_ONCE)])

    train = sized(task.train[0][chosen]), task.train[1][chosen]
    return replace(task, name=name, train=train, test=(sized(task.test[0]), task.test[1]))


def _mnist32(folder: Path, verify: bool) -> Task:
    """As it is; the papers pass it through a rotation by 0°, which takes a grey level off every fourth pixel or so."""
    return _of_mnist(mnist_images(folder, verify).task(), "mnist32")


def _place(folder: Path, verify: bool, name: str, quadrants_matter: bool) -> Task:
    """Digits in quadrants: which digit, or digit + 10 · quadrant."""
    source = mnist_images(folder, verify)

    def pair(digits: Pair, seed: int) -> Pair:
        images, quadrants = in_quadrants(digits[0], seed)
        return images, digits[1] + 10 * quadrants if quadrants_matter else digits[1]

    train, test = pair(source.train, _QUADRANT_SEED + 1), pair(source.test, _QUADRANT_SEED)
    task = _of_mnist(replace(source, train=train, test=test).task(), name)
    return replace(task, classes=40 if quadrants_matter else 10)


def _transform(folder: Path, verify: bool, name: str, read: Callable[[Path, bool], Images], spread: Ranges) -> Task:
    source = read(folder, verify)
    train = moved(source.train[0], spread, _TRAIN_SEED), source.train[1]
    test = moved(source.test[0], spread, _TEST_SEED), source.test[1]
    task = replace(source, train=train, test=test).task()
    return _of_mnist(task, name) if source.name == "mnist" else replace(task, name=name)


#: By name: what reads a task from a folder, given whether files must be the originals.
PUBLISHED: dict[str, Callable[[Path, bool], Task]] = {
    "mnist32": _mnist32,
    "digit-mnist": partial(_place, name="digit-mnist", quadrants_matter=False),
    "quadrant-mnist": partial(_place, name="quadrant-mnist", quadrants_matter=True),
    **{
        f"{kind}-{source}": partial(_transform, name=f"{kind}-{source}", read=read, spread=spread)
        for source, read in (("mnist", mnist_images), ("cifar10", cifar10_images))
        for kind, spread in _SPREADS[source].items()
    },
}


_LENGTH, _MOTIF, _QUARTER = 64, 8, 16
_SEQUENCES, _TEST = 600, 1000
_SEED = 1000
_NOISE = 0.3


def motifs() -> np.ndarray:
    """Four wave shapes of eight cells and equal energy: up, down, and one and two periods of a sine."""
    time = (np.arange(_MOTIF) + 0.5) / _MOTIF
    shapes = np.stack([2 * time - 1, 1 - 2 * time, np.sin(2 * np.pi * time), np.sin(4 * np.pi * time)])
    return np.asarray(shapes / np.sqrt((shapes**2).mean(1, keepdims=True)))


def _pair(size: int, rng: np.random.Generator, places_matter: bool) -> Pair:
    kinds, quarters = rng.integers(0, 4, (2, size))
    starts = _QUARTER * quarters + rng.integers(0, _QUARTER - _MOTIF + 1, size)
    sequences = _NOISE * rng.standard_normal((size, _LENGTH))
    for sequence, motif, start in zip(sequences, motifs()[kinds], starts, strict=True):
        sequence[start : start + _MOTIF] += motif
    targets = kinds + 4 * quarters if places_matter else kinds
    return torch.tensor(sequences[:, None], dtype=torch.float32), torch.tensor(targets, dtype=torch.long)


def _task(name: str, places_matter: bool) -> Task:
    rng = np.random.default_rng(_SEED)
    return Task(name, _pair(_SEQUENCES, rng, places_matter), _pair(_TEST, rng, places_matter), 16 if places_matter else 4)


#: By name. Both have the same inputs, a motif that lies within one quarter of the sequence; "motifs" asks which motif it is,
#: "placed-motifs" for the quarter, too: motif + 4 · quarter.
SEQUENCES: dict[str, Callable[[str], Task]] = {
    "motifs": partial(_task, places_matter=False),
    "placed-motifs": partial(_task, places_matter=True),
}


_EMBEDDED: dict[str, Callable[[str], Task]] = {**DIGITS, **SEQUENCES}
_FROM_FILES: dict[str, Callable[[Path, bool], Task]] = {**FILES, **PUBLISHED}


def load(name: str, folder: str | Path | None = None, *, verify: bool = True) -> Task:
    """As `symbayes.load`, which this adds to.

    Sequences are embedded: they hold one of four short waves in noise ("motifs"; "placed-motifs" asks for its quarter of the
    sequence, too). Of MNIST and CIFAR-10 there are "mnist32" (at 32×32, 50 000 training images), "digit-mnist" and
    "quadrant-mnist" (in a quadrant, which the latter asks for, too), and "rotated-", "translated-" or "scaled-" before either.
    """
    if name in _EMBEDDED:
        return _EMBEDDED[name](name)
    return _FROM_FILES[name](_require_folder(name, folder), verify)


def check_files(name: str, folder: str | Path | None = None) -> None:
    """Raise what `load` would, without building the task: the files must be there, and be the originals."""
    if name not in _EMBEDDED:
        require("cifar10" if name.endswith("cifar10") else "mnist", _require_folder(name, folder))


def _require_folder(name: str, folder: str | Path | None) -> Path:
    if name not in _FROM_FILES:
        raise KeyError(f"There is no task {name!r}; there are {', '.join([*_EMBEDDED, *_FROM_FILES])}.")
    return folder_of(name, folder)
