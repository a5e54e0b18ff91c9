"""The study of invariance: its cells, what they are made of, and its table."""

import pytest
import torch

from papers.demos import invariance
from symbayes.cli.study import Cell, Outcome, page_runs
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import hyperparameters
from symbayes.training.by_curvature import Augerino, Laplace, Map
from tests.report.samples import invariant_summary, sample_extent

TINY = invariance.Settings(epochs=2, width=2, data=60, samples=3)


def outcomes():
    study = invariance.study(TINY)
    return study, [study.work(cell, lambda record: None) for cell in study.cells if cell.task.startswith(("upright", "scaled"))]


def test_every_column_is_trained_as_it_says():
    study, found = outcomes()
    table = study.table(found)
    assert table.columns[-1] == "learned, evidence"
    assert [row.task for row in table.rows] == ["upright", "scaled by up to 60 %"]
    learned = {(o.cell.model, o.cell.objective): any(e.learned for e in o.result.extents) for o in found}
    assert learned == {column: column[0] == "learned" for column in invariance.COLUMNS}
    starts = {o.result.extents[2].value for o in found if o.result.extents}
    assert len(starts) == 5  # each of four that learn ends somewhere else; the guess does not move
    shown = [outcome for outcome in found if outcome.learned_extents]
    assert {(outcome.cell.model, outcome.cell.objective) for outcome in shown} == {("learned", "evidence")}
    runs = page_runs(study, found)
    assert runs[-1].truth == {"scale_x": 60.0, "scale_y": 60.0}
    assert len(runs[-1].summary.orbits) == 4


def test_the_outcome_counts_what_came_near_the_truth():
    def one(task, objective, **extents):
        found = invariant_summary(*(sample_extent(name, value) for name, value in extents.items()))
        return Outcome(Cell(task, "learned", objective), {}, found)

    outcomes = [
        one("turned by up to 90°", "evidence", rotation=88.0, shear=3.0),
        one("turned by up to 90°", "training loss", rotation=0.3, shear=0.0),
        one("scaled by up to 60 %", "evidence", scale_x=44.0, scale_y=46.0),
        one("upright", "evidence", rotation=0.0),
    ]
    said = "0 of 1 by the training loss, 2 of 3 by the evidence."
    assert invariance._outcome(outcomes) == f"Extents that end within a quarter of how far data were transformed: {said}"


def test_a_guess_is_fixed_and_what_is_learned_is_not():
    task = invariance.digits("upright", 60, 0)
    assert len(task.train[0]) == 60
    built = {
        name: invariance.build(name, task, TINY, torch.Generator()) for name in ("no invariance", "a usual guess", "learned")
    }
    assert not isinstance(built["no invariance"], OrbitAverage)
    built["a usual guess"](task.train[0][:2])
    wanted = {"translation_x": 1, "translation_y": 1, "rotation": 15, "scale_x": 10, "scale_y": 10, "shear": 0}
    assert built["a usual guess"].extents == pytest.approx(wanted, abs=1e-4)
    assert hyperparameters(built["a usual guess"]) == {}
    assert len(hyperparameters(built["learned"])) == 1


def test_objectives_by_name():
    assert isinstance(invariance.objective("evidence"), Laplace)
    assert isinstance(invariance.objective("MAP"), Map)
    by_loss = invariance.objective("training loss")
    assert isinstance(by_loss, Augerino)
    assert by_loss.strength == 0


def test_digits_are_turned_as_far_as_the_task_says():
    """The evidence finds the turns of a few digits, in the right order; the whole study is a command."""
    settings = invariance.Settings(epochs=20, data=200, samples=5)
    found = [
        invariance.run_cell(settings, Cell(task, "learned", "evidence"), lambda record: None).history[-1].extents["rotation"]
        for task in ("upright", "turned by up to 180°")
    ]
    assert found[0] < 15
    assert 30 < found[1] <= 180
