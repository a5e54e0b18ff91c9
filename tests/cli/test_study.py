"""Studies: cells in processes of their own, and the tables of the demos."""

import os
import re
from dataclasses import replace

import pytest

from symbayes.cli import demo
from symbayes.cli.app import app
from symbayes.cli.study import Cell, Outcome, accuracy_table, broken_words, page_runs, run_study
from tests.cli.demos import check_demo, check_introduction, work_through
from tests.report.samples import path_row, sample_summary
from tests.small import load_few


@pytest.fixture(scope="module")
def small():
    """The study of quadrants on few data, and what came out."""
    return work_through(demo, load_few)


def test_the_demo_prints_the_table_of_the_paper_and_writes_a_page(small, tmp_path, monkeypatch):
    check_demo(app, ("demo",), *small, tmp_path / "report.html", monkeypatch)


def where(cell, each_epoch):
    """What tells in which process a cell was run."""
    return Outcome(cell, {"process": os.getpid()})


def test_cells_run_in_processes_of_their_own_and_come_back_in_order():
    cells = [Cell("a", "b", seed=seed, cost=float(seed)) for seed in (1, 2)]
    seen = []
    study = replace(demo.study(demo.Settings()), cells=cells, work=where)
    outcomes = run_study(study, lambda share, what: seen.append(share), workers=2)
    assert [outcome.cell for outcome in outcomes] == cells
    assert os.getpid() not in {outcome.metrics["process"] for outcome in outcomes}
    assert seen[-1] == 1.0


def test_an_error_in_a_cell_is_not_lost():
    study = demo.study(demo.Settings(epochs=1, width=1))
    cell = replace(study.cells[0], task="no such task")
    with pytest.raises(KeyError, match="no such task"):
        run_study(replace(study, cells=[cell]), lambda share, what: None, workers=1)


def test_the_table_of_quadrants_is_that_of_the_paper(small):
    study, outcomes = small
    table = study.table(outcomes)
    assert table.columns == tuple(f"{model}, {by}" for by in ("MAP", "evidence") for model in ("FC", "CONV", "F-FC+CONV"))
    assert [row.task for row in table.rows] == ["digit", "digit and quadrant"]
    first = outcomes[0]
    assert table.rows[0].cells[0].value == f"{100 * first.metrics['accuracy']:.1f} %"
    assert [run.model for run in page_runs(study, outcomes) if run.learned] == ["F-FC+CONV"] * 2
    learned = [one for one in outcomes if one.has_choice]
    counts = [sum(bool(re.search(r"breaks? it", words)) for words in one.words) for one in learned]  # by a tensor of some γ
    expected = "; ".join(f"{k} of 8 in {one.cell.model} on {one.cell.task}" for k, one in zip(counts, learned, strict=True))
    assert table.outcome.endswith(f": {expected}.")


def test_the_introduction_says_what_is_expected_and_not_what_comes_out():
    """Which is not known before training, and may be cut short."""
    check_introduction(demo.study(demo.Settings()))


def outcome(task, seed, *gammas):
    rows = tuple(
        path_row(f"block{at}", path, 0.5, name, effective=gamma, relaxes=name is None)
        for at, gamma in enumerate(gammas)
        for path, name in (("dense", None), ("conv", "translation"))
    )
    return Outcome(Cell(task, "both", seed=seed), {}, replace(sample_summary(), symmetries=rows), words=("said",))


def test_nothing_is_the_best_where_all_are_the_same():
    def one(model, accuracy):
        return Outcome(Cell("a", model), {"accuracy": accuracy}, sample_summary())

    def marked(*scores):
        names = [str(k) for k in range(len(scores))]
        table = accuracy_table([one(*pair) for pair in zip(names, scores, strict=True)], [(name, "evidence") for name in names])
        return [cell.best for cell in table.rows[0].cells]

    assert marked(0.1, 0.1) == [False, False]
    assert marked(0.1, 0.3, 0.3) == [False, True, True]


def test_outcomes_are_counted_from_figures_over_seeds():
    found = [outcome("a", 0, 9.0, 0.1, 0.6), outcome("a", 1, 0.0, 0.0, 0.5), outcome("b", 0, 0.0, 0.0, 0.0)]
    said = "Layers in which a tensor of γ above 0.5 breaks a symmetry: 2, 0 of 3 in both on a; 0 of 3 in both on b."
    assert broken_words(found) == said
    assert broken_words([replace(one, words=()) for one in found]) == ""


def test_an_outcome_without_a_result_has_no_table_of_results():
    alone = Outcome(Cell("a", "b"), {}, found={"square": 1.5})
    assert alone.learned_extents == []
    with pytest.raises(ValueError, match=r"b by evidence on a gave no result of training. Its study must make its own table"):
        _ = alone.log_evidence
