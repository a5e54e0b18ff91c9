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
    words = " ".join(result.output.split())
    assert "No conserved quantity found in oscillator. " in words
    assert "Symmetries were learned, and a plain energy is taken: its bound is higher, by " in words
    save_csv(simulate("kepler", trajectories=6, steps=3), tmp_path / "seen.csv")
    result = invoke("discover", str(tmp_path / "seen.csv"), "--noise", "0.1", *short, "--out", str(tmp_path / "b"))
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "on 1 held-out trajectory of 0.6 time units" in words
    assert "Learned symmetries are worth " in words
    found = json.loads((tmp_path / "b" / "discovery.json").read_text())
    assert found["names"] == ["x", "y", "px", "py"]
    assert found["truth"] is None
    save_csv(simulate("oscillator", trajectories=2, steps=3), tmp_path / "TWO.CSV")
    result = invoke("discover", str(tmp_path / "TWO.CSV"), "--held-out", "0.5", *short, "--out", str(tmp_path / "c"))
    assert result.exit_code == 0, result.output


def test_sums_of_terms_are_found_without_an_energy(tmp_path):
    """In a table whose coordinates are interleaved, and beside which there are other columns."""
    made = simulate("kepler", trajectories=24, steps=40)
    rows = ["run;t [s];x [m];px;y [m];py;who"]
    for k, states in enumerate(made.states.tolist()):
        rows += [f"{k};{0.2 * n};{x};{px};{y};{py};me" for n, (x, y, px, py) in enumerate(states)]
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    result = invoke("discover", str(tmp_path / "seen.csv"), "--columns", "x,y,px,py", "--out", str(tmp_path / "a"))
    assert result.exit_code == 0, result.output
    assert "conserved quantities in seen.csv: x py − y px (99" in " ".join(result.output.split())
    found = json.loads((tmp_path / "a" / "discovery.json").read_text())
    assert found["model"]["kind"] == "terms"
    assert (tmp_path / "a" / "report.html").exists()
    assert not (tmp_path / "a" / "run").exists()
    words = ("discover", "pendulum", "--trajectories", "24", "--noise", "0.01", "--out", str(tmp_path / "b"))
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert "1 conserved quantity in pendulum: p² − " in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("oscillator", "--symmetry", "terms", "--width", "3"), "--width must be left out with --symmetry terms"),
        (("oscillator", "--columns", "q,p"), "--columns must be left out for a system"),
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
