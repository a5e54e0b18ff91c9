"""Fuzz every reader: `python -m tests.fuzz [READER …] [--count N] [--seed S]`.

A reader is given files that were damaged at random, by bytes or, where they are JSON, by values. It must read them, or refuse
them by a ValueError or an OSError with a sentence, and take no more time and memory than is said here. An input with which it
does anything else is left in `tests/files/corpus`, and tried first in every run. Each reader has a process of its own, so that
one that crashes is seen, too.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import symbayes as sb
from papers.runs import FIGURES, read_run
from papers.tables import PAPERS
from symbayes.cli.watch import _answer
from symbayes.data import files
from symbayes.data.folders import SEAL, read_folder, seal, write_folder
from symbayes.data.source import as_source
from symbayes.data.storage import to_json
from symbayes.dynamics.tables import load_trajectories
from symbayes.invariance.extents import ExtentSummary
from symbayes.posterior.posterior import load_posterior
from symbayes.report.runs import make_page
from symbayes.training.checkpoint import Checkpoint
from symbayes.training.live import LIVE, Live
from symbayes.training.record import Record
from symbayes.training.symmetries import PathRow
from symbayes.training.trainer import Problem

HERE = Path(__file__).parent / "files"
BEFORE, CORPUS = HERE / "format1", HERE / "corpus"
#: Bytes beyond what the process has before, and seconds, that an input may take.
MEMORY, SECONDS = 2**30, 10
#: Records in a batch of CIFAR-10, which has 10 000.
RECORDS = 3

console = Console(soft_wrap=True, highlight=False)


@dataclass(frozen=True)
class Reader:
    """What is read: whole files to begin with, and what reads one that was damaged.

    Args:
        seeds: Contents that are whole.
        read: Reads a content, written to this folder; it raises ValueError or OSError, or gives numbers that must be finite.
        values: Whether contents are JSON, or lines of it, to be damaged by values, too.
    """

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], Any]
    values: bool = False


def written(name: str, read: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    """Read a file of this name alone."""

    def call(content: bytes, folder: Path) -> Any:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return call


def beside(whole: Path, name: str, read: Callable[[Path], Any], sealed: bool = False) -> Callable[[bytes, Path], Any]:
    """Read a folder in which one file is damaged; sealed as if it had been saved like that."""

    def call(content: bytes, folder: Path) -> Any:
        place = folder / whole.name
        if not place.is_dir():
            shutil.copytree(whole, place)
        (place / name).write_bytes(content)
        if sealed:
            others = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file() and path.name != SEAL}
            (place / SEAL).write_bytes(seal({other: path.read_bytes() for other, path in others.items()})[SEAL])
        return read(place)

    return call


def _npy() -> list[bytes]:
    found = []
    for array in (
        np.arange(24.0).reshape(2, 3, 4),
        np.arange(8, dtype=np.float32).reshape(4, 2),
        np.arange(8).reshape(1, 4, 2),
    ):
        for order in ("C", "F"):
            buffer = BytesIO()
            np.save(buffer, np.asarray(array, order=order))
            found.append(buffer.getvalue())
    return found


def _csv() -> list[bytes]:
    return [
        b"trajectory,time,q,p\n0,0.0,1.0,0.5\n0,0.1,1.1,0.4\n1,0.0,0.2,0.1\n1,0.1,0.3,0.2\n",
        b'q1,q2,p1,p2\n"1","2",3,4\n1e3,-2.5,0,1\n',
    ]


def _idx() -> list[bytes]:
    whole = np.array([2051, 2, 3, 4], dtype=">u4").tobytes() + bytes(range(24))
    return [whole]


def _gzipped() -> list[bytes]:
    return [gzip.compress(_idx()[0], mtime=0)]


def _records() -> np.ndarray:
    records = np.zeros((RECORDS, 3073), dtype=np.uint8)
    records[:, 0] = range(RECORDS)
    return records


def _pickled() -> list[bytes]:
    content = {"data": _records()[:, 1:].copy(), "labels": [0, 1, 2], "batch_label": "one", "filenames": ["a", "b", "c"]}
    return [pickle.dumps(content, protocol) for protocol in (2, 3, 4, 5)]


def _labels(batch: np.ndarray) -> np.ndarray:
    return batch[:, 0]


def _result(folder: Path) -> Any:
    result = sb.load_result(folder)
    numbers = [*result.model.state_dict().values(), result.log_evidence, result.prior.log_precision]
    return [*numbers, *(result.posterior.mean.values() if result.make_posterior else ())]


@cache
def _kept() -> Path:
    """A checkpoint of a small training."""
    folder = Path(tempfile.mkdtemp()) / "kept"
    trainer = _trainer()
    at = Checkpoint(folder, 0.0)
    with at.opened(trainer, torch.Generator().manual_seed(0), {}) as kept:
        state, history = kept.begin()
        history.append(trainer.epoch(state))
        kept.offer(state, history, now=True)
    return folder


def _trainer() -> Any:
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(2, 3)
    data = torch.randn(12, 2, generator=generator), torch.arange(12) % 3
    problem = Problem(model, as_source(data, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
    return sb.Map().trainer(problem, sb.Schedule(3, 4))


def _resumed(folder: Path) -> Any:
    with Checkpoint(folder, resume=True).opened(_trainer(), torch.Generator().manual_seed(0), {}) as kept:
        state, _ = kept.begin()
    return list(state.problem.model.state_dict().values())


def _figures(what: str) -> list[bytes]:
    path = Path(__file__).parent.parent / "docs" / "results" / f"{what}.json"
    return [json.dumps(row).encode() for row in json.loads(path.read_text())[:2]]


def _figured(what: str, path: Path) -> Any:
    read_run(path.parent, PAPERS[what])


def _sealed() -> list[bytes]:
    return [seal({"a": b"text", "b": b"more"})[SEAL]]


def _unsealed(content: bytes, folder: Path) -> Any:
    if not (folder / "a").is_file():
        write_folder(folder, {"a": b"text", "b": b"more"})
    (folder / SEAL).write_bytes(content)
    read_folder(folder, ("a", "b"))


def _contents(folder: Path, name: str) -> list[bytes]:
    return [(folder / name).read_bytes()]


def _of_result(name: str) -> Reader:
    folder = BEFORE / "result"
    return Reader(partial(_contents, folder, name), beside(folder, name, _result), "json" in name)


def _live() -> list[bytes]:
    record = Record(1, 3, 0.5, 0.01, 2.3, validation={"accuracy": 0.5})
    rows = (PathRow("block", "conv", "translation", 9, 1.0, 2.0, 1.0),)
    extents = (ExtentSummary("rotation", 30.0, "°", 180.0, False, True),)
    about = {"model": "Sequential", "num_data": 10, "likelihood": "Categorical", "prior": "TensorwisePrior"}
    return [json.dumps(to_json(Live(format=1, symmetries=rows, extents=extents, history=(record,), **about))).encode()]


def _watched(path: Path) -> None:
    status, _, words = _answer(path.parent, "/", "localhost")
    if status != HTTPStatus.OK:
        raise ValueError(words)


READERS: dict[str, Reader] = {
    "live.json": Reader(_live, written(LIVE, _watched), True),
    "npy": Reader(_npy, written("seen.npy", lambda path: load_trajectories(path, 0.1).states)),
    "csv": Reader(_csv, written("seen.csv", lambda path: load_trajectories(path, 0.1).states)),
    "idx": Reader(_idx, written("images", lambda path: files._idx(path, 2051, verify=False).float())),
    "idx.gz": Reader(_gzipped, written("images.gz", lambda path: files._idx(path, 2051, verify=False).float())),
    "cifar.bin": Reader(
        lambda: [_records().tobytes()], written("data_batch_1.bin", lambda path: _labels(files._batch(path, verify=False)))
    ),
    "cifar.pickle": Reader(_pickled, written("data_batch_1", lambda path: _labels(files._batch(path, verify=False)))),
    "result.json": _of_result("result.json"),
    "history.jsonl": _of_result("history.jsonl"),
    "weights.safetensors": _of_result("weights.safetensors"),
    "posterior.safetensors": Reader(
        partial(_contents, BEFORE / "result", "posterior.safetensors"),
        written("posterior.safetensors", lambda path: list(load_posterior(path).mean.values())),
    ),
    "seal.json": Reader(_sealed, _unsealed, True),
    "report of a result": Reader(
        partial(_contents, BEFORE / "result", "result.json"), beside(BEFORE / "result", "result.json", make_page), True
    ),
    "report of a history": Reader(
        partial(_contents, BEFORE / "result", "history.jsonl"), beside(BEFORE / "result", "history.jsonl", make_page), True
    ),
    "report of a discovery": Reader(
        partial(_contents, BEFORE / "discovery", "discovery.json"),
        beside(BEFORE / "discovery", "discovery.json", make_page),
        True,
    ),
    **{
        f"figures of {what}": Reader(partial(_figures, what), written(FIGURES, partial(_figured, what)), True)
        for what in ("table1", "table3", "invariance", "filters", "conserved")
    },
    **{
        f"checkpoint: {name}": Reader(
            lambda name=name: _contents(_kept(), name),  # type: ignore[misc]
            lambda content, folder, name=name: beside(_kept(), name, _resumed, sealed=True)(content, folder),  # type: ignore[misc]
            "json" in name,
        )
        for name in ("checkpoint.json", "state.json", "state.safetensors", "checkpoint.jsonl")
    },
}

#: What stands in JSON instead of a value.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**18, 10**400, 0.5, -0.0, 1e-320, 1e308, math.inf, -math.inf, math.nan, "",
    "a", "<b>&", "../../etc/passwd", "\u0000", "\ud800", [], {}, [[]], [None], {"": 1}, [1, 2, 3], "0", [0.5], {"weight": 1.0},
]  # fmt: skip
#: What stands in a file instead of four bytes.
EXTREME = [0, 1, 2, 127, 128, 255, 256, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1]


def damage(content: bytes, draw: random.Random, others: list[bytes], values: bool) -> bytes:
    """A content that was changed a little, in one or several ways."""
    if values and draw.random() < 0.7:
        changed = _changed_values(content, draw)
        if draw.random() < 0.8:
            return changed
        content = changed
    raw = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        end = len(raw) if draw.random() < 0.5 else min(len(raw), 200)
        place = draw.randrange(max(1, end))
        match draw.randrange(8):
            case 0:
                del raw[place:]
            case 1 | 2:
                raw[place : place + 1] = bytes([draw.randrange(256)])
            case 3 if place < len(raw):
                raw[place] ^= 1 << draw.randrange(8)
            case 4:
                raw[place : place + 4] = draw.choice(EXTREME).to_bytes(4, draw.choice(("little", "big")))
            case 5:
                length = draw.randrange(1, 9)
                raw[place : place + length] = draw.randbytes(draw.choice((0, length, 2 * length)))
            case 6:
                raw[place:place] = raw[place : place + draw.randrange(1, 64)]
            case _:
                other = draw.choice(others)
                raw[place:] = other[draw.randrange(max(1, len(other))) :]
    return bytes(raw)


def _changed_values(content: bytes, draw: random.Random) -> bytes:
    """JSON, or lines of it, with values that are not what they were."""
    try:
        lines = [json.loads(content)]
    except ValueError:
        lines = [json.loads(line) for line in content.splitlines()]
    for _ in range(draw.choice((1, 1, 2, 5))):
        _change(lines, draw)
    return "\n".join(json.dumps(line) for line in lines).encode("utf-8", "surrogatepass")


def _change(value: Any, draw: random.Random) -> None:
    """One of the values within."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.85:
            value = inner
            continue
        match draw.randrange(6):
            case 0:
                del value[key]
            case 1:
                value[key] = [inner, deepcopy(inner)] if draw.random() < 0.5 else {"a": inner}
            case 2 if isinstance(inner, int | float) and abs(inner) < 1e300:
                value[key] = inner * draw.choice((-1, 0, 2, 1e6, 1e-6))
            case 3 if isinstance(value, dict):
                value[draw.choice(("", "x", key.upper()))] = value.pop(key)
            case _:
                value[key] = deepcopy(draw.choice(ODD))
        return


