"""Does memory stay? `python -m tests.soak [--minutes M]`.

One process learns, saves, loads, predicts, measures, hardens and makes pages, over and over. What it has taken in the last
quarter of the time must be within 1 % of what it had in the second; the first is for libraries to load. Before that is
measured, the allocator gives back what is free: how scattered that is says nothing of what is held. Pages of files, which are
libraries as far as they were read, are counted beside: a rare branch brings in more of them whenever it first runs, an error
of torch that is caught some megabytes, but they are nobody's to give back, and never more than the files have.
"""

import argparse
import ctypes
import gc
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console

import symbayes as sb
from symbayes.report.runs import make_page
from tests.small import load_few

#: How much more may be held at the end, as a share.
MOST = 0.01
_PAGE = 4096
_LINES = 10
_NAMES = 300_000

console = Console(soft_wrap=True, highlight=False)


class Held(NamedTuple):
    """Bytes of this process that are in memory: what it took, and pages of files."""

    own: float
    files: float

    def __str__(self) -> str:
        return f"{self.own / 2**20:.1f} MiB, and {self.files / 2**20:.1f} of files"


def held() -> Held:
    """What is in memory when all that is free has been given back."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)
    every, files = (int(pages) * _PAGE for pages in Path("/proc/self/statm").read_text().split()[1:3])
    return Held(every - files, files)


def settle() -> None:
    """Let the interpreter's table of names have the size it will have in the end.

    Names come and go, and the places of those that went are taken back only when it is full: it then doubles, by 3.7 MiB, once
    and some time in the hour. More names than it has places do that at once; a million more change nothing.
    """
    for number in range(_NAMES):
        sys.intern(f"name {number}")


def once(seed: int, folder: Path) -> None:
    """All that a user does with a network."""
    task = load_few("placed-digits")
    model = sb.relax(sb.models.small_cnn(task, 2), task.train[0][:8])
    result = sb.fit(
        model, task.train, epochs=4, seed=seed, progress=False, checkpoint=folder / "checkpoint", checkpoint_every=0
    )
    result.save(folder / "result")
    make_page(folder / "result")
    result.predict(task.test[0][:20])
    sb.harden(model, task.train[0][:8])
    strict = sb.allconv(task, ("conv",), 1)
    sb.fit(strict, task.train, objective=sb.Laplace(), epochs=1, seed=seed, progress=False).save(folder / "strict")
    sb.load_result(folder / "strict")
    averaged = sb.OrbitAverage(sb.models.small_cnn(task, 2), sb.affine2d("rotation"), samples=2)
    sb.fit(averaged, task.train, epochs=2, seed=seed, progress=False)


def main() -> int:
    """Go on for so long, and say how memory went; 1 if it grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Learn over and over, and watch memory.")
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, seen = time.monotonic(), list[tuple[float, Held]]()
    while time.monotonic() - started < 60 * asked.minutes:
        with tempfile.TemporaryDirectory() as folder:
            once(len(seen), Path(folder))
        if not seen:  # all is loaded
            settle()
        seen.append(((time.monotonic() - started) / (60 * asked.minutes), held()))
        if int(_LINES * seen[-1][0]) > int(_LINES * (seen[-2][0] if len(seen) > 1 else 0)):
            console.print(f"{len(seen)} rounds: {seen[-1][1]}")
    quarters = [[of for share, of in seen if low <= share < low + 0.25] for low in (0.25, 0.75)]
    if not all(quarters):
        raise SystemExit(f"There must be time for a round in every quarter; {len(seen)} rounds took {asked.minutes:g} minutes.")
    before, after = (Held(*map(median, zip(*quarter, strict=True))) for quarter in quarters)
    console.print(
        f"{len(seen)} rounds in {asked.minutes:g} minutes: {before} in the second quarter, {after} in the last, "
        f"{100 * (after.own / before.own - 1):+.2f} %, with files {100 * (sum(after) / sum(before) - 1):+.2f} %"
    )
    return int(after.own > (1 + MOST) * before.own)


if __name__ == "__main__":
    sys.exit(main())
