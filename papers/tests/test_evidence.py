"""Whether the evidence can be trusted: the two studies, in small."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import symbayes as sb
from papers.__main__ import app
from papers.figures import evidence
from papers.figures.evidence import STARTS, Trained, begin, correlation
from symbayes.layout import Layout

ROW = Trained("digits", "conv, width 1", "equal", "evidence", 0, -1.0, 0.1, 0.2, 0.3, 0.9, (0.0, 0.1))


@torch.no_grad()
@pytest.mark.parametrize("start", STARTS)
def test_a_start_has_those_paths_on_that_it_says(start):
    model = sb.allconv(sb.load("placed-digits"), ("factored", "conv"), 1, relaxation=1.0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    prior = sb.TensorwisePrior(model)
    begin(model, prior, start)
    off = {"equal": None, "breaking off": "factored", "only breaking on": "conv"}[start]
    for name, tensor in Layout.of(model).tensors.items():
        is_off = tensor.path == off and tensor.kind == "weight"
        assert (model.get_parameter(name).norm() < before[name].norm()) == is_off
        assert (float(prior.precisions()[name]) != 1) == (tensor.path == off)
    with pytest.raises(ValueError, match="must be one of equal, breaking off, only breaking on"):
        begin(model, prior, "anything")


def test_ranks_are_alike_or_opposite():
    rows = [replace(ROW, log_evidence=-value, test_nll=value**2) for value in (0.1, 0.5, 2.0)]
    assert correlation(rows) == pytest.approx(1)
    assert correlation([replace(row, test_nll=-row.test_nll) for row in rows]) == pytest.approx(-1)


def test_both_are_commands_that_leave_their_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "RANKED", ((("conv",), 1), (("factored", "conv"), 1)))
    monkeypatch.setattr(evidence, "TASKS", ("upright-digits", "placed-digits"))
    quick = ("--epochs", "1", "--size", "40")
    for words, rows in ((("starts", "--task", "placed-digits", "--width", "1", "--seeds", "1"), 4), (("ranks",), 4)):
        out = tmp_path / f"{words[0]}.json"
        result = CliRunner().invoke(app, [*words, *quick, "--out", str(out)])
        assert result.exit_code == 0, result.output
        found = json.loads(out.read_text())
        assert len(found) == rows
        assert all(0 <= row["accuracy"] <= 1 and row["log_evidence"] < 0 and "commit" in row for row in found)
    assert "all: rank correlation" in result.output


def test_a_number_is_no_folder_of_data():
    result = CliRunner().invoke(app, ["starts", "--data", "40"])
    assert result.exit_code == 2
    assert "How many images there are is --size" in " ".join(result.output.replace("│", " ").split())
