"""The set task and the ordered one: what they depend on, and that the evidence tells them apart."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.experiments.cells import Cell
from symbayes.experiments.sets import MODELS, TASKS, Settings, cells, draw, learned, run_all, run_cell, set_network, table

SET, ORDERED = TASKS


def test_one_task_ignores_the_order_and_the_other_depends_on_it(generator):
    numbers = torch.randn(20, 8, generator=generator)
    assert_close(TASKS[SET](numbers), TASKS[SET](numbers.flip(1)))
    assert_close(TASKS[ORDERED](numbers), -TASKS[ORDERED](numbers.roll(4, 1)))
    inputs, targets = draw(SET, 5, generator)
    assert (inputs.shape, targets.shape) == ((5, 1, 8), (5, 1))


def test_a_network_of_orbit_paths_cannot_see_the_order(generator):
    inputs = torch.randn(3, 1, 8, generator=generator)
    for paths in MODELS.values():
        model = set_network(paths, 4, generator=generator)
        assert model(inputs).shape == (3, 1)
        kept = torch.allclose(model(inputs), model(inputs.flip(2)), atol=1e-5)
        assert kept == (paths == ("orbit",))


def test_the_evidence_keeps_permutation_on_the_set_and_breaks_it_on_the_sequence():
    settings = Settings(epochs=300, width=6, num_data=200)
    of_set, of_sequence = (run_cell(Cell(task, "FC+ORBIT"), settings) for task in (SET, ORDERED))
    assert max(of_set.error, of_sequence.error) < 0.2
    assert of_set.order_effect < 0.01
    assert of_sequence.order_effect > 0.8
    # The pooling layer is where the order enters. On a set its dense path can also pool, so it need not be off altogether.
    assert of_set.orbit_share > of_sequence.orbit_share + 0.1
    dense = [outcome.summary["symmetries"][-2]["precision"] for outcome in (of_set, of_sequence)]
    assert dense[0] > 10 * dense[1]
    assert [words[:19] for words in of_set.summary["words"][:2]] == ["0 keeps permutation", "2 keeps permutation"]
    assert of_sequence.summary["words"][2].startswith("4 keeps part of permutation")
    strict = run_cell(Cell(ORDERED, "ORBIT"), Settings(epochs=100, width=6, num_data=200))
    assert strict.error > 0.9
    assert of_sequence.log_evidence > strict.log_evidence


def test_all_runs_make_a_table():
    said = []
    settings = Settings(epochs=4, width=2, num_data=30, seeds=2)
    outcomes = run_all(settings, lambda share, what: said.append((share, what)))
    assert [outcome.cell for outcome in outcomes] == cells(2)
    assert said[0] == (0.0, f"FC on {SET}, seed 0")
    made = table(outcomes)
    assert made["columns"] == list(MODELS)
    assert [row["task"] for row in made["rows"]] == list(TASKS)
    for row in made["rows"]:
        assert sum(cell["best"] for cell in row["cells"]) == 1
        assert [cell["orbit_share"] for cell in row["cells"][:2]] == [0, 1]
    first = [outcome for outcome in outcomes if outcome.cell.model == "FC" and outcome.cell.task == SET]
    assert made["rows"][0]["cells"][0]["error"] == pytest.approx(sum(outcome.error for outcome in first) / 2)
    assert len(learned(outcomes)) == 4
