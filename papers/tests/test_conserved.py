"""Conserved quantities, small: the demo and the table of the paper run through, and say what they must."""

import json

import pytest
import torch
from typer.testing import CliRunner

from papers import noether
from papers.__main__ import app
from papers.demos.command import DEMOS
from papers.demos.conserved import Settings, study
from symbayes.cli import demo
from symbayes.dynamics.search import Search
from symbayes.dynamics.systems import TESTS, Start
from symbayes.dynamics.trajectories import simulate
from symbayes.text import number

QUICK = Search(quantities=2, width=6, hidden=1, samples=2, final_samples=2, updates=4, first=0.5)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    def few(system, step):
        return {name: simulate(system, trajectories=3, steps=3, step=step, start=start) for name, start in TESTS.items()}

    settings = noether.SETTINGS["oscillator"]
    small = noether.Setting(3, 2, 0.2, Start(1.0, 0.5), settings.oracle, QUICK)
    monkeypatch.setattr(noether, "SETTINGS", {"oscillator": small})
    monkeypatch.setattr("papers.demos.conserved.SETTINGS", {"oscillator": small})
    monkeypatch.setattr(noether, "test_sets", few)


def invoke(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "xterm"})


def test_the_demo_is_a_table_and_a_page():
    made = study(Settings(systems=("oscillator",), width=6))
    outcomes = [made.work(cell, lambda record: None) for cell in made.cells]
    table = made.table(outcomes)
    assert [row.task.split(", ")[1] for row in table.rows] == ["plain network", "learned symmetries", "known symmetries"]
    lowest = min(outcome.found.figures["negative_elbo"] for outcome in outcomes)
    best = [row.cells[0] for row in table.rows if row.cells[0].best]
    assert [cell.value for cell in best] == [number(lowest, 2)]
    page = made.page(outcomes)
    assert "how many of the quadratics that were found hold on 3 fresh trajectories of 0.6 time units" in table.legend
    assert table.columns[-1] == "confirmed"
    costs = {outcome.cell.model: outcome.found.figures["negative_elbo"] for outcome in outcomes}
    count = outcomes[1].found.figures["count"]
    least = min(costs, key=costs.get)
    assert table.outcome == f"oscillator: lowest −ELBO / N by the {least}, {count} of 1 quadratics confirmed."
    assert "Three networks" in page
    assert "known symmetries" in page


def test_the_demo_runs_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        demo, "run_study", lambda study, progress: [study.work(cell, lambda record: None) for cell in study.cells]
    )
    monkeypatch.setitem(DEMOS, "conserved", (study, lambda **given: Settings(systems=("oscillator",), **given), ""))
    result = invoke("demo", "conserved", "--epochs", "1", "--width", "5", "--out", str(tmp_path / "report.html"))
    assert result.exit_code == 0, result.output
    assert "learned symmetries" in result.output
    assert "conserved quantit" in (tmp_path / "report.html").read_text()


def test_the_error_of_training_is_what_the_nll_says():
    errors = 0.002 * torch.ones(5, 2, dtype=torch.float64)
    nll = -torch.distributions.Normal(0.0, noether.NOISE).log_prob(errors.sqrt()).sum(1).mean()
    assert noether.train_error({"system": "oscillator", "nll": float(nll)}) == pytest.approx(0.002)


def test_a_plain_energy_that_was_taken_is_said():
    assert noether.confirmed({"gain": -0.4, "count": 0, "truth": None}) == "none (plain taken)"
    assert [noether.confirmed({"count": 7, "truth": 7, **more}) for more in ({}, {"gain": 0.2})] == ["7 of 7"] * 2


def test_rows_of_the_paper_are_kept_with_their_command(tmp_path):
    out = tmp_path / "runs"
    words = ("conserved", "--task", "oscillator", "--out", str(out), "--commit", "abc", "--epochs", "2")
    result = invoke(*words, "--methods", "learned,plain")
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "conserved.json").read_text())
    assert [row["method"] for row in rows] == ["plain", "learned"]
    assert all(row["negative_elbo"] == pytest.approx(row["nll"] + row["kl"]) for row in rows)
    assert rows[0]["commit"] == "abc"
    assert "python -m papers conserved --task oscillator" in rows[0]["command"]
    assert rows[1]["truth"] == 1
    assert rows[1]["updates"] == 2  # one batch in an epoch
    table = (out / "conserved.md").read_text()
    assert "| oscillator | 6 | learned | 0 |" in table
    more = invoke(*words, "--methods", "learned", "--sizes", "2")
    assert more.exit_code == 0, more.output
    assert [(row["trajectories"], row["method"]) for row in json.loads((out / "conserved.json").read_text())] == [
        (2, "learned"), (3, "plain"), (3, "learned")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "planets"), "task must be among oscillator; got 'planets'"),
        (("--task", "oscillator", "--methods", "magic"), "methods must be among plain, learned, oracle; got 'magic'"),
        (("--task", "oscillator", "--versions", "r90"), "conserved has no versions"),
    ],
)
def test_rows_that_do_not_exist_are_refused(words, message, tmp_path):
    result = invoke("conserved", "--out", str(tmp_path / "runs"), *words)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
