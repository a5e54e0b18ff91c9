"""Trajectories in files: arrays (.npy), or tables (.csv, with a header).

In both a state is a row of numbers; for an energy to be learned, first all positions, then as many momenta in the same order.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from io import BytesIO, StringIO
from math import isfinite, prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from symbayes.data.storage import write_whole
from symbayes.dynamics.trajectories import Trajectories

#: How far times may be from even ones, and a step from that of a file, relative to the step.
_UNEVEN = 1e-6
#: Bytes in which the head of an array lies: numpy reads none that is longer.
_HEAD = 2**14
#: Columns of a table which are no coordinates.
_WHICH, _WHEN = ("trajectory", "run"), ("time", "t")
#: Times that are farther apart are none.
_FAR = 1e300
#: What may be between the entries of a row.
_BETWEEN = (",", ";", "\t")
#: Units behind a name: in brackets, or behind a slash between spaces.
_UNIT = re.compile(r"\s*\[[^]]*\]$|\s+\([^)]*\)$|\s+/\s+\S.*$")


def load_trajectories(
    path: str | Path,
    step: float | None = None,
    *,
    columns: Sequence[str] | None = None,
    time: str | None = None,
    trajectory: str | None = None,
) -> Trajectories:
    """Trajectories from a file.

    An array (.npy) is [trajectories, times, coordinates], or [times, coordinates] of a single one. A table (.csv) has a row for
    every state, in the order of time, below a header of names, which may have units behind them: "x [m]", "t (s)", "v / m/s".
    Of its columns "trajectory" or "run" says which a row belongs to (without it there is one), "time" or "t" when it was, and
    all others are coordinates, unless these are named. Entries are apart by commas, semicolons or tabs; beside the latter two
    numbers may have a comma for a point.

    Args:
        path: Of a file .npy or .csv.
        step: The time between states; a table that has times needs none.
        columns: Of a table: the coordinates, in this order; for an energy, positions and then momenta. Others are left out.
        time: Of a table: the column of times, if it is called otherwise.
        trajectory: Of a table: the column that tells trajectories apart, if it is called otherwise.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is of another kind, broken or ragged, or has no such column; the message says where.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file of trajectories; there is none.")
    if path.suffix.lower() not in (".npy", ".csv"):
        raise ValueError(f"{path} must be an array (.npy) or a table (.csv) of trajectories.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} must hold trajectories; it is empty.")
    if path.suffix.lower() == ".npy":
        if columns or time or trajectory:
            raise ValueError(f"{path} is an array, which has no names; columns, time and trajectory are of tables.")
        states, names, times = *_from_array(path), None
    else:
        states, names, times = _from_table(path, columns, time, trajectory)
    found, when = (None, None) if times is None or times.shape[1] < 2 else _spacing(times)
    if step is None and found is None and states.shape[1] > 1:
        raise ValueError(
            f"{path} does not say how much time is between its states: give step=..., or a table with a column time."
        )
    if step is not None and found is not None and abs(step - found) > _UNEVEN * found:
        raise ValueError(f"step must be that of the column time in {path}, {found:g}, or left out; got {step:g}.")
    try:
        return Trajectories(torch.from_numpy(states), float(step or found or 0.0), names, when=when)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def save_csv(trajectories: Trajectories, path: str | Path) -> None:
    """A table that `load_trajectories` reads: columns "trajectory", "time" and the coordinates, to the last digit.

    Raises:
        ValueError: If there are targets beside the states, for which the table has no place, or names would not be read again.
    """
    if trajectories.targets is not None:
        raise ValueError(
            "Only states can be saved as a table, and these trajectories have targets of their own. Leave those out: "
            "dataclasses.replace(trajectories, targets=None)."
        )
    header = _header(Path(path), 1, [_WHICH[0], _WHEN[0], *trajectories.names])
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for which, (states, times) in enumerate(zip(trajectories.states.tolist(), trajectories.times.tolist(), strict=True)):
        writer.writerows([which, when, *state] for when, state in zip(times, states, strict=True))
    write_whole(Path(path), text.getvalue())


