"""MNIST and CIFAR-10 from where they are published, into a folder; checked, and written whole or not at all."""

import tarfile
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from io import BytesIO
from pathlib import Path

from symbayes.data.files import LARGEST, MD5, check
from symbayes.data.storage import first_bytes, read_within, write_whole

#: Where files lie: MNIST's beside each other, CIFAR-10's in one archive.
ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
}
_MNIST = [f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")]
_CIFAR = [name for name in MD5 if name.endswith(".bin")]
_CURE = "Try again later; or give another address, or copy the files from elsewhere."
_PIECE = 2**18
#: Bytes that an address may give: the archive of CIFAR-10 has 170 million.
_MOST = 2**28
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
                check(first_bytes(BytesIO(packed), path, LARGEST + 1, _CURE), path, _CURE)
                write_whole(path, packed)
        return paths
    paths = [folder / "cifar-10-batches-bin" / part for part in _CIFAR]
    if not all(_whole(path) for path in paths):
        packed = _fetch(address, progress)
        check(packed, Path("cifar-10-binary.tar.gz"), _CURE)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            for path in paths:
                member = archive.extractfile(f"cifar-10-batches-bin/{path.name}")
                content = member.read(LARGEST + 1) if member else b""
                check(content, path, _CURE)
                write_whole(path, content)
    return paths


def _whole(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        check(read_within(path, LARGEST + 1, _CURE), path, _CURE)
    except ValueError:
        return False
    return True


def _fetch(address: str, progress: Progress) -> bytes:
    name = address.rpartition("/")[2]
    try:
        with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:
            length, parts = int(answer.headers.get("Content-Length") or 0), bytearray()
            while len(parts) <= _MOST and (piece := answer.read(_PIECE)):
                parts += piece
                progress(name, len(parts), length)
    except (OSError, HTTPException, ValueError) as error:  # an address of no known kind, or a length that is no number
        raise OSError(f"{address} could not be read ({error}). {_CURE}") from error
    if len(parts) > _MOST:
        raise ValueError(f"{address} must give at most {_MOST} bytes; it gives more. {_CURE}")
    if length and len(parts) != length:
        raise OSError(f"{address} must give {length} bytes, got {len(parts)}: the connection broke. Try again.")
    return bytes(parts)
