"""The command line, as a person would use it, on runs made short."""

import pytest
import torch
from typer.testing import CliRunner

import symbayes as sb
from symbayes.cli import demo, discover, fit
from symbayes.cli.app import app
from symbayes.cli.study import run_study
from symbayes.dynamics import energy
from tests.small import load_few


def invoke(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120", "TERM": "xterm"})


def test_fit_saves_a_result_whose_page_can_be_rebuilt(tmp_path):
    out = tmp_path / "run"
    result = invoke("fit", "placed-digits", "--out", str(out), "--width", "1", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "log evidence" in result.output
    assert "effective parameters γ" in result.output
    assert "mean confidence" in result.output
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert invoke("report", str(out)).exit_code == 0
    assert (out / "report.html").read_bytes() == page


def test_a_discovery_is_saved_with_pages_that_can_be_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "_FARTHEST", 3)  # pictures of long motions take most of the time
    out = tmp_path / "found"
    result = invoke("discover", "oscillator", "--out", str(out), "--updates", "2", "--width", "4", "--trajectories", "4")
    assert result.exit_code == 0, result.output
    assert "per pair of states, in nats" in result.output
    pages = {path: path.read_bytes() for path in (out / "report.html", out / "run" / "report.html")}
    for path, page in pages.items():
        path.unlink()
        assert invoke("report", str(path.parent)).exit_code == 0
        assert path.read_bytes() == page


def test_a_discovery_that_is_damaged_is_said_to_be(tmp_path):
    (tmp_path / "discovery.json").write_text('{"title": "oscillator"}')
    result = invoke("report", str(tmp_path))
    assert result.exit_code == 2
    assert "is damaged (discovery.json must have" in " ".join(result.output.replace("│", " ").split())


DIVERGED = "Training diverged: [the loss] is nan. Use a smaller learning rate."


def diverge(*_, **__):
    raise sb.NotFiniteError(DIVERGED)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (fit, "fit_model", ("fit", "upright-digits", "--width", "1", "--out", "run")),
        (discover, "discover_in", ("discover", "oscillator", "--out", "run")),
        (demo, "run_study", ("demo", "--out", "report.html")),
    ],
)
def test_training_that_diverges_is_said_in_a_sentence(module, name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, name, diverge)
    result = invoke(*words)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert DIVERGED in " ".join(result.output.split())
    assert "Traceback" not in result.output


def _diverge_in_a_process(cell, each_epoch):
    raise sb.NotFiniteError(DIVERGED)


def test_divergence_in_a_process_of_its_own_comes_back_as_it_is():
    study = demo.study(demo.Settings(epochs=1, width=1))
    alone = demo.Study(study.title, study.about, study.cells[:1], _diverge_in_a_process, study.table)
    with pytest.raises(sb.NotFiniteError, match="Training diverged"):
        run_study(alone, lambda share, what: None, workers=1)


def test_numbers_that_are_not_finite_end_a_command_and_no_page_is_left(tmp_path, monkeypatch):
    def broken(*words):
        task = load_few("upright-digits")
        return type(task)(**{**vars(task), "train": (torch.full_like(task.train[0], torch.nan), task.train[1])})

    monkeypatch.setattr(fit, "load", broken)
    result = invoke("fit", "upright-digits", "--width", "1", "--epochs", "1", "--out", str(tmp_path))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "nowhere"), "must hold result.json"),
        (("fit", "placed-digits", "--out", "x", "--by", "luck"), "--by must be one of evidence, elbo, map"),
        (("fit", "digits", "--out", "x"), "There is no task 'digits'; there are placed-digits"),
        (("fit", "mnist", "--data", "nowhere", "--out", "x"), "'mnist' needs the file"),
        (("fit", "placed-digits", "--device", "abacus", "--out", "x"), "device must be one that torch can compute on here"),
        (("fit", "placed-digits", "--paths", "deep", "--out", "x"), "deep"),
    ],
)
def test_what_is_wrong_is_said(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
