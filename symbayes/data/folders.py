"""Folders whose files belong together: replaced as one, sealed by digests, and read back whole or refused.

New files are written to a fresh folder inside, which one rename puts over those that are there (`_OVER`). From then on the new
ones hold, wherever they are: readers look there first, and moving a file from there into the folder changes nothing for them.
So a process that is killed at any moment leaves the earlier files or the new ones, and never some of each.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from symbayes.data.storage import from_json, parse_json, sync, write_synced
from symbayes.errors import BusyError

#: The seal: the sizes and digests of all files, and one digest over them.
SEAL = "seal.json"
FORMAT = 1
#: Files that hold over those beside them, and files that do not yet.
_OVER, _FRESH = ".over", ".fresh-"
_SAVING = ".saving"
#: Bytes of a seal at most, and how often a folder is read again that is replaced meanwhile.
_LONGEST, _TIMES = 2**20, 20
#: How often a lock is tried that another process has: who only looks has it for a moment.
_TRIES = 5


@dataclass(frozen=True)
class _File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Seal:
    format: int
    files: dict[str, _File]
    digest: str


@dataclass(frozen=True)
class Contents:
    """Files of a folder by name, and whether they were sealed, so that they are known to belong together."""

    files: dict[str, bytes]
    is_sealed: bool


def seal(files: Mapping[str, bytes | str], beside: Mapping[str, _File] | None = None) -> dict[str, bytes]:
    """The files, and the seal that says that they belong together; and what it says of others beside them."""
    contents = {name: content.encode() if isinstance(content, str) else content for name, content in files.items()}
    listed = {name: asdict(file) for name, file in (beside or {}).items()}
    listed |= {name: {"bytes": len(content), "sha256": _digest(content)} for name, content in contents.items()}
    sizes = dict(sorted(listed.items()))
    of_all = {"format": FORMAT, "files": sizes, "digest": _digest(json.dumps(sizes).encode())}
    return {**contents, SEAL: json.dumps(of_all, indent=1).encode()}


def write_folder(folder: Path, files: Mapping[str, bytes | str], leaving_out: Sequence[str] = ()) -> None:
    """Replace files of a folder, all of them or, if there is no room or the process is killed, none.

    Args:
        folder: Made if it is not there. What else is in it stays, and stays sealed.
        files: Contents by name, which may lie in folders within.
        leaving_out: Names that are removed if they are not among the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _settle(folder.parent, folder.name)
    with locked(folder / _SAVING):
        _move(folder)
        for left in folder.glob(f"{_FRESH}*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        fresh = folder / f"{_FRESH}{uuid4().hex}"
        try:
            for name, content in seal(files, _staying(folder, {*files, *leaving_out})).items():
                write_synced(fresh / name, content)
            for place in {(fresh / name).parent for name in files} | {fresh}:
                sync(place)
            os.rename(fresh, folder / _OVER)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        sync(folder)
        _move(folder)
        for name in leaving_out:
            if name not in files:
                (folder / name).unlink(missing_ok=True)


def _staying(folder: Path, names: Set[str]) -> dict[str, _File]:
    """What the seal that is there says of files of other names, such as of a checkpoint beside a result."""
    try:
        raw = _read(folder, SEAL, _LONGEST)
        known = {} if raw is None else _open(raw)
    except ValueError:  # who reads them is told so
        return {}
    return {name: file for name, file in known.items() if name not in names and (folder / name).is_file()}


def remove_folder(folder: Path) -> None:
    """Remove a folder and all that is in it, at once for who reads it; nothing where there is none."""
    gone = folder.with_name(f"{_FRESH}{uuid4().hex}")
    if folder.is_dir():
        os.rename(folder, gone)
        shutil.rmtree(gone)


def read_folder(folder: Path, needed: Sequence[str], optional: Sequence[str] = (), most: int = 2**40) -> Contents:
    """Files of a folder, and those of optional ones that are there; without a seal, they are read as they are.

    Args:
        folder: That `write_folder` was given.
        needed: Names.
        optional: More names.
        most: Bytes that a file may have.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is damaged, or not of those that were written together; without the name of the folder.
    """
    for _ in range(_TIMES):
        before = _stamp(folder)
        try:
            return _read_all(folder, needed, optional, most, _read(folder, SEAL, _LONGEST))
        except (FileNotFoundError, ValueError):
            if _stamp(folder) == before:  # it was not replaced meanwhile
                raise
            time.sleep(0.01)
    raise ValueError("its files are replaced all the time; wait until that is done")


def holds(folder: Path, name: str) -> bool:
    """Whether a file is in a folder, or about to be."""
    return place_of(folder, name) is not None


def _read_all(folder: Path, needed: Sequence[str], optional: Sequence[str], most: int, raw: bytes | None) -> Contents:
    known = None if raw is None else _open(raw)
    found: dict[str, bytes] = {}
    for name in (*needed, *optional):
        content = None if known is not None and name not in known else _read(folder, name, most)
        if content is None:
            if name in needed:
                raise FileNotFoundError(name)
            continue  # a user may remove what is optional
        if known is not None and (len(content) != known[name].bytes or _digest(content) != known[name].sha256):
            raise ValueError(f"{name} is not the file that was saved with {SEAL}: it was changed, or is of another")
        found[name] = content
    return Contents(found, known is not None)


def _open(raw: bytes) -> dict[str, _File]:
    """What a seal says.

    Raises:
        ValueError: If it is damaged, or of another version.
    """
    read = parse_json(raw, SEAL)
    found: _Seal = from_json(read, _Seal, SEAL)
    if found.format != FORMAT:
        raise ValueError(f"{SEAL} has format {found.format}; this version reads format {FORMAT}")
    if found.digest != _digest(json.dumps(read["files"]).encode()):
        raise ValueError(f"{SEAL} is damaged: its digest is not that of what it lists")
    return found.files


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def place_of(folder: Path, name: str) -> Path | None:
    """Where a file is that holds: over those in the folder, over those of the folder around it, or in it."""
    for place in (folder / _OVER, folder.parent / _OVER / folder.name, folder):
        if (place / name).is_file():
            return place / name
    return None


def _stamp(folder: Path) -> tuple[int, int] | None:
    """What tells one seal from another, even if they say the same."""
    place = place_of(folder, SEAL)
    try:
        found = None if place is None else place.stat()
    except FileNotFoundError:  # moved meanwhile
        return _stamp(folder)
    return None if found is None else (found.st_ino, found.st_mtime_ns)


def _read(folder: Path, name: str, most: int) -> bytes | None:
    """A file that holds; None if there is none."""
    for _ in range(_TIMES):
        path = place_of(folder, name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
        except FileNotFoundError:  # moved meanwhile
            continue
        if len(content) > most:
            raise ValueError(f"{name} must have at most {most} bytes; it has more")
        return content
    return None


def _settle(folder: Path, part: str) -> None:
    """Finish what was begun for the folder around, where that has a part that would hold over new files."""
    if (folder / _OVER / part).exists():
        with locked(folder / _SAVING):
            _move(folder)


def _move(folder: Path) -> None:
    """Move files that hold over those of a folder into it; for readers nothing changes."""
    over = folder / _OVER
    if not over.is_dir():
        return
    files = [path for path in over.rglob("*") if path.is_file()]
    for path in files:
        place = folder / path.relative_to(over)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
        sync(place.parent)
    shutil.rmtree(over)


@contextmanager
def locked(path: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock, which is free again when this process ends, in whatever way; on Windows there is none.

    Args:
        path: A file, made for as long as the lock is held.
        refusal: What to say if another process has the lock; this one waits when None.

    Raises:
        BusyError: With that.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl  # not on Windows

    tries = 0
    while True:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
            except BlockingIOError as error:
                tries += 1
                if tries < _TRIES:
                    time.sleep(0.01)
                    continue
                raise BusyError(refusal) from error
            except OSError as error:  # as of some disks of a network
                warnings.warn(
                    f"{path.parent} cannot be locked ({error}). See that no other process writes there.", stacklevel=3
                )
            if not _is_open(file, path):  # who held it has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(file)


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock; on Windows, where there is none, never."""
    if sys.platform == "win32":
        return False
    import fcntl  # not on Windows

    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # as of some disks of a network
        return False
    finally:
        os.close(file)
    return False


def _is_open(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
