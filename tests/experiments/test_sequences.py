"""The two questions about sequences: what each model can see, and that the evidence tells them apart."""

import pytest
import torch

from symbayes.data.load import load
from symbayes.experiments.cells import Cell
from symbayes.experiments.sequences import MODELS, TASKS, Settings, cells, learned, run_all, run_cell, table
from symbayes.models import allconv

_, PLACED = TASKS


def test_a_convolutional_network_cannot_see_the_place(generator):
    task = load(TASKS[PLACED])
    inputs = task.test[0][:5].double()
    for paths in MODELS.values():
        model = allconv(task, paths, 1, generator=generator).double()
        kept = torch.allclose(model(inputs.roll(16, 2)), model(inputs), rtol=0, atol=1e-12)
        assert kept == (paths == ("conv",))


def test_the_evidence_keeps_translation_where_place_does_not_matter_and_breaks_it_where_it_does():
    settings = Settings(epochs=24)
    motif, placed = (run_cell(Cell(task, "F-FC+CONV"), settings) for task in TASKS)
    assert motif.position_effect < 0.1
    assert placed.position_effect > 0.9
    assert all(" keeps translation" in sentence for sentence in motif.summary["words"])
    assert placed.conv_share < motif.conv_share - 0.01
    # Where a map of eight cells becomes one of four, a quarter of the sequence each.
    effective = [
        {row["layer"]: row["effective"] for row in outcome.summary["symmetries"] if row["path"] == "factored"}["block6"]
        for outcome in (motif, placed)
    ]
    assert effective[1] > 5 * effective[0]
    # An invariant network has at most one quarter right of the four that a motif is in.
    assert min(motif.accuracy, placed.accuracy) > 0.5


def test_all_runs_make_a_table():
    said = []
    outcomes = run_all(Settings(epochs=1, width=1), lambda share, what: said.append((share, what)))
    assert [outcome.cell for outcome in outcomes] == cells()
    assert said[0] == (0.0, "FC on motif, seed 0")
    made = table(outcomes)
    assert made["columns"] == list(MODELS)
    assert [row["task"] for row in made["rows"]] == list(TASKS)
    for row in made["rows"]:
        assert sum(cell["best"] for cell in row["cells"]) == 1
        assert [cell["conv_share"] for cell in row["cells"][:2]] == [0, 1]
        assert [cell["broken_blocks"] for cell in row["cells"][:2]] == [8, 0]
    assert made["rows"][1]["cells"][0]["accuracy"] == pytest.approx(outcomes[3].accuracy)
    assert len(learned(outcomes)) == 2
