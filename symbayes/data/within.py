"""Files read and unpacked within a bound: a few kilobytes can unpack to more than there is memory."""

import gzip
import zlib
from io import BufferedIOBase
from pathlib import Path

_PIECE = 2**20


def read_within(path: Path, most: int, cure: str) -> bytes:
    """The first so many bytes of a file, unpacked if its name ends in .gz; `first_bytes` says more."""
    with path.open("rb") as file:
        return first_bytes(file, path, most, cure)


def first_bytes(file: BufferedIOBase, path: Path, most: int, cure: str) -> bytes:
    """The first so many bytes of what is in a file; who wants it whole asks for one more than it should have.

    Args:
        file: Opened.
        path: Its name; if that ends in .gz it is unpacked, no further than it takes.
        most: Bytes to read.
        cure: What to do if it cannot be unpacked.

    Raises:
        ValueError: If it cannot.
    """
    content, source = bytearray(), gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
    try:
        while len(content) < most and (piece := source.read(min(_PIECE, most - len(content)))):
            content += piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} must be a whole gzipped file; it is not ({error}). {cure}") from error
    return bytes(content)
