"""MNIST and CIFAR-10 as they are distributed, checked against the originals; and fetched from where they are published.

All there can be are numbers, text, lists, tuples and dictionaries. What would make an array is known by its form, that of bytes
in rows alone, and keeps its content as text; anything else is refused.
"""

import hashlib
import pickletools
import tarfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from symbayes.data.storage import first_bytes, read_within, write_whole
from symbayes.data.task import Pair, Task

#: By name of the file as it is unpacked.
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
}
#: Bytes of the largest of these files when it is unpacked, MNIST's training images; the archive apart.
LARGEST = 47_040_016


def digest(content: bytes) -> str:
    """The MD5 sum, as the publishers of these files give it; it guards against damage, not against malice."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check(content: bytes, path: Path, cure: str) -> None:
    """Compare what was read with what was published.

    Args:
        content: Unpacked.
        path: Where it was read; its name, or that without .gz, says what it should be.
        cure: What to do if it is something else.

    Raises:
        ValueError: If it is.
    """
    expected, got = MD5.get(path.name) or MD5.get(path.name.removesuffix(".gz")), digest(content)
    if expected is not None and got != expected:
        raise ValueError(f"{path} is not the file that was published: its MD5 must be {expected}, got {got}. {cure}")


#: Opcodes of a file at most; a batch has some 100 000 if all its text is encoded.
_MOST = 200_000
#: What may be named, wherever numpy keeps it; names stand for themselves.
_NAMES = {"_codecs encode", "numpy ndarray", "numpy dtype"}
_NAMES |= {f"numpy.{core}.{name}" for core in ("core", "_core") for name in ("multiarray _reconstruct", "numeric _frombuffer")}
#: The type of an array.
_BYTE = "uint8"
_OTHER = "arrays must be of bytes, in the form that numpy gives them; it has others."


@dataclass(eq=False)
class _Pixels:
    """An array of bytes, which may be still to be filled; a letter of its text for each."""

    shape: Any = None
    text: Any = None
    by_columns: bool = False


def read_batch(raw: bytes, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels [rows] and pixels [rows, columns] of a batch, both bytes.

    Raises:
        ValueError: If it is anything else; without the name of the file.
    """
    try:
        found = _describe(raw)
    except (LookupError, TypeError, Warning) as error:  # of text that is escaped wrongly, where warnings are errors
        raise ValueError(f"it is damaged ({error}).") from error
    labels, pixels = (found.get(name) if isinstance(found, dict) else None for name in ("labels", "data"))
    if not isinstance(labels, list) or not isinstance(pixels, _Pixels) or not isinstance(pixels.text, str):
        raise ValueError("its labels must be a list, and its data an array.")
    if len(labels) != rows or pixels.shape != (rows, columns) or len(pixels.text) != rows * columns:
        sizes = f"{len(labels)} and {len(pixels.text)} in all"
        raise ValueError(f"there must be {rows} labels and as many rows of {columns} pixels, got {sizes}.")
    if any(type(label) is not int or not 0 <= label <= 255 for label in labels):
        raise ValueError("its labels must be numbers from 0 to 9.")
    body = np.frombuffer(pixels.text.encode("latin-1"), dtype=np.uint8)
    return np.array(labels, dtype=np.uint8), body.reshape((rows, columns), order="F" if pixels.by_columns else "C")


def _describe(raw: bytes) -> Any:
    """What a file describes, by a machine that knows no more than it takes."""
    stack: list[Any] = []
    below: list[list[Any]] = []
    memo: dict[int, Any] = {}
    argument: Any
    for index, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if index == _MOST:
            raise ValueError(f"it must have at most {_MOST} opcodes; it has more.")
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(opcode.name, argument))
            case "SHORT_BINSTRING" | "BINSTRING" | "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                stack.append(argument.decode("latin-1"))
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"DICT": dict, "LIST": list, "TUPLE": tuple}[opcode.name[6:]]())
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_name(argument))
            case "STACK_GLOBAL":
                stack.append(_name(" ".join(_pop(stack, 2))))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(_pop(stack, int(opcode.name[5:]))))
            case "MARK":
                below.append(stack)
                stack = []
            case "TUPLE":
                parts, stack = stack, below.pop()
                stack.append(tuple(parts))
            case "APPENDS" | "SETITEMS":
                parts, stack = stack, below.pop()
                _fill(stack[-1], parts)
            case "APPEND" | "SETITEM":
                parts = _pop(stack, 1 if opcode.name == "APPEND" else 2)
                _fill(stack[-1], parts)
            case "REDUCE":
                stack.append(_call(*_pop(stack, 2)))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], state)
            case name:
                raise ValueError(f"the opcode {name} has no place in it.")
    return stack[-1]


def _pop(stack: list[Any], count: int) -> list[Any]:
    return [stack.pop() for _ in range(count)][::-1]


def _name(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"{name[:80].replace(' ', '.')} is not among the things that are read from it.")
    return name


