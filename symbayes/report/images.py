"""Small images as PNG inside a page, by the standard library alone."""

import struct
import zlib
from base64 import b64decode, b64encode

from symbayes.invariance.orbit_average import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: PNG's number for the kind of colour, by channels: grey, and red, green and blue.
_COLOUR_TYPES = {1: 0, 3: 2}


def png(image: Image) -> bytes:
    """The file of an image.

    Raises:
        ValueError: If it has other channels, or more or fewer pixels than it says.
    """
    width, height, channels = image.width, image.height, image.channels
    if channels not in _COLOUR_TYPES:
        raise ValueError(f"An image must have 1 channel (grey) or 3 (red, green, blue), got {channels}.")
    pixels, stride = b64decode(image.pixels, validate=True), width * channels
    if width < 1 or height < 1 or len(pixels) != height * stride:
        raise ValueError(f"An image of {width} × {height} × {channels} must have as many bytes of pixels, got {len(pixels)}.")
    # Every line of pixels starts with the number of its filter: none.
    lines = b"".join(b"\0" + pixels[start : start + stride] for start in range(0, len(pixels), stride))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def data_uri(image: Image) -> str:
    """An image as the source of an `img` that loads nothing."""
    return f"data:image/png;base64,{b64encode(png(image)).decode('ascii')}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
