"""Saved results that are damaged: every file, in many ways, is read or refused in a sentence."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import symbayes as sb
from symbayes.cli.app import app
from symbayes.data import storage as whole
from symbayes.report.runs import write_page
from symbayes.training.record import read_records
from tests.damage import damaged, reseal


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A network of `allconv` with extents of no kind, as it was saved: contents by name."""
    task, folder = sb.load("upright-digits"), tmp_path_factory.mktemp("saved")
    part = (task.train[0][:30], task.train[1][:30])
    result = sb.fit(sb.allconv(task, ("conv", "factored"), 1), part, objective=sb.Map(), epochs=1, progress=False)
    result.save(folder, result.calibration((task.test[0][:20], task.test[1][:20])))
    write_page(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def changed(summary, place, value):
    *outer, last = place
    for name in outer:
        summary = summary[name]
    if value is ...:
        del summary[last]
    else:
        summary[last] = value


def said(words):
    return " ".join(words.replace("│", " ").split())


#: Where, what stands there instead (nothing), and what is said of it.
SHOWN = [
    (["symmetries"], ..., r"result.json must have symmetries"),
    (["symmetries"], {}, r"result.json.symmetries must be a list, got a dictionary"),
    (["symmetries", 0, "share"], None, r"result.json.symmetries\[0\].share must be a number, got null"),
    (["symmetries", 0, "layer"], ["block1"], r"symmetries\[0\].layer must be text, got a list"),
    (["evidence"], None, r"result.json.evidence must be a dictionary, got null"),
    (["evidence", "total"], "−1", r"evidence.total must be a number, got text"),
    (["evidence", "total"], 10**400, r"evidence.total must be a number, got a whole number"),
    (["evidence", "precision"], [1.0], r"evidence.precision must be a dictionary, got a list"),
    (["num_data"], 0, r"there must be data"),
    (["num_data"], True, r"num_data must be a whole number, got true or false"),
    (["num_data"], "many", r"num_data must be a whole number, got text"),
    (["words"], "none", r"words must be a list, got text"),
    (["model"], "allconv", r"model must be a dictionary, got text"),
    (["likelihood", "kind"], ["Categorical"], r"likelihood.kind must be text, got a list"),
    (["calibration", "of"], "colours", r"calibration.of must be 'classes' or 'values', got text"),
    (["calibration", "rows", 0, "count"], "some", r"calibration.rows\[0\].count must be a whole number, got text"),
    (["extents"], [{"name": "rotation"}], r"extents\[0\] must have bound"),
    (["orbits"], [[{"width": 10**9, "height": 1, "channels": 1, "pixels": ""}]], "An image of 1000000000 × 1 × 1 must have"),
]


@pytest.mark.parametrize(("place", "value", "message"), SHOWN, ids=[message for *_, message in SHOWN])
def test_a_page_is_not_made_of_what_is_damaged(place, value, message, folder):
    summary = json.loads((folder / "result.json").read_text())
    if place == ["orbits"]:
        summary["extents"] = [{"name": "rotation", "value": 1.0, "unit": "°", "bound": None, "one_sided": False}]
    changed(summary, place, value)
    (folder / "result.json").write_text(json.dumps(summary))
    reseal(folder)
    before = (folder / "report.html").read_bytes()
    found = CliRunner().invoke(app, ["report", str(folder)], env={"COLUMNS": "400", "TERM": "xterm"})
    assert found.exit_code == 2, found.output
    assert "Traceback" not in found.output
    with pytest.raises(ValueError, match=message):
        raise ValueError(said(found.output))
    assert (folder / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.json", "[]", "has format None; this version reads formats 1 and 2"),
        ("result.json", "", "result.json must be JSON"),
        ("result.json", "[" * 100_000, "result.json must be JSON"),
        ("result.json", b"\xff\xfe", "result.json must be JSON"),
        ("history.jsonl", "", "epochs of which the last has an evidence"),
        ("history.jsonl", "{}", r"history.jsonl\[0\] must have"),
        ("history.jsonl", "[1]", r"history.jsonl\[0\] must be a dictionary, got a list"),
        ("history.jsonl", "{", "history.jsonl must be JSON"),
    ],
)
def test_files_that_are_something_else_are_refused(name, content, message, folder):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    reseal(folder)
    with pytest.raises(ValueError, match=message):
        read_records(folder)
    with pytest.raises(ValueError, match=message):
        sb.load_result(folder)
    found = CliRunner().invoke(app, ["report", str(folder)], env={"COLUMNS": "400", "TERM": "xterm"})
    assert found.exit_code == 2


