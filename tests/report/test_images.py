"""Images come out of a decoder of PNG as they went in."""

import struct
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace

import pytest

from symbayes.invariance.orbit_average import Image
from symbayes.report.images import data_uri, png
from tests.report.samples import sample_image


def decoded(file: bytes) -> tuple[int, int, int, bytes]:
    """Width, height, channels and pixels of a PNG of 8 bits without filters; checksums must hold."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = [], 8
    while at < len(file):
        (length,) = struct.unpack(">I", file[at : at + 4])
        kind, content = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", file[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + content)
        chunks.append((kind, content))
        at += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert rest in ([8, 0, 0, 0, 0], [8, 2, 0, 0, 0])
    channels = 3 if rest[1] == 2 else 1
    raw, step = zlib.decompress(chunks[1][1]), 1 + width * channels
    assert len(raw) == height * step
    assert all(raw[row * step] == 0 for row in range(height))
    return width, height, channels, b"".join(raw[row * step + 1 : (row + 1) * step] for row in range(height))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 3), (28, 28)])
def test_pixels_are_read_back(width, height, channels):
    pixels = bytes((7 * index) % 256 for index in range(width * height * channels))
    image = Image(width, height, channels, b64encode(pixels).decode())
    assert decoded(png(image)) == (width, height, channels, pixels)


def test_an_image_in_a_page_is_the_file_itself():
    image = sample_image(3)
    kind, _, content = data_uri(image).partition(",")
    assert kind == "data:image/png;base64"
    assert b64decode(content) == png(image)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"channels": 2}, "1 channel"), ({"height": 7}, "as many bytes"), ({"width": 0, "pixels": ""}, "as many bytes")],
)
def test_images_that_are_not_what_they_say_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        png(replace(sample_image(0), **change))
