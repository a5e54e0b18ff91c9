"""MNIST and CIFAR-10 from a folder, in the formats they are distributed in."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from symbayes.data.task import Pair, Task

_IDX_IMAGES, _IDX_LABELS = 2051, 2049
_MNIST = {"train": "train", "test": "t10k"}
_CIFAR = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}


def mnist(folder: Path) -> Task:
    """MNIST from IDX files, plain or gzipped, in `folder`, `folder/MNIST/raw` or `folder/raw`; pixels standardised."""

    def standardised(images: Tensor) -> Tensor:
        return (images.float() / 255 - 0.1307) / 0.3081

    def pair(part: str) -> Pair:
        images = _idx(_find(folder, f"{part}-images-idx3-ubyte", "MNIST"), _IDX_IMAGES)
        labels = _idx(_find(folder, f"{part}-labels-idx1-ubyte", "MNIST"), _IDX_LABELS)
        return standardised(images[:, None]), labels.long()

    return Task("mnist", pair(_MNIST["train"]), pair(_MNIST["test"]), 10, _background(standardised(torch.zeros(1, 1, 1))))


def cifar10(folder: Path) -> Task:
    """CIFAR-10 from its binary version in `folder` or `folder/cifar-10-batches-bin`; channels standardised."""
    mean = torch.tensor([125.3, 123.0, 113.9]).view(3, 1, 1)
    deviation = torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1)

    def standardised(images: Tensor) -> Tensor:
        return (images.float() - mean) / deviation

    def pair(names: list[str]) -> Pair:
        parts = []
        for name in names:
            path = _find(folder, name, "CIFAR-10 (binary version)")
            raw = np.fromfile(path, dtype=np.uint8)
            if len(raw) != 10_000 * 3073:
                raise ValueError(f"{path} must hold 10000 records of 3073 bytes, got {len(raw)} bytes. Copy it again.")
            parts.append(torch.from_numpy(raw.reshape(-1, 3073)))
        records = torch.cat(parts)
        return standardised(records[:, 1:].view(-1, 3, 32, 32)), records[:, 0].long()

    return Task("cifar10", pair(_CIFAR["train"]), pair(_CIFAR["test"]), 10, _background(standardised(torch.zeros(3, 1, 1))))


def _background(black: Tensor) -> tuple[float, ...]:
    """From a black pixel, standardised."""
    return tuple(black.flatten().tolist())


def _find(folder: Path, name: str, what: str) -> Path:
    for place in (folder, folder / "MNIST" / "raw", folder / "raw", folder / "cifar-10-batches-bin"):
        for candidate in (place / name, place / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(
        f"{what} needs the file {name} (or {name}.gz) in {folder}; it is not there. Name the folder that holds it: "
        "sb.load(name, folder=...)."
    )


def _idx(path: Path, magic: int) -> Tensor:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = np.frombuffer(raw[:4], dtype=">i4")
    if len(header) != 1 or header[0] != magic:
        raise ValueError(f"{path} must begin with the number {magic} of its IDX format; it does not. Copy it again.")
    shape = np.frombuffer(raw[4 : 4 + 4 * (magic % 256)], dtype=">i4")
    body = np.frombuffer(raw[4 + 4 * (magic % 256) :], dtype=np.uint8)
    if len(body) != shape.prod():
        raise ValueError(f"{path} must hold {shape.prod()} values, got {len(body)}: it is truncated. Copy it again.")
    return torch.from_numpy(body.reshape(shape).copy())
