"""The commands of the papers, as a person would use them, on runs made short."""

from functools import partial
from types import SimpleNamespace

import pytest

from papers import __main__ as main
from papers import reproduce
from papers.__main__ import app
from papers.data import load
from papers.demos import groups, sequences
from papers.demos.command import DEMOS
from papers.figures import commands as pictures
from papers.figures import estimators
from symbayes.cli import demo
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.errors import NotFiniteError
from tests.cli.refusals import (
    DEVICES,
    FULL,
    check_device_refused,
    check_file_refused,
    check_long_name_refused,
    check_read_only_refused,
    say,
)
from tests.small import load_few as load_few_of

invoke, load_few = partial(say, app), partial(load_few_of, load=load)

INVARIANCE = ("invariance", "--data", "nowhere", "--out", "rows", "--task")
#: Those that write to a folder.
FOLDERS = {
    "gallery": ("gallery",),
    "illustrate": ("illustrate",),
    "filters": ("filters", "--sizes", "30", "--methods", "likelihood", "--starts", "small"),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("groups", ("GCONV", "upright", "turned", "What F-FC+CONV+GCONV learned on: shifted")),
        ("sets", ("ORBIT", "largest", "What FC+ORBIT learned on")),
        ("sequences", ("F-FC+CONV", "motif", "What F-FC+CONV learned on: motif and quarter")),
    ],
)
def test_a_demo_prints_the_table_of_the_paper_and_writes_a_page(name, words, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run_study", lambda study, _: [study.work(cell, lambda record: None) for cell in study.cells])
    for study in (groups, sequences):
        monkeypatch.setattr(study, "load", load_few)
    code, output = invoke("demo", name, "--epochs", "1", "--width", "1", "--out", tmp_path / "report.html")
    assert code == 0, output
    for word in words:
        assert word in output
    said = "Layers in which a tensor of γ above 0.5 breaks a symmetry: "
    assert said in output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "keeps" in page or "block1" in page
    assert said in page


@pytest.mark.parametrize("name", DEMOS)
def test_introductions_say_what_is_expected_and_not_what_comes_out(name):
    """Which is not known before training, and may be cut short."""
    make, settings, _ = DEMOS[name]
    study = make(settings())
    said = f"{study.title}. {study.about}"
    assert "should" in said or "ought to" in said
    for claim in (" finds ", " found ", " finds nothing", " becomes ", ", one symmetry"):
        assert claim not in said


def test_the_table_of_groups_is_that_of_the_paper(monkeypatch):
    monkeypatch.setattr(groups, "load", load_few)
    study = groups.study(groups.Settings(epochs=1, width=1))
    outcomes = [study.work(cell, lambda record: None) for cell in study.cells]
    table = study.table(outcomes)
    assert table.columns[-3:] == ("FC, %", "CONV, %", "GCONV, %")
    for row, outcome in zip(table.rows, outcomes[1::2], strict=True):
        means = [float(cell.value.split(" ")[0]) for cell in row.cells[-3:]]
        assert sum(means) == pytest.approx(100, abs=2)
        assert row.cells[2].value == f"{-outcome.log_evidence:.3f}"
        assert all(cell.beneath.startswith("γ ") for cell in row.cells[-3:])
    # Paths that break a symmetry begin switched off, and by MAP not.
    off = outcomes[1].history[-1].evidence.precision["block8.paths.conv.weight"]
    assert off > 100
    assert outcomes[0].history[-1].evidence.precision["block8.paths.conv.weight"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("demo", "luck"), "There are groups, sets, sequences, elbo, invariance, mirrors, frequency, conserved to demonstrate"),
        (("demo", "groups", "--images", "300"), "--images is an option of invariance and mirrors"),
        (("demo", "mirrors", "--width", "3"), "--width is no option of mirrors"),
        (("table9", "--task", "mnist"), "No such command 'table9'"),
        ((*INVARIANCE, "mnist"), "'mnist' needs the file"),
        (
            (*INVARIANCE, "upright-digits", "--sizes", "many"),
            "sizes must be whole numbers, with commas between them; got 'many'",
        ),
        ((*INVARIANCE, "upright-digits", "--versions", "bent"), "versions must be among plain"),
        (("table1",), "Task 'digit-mnist' is read from files"),
        (("table1", "--seeds", "0,x"), "seeds must be whole numbers, with commas between them; got 'x'"),
        (("table1", "--device", "abacus"), "device must be one that torch can compute on here"),
        (("table2", "--rows", "conv,deep"), "rows must be among fc, conv, fc+conv"),
        (("table3", "--starts", "small"), "table3 has no starts, only rows, methods, sizes, seeds"),
    ],
)
def test_what_is_wrong_is_said(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = invoke(*words)
    assert code == 2
    assert message in output


def test_without_matplotlib_it_is_said_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "find_spec", lambda name: None)
    monkeypatch.setattr(pictures, "draw_gallery", lambda out, progress: pytest.fail("This was trained for nothing."))
    code, output = invoke("gallery", "--out", tmp_path)
    assert code == 2
    assert "drawn by matplotlib" in output
    assert ".[papers]" in output