#: Of the recipe, likelihood and prior, which no page needs.
BUILT = [
    (["model", "recipe"], ["conv"], "recipe must be a dictionary, got a list"),
    (["model", "recipe"], None, "was not made by sb.allconv"),
    (["model", "recipe", "in_shape"], [1, -16, 16], r"is damaged \(allconv needs inputs"),
    (["model", "recipe", "in_shape"], [1, 16.5, 16], r"in_shape\[1\] must be a whole number, got a number"),
    (["model", "recipe", "in_shape"], [10**9, 16, 16], r"the model in result.json is not that in weights.safetensors"),
    (["model", "recipe", "in_shape"], [1] + [256] * 30, r"is damaged"),
    (["model", "recipe", "in_shape"], ..., r"in_shape must be a list, got null"),
    (["model", "recipe", "width"], 10**7, r"the model in result.json is not that in weights.safetensors"),
    (["model", "recipe", "width"], -1, r"is damaged \(width and classes must be 1 or more"),
    (["model", "recipe", "width"], "wide", r"is damaged"),
    (["model", "recipe", "classes"], 10**12, r"the model in result.json is not that in weights.safetensors"),
    (["model", "recipe", "paths"], "conv", r"is damaged"),
    (["model", "recipe", "paths"], ["deep"], r"is damaged \(paths must name some of"),
    (["model", "recipe", "colour"], "red", r"is damaged \(TypeError"),
    (
        ["likelihood", "kind"],
        "Arrivals",
        r"must be among Categorical.*; got Arrivals. Import the module that defines it",
    ),
    (["likelihood"], {"kind": "Gaussian", "settings": {"outputs": 10**12}}, "the likelihood in result.json is not that in"),
    (["likelihood", "settings"], {"outputs": 3}, r"is damaged \(TypeError"),
    (["prior"], "FlatPrior", r"is damaged \(KeyError: 'FlatPrior'"),
    (["learn"], ["nothing*"], r"is damaged \(learn must name tensors of the model"),
    (["learn"], 3, r"learn must be a list, got a whole number"),
    (["evidence", "precision"], {}, r"is damaged \(epochs must have .* and the last that of result.json"),
]


@pytest.mark.parametrize(("place", "value", "message"), BUILT, ids=[message for *_, message in BUILT])
def test_a_result_is_not_built_from_what_is_damaged(place, value, message, folder):
    summary = json.loads((folder / "result.json").read_text())
    changed(summary, place, value)
    (folder / "result.json").write_text(json.dumps(summary))
    reseal(folder)
    with pytest.raises(ValueError, match=message):
        sb.load_result(folder)


@pytest.mark.parametrize("name", ["result.json", "history.jsonl", "weights.safetensors", "posterior.safetensors"])
def test_damaged_files_are_read_or_refused(name, tmp_path):
    data = (torch.randn(12, 2), torch.arange(12) % 3)
    sb.fit(nn.Linear(2, 3), data, epochs=2, progress=False).save(tmp_path)
    path = tmp_path / name
    for index, content in enumerate(damaged(path.read_bytes(), 120)):
        path.write_bytes(content)
        if index % 10:  # most as if they had been saved like that
            reseal(tmp_path)
        try:
            found = sb.load_result(tmp_path, model=nn.Linear(2, 3))
        except ValueError:
            continue
        assert found.predict(data[0], "sampled", samples=2).mean.shape == (12, 3)


def test_a_result_that_has_no_room_leaves_the_one_there_was(folder, files, monkeypatch):
    result = sb.load_result(folder)
    written, real = [], whole.Path.write_bytes

    def write(path, content):
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(whole.Path, "write_bytes", write)
    with pytest.raises(OSError, match="No space left on device"):
        result.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_a_result_whose_posterior_fails_is_kept_without(folder, tmp_path):
    def fail():
        raise sb.NotFiniteError("An eigenvalue is no number.")

    result = sb.load_result(folder)
    object.__setattr__(result, "make_posterior", fail)
    with pytest.raises(sb.NotFiniteError, match="An eigenvalue is no number"):
        result.save(tmp_path / "again")
    assert sb.load_result(tmp_path / "again").evidence == result.evidence
