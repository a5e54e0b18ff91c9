"""The command line, as a person would use it, on runs made short."""

import pytest
from typer.testing import CliRunner

from symbayes.cli.app import app


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def test_fit_saves_a_result_whose_page_can_be_rebuilt(tmp_path):
    out = tmp_path / "run"
    result = invoke("fit", "placed-digits", "--out", str(out), "--width", "1", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "log evidence" in result.output
    (out / "report.html").unlink()
    assert invoke("report", str(out)).exit_code == 0
    assert (out / "report.html").exists()


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