def test_the_gallery_says_which_pictures_it_drew(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw_gallery", lambda out, progress: progress(1.0, "done") or [out / "translation.svg"])
    code, output = invoke("gallery", "--out", tmp_path)
    assert code == 0, output
    assert "translation.svg" in output


def test_illustrations_say_which_pictures_they_drew(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "draw_illustrations", lambda out, progress: progress(1.0, "done") or [out / "toy.svg"])
    code, output = invoke("illustrate", "--out", tmp_path)
    assert code == 0, output
    assert "toy.svg" in output


def test_estimators_are_set_beside_the_full_ggn(monkeypatch):
    monkeypatch.setattr(estimators, "NETWORKS", (("conv",),))
    monkeypatch.setattr(estimators, "RULES", (Ggn(), Kfac()))
    code, output = invoke("estimators", "--data", "30", "--epochs", "1")
    assert code == 0, output
    assert "exact GGN" in output
    assert "(×1.00)" in output


@pytest.fixture
def worked(monkeypatch):
    """Commands that find something at once, which cannot be saved; what they did."""
    done = []

    def fail(*_):
        done.append("trained")
        raise FULL

    monkeypatch.setattr(pictures, "draw_gallery", fail)
    monkeypatch.setattr(pictures, "draw_illustrations", fail)
    monkeypatch.setattr(reproduce, "_attempt", lambda *words: done.append("trained") or "failed: no room")
    monkeypatch.setattr(reproduce, "assemble", fail)
    return done


@pytest.mark.parametrize("command", FOLDERS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_is_a_file_is_refused_before_anything_is_done(command, inside, tmp_path, worked):
    check_file_refused(invoke, FOLDERS[command], inside, tmp_path, worked)


@pytest.mark.parametrize("command", FOLDERS)
def test_names_that_no_file_can_have_are_refused(command, tmp_path, worked):
    check_long_name_refused(invoke, FOLDERS[command], tmp_path, worked)


@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_done(command, tmp_path, worked, monkeypatch):
    check_read_only_refused(invoke, FOLDERS[command], tmp_path, worked, monkeypatch)


@pytest.mark.parametrize("command", FOLDERS)
def test_what_cannot_be_written_at_the_end_is_said(command, tmp_path, worked):
    out = tmp_path / "here" / "out"
    code, words = invoke(*FOLDERS[command], "--out", out)
    assert code == 1
    assert worked == ["trained"] * (6 if command == "filters" else 1)
    assert f"{out} could not be written: No space left on device" in words


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_is_not_there_is_refused_before_anything_is_done(device, tmp_path, worked):
    check_device_refused(invoke, FOLDERS["filters"], device, tmp_path, worked)


def test_training_that_diverges_is_said_in_a_sentence(tmp_path, monkeypatch):
    def diverge(*_):
        raise NotFiniteError("Training diverged: the loss is nan.")

    monkeypatch.setattr(pictures, "draw_gallery", diverge)
    monkeypatch.setitem(DEMOS, "frequency", (lambda settings: SimpleNamespace(**vars(settings)), SimpleNamespace, ""))
    monkeypatch.setattr("papers.demos.command.show_study", diverge)
    for words in (("gallery",), ("demo", "frequency")):
        code, output = invoke(*words, "--out", tmp_path / "out")
        assert (code, output) == (1, "Training diverged: the loss is nan.")