def _from_array(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    must = f"{path} must be a whole array of numbers in the format of numpy.save, without Python objects"
    try:
        with path.open("rb") as file:
            head = BytesIO(file.read(_HEAD))
            version = np.lib.format.read_magic(head)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(head)
    except Exception as error:  # it evaluates the head as Python, and lets through whatever that raises
        raise ValueError(f"{must}; its head cannot be read ({error}).") from error
    if dtype.kind not in "fiu" or len(shape) not in (2, 3) or min(shape) < 0:
        raise ValueError(
            f"{path} must hold real numbers [trajectories, times, coordinates] or [times, coordinates], got {dtype} of "
            f"shape {shape}."
        )
    size, there = prod(shape) * dtype.itemsize, path.stat().st_size - head.tell()
    if size > there:  # before anything is allocated
        raise ValueError(f"{must}; it should have {size} bytes behind its head, got {there}.")
    with path.open("rb") as file, np.errstate(all="ignore"):  # what is not finite is refused
        found = np.lib.format.read_array(file, allow_pickle=False)
        precision = np.float32 if dtype.kind == "f" and dtype.itemsize == 4 else np.float64
        return (found if found.ndim == 3 else found[None]).astype(precision), ()


def _from_table(
    path: Path, columns: Sequence[str] | None, time: str | None, trajectory: str | None
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None]:
    """States, names, and times where the table has them."""
    rows = _rows(path)
    line, cells = next(rows, (1, []))
    header = _header(path, line, cells)
    which = _column(path, header, trajectory, _WHICH)
    when = _column(path, header, time, _WHEN)
    chosen = [place for place in range(len(header)) if place not in (which, when)]
    if columns is not None:
        chosen = [_column(path, header, name, ()) for name in columns]  # type: ignore[misc]
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"{path}, line {line} must name coordinates beside time and trajectory, each once; got {', '.join(header)}."
        )
    places = [*chosen, *([] if when is None else [when])]
    states: dict[str, list[list[float]]] = {}
    lines: dict[str, list[int]] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line} must have {len(header)} entries, as the header has; got {len(row)}.")
        label = "" if which is None else row[which].strip()
        states.setdefault(label, []).append([_finite(row[place], f"{path}, line {line}", header[place]) for place in places])
        lines.setdefault(label, []).append(line)
    if not states:
        raise ValueError(f"{path} must have a row for every state below its header; it has none.")
    first = next(iter(states))
    for label, of in states.items():
        if len(of) != len(states[first]):
            raise ValueError(
                f"{path}: all trajectories must have equally many rows; {first!r} has {len(states[first])}, {label!r} has "
                f"{len(of)}. Cut them to the shortest."
            )
    table, names = np.array(list(states.values())), tuple(_bare(header[place]) for place in chosen)
    if when is None:
        return table, names, None
    _check_times(path, table[..., -1], np.array(list(lines.values())))
    return table[..., :-1].copy(), names, table[..., -1].copy()


def _header(path: Path, line: int, row: list[str]) -> list[str]:
    header = [name.strip() for name in row]
    bare = [_bare(name) for name in header]
    if not all(bare) or len(set(bare)) < len(bare) or any(_number(name) is not None for name in header):
        raise ValueError(f"{path}, line {line} must be a header of different names, got {', '.join(header)}.")
    if not [name for name in bare if _plain(name) not in (*_WHICH, *_WHEN)]:
        raise ValueError(f"{path}, line {line} must name coordinates, separated by commas; got {', '.join(header)}.")
    return header


def _bare(name: str) -> str:
    """Without its unit."""
    return _UNIT.sub("", name)


def _plain(name: str) -> str:
    """In small letters, if it is a word: "Time" is the time, and T a temperature."""
    return name.lower() if len(name) > 1 else name


def _column(path: Path, header: Sequence[str], name: str | None, usual: Sequence[str] = ()) -> int | None:
    """The place of a column, by its name with or without a unit; of those that are usual, none where there is none."""
    bare = [_bare(each) for each in header]
    if name is None:
        plain = [_plain(each) for each in bare]
        return next((plain.index(each) for each in usual if each in plain), None)
    if name not in header and name not in bare:
        raise ValueError(f"{path} must have a column {name}; its columns are {', '.join(header)}.")
    return list(header).index(name) if name in header else bare.index(name)


def _finite(cell: str, place: str, name: str) -> float:
    number = _number(cell)
    if number is None or not isfinite(number):
        raise ValueError(
            f"{place} must have a finite number for {name}, got {cell!r}. Name the coordinates if it is none: columns=...."
        )
    return number


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of a table that are not blank, with their lines; entries are apart by what the header has most of."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            header = next((line for line in file if line.strip()), "")
            file.seek(0)
            reader = csv.reader(file, strict=True, delimiter=max(_BETWEEN, key=header.count))
            for row in reader:
                if len(row) > 1 or any(cell.strip() for cell in row):
                    yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num} must be text separated by commas: {error}.") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be text in UTF-8: {error}.") from error


def _number(text: str) -> float | None:
    """Of digits, with a point or a comma, which a cell has only where something else is between the entries of a row."""
    if "_" in text:
        return None
    try:
        return float(text.replace(",", ".") if text.count(",") == 1 and "." not in text else text)
    except ValueError:
        return None


def _spacing(times: np.ndarray) -> tuple[float, Tensor | None]:
    """The mean step of times [trajectories, times], and the times themselves where they are uneven."""
    steps = np.diff(times, axis=1)
    step = float(steps.mean())
    is_even = np.abs(steps - step).max() <= _UNEVEN * step
    return step, None if is_even else torch.from_numpy(times)


@np.errstate(over="ignore")
def _check_times(path: Path, times: np.ndarray, lines: np.ndarray) -> None:
    """Refuse times [trajectories, times] that do not grow, or too far for a number, saying in which line."""
    between = np.diff(times, axis=1)
    wrong = np.argwhere(~((between > 0) & (between < _FAR)))
    if len(wrong):
        which, k = wrong[0]
        raise ValueError(
            f"{path}, line {lines[which, k + 1]}: time must grow from row to row of a trajectory; this row is "
            f"{between[which, k]:g} after the one before. Sort the rows, or name the column that tells trajectories apart."
        )
