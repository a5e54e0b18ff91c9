"""Kill training at random moments, and go on: `python -m tests.kill [fit | save | papers] [--times N] [--seed S]`.

- fit: a fit keeps a checkpoint after every epoch, and saves its result over an older one. Its process is killed (SIGKILL) at a
  random moment, and another goes on, until one comes to its end. What is saved then must be that of a fit which was never
  killed: weights, posterior, records and figures, byte for byte but for the seconds. After every kill the folder of the result
  must hold the older result or the new one.
- save: the same of a process that does nothing but save two results in turn.
- papers: rows of an experiment in two processes (`--jobs 2`), and `--resume`.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import symbayes as sb
from papers.runs import FIGURES
from symbayes.data.folders import read_folder
from symbayes.training.record import FILES

console = Console(soft_wrap=True, highlight=False)
#: Epochs of a fit, and the seeds of the older result and of the new one.
EPOCHS, OLD, NEW = 12, 0, 1
#: What of a result is not the same in two fits.
_SECONDS = "seconds"


def fitted(seed: int, checkpoint: Path | None = None) -> sb.Result:
    """A fit with everything that a state may have: paths to choose from, a search, an eigenbasis, running factors."""
    warnings.simplefilter("ignore")
    task = sb.load("quadrant-digits")
    model = sb.allconv(task, ("factored", "conv"), 1, generator=torch.Generator().manual_seed(seed))
    few = task.train[0][:96], task.train[1][:96]
    kept = {"checkpoint": checkpoint, "checkpoint_every": 0.0, "resume": checkpoint is not None}
    return sb.fit(model, few, epochs=EPOCHS, seed=seed, progress=False, **kept)


def contents(folder: Path) -> dict[str, Any]:
    """What a folder of a result holds, but for the seconds that it took; whole, or this raises."""
    sb.load_result(folder)
    files = read_folder(folder, FILES).files
    records = [json.loads(line) for line in files["history.jsonl"].splitlines()]
    for record in records:
        del record[_SECONDS]
    return {**files, "history.jsonl": records}


def in_process(work: Callable[[], Any]) -> int:
    """Let a process that is a copy of this one work; its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def killed(child: int, seconds: float) -> bool:
    """Kill a process after so many seconds, unless it has come to its end."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"a process failed with {status}"
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def kill_fits(times: int, seed: int, folder: Path) -> dict[str, int]:
    """Fits that are killed, and gone on with; how often, and what became of them."""
    draw, found = random.Random(seed), {"kills": 0, "resumes": 0, "runs": 0, "older results": 0, "new results": 0, "unequal": 0}
    fitted(OLD).save(folder / "older")
    started = time.monotonic()
    fitted(NEW).save(folder / "straight")
    lasts = time.monotonic() - started
    older, straight = contents(folder / "older"), contents(folder / "straight")
    assert older != straight
    while found["kills"] < times:
        out = folder / f"run{found['runs']}"
        shutil.copytree(folder / "older", out)
        found["runs"] += 1

        def work(out: Path = out) -> None:
            fitted(NEW, out / "checkpoint").save(out)

        while killed(in_process(work), draw.uniform(0, 1.1 * lasts) if found["kills"] < times else 3600.0):
            found["kills"] += 1
            found["resumes"] += 1
            now = contents(out)
            found["older results" if now == older else "new results" if now == straight else "unequal"] += 1
        found["unequal"] += contents(out) != straight
    return found


def kill_saves(times: int, seed: int, folder: Path) -> dict[str, int]:
    """Processes that are killed while they save; what they leave."""
    draw, found = random.Random(seed), {"kills": 0, "older results": 0, "new results": 0, "unequal": 0}
    results = [fitted(which) for which in (OLD, NEW)]
    for name, result in zip(("older", "straight"), results, strict=True):
        result.save(folder / name)
    older, straight, out = contents(folder / "older"), contents(folder / "straight"), folder / "out"
    results[0].save(out)

    def work() -> None:
        while True:
            for result in results:
                result.save(out)

    for _ in range(times):
        assert killed(in_process(work), draw.uniform(0, 0.3))
        found["kills"] += 1
        now = contents(out)
        found["older results" if now == older else "new results" if now == straight else "unequal"] += 1
    return found


def kill_papers(times: int, seed: int, folder: Path) -> dict[str, int]:
    """A table of rows in two processes that is killed and gone on with; how often, and what became of it."""
    draw, found = random.Random(seed), {"kills": 0, "resumes": 0, "runs": 0, "rows": 0, "unequal": 0}
    rows = ("--methods", "likelihood,elbo", "--versions", "plain", "--sizes", "200", "--starts", "small,turned")
    words = [sys.executable, "-m", "papers", "filters", *rows, "--samples", "4", "--epochs", "24", "--width", "8"]
    words += ["--jobs", "2", "--checkpoint-every", "0", "--resume", "--commit", "that of all", "--out"]

    def table(out: Path) -> dict[str, Any]:
        read = {path.parent.name: json.loads(path.read_text()) for path in out.glob(f"*/{FIGURES}")}
        return {name: {key: one for key, one in row.items() if key != _SECONDS} for name, row in read.items()}

    def begun(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*words, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    started = time.monotonic()
    assert begun(folder / "straight").wait() == 0
    lasts, straight = time.monotonic() - started, table(folder / "straight")
    assert len(straight) == 4
    while found["kills"] < times:
        out = folder / f"run{found['runs']}"
        found["runs"] += 1
        while len(table(out)) < len(straight):
            process = begun(out)
            try:
                process.wait(draw.uniform(0.3 * lasts, lasts) if found["kills"] < times else 3600.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                found["kills"] += 1
                found["resumes"] += 1
                time.sleep(0.5)  # until its workers have seen that it is gone
        found["rows"] += len(straight)
        ended = table(out)
        found["unequal"] += sum(ended[name] != row for name, row in straight.items())
    return found


KINDS = {"fit": kill_fits, "save": kill_saves, "papers": kill_papers}


def main() -> int:
    """Kill, and say how it went; 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description="Kill training at random moments, and go on.")
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help=", ".join(KINDS))
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for kind in asked.kinds or KINDS:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = KINDS[kind](asked.times, asked.seed, Path(folder))
        said = ", ".join(f"{count} {what}" for what, count in found.items())
        console.print(f"{kind}: {said}; seed {asked.seed}, {time.perf_counter() - started:.0f} s")
        wrong += found["unequal"]
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
