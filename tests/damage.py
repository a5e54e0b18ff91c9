"""Files that are damaged in many ways, the same in every run."""

import random
from collections.abc import Iterator
from pathlib import Path

from symbayes.data.folders import SEAL, seal


def reseal(folder: Path) -> None:
    """Seal a result as it is now: what is wrong with its files is then all that is wrong."""
    kept = [path for path in folder.iterdir() if path.suffix in (".json", ".jsonl", ".safetensors") and path.name != SEAL]
    (folder / SEAL).write_bytes(seal({path.name: path.read_bytes() for path in kept})[SEAL])


def damaged(content: bytes, count: int, within: int | None = None) -> Iterator[bytes]:
    """So many files cut short, with bytes changed, left out or doubled; most near the start, where heads are.

    Args:
        content: Of the file that is whole.
        count: Of files.
        within: How far from the start they are changed; anywhere when None.
    """
    draw = random.Random(0)
    for index in range(count):
        end = min(len(content), 200) if index % 2 else min(len(content), within or len(content))
        place, raw = draw.randrange(end), bytearray(content)
        match index % 5:
            case 0:
                del raw[place:]
            case 1 | 2:
                raw[place] = draw.randrange(256)
            case 3:
                raw[place] ^= 1 << draw.randrange(8)
            case _:
                length = draw.randrange(1, 9)
                raw[place : place + length] = draw.randbytes(draw.choice((0, length, 2 * length)))
        yield bytes(raw)
