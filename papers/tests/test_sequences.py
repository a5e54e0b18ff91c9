"""The two questions about sequences: what each model can see, and that the evidence tells them apart."""

import pytest
import torch

from papers.data import load
from papers.demos.sequences import MODELS, TASKS, Settings, broken_blocks, run_cell, study
from symbayes.cli.study import Cell
from symbayes.models import allconv
from symbayes.training.symmetries import shares_over_layers

_, PLACED = TASKS


def test_a_convolutional_network_cannot_see_the_place(generator):
    task = load(TASKS[PLACED])
    inputs = task.test[0][:5].double()
    for paths in MODELS.values():
        model = allconv(task, paths, 1, generator=generator).double()
        kept = torch.allclose(model(inputs.roll(16, 2)), model(inputs), rtol=0, atol=1e-12)
        assert kept == (paths == ("conv",))


def test_the_evidence_keeps_translation_where_place_does_not_matter_and_breaks_it_where_it_does():
    motif, placed = (run_cell(Settings(epochs=24), Cell(task, "F-FC+CONV"), lambda record: None) for task in TASKS)
    assert motif.metrics["position effect"] < 0.1
    assert placed.metrics["position effect"] > 0.9
    # At shares of 95 % and more, in every block: no sentence may claim that all of them keep translation.
    assert all(row.share > 0.9 for row in placed.result.symmetries if row.path == "conv")
    (block6,) = (words for words in placed.words if words.startswith("block6 "))
    assert "breaks translation (equivariance error " in block6
    assert block6.endswith(" break it")
    shares = [shares_over_layers(outcome.result.symmetries)["conv"].smallest for outcome in (motif, placed)]
    assert shares[1] < shares[0] - 0.01
    # Where a map of eight cells becomes one of four, a quarter of the sequence each.
    effective = [
        {row.layer: row.effective for row in outcome.result.symmetries if row.path == "factored"}["block6"]
        for outcome in (motif, placed)
    ]
    assert effective[1] > 5 * effective[0]
    # An invariant network has at most one quarter right of the four that a motif is in.
    assert min(motif.metrics["accuracy"], placed.metrics["accuracy"]) > 0.5


def test_all_runs_make_a_table():
    made = study(Settings(epochs=1, width=1, seed=3))
    outcomes = [made.work(cell, lambda record: None) for cell in made.cells]
    assert [(outcome.cell.task, outcome.cell.model, outcome.cell.seed) for outcome in outcomes] == [
        (task, model, 3) for task in TASKS for model in MODELS
    ]
    table = made.table(outcomes)
    assert table.columns == tuple(MODELS)
    assert [row.task for row in table.rows] == list(TASKS)
    for row in table.rows:
        assert sum(cell.best for cell in row.cells) == 1
    accuracy = float(table.rows[1].cells[0].value.removesuffix(" %"))
    assert accuracy == pytest.approx(100 * outcomes[3].metrics["accuracy"], abs=0.06)
    assert [len(broken_blocks(outcome)) for outcome in outcomes[:2]] == [8, 0]
    assert [outcome.has_choice for outcome in outcomes] == 2 * [False, False, True]
