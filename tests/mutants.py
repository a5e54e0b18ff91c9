"""Do the tests notice? `python -m tests.mutants [FOLDER …] [--count N] [--seed S] [--jobs J]`.

One operator or number of the library is changed at a time, at places drawn at random, and the tests of that part are run: those
of its folder, then the contracts. A mutant is killed if a test fails, or takes far longer than without it. Survivors are
listed with the line and its change: each is a test that is missing, or a change that makes no difference.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]
FOLDERS = ("curvature", "evidence", "training", "likelihoods")
#: Tests of a part take so many times as long as without a mutant before they are stopped, and so many seconds more.
_PATIENCE, _MORE = 3, 60
_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
_NUMBERS = {0: "1", 1: "2", 2: "3", 0.5: "1.0"}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}

console = Console(soft_wrap=True, highlight=False)


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the text from `start` to `end`, in bytes, becomes another."""

    path: Path
    line: int
    start: int
    end: int
    text: str

    def source(self) -> bytes:
        whole = self.path.read_bytes()
        return whole[: self.start] + self.text.encode() + whole[self.end :]

    def is_change(self) -> bool:
        """Whether the program is another one."""
        before, after = (ast.dump(ast.parse(source)) for source in (self.path.read_bytes(), self.source()))
        return before != after

    def words(self) -> str:
        before = self.path.read_bytes().splitlines()[self.line - 1].decode().strip()
        after = self.source().splitlines()[self.line - 1].decode().strip()
        return f"{self.path.relative_to(ROOT)}:{self.line}\n    {before}\n    {after}"


class Finder:
    """Every change there is of a file, but of messages, annotations, defaults and constants of the module."""

    def __init__(self, path: Path) -> None:
        self.path, self.whole = path, path.read_bytes()
        self.starts = [0]
        for line in self.whole.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def found(self) -> list[Mutant]:
        bodies = [
            node.body
            for node in ast.walk(ast.parse(self.whole))
            if isinstance(node, ast.FunctionDef) and node.name not in ("__repr__", "__str__")
        ]
        # A function inside another one is seen twice.
        return list(dict.fromkeys(mutant for body in bodies for node in body for mutant in self._inside(node)))

    def _inside(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        yield from self._changes(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or (isinstance(node, ast.arguments) and "default" in name):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._inside(child)

    def _changes(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.BinOp(left=left, op=op, right=right) | ast.BoolOp(op=op, values=[left, right, *_]):
                yield from self._between(left, right, type(op))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, right, type(op))
            case ast.AugAssign(target=target, op=op):
                sign = f"{_SWAPS[type(op)][0]}=".encode() if type(op) in _SWAPS else b"="
                yield self._at(self.whole.find(sign, self._span(target)[1]), len(sign), "=")
            case ast.Constant(value=bool(value)):
                yield self._at(self._span(node)[0], len(str(value)), str(not value))
            case ast.Constant(value=int() | float() as number) if number in _NUMBERS:
                start, end = self._span(node)
                yield self._at(start, end - start, _NUMBERS[number])
            case ast.Call(func=ast.Name(id=name) as function) if name in _NAMES:
                yield self._at(self._span(function)[0], len(name), _NAMES[name])
            case ast.UnaryOp(op=ast.USub() | ast.Not() as op):
                yield self._at(self._span(node)[0], 1 if isinstance(op, ast.USub) else len("not "), "")

    def _between(self, left: ast.expr, right: ast.expr, kind: type[ast.AST]) -> Iterator[Mutant]:
        if kind in _SWAPS:
            sign, other = _SWAPS[kind]
            found = self.whole.find(sign.encode(), self._span(left)[1], self._span(right)[0])
            if found >= 0:
                yield self._at(found, len(sign), other)

    def _at(self, start: int, length: int, text: str) -> Mutant:
        return Mutant(self.path, self.whole.count(b"\n", 0, start) + 1, start, start + length, text)

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset


class Copy:
    """The tree in a folder of its own, in which a mutant is put and tests are run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, ""
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
        for name in filter(None, tracked):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)

    def fails(self, tests: list[str], seconds: float | None = None) -> bool:
        """Whether a test fails, or all take longer than so many seconds."""
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        paths = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                words, cwd=self.folder, env=environment, capture_output=True, timeout=seconds, preexec_fn=_heed_interrupts
            )
            self.said = done.stdout.decode(errors="replace")
            return done.returncode != 0
        except subprocess.TimeoutExpired:
            return True

    def survives(self, mutant: Mutant, tests: list[str], seconds: float) -> bool:
        """Whether no test of the part notices."""
        path = self.folder / mutant.path.relative_to(ROOT)
        path.write_bytes(mutant.source())
        try:
            return not self.fails(tests, seconds)
        finally:
            shutil.copyfile(mutant.path, path)


def _heed_interrupts() -> None:
    """Ctrl-C counts, as some tests expect: in a shell's background it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def asked_for(folder: str, mutant: Mutant | None = None) -> list[str]:
    """The tests of a part, those that name the file of a mutant or are named after it first, and after them the contracts."""
    own = list[str]()
    if mutant is not None:
        stem = mutant.path.stem
        named = re.compile(rf"\b{folder}\.{stem}\b|\b{folder} import .*\b{stem}\b")
        files = sorted((ROOT / "tests" / folder).glob("test_*.py"), key=lambda path: path.stem != f"test_{stem}")
        found = [path for path in files if path.stem == f"test_{stem}" or named.search(path.read_text())]
        own = [str(path.relative_to(ROOT)) for path in found]
    return [*own, f"tests/{folder}", "tests/contracts"]


def main() -> int:
    """Draw mutants, run tests, and list the survivors."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Change the library, and see whether tests fail."
    )
    parser.add_argument("folders", nargs="*", help=", ".join(FOLDERS))
    parser.add_argument("--count", type=int, default=64, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    asked = parser.parse_args()
    folders = asked.folders or list(FOLDERS)
    draw = random.Random(asked.seed)
    known = {f: [m for path in sorted((ROOT / "symbayes" / f).glob("*.py")) for m in Finder(path).found()] for f in folders}
    everything = [(folder, mutant) for folder, found in known.items() for mutant in found]
    console.print(", ".join(f"{folder}: {len(found):,} mutants" for folder, found in known.items()))
    draw.shuffle(everything)
    drawn = list(islice(((folder, mutant) for folder, mutant in everything if mutant.is_change()), asked.count))
    with tempfile.TemporaryDirectory() as folder:
        copies = [Copy(Path(folder) / str(job)) for job in range(asked.jobs)]
        free, survivors, lasts = list(copies), list[Mutant](), dict[str, float]()

        def begin(part: str) -> None:
            started, copy = time.monotonic(), free.pop()
            if copy.fails(asked_for(part)):
                raise SystemExit(f"The tests of {part} must pass before there is a mutant; they do not:\n{copy.said[-3000:]}")
            lasts[part] = _PATIENCE * (time.monotonic() - started) + _MORE
            free.append(copy)

        def judge(number: int) -> None:
            part, mutant = drawn[number]
            copy = free.pop()
            survived = copy.survives(mutant, asked_for(part, mutant), lasts[part])
            free.append(copy)
            if survived:
                survivors.append(mutant)
            console.print(f"{number + 1}: {'SURVIVES' if survived else 'killed'} {mutant.words()}")

        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(begin, folders))
            list(pool.map(judge, range(len(drawn))))
    killed = len(drawn) - len(survivors)
    console.print(f"{killed} of {len(drawn)} mutants killed, {len(survivors)} survive; seed {asked.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
