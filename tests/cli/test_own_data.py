"""Commands on a person's own data, and on the machine itself."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from symbayes.cli import doctor
from symbayes.cli.app import app
from symbayes.training.record import read_records
from tests.cli.refusals import say
from tests.data.test_read import paint, write_table

invoke = partial(say, app)


def test_a_folder_of_images_becomes_a_page_that_says_which_layers_are_convolutional(tmp_path):
    paint(tmp_path / "images", 8, size=(8, 8))
    out = tmp_path / "run"
    code, said = invoke("fit", str(tmp_path / "images"), "--out", str(out), "--width", "1", "--epochs", "2")
    assert code == 0, said
    page = (out / "report.html").read_text()
    assert "keep translation, as convolutions do" in page
    assert "Training has not converged" in page
    assert "Training has not converged" in said
    for words in ("dark", "light", "accuracy"):
        assert words in page


def test_how_far_to_augment_is_learned_and_said(tmp_path):
    paint(tmp_path / "images", 8, size=(8, 8))
    out = tmp_path / "run"
    words = ("fit", tmp_path / "images", "--out", out, "--width", "1", "--epochs", "2", "--augment", "learn")
    code, said = invoke(*words)
    assert code == 0, said
    page = (out / "report.html").read_text()
    assert "averaged over 8 transformations of each image: translation x, translation y, rotation" in said
    for name in ("translation x", "rotation", "shear"):
        assert f"{name}: " in said
        assert f"<li>{name}: " in page
    assert "The data ask for " in said
    assert "The data ask for " in page
    assert any(record.extents for record in read_records(out)[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--augment", "learn", "--paths", "conv"), "Leave --paths and --group out"),
        (("--augment", "learn", "--by", "map"), "Leave --by map out"),
        (("--augment", "all"), "--augment must be one of learn, flip-crop"),
        (("--group", "p4m"), "--group is that of gconv paths"),
    ],
)
def test_options_of_images_that_do_not_go_together_are_refused(options, message, tmp_path):
    code, said = invoke("fit", "upright-digits", "--out", tmp_path / "run", *options)
    assert code == 2
    assert message in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--paths", "conv"), "is a table, for which there is a perceptron"),
        (("--group", "p4"), "is a table, for which there is a perceptron"),
        (("--augment", "learn"), "--augment is for images"),
    ],
)
def test_options_of_images_are_refused_for_tables(options, message, tmp_path):
    path = write_table(tmp_path / "t.csv", ["yes", "no"] * 20)
    code, said = invoke("fit", path, "--target", "goal", "--out", tmp_path / "run", *options)
    assert code == 2
    assert message in said


def test_a_folder_of_validation_is_watched(tmp_path):
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        paint(tmp_path / "images" / part, count, size=(8, 8))
    code, said = invoke("fit", tmp_path / "images", "--out", tmp_path / "run", "--width", "1", "--epochs", "1", "--by", "map")
    assert code == 0, said
    assert "12 training, 4 validation and 6 test inputs" in said
    assert "validation accuracy" in said
    summary, history = read_records(tmp_path / "run")
    assert (summary.num_data, summary.held_out.num_data) == (12, 6)
    assert "accuracy" in history[-1].validation
    assert "On validation data, which were watched and decided nothing" in (tmp_path / "run" / "report.html").read_text()


def test_a_table_of_values_is_scored_in_its_own_units(tmp_path):
    path = write_table(tmp_path / "t.csv", [100.0 + 7.5 * index for index in range(40)])
    code, said = invoke("fit", str(path), "--target", "goal", "--out", str(tmp_path / "run"), "--epochs", "2")
    assert code == 0, said
    assert "root mean squared error" in said


def test_what_is_wrong_with_data_is_said(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3)))
    for data, message in ((tmp_path / "a.npz", "must hold arrays x and y"), ("gone.csv", "There is no file or folder")):
        code, said = invoke("fit", data, "--out", str(tmp_path / "run"))
        assert code == 2
        assert message in said


def test_the_doctor_says_what_there_is_and_fails_where_something_is_wrong(monkeypatch):
    assert doctor._evidence("cpu")[1]
    monkeypatch.setattr(doctor, "CHECKS", {"sums": lambda device: ("1 + 1 = 2", True)})
    code, said = invoke("doctor")
    assert code == 0, said
    assert "torch" in said
    assert "All is well." in said
    monkeypatch.setattr(doctor, "CHECKS", {"sums": lambda device: ("1 + 1 = 3", False), "more": lambda device: 1 / 0})
    code, said = invoke("doctor")
    assert code == 1
    assert "2 of 2 checks failed" in said
    assert "ZeroDivisionError" in said


def test_evidence_that_is_wrong_is_found_by_the_doctor(monkeypatch):
    monkeypatch.setattr(doctor, "posterior_mode", lambda features, *_: 0 * features[:5, :2])
    assert not doctor._evidence("cpu")[1]


def test_shells_complete_the_names_of_tasks():
    environment = {"_SYMBAYES_COMPLETE": "complete_bash", "COMP_WORDS": "symbayes fit plac", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "symbayes"]
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert found.stdout.split() == ["placed-digits"]


@pytest.mark.parametrize("words", [("--version",), ("fit", "--help")])
def test_the_package_is_a_command_too(words):
    found = subprocess.run([sys.executable, "-m", "symbayes", *words], capture_output=True, text=True, check=True)
    assert "symbayes" in found.stdout


def test_several_results_are_shown_side_by_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_table(tmp_path / "t.csv", ["yes", "no"] * 20)
    for width in ("4", "8"):
        assert invoke("fit", path, "--target", "goal", "--out", f"runs/{width}", "--epochs", "1", "--width", width)[0] == 0
    code, said = invoke("report", "runs/4", "runs/8")
    assert (code, said) == (0, "comparison.html")
    page = (tmp_path / "comparison.html").read_text()
    assert "<h1>2 runs side by side</h1>" in page
    for words in ("accuracy", "nll", "log evidence per datum", "converged", "4: weights are still moving", "8: weights are"):
        assert words in page
    assert page.count('class="num best"') > 2
    assert ">task<" not in page
    assert invoke("report", "runs/4", "runs/none")[0] == 2
    longer = write_table(tmp_path / "longer.csv", ["yes", "no"] * 30)
    assert invoke("fit", longer, "--target", "goal", "--out", "runs/longer", "--epochs", "1")[0] == 0
    assert invoke("report", "runs/4", "runs/longer")[0] == 0
    page = (tmp_path / "comparison.html").read_text()
    assert "Runs have learned from different data: their evidences are not to be compared." in page
    evidence = page[page.index("log evidence per datum</th>") : page.index("converged</th>")]
    assert "best" not in evidence


def test_a_folder_that_is_called_like_a_task_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    code, said = invoke("fit", "mnist", "--data", "mnist", "--out", "run")
    assert code == 2
    assert "'mnist' needs the file" in said
    code, said = invoke("fit", "placed-digits", "--size", "8", "--out", "run")
    assert code == 2
    assert "are for data of your own; 'placed-digits' is a task by its name" in said
