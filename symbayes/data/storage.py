"""Files that are read within bounds and checked, and written whole or not at all."""

import gzip
import json
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from io import BufferedIOBase
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import uuid4

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


def write_whole(path: Path, content: bytes | str) -> None:
    """Write under another name first, so that who reads `path` never sees a part of it; its folder is made."""
    write_together({path: content})


def write_together(contents: Mapping[Path, bytes | str]) -> None:
    """Write several files, or none if there is no room for all: what was there is replaced when all of them are written."""
    real = {Path(os.path.realpath(path)): content for path, content in contents.items()}  # links stay, and lead to the new file
    # Not the number of a process: machines may share a folder.
    parts = {path: path.with_name(f".{path.name}.{uuid4().hex}") for path in real}
    try:
        for path, content in real.items():
            write_synced(parts[path], content.encode() if isinstance(content, str) else content)
        for path, part in parts.items():
            os.replace(part, path)
        for folder in {path.parent for path in real}:
            sync(folder)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file, and wait until it is on the disk; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if sys.platform == "win32" and path.is_dir():  # where folders cannot be opened
        return
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


#: What comes of values that are not what they should be, where they are used.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null"}
_WORDS |= {dict: "a dictionary", list: "a list"}
#: Bytes of a JSON file, at most.
MOST_JSON = 2**28
#: Whole numbers are below: larger ones are not those of a machine.
_LARGEST = 2**63


def read_json(path: Path) -> Any:
    """What a file holds; `parse_json` says more."""
    with path.open("rb") as file:
        return parse_json(file.read(MOST_JSON + 1), path.name)


def parse_json(content: bytes, name: str, *, lines: bool = False, finite: bool = True) -> Any:
    """What the content of a file says.

    Args:
        content: Text in UTF-8.
        name: Of the file.
        lines: Whether each line says something; they are a list then.
        finite: Whether numbers must be finite, which JSON's are; Python also writes others.

    Raises:
        ValueError: If it is no JSON, or longer than any of ours.
    """
    if len(content) > MOST_JSON:
        raise ValueError(f"{name} must have at most {MOST_JSON} bytes; it has more")
    hooks: dict[str, Any] = {"parse_float": _finite, "parse_constant": _finite} if finite else {}
    try:
        text = content.decode("utf-8")
        return [json.loads(line, **hooks) for line in text.splitlines()] if lines else json.loads(text, **hooks)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"numbers must be finite, got {text[:40]}")
    return value


def error_words(error: Exception) -> str:
    """What an error says, to be put into a sentence; most others than ValueErrors say too little without their kind."""
    return str(error).rstrip(".") if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def check_form(value: Any, form: Any, where: str) -> None:
    """Refuse a value that has not the form of a type.

    Args:
        value: As JSON has it.
        form: One of JSON's types, a union or a literal, `list[...]`, `dict[str, ...]`, or a TypedDict or a dataclass, whose
            fields a dictionary must have; it may have more.
        where: What it is called.

    Raises:
        ValueError: Naming the first that is wrong.
    """
    kind, parts = get_origin(form) or form, get_args(form)
    if kind in (Union, UnionType):
        wrong = [error for part in parts if (error := _error(value, part, where))]
        if len(wrong) == len(parts):
            raise wrong[0]
    elif kind is Literal:
        _require(value in parts, value, " or ".join(map(repr, parts)), where)
    elif kind in (list, tuple):
        _require(isinstance(value, list), value, _WORDS[list], where)
        for index, item in enumerate(value):
            check_form(item, parts[0], f"{where}[{index}]")
    elif kind is dict:
        _require(isinstance(value, dict), value, _WORDS[dict], where)
        for name, item in value.items():
            check_form(item, parts[1], f"{where}.{name}")
    elif is_typeddict(kind) or is_dataclass(kind):
        _require(isinstance(value, dict), value, _WORDS[dict], where)
        if missing := _required(kind) - value.keys():
            raise ValueError(f"{where} must have {min(missing)}")
        for name, inner in _field_types(kind).items():
            if name in value:
                check_form(value[name], inner, f"{where}.{name}")
    elif kind in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
        _require(whole or (kind is float and isinstance(value, float)), value, _WORDS[kind], where)
    elif kind is not Any:
        _require(isinstance(value, kind), value, _WORDS[kind], where)


def to_json(value: Any) -> Any:
    """What JSON can hold of a value: dataclasses become dictionaries, at any depth; numbers that are not finite, null."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return None
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def dump_json(value: Any, form: Any, where: str) -> Any:
    """What `from_json` reads as the same value.

    Raises:
        ValueError: Naming the first number that is not finite, and must be.
    """
    written = to_json(value)
    check_form(written, form, where)
    return written


def from_json(value: Any, form: Any, where: str) -> Any:
    """The value of a type that `to_json` made this of; what a dictionary has beyond the fields of a dataclass is left out.

    Args:
        value: As JSON has it.
        form: As `check_form` takes it.
        where: What it is called.

    Raises:
        ValueError: Naming the first that is wrong.
    """
    check_form(value, form, where)
    return _read(value, form)


def _read(value: Any, form: Any) -> Any:
    """A value that has the form of a type, as that type."""
    kind, parts = get_origin(form) or form, get_args(form)
    if kind in (Union, UnionType):
        return _read(value, next(part for part in parts if _error(value, part, "") is None))
    if kind in (list, tuple) and parts:
        return kind(_read(item, parts[0]) for item in value)
    if kind is dict and parts:
        return {name: _read(item, parts[1]) for name, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: _read(value[name], inner) for name, inner in _field_types(kind).items() if name in value})
    return float(value) if kind is float else value


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """The types of its fields: of a dataclass, without variables of the class."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)} if is_dataclass(kind) else hints


def _error(value: Any, form: Any, where: str) -> ValueError | None:
    try:
        check_form(value, form, where)
    except ValueError as error:
        return error
    return None


def _required(kind: Any) -> set[str]:
    if is_typeddict(kind):
        return set(kind.__required_keys__)
    return {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}


def _require(right: bool, value: Any, words: str, where: str) -> None:
    if not right:
        raise ValueError(f"{where} must be {words}, got {_WORDS.get(type(value), type(value).__name__)}")