def _fill(made: Any, parts: list[Any]) -> None:
    if isinstance(made, list):
        made += parts
    elif isinstance(made, dict) and all(isinstance(key, str) for key in parts[::2]):  # others may take for ever to hash
        made.update(zip(parts[::2], parts[1::2], strict=True))
    else:
        raise TypeError("there is no list or dictionary to fill, or a key is no name")


def _call(function: Any, arguments: Any) -> Any:
    """What calling one of the names would give: text, a type or an array."""
    match function, arguments:
        case "_codecs encode", (str(text), "latin1"):
            return text
        case "numpy dtype", ("u1", 0, 1):
            return _BYTE
        case "numpy.core.multiarray _reconstruct" | "numpy._core.multiarray _reconstruct", ("numpy ndarray", (0,), "b"):
            return _Pixels()
        case "numpy.core.numeric _frombuffer" | "numpy._core.numeric _frombuffer", (text, "uint8", shape, "C" | "F" as order):
            return _Pixels(shape, text, order == "F")
    raise ValueError(_OTHER)


def _build(made: Any, state: Any) -> None:
    """Fill an array that is empty so far, or say more of a type."""
    match made, state:
        case "uint8", (3, "|", None, None, None, -1, -1, 0):
            pass
        case _Pixels(), (1, shape, "uint8", 0 | 1 as by_columns, text):
            made.shape, made.text, made.by_columns = shape, text, bool(by_columns)
        case _:
            raise ValueError(_OTHER)


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
        std: Of each channel.
    """

    name: str
    train: Pair
    test: Pair
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def standardised(self, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """(pixel − mean) / std."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images.float() - mean) / std

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


#: Where files lie: MNIST's beside each other, CIFAR-10's in one archive.
ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
}
_MNIST = [f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")]
_CIFAR = [name for name in MD5 if name.endswith(".bin")]
_RETRY = "Try again later; or give another address, or copy the files from elsewhere."
_PIECE = 2**18
#: Bytes that an address may give: the archive of CIFAR-10 has 170 million.
_LONGEST = 2**28
#: Seconds without an answer.
_PATIENCE = 60

#: Called with the name of a file, the bytes that are here, and all there are (0 when that is not known).
Progress = Callable[[str, int, int], None]


def download(
    name: str, folder: Path, progress: Progress = lambda name, here, all: None, address: str | None = None
) -> list[Path]:
    """Fetch a data set; what is there already and whole is left alone.

    Args:
        name: "mnist" or "cifar10".
        folder: Files go into `MNIST/raw` or `cifar-10-batches-bin` in it, which are made.
        progress: Called now and then.
        address: Of another place that holds the same files; that of `ADDRESSES` when None.

    Returns:
        All files of the data set.

    Raises:
        KeyError: If there is no such data set.
        OSError: If the address cannot be reached.
        ValueError: If what came is not what was published.
    """
    if name not in ADDRESSES:
        raise KeyError(f"There are {' and '.join(ADDRESSES)} to download, got {name!r}.")
    address = address or ADDRESSES[name]
    if name == "mnist":
        paths = [folder / "MNIST" / "raw" / f"{part}.gz" for part in _MNIST]
        for path in paths:
            if not _whole(path):
                packed = _fetch(f"{address.rstrip('/')}/{path.name}", progress)
                check(first_bytes(BytesIO(packed), path, LARGEST + 1, _RETRY), path, _RETRY)
                write_whole(path, packed)
        return paths
    paths = [folder / "cifar-10-batches-bin" / part for part in _CIFAR]
    if not all(_whole(path) for path in paths):
        packed = _fetch(address, progress)
        check(packed, Path("cifar-10-binary.tar.gz"), _RETRY)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            for path in paths:
                member = archive.extractfile(f"cifar-10-batches-bin/{path.name}")
                content = member.read(LARGEST + 1) if member else b""
                check(content, path, _RETRY)
                write_whole(path, content)
    return paths


def _whole(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        check(read_within(path, LARGEST + 1, _RETRY), path, _RETRY)
    except ValueError:
        return False
    return True


def _fetch(address: str, progress: Progress) -> bytes:
    name = address.rpartition("/")[2]
    try:
        with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:
            length, parts = int(answer.headers.get("Content-Length") or 0), bytearray()
            while len(parts) <= _LONGEST and (piece := answer.read(_PIECE)):
                parts += piece
                progress(name, len(parts), length)
    except (OSError, HTTPException, ValueError) as error:  # an address of no known kind, or a length that is no number
        raise OSError(f"{address} could not be read ({error}). {_RETRY}") from error
    if len(parts) > _LONGEST:
        raise ValueError(f"{address} must give at most {_LONGEST} bytes; it gives more. {_RETRY}")
    if length and len(parts) != length:
        raise OSError(f"{address} must give {length} bytes, got {len(parts)}: the connection broke. Try again.")
    return bytes(parts)
