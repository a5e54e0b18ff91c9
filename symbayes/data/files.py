"""MNIST and CIFAR-10 from a folder, in the formats they are distributed in; checked against the sums of the originals."""

import gzip
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from symbayes.data.checksums import check
from symbayes.data.task import Pair, Task

_IDX_IMAGES, _IDX_LABELS = 2051, 2049
_BATCHES = ([f"data_batch_{k}" for k in range(1, 6)], ["test_batch"])
_RECORDS, _BYTES = 10_000, 3072
#: By task, the files it is read from; of several names the first that is there.
_NEEDED = {
    "mnist": [[f"{part}-{kind}-ubyte"] for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")],
    "cifar10": [[f"{name}.bin", name] for names in _BATCHES for name in names],
}

#: What pickled files may name: arrays, and the function that makes an empty one to be filled, wherever numpy keeps it.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}


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
        labels = _idx(_find(folder, [f"{part}-labels-idx1-ubyte"], "mnist"), _IDX_LABELS, verify)
        return images[:, None], labels.long()

    return Images("mnist", pair("train"), pair("t10k"), (0.1307 * 255,), (0.3081 * 255,))


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
        _read(_find(folder, names, task), verify=True)


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


def _read(path: Path, verify: bool) -> bytes:
    """A file, unpacked; checked if it should be the original."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} must be a whole gzipped file; it is not ({error}). Copy it again.") from error
    if verify:
        check(raw, path, "Copy it again; or read other data of this format by sb.load(name, folder, verify=False).")
    return raw


def _idx(path: Path, magic: int, verify: bool) -> Tensor:
    raw = _read(path, verify)
    start = 4 + 4 * (magic % 256)
    if len(raw) < start or int.from_bytes(raw[:4], "big") != magic:
        raise ValueError(f"{path} must begin with the number {magic} of its IDX format; it does not. Copy it again.")
    shape = np.frombuffer(raw[4:start], dtype=">i4")
    body = np.frombuffer(raw[start:], dtype=np.uint8)
    if len(body) != shape.prod():
        raise ValueError(f"{path} must hold {shape.prod()} values, got {len(body)}: it is truncated. Copy it again.")
    return torch.from_numpy(body.reshape(shape).copy())


def _batch(path: Path, verify: bool) -> np.ndarray:
    """10 000 records of a label and 3 072 pixels, from either version."""
    raw = _read(path, verify)
    if path.suffix != ".bin":
        return _unpickled(raw, path)
    if len(raw) != _RECORDS * (1 + _BYTES):
        raise ValueError(f"{path} must hold {_RECORDS} records of {1 + _BYTES} bytes, got {len(raw)} bytes. Copy it again.")
    return np.frombuffer(raw, dtype=np.uint8).reshape(_RECORDS, 1 + _BYTES)


def _unpickled(raw: bytes, path: Path) -> np.ndarray:
    try:
        found = _Arrays(BytesIO(raw), encoding="bytes").load()
        labels, pixels = np.asarray(found[b"labels"], dtype=np.uint8), np.asarray(found[b"data"], dtype=np.uint8)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{path} must hold labels and data of CIFAR-10, and nothing but arrays, lists and names: {error} Copy it again."
        ) from error
    if labels.shape != (_RECORDS,) or pixels.shape != (_RECORDS, _BYTES):
        shapes = f"{labels.shape} and {pixels.shape}"
        raise ValueError(
            f"{path} must hold {_RECORDS} labels and as many rows of {_BYTES} pixels, got {shapes}. Copy it again."
        )
    return np.concatenate([labels[:, None], pixels], axis=1)


class _Arrays(pickle.Unpickler):
    """Reads what the Python version of CIFAR-10 is made of, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name} is not among the things that are read from it.")
        return _ADMITTED[module, name]
