"""Where commands write: refused before anything is done if it cannot be, and said in a sentence if it fails at the end."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from symbayes.cli import demo, discover, fit
from symbayes.cli.app import app
from symbayes.cli.study import Study
from symbayes.data import storage as whole
from symbayes.data.storage import write_together, write_whole
from symbayes.report.page import FigureTable
from tests.cli.refusals import (
    DEVICES,
    FOLDER,
    FULL,
    check_device_refused,
    check_file_refused,
    check_long_name_refused,
    check_read_only_refused,
    say,
)

invoke = partial(say, app)
COMMANDS = {
    "fit": ("fit", "upright-digits", "--width", "1"),
    "discover": ("discover", "oscillator"),
    "demo": ("demo",),
}
FOLDERS = [name for name in COMMANDS if name != "demo"]


@pytest.fixture
def worked(monkeypatch):
    """Commands that find something at once, which cannot be saved; what they did."""
    done = []

    def save(*_):
        raise FULL

    def result(*_, **__):
        done.append("trained")
        return SimpleNamespace(is_partial=False, save=save)

    def fail(*_):
        done.append("trained")
        raise FULL

    study = Study(
        "", "", [], fail, lambda outcomes: FigureTable(), page=lambda outcomes: "page", picture=lambda outcomes: "<svg/>"
    )
    monkeypatch.setattr(fit, "fit_model", result)
    monkeypatch.setattr(fit, "_show", lambda result, task: (None, None))
    monkeypatch.setattr(discover, "discover_in", result)
    monkeypatch.setattr(demo, "study", lambda settings: study)
    monkeypatch.setattr(demo, "run_study", lambda study, progress: done.append("trained") or [])
    return done


@pytest.mark.parametrize("command", FOLDERS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_is_a_file_is_refused_before_anything_is_done(command, inside, tmp_path, worked):
    check_file_refused(invoke, COMMANDS[command], inside, tmp_path, worked)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_done(command, tmp_path, worked, monkeypatch):
    must = "page (a file) that can be written" if command == "demo" else FOLDER
    check_read_only_refused(invoke, COMMANDS[command], tmp_path, worked, monkeypatch, must)


@pytest.mark.parametrize("out", ["folder", "/dev/null", "/dev/full", "..", ""])
def test_a_page_that_is_no_file_is_refused_before_anything_is_done(out, tmp_path, worked, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    code, words = invoke(*COMMANDS["demo"], "--out", out)
    assert code == 2
    assert "--out must be a page (a file), got" in words
    assert worked == []
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_names_that_no_file_can_have_are_refused(command, tmp_path, worked):
    check_long_name_refused(invoke, COMMANDS[command], tmp_path, worked)


def test_a_disk_that_fills_up_while_it_is_tried_is_left_as_it_was(tmp_path, worked, monkeypatch):
    def fill(path, content):
        path.touch()
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", fill)
    assert invoke(*COMMANDS["fit"], "--out", tmp_path)[0] == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_written_at_the_end_is_said(command, tmp_path, worked, monkeypatch):
    out = tmp_path / "here" / "report.html"
    out.parent.mkdir()
    before = {}
    if command == "demo":
        before = {out: "page of before", out.with_suffix(".svg"): "picture of before"}
        write_together(before)
        monkeypatch.setattr(whole.os, "replace", lambda *paths: (_ for _ in ()).throw(FULL))
    code, words = invoke(*COMMANDS[command], "--out", out)
    assert code == 1
    assert worked == ["trained"]
    assert f"{out} could not be written: No space left on device" in words
    assert {path: path.read_text() for path in out.parent.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("command", "name"), [("fit", "result.json"), ("fit", "weights.safetensors"), ("discover", "discovery.json")]
)
def test_a_result_that_is_there_is_replaced_on_request_alone(command, name, tmp_path, worked):
    (tmp_path / name).write_text("{}")
    code, words = invoke(*COMMANDS[command], "--out", tmp_path)
    assert code == 2
    assert f"{tmp_path} holds a result already ({name}). Name another folder, or replace it: --overwrite." in words
    assert worked == []
    invoke(*COMMANDS[command], "--out", tmp_path, "--overwrite")
    assert worked == ["trained"]


def test_a_page_is_rewritten_under_any_name_but_that_of_its_picture(tmp_path, worked):
    for name in ("report", "report.html"):
        for _ in range(2):
            assert invoke(*COMMANDS["demo"], "--out", tmp_path / name)[0] == 0
        assert (tmp_path / name).read_text() == "page"
        assert (tmp_path / "report.svg").read_text() == "<svg/>"
    code, words = invoke(*COMMANDS["demo"], "--out", tmp_path / "page.svg")
    assert code == 2
    assert "the picture beside it is written there" in words


def test_files_are_fetched_into_folders(tmp_path):
    (tmp_path / "file").touch()
    code, words = invoke("download", "mnist", "--to", tmp_path / "file", "--address", "https://nowhere.invalid")
    assert code == 2
    assert "--to must be a folder that can be made and written to" in words


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("command", ["fit", "discover"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_done(command, device, tmp_path, worked):
    check_device_refused(invoke, COMMANDS[command], device, tmp_path, worked)


def test_a_device_without_double_precision_is_refused(tmp_path, worked, monkeypatch):
    zeros = torch.zeros

    def single(*shape, dtype=None, device=None):
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
        return zeros(*shape, dtype=dtype)

    monkeypatch.setattr(torch, "zeros", single)
    code, words = invoke(*COMMANDS["discover"], "--out", tmp_path, "--device", "mps")
    assert code == 2
    assert "device must have double precision, in which curvature is decomposed; 'mps' has not. Use cpu or cuda." in words
    assert worked == []


def test_the_version_is_said():
    code, words = invoke("--version")
    assert code == 0
    assert words.startswith("symbayes 0.")


def test_files_are_written_together_or_not_at_all(tmp_path, monkeypatch):
    paths = [tmp_path / "new" / name for name in ("a", "b")]
    write_together(dict.fromkeys(paths, "before"))
    (tmp_path / "link").symlink_to(paths[0])
    write_whole(tmp_path / "link", b"through the link")
    assert (tmp_path / "link").is_symlink()
    assert paths[0].read_text() == "through the link"
    written = Path.write_bytes

    def second_fails(path, content):
        if ".b." in path.name:
            raise FULL
        return written(path, content)

    monkeypatch.setattr(Path, "write_bytes", second_fails)
    with pytest.raises(OSError, match="No space left on device"):
        write_together(dict.fromkeys(paths, "after"))
    assert [path.read_text() for path in paths] == ["through the link", "before"]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["a", "b"]
