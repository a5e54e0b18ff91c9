"""`python -m papers`, as a person would use it, on runs made short."""

from functools import partial

import pytest
from typer.testing import CliRunner

from papers.__main__ import app
from papers.data import load
from papers.demos import groups, sequences, sets
from papers.demos.command import DEMOS
from papers.figures import commands as pictures
from papers.figures import estimators
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from tests.cli.demos import check_demo, check_introduction, work_through
from tests.small import load_few

INVARIANCE = ("invariance", "--data", "nowhere", "--out", "rows", "--task")


def invoke(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def small_groups():
    return work_through(groups, partial(load_few, load=load))


def test_the_demo_of_groups_prints_a_table_and_writes_a_page(small_groups, tmp_path, monkeypatch):
    words = ("GCONV", "upright", "turned", "What F-FC+CONV+GCONV learned on: shifted")
    check_demo(app, ("demo", "groups"), *small_groups, tmp_path / "report.html", monkeypatch, words)


@pytest.mark.parametrize(
    ("module", "few", "words"),
    [
        (sets, None, ("ORBIT", "largest", "What FC+ORBIT learned on")),
        (sequences, partial(load_few, load=load), ("F-FC+CONV", "motif", "What F-FC+CONV learned on: motif and quarter")),
    ],
)
def test_a_demo_prints_a_table_and_writes_a_page(module, few, words, tmp_path, monkeypatch):
    name = module.__name__.rpartition(".")[2]
    check_demo(app, ("demo", name), *work_through(module, few), tmp_path / "report.html", monkeypatch, words)


@pytest.mark.parametrize("name", DEMOS)
def test_introductions_say_what_is_expected_and_not_what_comes_out(name):
    make, settings, _ = DEMOS[name]
    check_introduction(make(settings()))


def test_the_table_of_groups_is_that_of_the_paper(small_groups):
    study, outcomes = small_groups
    table = study.table(outcomes)
    assert table["columns"][-3:] == ["FC, %", "CONV, %", "GCONV, %"]
    for row, outcome in zip(table["rows"], outcomes[1::2], strict=True):
        means = [float(cell["value"].split(" ")[0]) for cell in row["cells"][-3:]]
        assert sum(means) == pytest.approx(100, abs=2)
        assert row["cells"][2]["value"] == f"{-outcome.log_evidence:.3f}"
        assert all(cell["beneath"].startswith("γ ") for cell in row["cells"][-3:])
    # Paths that break a symmetry begin switched off, and by MAP not.
    off = outcomes[1].history[-1]["evidence"]["precision"]["block8.paths.conv.weight"]
    assert off > 100
    assert outcomes[0].history[-1]["evidence"]["precision"]["block8.paths.conv.weight"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*INVARIANCE, "mnist"), "'mnist' needs the file"),
        (
            (*INVARIANCE, "upright-digits", "--sizes", "many"),
            "sizes must be whole numbers, with commas between them; got 'many'",
        ),
        ((*INVARIANCE, "upright-digits", "--versions", "bent"), "versions must be among plain"),
        (("demo", "rotations"), "There are groups, sets, sequences, elbo, invariance, frequency, conserved to"),
        (("demo", "sets", "--images", "300"), "--images is an option of invariance"),
        (("table9", "--task", "mnist", "--data", "x", "--out", "y"), "No such command 'table9'"),
        (("table1",), "Task 'digit-mnist' is read from files"),
        (("table1", "--seeds", "0,x"), "seeds must be whole numbers, with commas between them; got 'x'"),
        (("table1", "--device", "abacus"), "device must be one that torch can compute on here"),
        (("table2", "--rows", "conv,deep"), "rows must be among fc, conv, fc+conv"),
        (("table3", "--starts", "small"), "table3 has no starts, only rows, methods, sizes, seeds"),
    ],
)
def test_what_is_wrong_is_said(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_gallery_says_which_pictures_it_drew(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw_gallery", lambda out, progress: progress(1.0, "done") or [out / "translation.svg"])
    result = invoke("gallery", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "translation.svg" in result.output.replace("\n", "")


def test_illustrations_say_which_pictures_they_drew(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw_illustrations", lambda out, progress: progress(1.0, "done") or [out / "toy.svg"])
    result = invoke("illustrate", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "toy.svg" in result.output.replace("\n", "")


def test_estimators_are_set_beside_the_full_ggn(monkeypatch):
    monkeypatch.setattr(estimators, "NETWORKS", (("conv",),))
    monkeypatch.setattr(estimators, "RULES", (Ggn(), Kfac()))
    result = invoke("estimators", "--data", "30", "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert "exact GGN" in result.output
    assert "(×1.00)" in result.output
