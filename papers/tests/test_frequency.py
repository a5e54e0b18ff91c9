"""Which frequency, small: waves are what they are said to be, the exact evidence finds the middle, and the demo says it."""

from dataclasses import replace
from math import log, pi
from xml.etree import ElementTree

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from papers.__main__ import app
from papers.demos.frequency import figures, learn, study
from papers.demos.waves import Settings, WaveNetwork, both, function, points, twin, waves
from symbayes.cli import demo
from symbayes.layout import hyperparameters, weights

SMALL = Settings(data=20, test=30, width=6, hidden=3, epochs=3, samples=2, starts=(0.3, 10.0), scan=(0.3, 3.0))


def test_waves_are_cosines_at_the_quantiles_of_a_normal():
    inputs = torch.tensor([[0.0], [0.7]], dtype=torch.float64)
    quantiles = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor([1 / 6, 1 / 2, 5 / 6])).double()
    assert_close(waves(inputs, 2.0, 3), torch.cos(2.0 * inputs * quantiles + pi / 4), rtol=0, atol=1e-6)


def test_the_network_is_that_of_the_talk_and_its_frequency_no_weight():
    model = WaveNetwork(4, 3, 2.5, generator=torch.Generator().manual_seed(0))
    assert model.square == pytest.approx(2.5)
    assert list(hyperparameters(model)) == ["log_omega"]
    assert list(weights(model)) == ["second.weight", "third.weight"]
    inputs = torch.linspace(-1, 1, 5)[:, None]
    hidden = (waves(inputs, 2.5, 4) @ model.second.weight.T).clamp(min=0)
    assert_close(model(inputs), hidden @ model.third.weight.T)


def test_points_are_of_one_function_with_noise():
    settings = Settings(noise=0.5)
    inputs, targets = points(settings, 4000, seed=1)
    assert inputs.abs().max() <= 3
    assert inputs.abs().max() > 2.9
    assert (targets - function(settings, inputs)).std().item() == pytest.approx(0.5, rel=0.05)
    train, test = both(settings)
    assert len(train[0]) == 60
    assert not set(train[0].flatten().tolist()) & set(test[0].flatten().tolist())


def test_the_exact_evidence_finds_the_middle_where_least_squares_find_the_highest():
    settings = Settings(data=40, starts=(0.3, 10.0))
    found = twin(settings, steps=150)
    scan = found["scan"]
    best = max(scan, key=lambda one: one["log_evidence"])
    assert 0.5 < best["square"] < 4
    assert best["log_evidence"] > max(scan[0]["log_evidence"], scan[-1]["log_evidence"]) + 10
    errors = [one["least squares"]["training"] for one in scan]
    assert errors[-1] < 1e-6 < errors[0]
    assert best["bayes"]["test"] < scan[-1]["least squares"]["test"] / 2
    for one in found["starts"]:
        assert one["history"][0] == one["start"]
        assert abs(log(one["square"] / best["square"])) < log(1.5)


def test_the_bound_takes_the_frequency_up_where_it_is_too_low():
    settings = Settings(data=40, width=12, hidden=4, epochs=250, samples=2, test=200)
    found = learn(settings, "evidence", 0.3, lambda record: None)
    assert found["history"][0] == 0.3
    assert found["history"][70] == pytest.approx(0.3)  # at rest for 25 epochs, and 50 more
    assert found["square"] > 0.35


@pytest.mark.parametrize("by", ["evidence", "maximum likelihood", "fixed"])
def test_a_run_gives_frequencies_errors_and_a_curve(by):
    told = []
    found = learn(SMALL, by, 2.0, told.append)
    assert [record.epoch for record in told] == [1, 2, 3]
    assert len(found["history"]) == 4
    assert (found["square"] == pytest.approx(2.0)) == (by == "fixed")
    assert ("log_evidence" in found) == (by != "maximum likelihood")
    assert any(found["deviation"]) == (by != "maximum likelihood")
    assert found == learn(SMALL, by, 2.0, told.append)


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"a start and two squares to scan, all of them above 0; got starts=\(-1.0,\)"):
        replace(SMALL, starts=(-1.0,))


def _in_this_process(study, progress):
    return [study.work(cell, lambda record: None) for cell in study.cells]


def test_page_picture_and_table_are_of_all_runs():
    made = study(SMALL)
    outcomes = _in_this_process(made, None)
    found = figures(SMALL, outcomes)
    assert [(one["by"], one["start"]) for one in found["runs"]] == [
        ("evidence", 0.3),
        ("evidence", 10.0),
        ("maximum likelihood", 0.3),
        ("maximum likelihood", 10.0),
        ("fixed", 0.3),
        ("fixed", 3.0),
    ]
    table = made.table(outcomes)
    assert [row.task for row in table.rows][::2] == [
        "evidence, from 0.3",
        "maximum likelihood, from 0.3",
        "twin, from 0.3",
    ]
    assert [row.cells[1].value == "–" for row in table.rows] == [False, False, True, True, False, False]
    card = ElementTree.fromstring(made.picture(outcomes))
    assert card.tag.endswith("svg")
    page = made.page(outcomes)
    assert "Which frequency?" in page
    assert made.picture(outcomes) in page


def invoke(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "xterm"})


def test_the_demo_prints_a_table_and_writes_page_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run_study", _in_this_process)
    out = tmp_path / "report.html"
    result = invoke("demo", "frequency", "--epochs", "1", "--width", "4", "--out", str(out))
    assert result.exit_code == 0, result.output
    for words in ("learned ω²", "maximum likelihood, from 10", "twin, from 0.3"):
        assert words in result.output
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert out.with_suffix(".svg").read_text(encoding="utf-8").startswith("<svg")
