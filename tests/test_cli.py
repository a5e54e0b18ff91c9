"""The command line, as a person would use it, on runs made short."""

import pytest
from typer.testing import CliRunner

from papers.__main__ import app as papers
from papers.demos import groups, sequences
from papers.figures import commands as pictures
from papers.figures import estimators
from symbayes.cli import demo, quadrant
from symbayes.cli.app import app
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from tests.small import load_few

INVARIANCE = ("papers", "invariance", "--data", "nowhere", "--out", "rows", "--task")


def invoke(*words):
    """A command of the library, or after the word papers one of theirs."""
    command, words = (papers, words[1:]) if words[0] == "papers" else (app, words)
    return CliRunner().invoke(command, list(words))


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ((), ("F-FC+CONV", "digit and", "log evidence", "What F-FC+CONV learned on: digit", "left;")),
        (("groups",), ("GCONV", "upright", "turned", "What F-FC+CONV+GCONV learned on: shifted")),
        (("sets",), ("ORBIT", "largest", "What FC+ORBIT learned on")),
        (("sequences",), ("F-FC+CONV", "motif", "What F-FC+CONV learned on: motif and quarter")),
    ],
)
def test_a_demo_prints_the_table_of_the_paper_and_writes_a_page(which, words, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run_study", _in_this_process)
    for study in (quadrant, groups, sequences):
        monkeypatch.setattr(study, "load", load_few)
    command = ("papers", "demo", *which) if which else ("demo",)
    result = invoke(*command, "--epochs", "1", "--width", "1", "--out", str(tmp_path / "report.html"))
    assert result.exit_code == 0, result.output
    for word in words:
        assert word in result.output
    said = "Layers in which a tensor of γ above 0.5 breaks a symmetry: "
    assert said in " ".join(result.output.split())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "plotly" in page
    assert "keeps" in page or "block1" in page
    assert said in page


def _in_this_process(study, progress):
    outcomes = []
    for index, cell in enumerate(study.cells, start=1):
        outcomes.append(study.work(cell, lambda record: None))
        progress(index / len(study.cells), str(cell))
    return outcomes


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
        (("papers", "demo", "rotations"), "There are groups, sets, sequences, elbo, invariance, frequency, conserved to"),
        (("papers", "demo", "sets", "--images", "300"), "--images is an option of invariance"),
        (("papers", "table9", "--task", "mnist", "--data", "x", "--out", "y"), "No such command 'table9'"),
        (("fit", "placed-digits", "--out", "x", "--by", "luck"), "--by must be one of evidence, elbo, map"),
        (("fit", "digits", "--out", "x"), "There is no task 'digits'; there are placed-digits"),
        (("fit", "mnist", "--data", "nowhere", "--out", "x"), "'mnist' needs the file"),
        (("fit", "placed-digits", "--device", "abacus", "--out", "x"), "device must be one that torch can compute on here"),
        (("fit", "placed-digits", "--paths", "deep", "--out", "x"), "deep"),
        ((*INVARIANCE, "mnist"), "'mnist' needs the file"),
        (
            (*INVARIANCE, "upright-digits", "--sizes", "many"),
            "sizes must be whole numbers, with commas between them; got 'many'",
        ),
        ((*INVARIANCE, "upright-digits", "--versions", "bent"), "versions must be among plain"),
        (("papers", "table1"), "Task 'digit-mnist' is read from files"),
        (("papers", "table1", "--seeds", "0,x"), "seeds must be whole numbers, with commas between them; got 'x'"),
        (("papers", "table1", "--device", "abacus"), "device must be one that torch can compute on here"),
        (("papers", "table2", "--rows", "conv,deep"), "rows must be among fc, conv, fc+conv"),
        (("papers", "table3", "--starts", "small"), "table3 has no starts, only rows, methods, sizes, seeds"),
    ],
)
def test_what_is_wrong_is_said(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_gallery_says_which_pictures_it_drew(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw_gallery", lambda out, progress: progress(1.0, "done") or [out / "translation.svg"])
    result = invoke("papers", "gallery", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "translation.svg" in result.output.replace("\n", "")


def test_illustrations_say_which_pictures_they_drew(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw_illustrations", lambda out, progress: progress(1.0, "done") or [out / "toy.svg"])
    result = invoke("papers", "illustrate", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "toy.svg" in result.output.replace("\n", "")


def test_estimators_are_set_beside_the_full_ggn(monkeypatch):
    monkeypatch.setattr(estimators, "NETWORKS", (("conv",),))
    monkeypatch.setattr(estimators, "RULES", (Ggn(), Kfac()))
    result = invoke("papers", "estimators", "--data", "30", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "exact GGN" in result.output
    assert "(×1.00)" in result.output