def _all_finite(found: Any) -> bool:
    values = found if isinstance(found, list | tuple) else [found]
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all():
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
    return True


class HangError(BaseException):
    """Which no reader catches."""


#: How a content was read, where nothing is wrong with it.
READ, REFUSED = "read", "refused"


def attempt(reader: Reader, content: bytes, folder: Path) -> str:
    """How a content is read, or what is wrong with that."""

    def hang(*_: Any) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        found = reader.read(content, folder)
    except HangError:
        return f"took more than {SECONDS} s"
    except (ValueError, OSError) as error:
        return REFUSED if str(error) else "was refused without a word"
    except MemoryError:
        return f"took more than {MEMORY} bytes"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return READ if _all_finite(found) else "gave numbers that are not finite"


def kept_inputs(name: str) -> list[bytes]:
    """Inputs on which a reader failed once."""
    place = CORPUS / name.replace(" ", "-").replace(":", "")
    return [path.read_bytes() for path in sorted(place.iterdir())] if place.is_dir() else []


def inputs(name: str, count: int, seed: int) -> Iterator[bytes]:
    """Those that were kept, and so many that are damaged at random."""
    reader, draw = READERS[name], random.Random(f"{name} {seed}")
    seeds, known = reader.seeds(), kept_inputs(name)
    yield from known
    for _ in range(count):
        yield damage(draw.choice(seeds), draw, seeds + known, reader.values)


