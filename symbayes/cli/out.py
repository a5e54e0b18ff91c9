"""Where commands write: checked before there is anything to write, and said in a sentence if it fails all the same."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import typer
from rich.markup import escape

from symbayes.cli.terminal import console


def check_folder(out: Path, option: str = "--out", *, holds: Sequence[str] = (), overwrite: bool = False) -> None:
    """Refuse a folder that cannot be made or written to, or that holds what would be lost; one that is not there is made.

    Args:
        out: The folder.
        option: By which it was given.
        holds: Names that may not be in it.
        overwrite: Unless they may.
    """
    with _refusing(f"{option} must be a folder that can be made and written to, got {out}"):
        there = [name for name in holds if (out / name).exists()]
        if there and not overwrite:
            raise typer.BadParameter(
                f"{out} holds a result already ({there[0]}). Name another folder, or replace it: --overwrite."
            )
        _try(out / f".{uuid4().hex}")


def check_page(out: Path) -> None:
    """Refuse a page that is a folder or a device, or in a folder that cannot be written to, which is made."""
    with _refusing(f"--out must be a page (a file) that can be written, got {out}"):
        if out.exists() and not out.is_file():
            raise typer.BadParameter(f"--out must be a page (a file), got {out}, which is none. Name one, such as report.html.")
        _try(out.with_name(f".{out.name}.{uuid4().hex}"))


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say what could not be written, and end."""
    try:
        yield
    except OSError as error:
        words = f"{out} could not be written: {error.strerror or error}. No file is half written. Make room, or name another."
        console.print(escape(words), highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def _refusing(must: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(f"{must}: {error.strerror or error}. Name another.") from error


def _try(probe: Path) -> None:
    """Write a file as others will be written, and take it away."""
    probe.parent.mkdir(parents=True, exist_ok=True)
    try:
        probe.write_bytes(b"\0")
    finally:
        probe.unlink(missing_ok=True)
