"""The set task and the ordered one: what they depend on, and that the evidence tells them apart."""

import pytest
import torch
from torch.testing import assert_close

from papers.demos.sets import MODELS, TASKS, Settings, draw, run_cell, set_network, study
from symbayes.cli.study import Cell
from symbayes.training.symmetries import shares_over_layers

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


def run(settings, task, model):
    return run_cell(settings, Cell(task, model), lambda record: None)


def test_the_evidence_keeps_permutation_on_the_set_and_breaks_it_on_the_sequence():
    settings = Settings(epochs=300, width=6, num_data=200)
    of_set, of_sequence = (run(settings, task, "FC+ORBIT") for task in (SET, ORDERED))
    assert max(of_set.metrics["error"], of_sequence.metrics["error"]) < 0.2
    assert of_set.metrics["order effect"] < 0.01
    assert of_sequence.metrics["order effect"] > 0.8
    # The pooling layer is where the order enters. On a set its dense path can also pool, so it need not be off altogether.
    shares = [shares_over_layers(outcome.result.symmetries)["orbit"].smallest for outcome in (of_set, of_sequence)]
    assert shares[0] > shares[1] + 0.1
    dense = [outcome.result.symmetries[-2].precision for outcome in (of_set, of_sequence)]
    assert dense[0] > 10 * dense[1]
    first, second = of_set.words[:2]
    assert first.startswith("layer1 keeps permutation")
    assert second.startswith("layer2 keeps permutation")
    assert of_sequence.words[2].startswith("layer3 breaks permutation (equivariance error ")
    strict = run(Settings(epochs=100, width=6, num_data=200), ORDERED, "ORBIT")
    assert strict.metrics["error"] > 0.9
    assert of_sequence.log_evidence > strict.log_evidence


def test_all_runs_make_a_table():
    made = study(Settings(epochs=4, width=2, num_data=30, seed=3, seeds=2))
    assert [cell.seed for cell in made.cells] == 6 * [3, 4]
    outcomes = [made.work(cell, lambda record: None) for cell in made.cells]
    table = made.table(outcomes)
    assert table.columns == tuple(MODELS)
    assert [row.task for row in table.rows] == list(TASKS)
    for row in table.rows:
        assert sum(cell.best for cell in row.cells) == 1
    error = sum(outcome.metrics["error"] for outcome in outcomes[:2]) / 2
    assert float(table.rows[0].cells[0].value) == pytest.approx(error, abs=1e-3)
    assert sum(outcome.has_choice for outcome in outcomes) == 4