def keep(name: str, content: bytes) -> Path:
    """Leave an input in the corpus."""
    path = CORPUS / name.replace(" ", "-").replace(":", "") / hashlib.sha256(content).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def run(name: str, count: int, seed: int, folder: Path, store: bool = True) -> dict[str, int]:
    """How inputs were read, each by how often."""
    found = {READ: 0, REFUSED: 0}
    reader = READERS[name]
    for whole in reader.seeds():
        assert attempt(reader, whole, folder) == READ, name
    for content in inputs(name, count, seed):
        (folder / "input").write_bytes(content)
        how = attempt(reader, content, folder)
        found[how] = found.get(how, 0) + 1
        if how not in (READ, REFUSED) and found[how] <= 3 and store:
            keep(name, content)
    return found


def _child(name: str, count: int, seed: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    files._RECORDS = RECORDS
    for seeded in READERS[name].seeds():  # what it loads is not the reader's
        attempt(READERS[name], seeded, folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    (folder / "report.json").write_text(json.dumps(run(name, count, seed, folder)))


def main() -> int:
    """Fuzz, and say how it went; 1 if a reader failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the readers.")
    parser.add_argument("readers", nargs="*", help=", ".join(READERS))
    parser.add_argument("--count", type=int, default=1000, help="inputs for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        _child(asked.readers[0], asked.count, asked.seed, Path(asked.child))
        return 0
    wrong = total = 0
    for name in asked.readers or READERS:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
            folder = Path(place)
            words = [sys.executable, "-m", "tests.fuzz", name, "--count", str(asked.count), "--seed", str(asked.seed)]
            ended = subprocess.run([*words, "--child", place], check=False)
            if ended.returncode or not (folder / "report.json").is_file():
                at = f" at {keep(name, (folder / 'input').read_bytes())}" if ended.returncode < 0 else ""
                console.print(f"{name}: the process ended with {ended.returncode}{at}")
                wrong += 1
                continue
            found = json.loads((folder / "report.json").read_text())
        read, refused, tried = found.pop(READ), found.pop(REFUSED), sum(found.values())
        total, wrong = total + read + refused + tried, wrong + tried
        said = "".join(f"\n  {count} × {what[:300]}" for what, count in found.items())
        seconds = time.perf_counter() - started
        console.print(f"{name}: {read} read, {refused} refused, {tried} failures, {seconds:.0f} s{said}")
    console.print(f"{total} inputs in all, {wrong} failures; seed {asked.seed}")
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
