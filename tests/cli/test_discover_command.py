"""`symbayes discover`, made short: from systems and from files."""

import json

import pytest
from typer.testing import CliRunner

from symbayes.cli.app import app
from symbayes.dynamics import energy
from symbayes.dynamics.tables import save_csv
from symbayes.dynamics.trajectories import simulate


def invoke(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "xterm"})


def test_discoveries_from_a_system_and_from_files(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "_FARTHEST", 3)  # pictures of long motions take most of the time
    short = ("--updates", "3", "--width", "5", "--quantities", "2")
    result = invoke("discover", "oscillator", "--trajectories", "5", "--steps", "3", *short, "--out", str(tmp_path / "a"))
    assert result.exit_code == 0, result.output
    assert "The page" in result.output
    assert "on 1 held-out trajectory of 0.6 time units" in " ".join(result.output.split())
    save_csv(simulate("kepler", trajectories=6, steps=3), tmp_path / "seen.csv")
    result = invoke("discover", str(tmp_path / "seen.csv"), "--noise", "0.1", *short, "--out", str(tmp_path / "b"))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "b" / "discovery.json").read_text())
    assert found["names"] == ["x", "y", "px", "py"]
    assert found["truth"] is None
    save_csv(simulate("oscillator", trajectories=2, steps=3), tmp_path / "TWO.CSV")
    result = invoke("discover", str(tmp_path / "TWO.CSV"), "--held-out", "0.5", *short, "--out", str(tmp_path / "c"))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.csv",), "nowhere.csv"),
        (("brick",), "brick"),
        (("oscillator", "--symmetry", "cubic"), "symmetry must be 'quadratic'"),
        (("oscillator", "--integrator", "magic"), "--integrator must be one of euler"),
        (("oscillator", "--device", "gpu"), "device must be one that torch can compute on here"),
        (("oscillator", "--noise", "0"), "noise must be above 0"),
        ((__file__,), "must be an array (.npy) or a table (.csv)"),
    ],
)
def test_discoveries_that_cannot_be_are_refused(words, message, tmp_path):
    result = invoke("discover", *words, "--out", str(tmp_path / "a"))
    assert result.exit_code == 2
    assert message in result.output
