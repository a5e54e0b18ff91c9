"""Laplace's method and variational inference side by side: cells, table and page, at a small size."""

from dataclasses import replace

import pytest

from papers.demos.inference import WAYS, Settings, study
from symbayes.cli.study import Outcome, page_runs
from symbayes.report.runs import comparison_page
from symbayes.training.symmetries import TensorRow

SMALL = Settings(epochs=3, width=1)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    made = study(SMALL)
    epochs: list[int] = []
    found = [made.work(cell, lambda record: epochs.append(record.epoch)) for cell in made.cells[:2]]
    assert epochs == [1, 1, 2, 3]  # Laplace's method has a third of them
    # The second task would take as long again: its table is that of the first.
    return [*found, *(replace(one, cell=replace(one.cell, task="digit and quadrant")) for one in found)]


def test_both_ways_are_shown(outcomes):
    figures = study(SMALL).table(outcomes)
    assert figures.columns == tuple(WAYS)
    assert [row.task for row in figures.rows] == ["digit", "digit and quadrant"]
    for row in figures.rows:
        assert sum(cell.best for cell in row.cells) >= 1
        assert all(cell.value.endswith(" %") for cell in row.cells)
        assert all("block" in cell.beneath and len(cell.beneath) < 60 for cell in row.cells)
    assert "γ above 0.5" in figures.legend
    assert "KFAC" in figures.note
    assert "evidence lower bound (mean-field, 32 draws)" in figures.note


def test_a_block_whose_bias_breaks_translation_is_named_at_a_share_of_nothing(outcomes):
    row = next(row for row in outcomes[0].result.symmetries if row.path == "factored")
    bias = TensorRow("factored.scatter.bias", 60.1, ("translation",))
    loud = replace(
        outcomes[0], summary=replace(outcomes[0].result, symmetries=(replace(row, share=0.0, effective=60.3, tensors=(bias,)),))
    )
    first = study(SMALL).table([loud, *outcomes[1:]]).rows[0].cells[0]
    assert first.beneath.endswith("; 1 block, most block1: 0 %, γ 60.3")


def test_the_page_shows_symmetries_and_calibration(outcomes):
    made = study(SMALL)
    page = comparison_page(made.title, made.about, made.table(outcomes), page_runs(made, outcomes))
    for way in WAYS:
        assert f"digit: {way}" in page
    assert "reliability0" in page
    assert all(outcome.result.calibration.ece >= 0 for outcome in outcomes)
