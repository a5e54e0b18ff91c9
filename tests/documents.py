"""Pages that run: what is marked `python` and `console` is run, and what it prints stands below it.

    python -m tests.documents docs/tutorials/mirrors.md     run a page, and write into it what it prints and draws

A block marked ```python title="train.py" is a file that a command of the page reads. Lines of ```console that begin with `$ `
are commands. Below either stands what it printed, as ```text or in the same block.
"""

import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
#: Pages of which every figure is compared with what they print.
TUTORIALS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "README"
)
#: Pictures are words and lines, and the same numbers give the same bytes.
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "symbayes",
}
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[−-]?\b\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Said:
    """What a page claims that a part of it prints, and what it printed; `start` and `end` are where the claim stands."""

    claimed: str
    printed: str
    start: int
    end: int

    def words(self) -> tuple[str, str]:
        """Of both, with all numbers alike."""
        claimed, printed = (" ".join(_NUMBER.sub("#", text).split()) for text in (self.claimed, self.printed))
        return claimed, printed

    def numbers(self) -> tuple[list[float], list[float]]:
        """Of both."""
        claimed, printed = (
            [float(number.replace(",", "").replace("−", "-")) for number in _NUMBER.findall(text)]
            for text in (self.claimed, self.printed)
        )
        return claimed, printed


def blocks(page: str) -> list[str]:
    """The Python of a page that is run as it stands."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for kind, title, code in _BLOCK.findall(text) if kind == "python" and not title]


def run(page: str) -> list[Said]:
    """Run a page in the folder that is the current one, as a newcomer would type it."""
    names: dict[str, object] = {}
    printed, said = "", []
    for match in _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        kind, title, code = match.groups()
        if title:
            Path(title).write_text(code, encoding="utf-8")
        elif kind == "python":
            printed = _run_python(page, code, names)
        elif kind == "console":
            command, _, claimed = code.removeprefix("$ ").partition("\n")
            start = match.start(3) + len(code) - len(claimed)
            said.append(Said(claimed, _run_command(command), start, match.end(3)))
        elif kind == "text":
            said.append(Said(code, printed, match.start(3), match.end(3)))
    return said


def _run_python(page: str, code: str, names: dict[str, object]) -> str:
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(code, page, "exec"), names)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _run_command(command: str) -> str:
    return subprocess.run(command.split(), env=environment(), capture_output=True, text=True, check=True).stdout


def environment() -> Mapping[str, str]:
    """In which commands find this package, and torch takes one core for each process."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def renew(page: str) -> None:
    """Write what a page prints into it, and what it draws beside it."""
    import matplotlib as mpl
    import torch

    torch.set_num_threads(1)
    os.environ |= {"MPLBACKEND": "Agg", "SOURCE_DATE_EPOCH": "0"}
    with TemporaryDirectory() as folder, chdir(folder), mpl.rc_context(STYLE):
        said = run(page)
        for picture in Path(folder).glob("*.svg"):
            copy(picture, (ROOT / page).parent)
    text = (ROOT / page).read_text(encoding="utf-8")
    for part in reversed(said):
        text = text[: part.start] + part.printed + text[part.end :]
    (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew(name)
