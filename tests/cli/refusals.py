"""What is asked of every command that writes: it refuses before anything is done, in a sentence."""

from pathlib import Path

from typer.testing import CliRunner

FULL = OSError(28, "No space left on device")
DEVICES = ("mps", "meta", "cuda:77", "hpu", "privateuseone", "vulkan", "nonsense", "")
FOLDER = "folder that can be made and written to"


def say(app, *words):
    """The exit code of a command, and what it said in one line; any other exception is its fault."""
    found = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400", "TERM": "xterm"})
    assert isinstance(found.exception, SystemExit | None), found.exception
    return found.exit_code, " ".join(found.output.replace("│", " ").split())


def check_file_refused(invoke, command, inside, tmp_path, worked):
    (tmp_path / "file").write_text("kept")
    code, words = invoke(*command, "--out", tmp_path / "file" / "folder" if inside else tmp_path / "file")
    assert code == 2
    assert f"--out must be a {FOLDER}, got" in words
    assert ("Not a directory" if inside else "File exists") in words
    assert worked == []
    assert (tmp_path / "file").read_text() == "kept"


def check_read_only_refused(invoke, command, tmp_path, worked, monkeypatch, must=FOLDER):
    def read_only(path, content):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", read_only)
    code, words = invoke(*command, "--out", tmp_path / "here" / "report.html")
    assert code == 2
    assert f"--out must be a {must}, got" in words
    assert "Read-only file system. Name another" in words
    assert not list((tmp_path / "here").rglob(".*"))
    assert worked == []


def check_long_name_refused(invoke, command, tmp_path, worked):
    code, words = invoke(*command, "--out", tmp_path / ("long" * 100))
    assert code == 2
    assert "File name too long. Name another" in words
    assert worked == []


def check_device_refused(invoke, command, device, tmp_path, worked):
    code, words = invoke(*command, "--out", tmp_path / "out", "--device", device)
    assert code == 2
    assert "device must be one that torch can compute on here, such as cpu; got" in words or device == "mps"
    assert f"{device!r}" in words
    assert worked == []
    assert not (tmp_path / "out").exists()
