"""Folders that are replaced as a whole: killed at any moment, they hold the earlier files or the new ones."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from symbayes.data import folders, storage
from symbayes.data.folders import SEAL, holds, locked, read_folder, remove_folder, write_folder
from symbayes.data.storage import write_whole

OLD = {"a": "old a", "b": "old b", "in/c": "old c"}
NEW = {"a": "new a", "b": "new b, longer", "in/c": "new c"}
NAMES = tuple(OLD)


class Killed(BaseException):
    """What no `except Exception` sees, as a process that is gone."""


def kill_at(monkeypatch, number):
    """Let the call of this number that changes a file or a folder be the last."""
    calls = 0

    def stopping(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > number:  # from then on nothing is done any more, whatever cleans up
                raise Killed
            return function(*args, **kwargs)

        return call

    for place, name in ((os, "rename"), (os, "replace"), (os, "open"), (folders.shutil, "rmtree")):
        monkeypatch.setattr(place, name, stopping(getattr(place, name)))
    for name in ("write_bytes", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, stopping(getattr(Path, name)))


def seen(folder):
    return {name: content.decode() for name, content in read_folder(folder, NAMES).files.items()}


def test_a_process_killed_at_any_moment_leaves_the_earlier_files_or_the_new(tmp_path):
    found, number = [], 0
    while not found or not found[-1][1]:
        folder = tmp_path / str(number)
        write_folder(folder, OLD)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number)
            try:
                write_folder(folder, NEW)
                whole = True
            except Killed:
                whole = False
        now = seen(folder)
        assert now in (OLD, NEW), number
        inner = read_folder(folder / "in", ("c",)).files["c"].decode()  # without a seal of its own
        assert inner == now["in/c"]
        found.append((now == NEW, whole))
        write_folder(folder, OLD)  # the next one is not in the way of what was left
        assert seen(folder) == OLD
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "in", SEAL]
        number += 1
    assert number > 15
    states = [new for new, _ in found]
    assert states == sorted(states)  # from some moment on, and for good
    assert 2 < states.index(True) < number - 3  # it is killed before and after


def test_files_of_two_results_are_refused_by_name(tmp_path):
    write_folder(tmp_path / "one", OLD)
    write_folder(tmp_path / "two", NEW)
    (tmp_path / "one" / "b").write_bytes((tmp_path / "two" / "b").read_bytes())
    with pytest.raises(ValueError, match=r"b is not the file that was saved with seal\.json"):
        seen(tmp_path / "one")
    assert read_folder(tmp_path / "one", ("a",)).files == {"a": b"old a"}
    (tmp_path / "two" / "a").unlink()
    with pytest.raises(FileNotFoundError, match="a"):
        seen(tmp_path / "two")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"bytes": 5', '"bytes": 6', 1), r"its digest is not that of what it lists"),
        (lambda text: text.replace('"format": 1', '"format": 7'), r"seal\.json has format 7; this version reads format 1"),
        (lambda text: text[:-2], r"seal\.json must be JSON"),
        (lambda text: "{}", r"seal\.json must have digest"),
        (lambda text: " " * 2**21 + text, r"seal\.json must have at most 1048576 bytes"),
    ],
)
def test_a_damaged_seal_is_refused(change, message, tmp_path):
    write_folder(tmp_path, OLD)
    (tmp_path / SEAL).write_text(change((tmp_path / SEAL).read_text()))
    with pytest.raises(ValueError, match=message):
        seen(tmp_path)


def test_files_without_a_seal_are_read_as_they_are(tmp_path):
    (tmp_path / "a").write_text("alone")
    contents = read_folder(tmp_path, ("a",), ("b",))
    assert contents.files == {"a": b"alone"}
    assert not contents.is_sealed
    assert holds(tmp_path, "a")
    assert not holds(tmp_path, "b")
    with pytest.raises(ValueError, match="a must have at most 4 bytes; it has more"):
        read_folder(tmp_path, ("a",), most=4)


def test_other_files_that_are_there_stay_sealed(tmp_path):
    write_folder(tmp_path, OLD)
    write_folder(tmp_path, {"a": "new a", "d": "d"}, leaving_out=("b",))
    assert read_folder(tmp_path, ("a", "in/c", "d"), ("b",)).files == {"a": b"new a", "in/c": b"old c", "d": b"d"}
    (tmp_path / "in" / "c").write_text("changed")
    with pytest.raises(ValueError, match=r"in/c is not the file that was saved"):
        read_folder(tmp_path, ("in/c",))
    (tmp_path / SEAL).write_text("{}")
    write_folder(tmp_path, {"a": "alone"})  # a damaged seal is replaced
    assert read_folder(tmp_path, ("a",)).files == {"a": b"alone"}


def test_names_that_the_new_files_lack_are_removed(tmp_path):
    (tmp_path / "mine").write_text("stays")
    write_folder(tmp_path, OLD)
    write_folder(tmp_path, {"a": "alone"}, leaving_out=NAMES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "in", "mine", SEAL]
    assert not (tmp_path / "in" / "c").exists()


def test_a_disk_without_room_leaves_the_earlier_files(tmp_path, monkeypatch):
    write_folder(tmp_path, OLD)
    written = Path.write_bytes

    def write(path, content):
        if path.name == "b":
            raise OSError(28, "No space left on device")
        return written(path, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(OSError, match="No space left on device"):
        write_folder(tmp_path, NEW)
    assert seen(tmp_path) == OLD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "in", SEAL]


def test_what_is_read_while_it_is_replaced_is_of_one_time(tmp_path):
    write_folder(tmp_path, OLD)
    stop, mixed = threading.Event(), []

    def read():
        while not stop.is_set():
            if seen(tmp_path) not in (OLD, NEW):
                mixed.append(True)

    reader = threading.Thread(target=read)
    reader.start()
    for files in [NEW, OLD] * 40:
        write_folder(tmp_path, files)
    stop.set()
    reader.join()
    assert not mixed


def test_what_several_write_at_once_is_of_one_of_them(tmp_path):
    def write(which):
        for _ in range(8):
            write_folder(tmp_path, {name: f"{which} {name}" for name in NAMES})

    writers = [threading.Thread(target=write, args=(which,)) for which in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if holds(tmp_path, SEAL):
            assert len({content.split()[0] for content in seen(tmp_path).values()}) == 1
    assert len({content.split()[0] for content in seen(tmp_path).values()}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "in", SEAL]


def test_a_lock_is_refused_or_waited_for(tmp_path):
    path, order = tmp_path / "lock", []

    def wait():
        with locked(path):
            order.append("second")

    with locked(path):
        with pytest.raises(RuntimeError, match="Somebody is here"), locked(path, "Somebody is here."):
            pass
        waiting = threading.Thread(target=wait)
        waiting.start()
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]
    assert not path.exists()


def test_a_disk_without_locks_is_warned_of(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.warns(UserWarning, match=r"cannot be locked \(.*No locks available\)\. See that no other process writes there"):
        write_folder(tmp_path, OLD)
    assert seen(tmp_path) == OLD


def test_files_are_on_the_disk_before_they_are_renamed(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file))[1])
    write_whole(tmp_path / "page", "text")
    assert synced == [(tmp_path / "page").stat().st_ino, tmp_path.stat().st_ino]
    synced.clear()
    write_folder(tmp_path / "all", OLD)
    assert {(tmp_path / "all" / name).stat().st_ino for name in (*NAMES, SEAL)} < set(synced)
    assert (tmp_path / "all").stat().st_ino in synced


def test_the_mode_of_files_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_folder(tmp_path / "all", OLD)
        storage.write_whole(tmp_path / "page", "text")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "all" / "a", tmp_path / "all" / SEAL, tmp_path / "page")}
    assert modes == {0o640}


def test_a_folder_is_removed_with_all_that_is_in_it(tmp_path):
    write_folder(tmp_path / "all", OLD)
    remove_folder(tmp_path / "all")
    remove_folder(tmp_path / "all")
    assert list(tmp_path.iterdir()) == []
