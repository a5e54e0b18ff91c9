"""The command line, as a person would use it, on runs made short."""

import pytest
from typer.testing import CliRunner

from symbayes import cli
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.experiments import estimators, quadrant


def invoke(*words):
    return CliRunner().invoke(cli.app, list(words))


def test_the_demo_prints_the_table_of_the_paper_and_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(quadrant, "run_all", lambda settings, progress: _all_cells(settings, progress))
    result = invoke("demo", "--epochs", "1", "--width", "1", "--out", str(tmp_path / "report.html"))
    assert result.exit_code == 0, result.output
    for word in ("F-FC+CONV", "digit and", "log evidence", "What the relaxed network learned on digit", "left;"):
        assert word in result.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "plotly" in page
    assert "block1" in page


def _all_cells(settings, progress):
    outcomes = []
    for index, cell in enumerate(quadrant.cells(), start=1):
        outcomes.append(quadrant.run_cell(cell, settings))
        progress(index / 12, str(cell))
    return outcomes


def test_cells_run_in_processes_of_their_own_and_come_back_in_order(monkeypatch):
    chosen = quadrant.cells()[1:3]
    monkeypatch.setattr(quadrant, "cells", lambda: chosen)
    seen = []
    outcomes = quadrant.run_all(quadrant.Settings(epochs=1, width=1), lambda share, what: seen.append(share), workers=2)
    assert [outcome.cell for outcome in outcomes] == chosen
    assert seen[-1] == 1.0


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
        (("fit", "placed-digits", "--out", "x", "--by", "luck"), "--by must be one of evidence, map"),
    ],
)
def test_what_is_wrong_is_said(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_estimators_are_set_beside_the_full_ggn(monkeypatch):
    monkeypatch.setattr(estimators, "NETWORKS", (("conv",),))
    monkeypatch.setattr(estimators, "RULES", (Ggn(), Kfac()))
    result = invoke("estimators", "--data", "30", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "exact GGN" in result.output
    assert "(×1.00)" in result.output
