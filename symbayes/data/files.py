"""MNIST and CIFAR-10 from a folder, in the formats they are distributed in; checked against the sums of the originals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from symbayes.data.checksums import LARGEST, check
from symbayes.data.opcodes import read_batch
from symbayes.data.task import Pair, Task
from symbayes.data.within import read_within

_IDX_IMAGES, _IDX_LABELS = 2051, 2049
_BATCHES = ([f"data_batch_{k}" for k in range(1, 6)], ["test_batch"])
_RECORDS, _BYTES = 10_000, 3072
#: By task, the files it is read from; of several names the first that is there.
_NEEDED = {
    "mnist": [[f"{part}-{kind}-ubyte"] for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")],
    "cifar10": [[f"{name}.bin", name] for names in _BATCHES for name in names],
}
#: Bytes that files may have which are not the originals: one in IDX format, and a batch of the Python version of CIFAR-10.
_LARGEST_IDX, _LARGEST_BATCH = 2**30, 2**26
_CLASSES = 10
_CURE = "Copy it again."


@dataclass(frozen=True)
class Images:
    """Images as they are stored, in whole numbers, and how pixels are standardised.

    Args:
        name: Of the task.
        train: Images [n, c, h, w] of bytes, and class numbers.
        test: The same, held out.
        mean: Of each channel.
        deviation: Of each channel.
    """

    name: str
    train: Pair
    test: Pair
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def standardised(self, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """(pixel − mean) / deviation."""
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.deviation))
        return (images.float() - mean) / deviation

    def task(self) -> Task:
        """To be learned, pixels standardised."""
        black = self.standardised(torch.zeros(1, len(self.mean), 1, 1, dtype=torch.uint8))
        train, test = ((self.standardised(images), labels) for images, labels in (self.train, self.test))
        return Task(self.name, train, test, 10, tuple(black.flatten().tolist()))


def mnist_images(folder: Path, verify: bool = True) -> Images:
    """MNIST from IDX files, plain or gzipped, in `folder`, `folder/MNIST/raw` or `folder/raw`."""

    def pair(part: str) -> Pair:
        images = _idx(_find(folder, [f"{part}-images-idx3-ubyte"], "mnist"), _IDX_IMAGES, verify)
        path = _find(folder, [f"{part}-labels-idx1-ubyte"], "mnist")
        labels = _idx(path, _IDX_LABELS, verify)
        if len(labels) != len(images):
            raise ValueError(
                f"{path} must hold {len(images)} labels, as there are images beside it; got {len(labels)}. {_CURE}"
            )
        _check_labels(labels, path)
        return images[:, None], labels.long()

    train, test = pair("train"), pair("t10k")
    if train[0].shape[1:] != test[0].shape[1:]:
        sizes = " and ".join("×".join(map(str, images.shape[2:])) for images, _ in (train, test))
        raise ValueError(f"{folder} must hold training and test images of one size, got {sizes}. Copy them again.")
    return Images("mnist", train, test, (0.1307 * 255,), (0.3081 * 255,))


def cifar10_images(folder: Path, verify: bool = True) -> Images:
    """CIFAR-10 from `folder`, or `cifar-10-batches-bin` (binary version) or `cifar-10-batches-py` (Python version) in it."""

    def pair(names: list[str]) -> Pair:
        parts = [_batch(_find(folder, [f"{name}.bin", name], "cifar10"), verify) for name in names]
        records = torch.from_numpy(np.concatenate(parts))
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()

    train, test = (pair(names) for names in _BATCHES)
    return Images("cifar10", train, test, (125.3, 123.0, 113.9), (63.0, 62.1, 66.7))


def require(task: str, folder: Path) -> None:
    """Check that the files of "mnist" or "cifar10" are in a folder, and the originals.

    Raises:
        FileNotFoundError: If one is missing.
        ValueError: If one is damaged or not the original.
    """
    for names in _NEEDED[task]:
        _read(_find(folder, names, task), LARGEST, verify=True)


def _find(folder: Path, names: Sequence[str], task: str) -> Path:
    """The first of some names that is there."""
    within = ("", "MNIST/raw", "raw", "cifar-10-batches-bin", "cifar-10-batches-py")
    for name in names:
        for place in within:
            for candidate in (folder / place / name, folder / place / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    raise FileNotFoundError(
        f"{task!r} needs the file {' or '.join(names)} in {folder}; it is not there. Name the folder that holds it, or fetch "
        f"it: symbayes download {task} --to {folder}"
    )


def _read(path: Path, largest: int, verify: bool) -> bytes:
    """A file, unpacked, and a byte too many if it is larger than it may be; checked if it should be the original."""
    raw = read_within(path, largest + 1, _CURE)
    if verify:
        check(raw, path, "Copy it again; or read other data of this format by sb.load(name, folder, verify=False).")
    return raw


def _idx(path: Path, magic: int, verify: bool) -> Tensor:
    start = 4 + 4 * (magic % 256)
    head = read_within(path, start, _CURE)
    if len(head) < start or int.from_bytes(head[:4], "big") != magic:
        raise ValueError(f"{path} must begin with the number {magic} of its IDX format; it does not. {_CURE}")
    shape = np.frombuffer(head[4:], dtype=">u4").tolist()
    size = prod(shape)  # in Python, where it does not overflow
    if not 0 < size <= _LARGEST_IDX:
        raise ValueError(f"{path} must hold from 1 to {_LARGEST_IDX} values; by its head it has {size}. {_CURE}")
    body = np.frombuffer(_read(path, start + size, verify)[start:], dtype=np.uint8)
    if len(body) != size:
        found = f"got {len(body)}: it is truncated" if len(body) < size else "got more"
        raise ValueError(f"{path} must hold {size} values, {found}. {_CURE}")
    return torch.from_numpy(body.reshape(shape).copy())


def _batch(path: Path, verify: bool) -> np.ndarray:
    """10 000 records of a label and 3 072 pixels, from either version."""
    size = _RECORDS * (1 + _BYTES)
    if not path.name.removesuffix(".gz").endswith(".bin"):
        records = _python_batch(path, verify)
    elif len(raw := _read(path, size, verify)) == size:
        records = np.frombuffer(raw, dtype=np.uint8).reshape(_RECORDS, 1 + _BYTES)
    else:
        found = f"{len(raw)} bytes" if len(raw) < size else "more"
        raise ValueError(f"{path} must hold {_RECORDS} records of {1 + _BYTES} bytes, got {found}. {_CURE}")
    _check_labels(records[:, 0], path)
    return records


def _python_batch(path: Path, verify: bool) -> np.ndarray:
    raw = _read(path, _LARGEST_BATCH, verify)
    try:
        labels, pixels = read_batch(raw, _RECORDS, _BYTES)
    except ValueError as error:
        raise ValueError(
            f"{path} must hold labels and data of CIFAR-10, and nothing but arrays, lists and names: {str(error).rstrip('.')}. "
            f"{_CURE[:-1]}, or fetch the binary version: symbayes download cifar10."
        ) from error
    return np.concatenate([labels[:, None], pixels], axis=1)


def _check_labels(labels: Tensor | np.ndarray, path: Path) -> None:
    largest = int(labels.max())
    if largest >= _CLASSES:
        raise ValueError(f"{path} must hold labels 0 … {_CLASSES - 1}, got {largest}. {_CURE}")
