"""Calibration on pages: dots against the diagonal, scores as words, and nothing where nothing was measured."""

from dataclasses import replace
from typing import Any

import pytest

from symbayes.data.storage import from_json
from symbayes.posterior.predict import Calibration
from symbayes.report.calibration import reliability, run_calibration, task_calibration
from symbayes.report.page import FigureTable
from symbayes.report.plots import Curve, Run, curves
from symbayes.report.runs import comparison_page, run_page
from tests.report.samples import sample_history, sample_summary


def classes(**changed: Any) -> Calibration:
    rows = [
        {"low": 0.4, "high": 0.5, "count": 25, "confidence": 0.45, "accuracy": 0.4},
        {"low": 0.9, "high": 1.0, "count": 100, "confidence": 0.96, "accuracy": 0.88},
    ]
    scores = {"accuracy": 0.784, "ece": 0.074, "brier": 0.2345, "rmse": None, "nll": 0.5678}
    saved = {"of": "classes", "by": "linearised (Laplace & KFAC)", "num_data": 1125, "rows": rows, **scores, **changed}
    return from_json(saved, Calibration, "calibration")


def values() -> Calibration:
    rows = [{"level": 0.5, "coverage": 0.62}, {"level": 0.95, "coverage": 0.93}]
    scores = {"accuracy": None, "ece": None, "brier": None, "rmse": 0.01234, "nll": -1.5}
    saved = {"of": "values", "by": "sampled (9 draws; mean-field)", "num_data": 40, "rows": rows, **scores}
    return from_json(saved, Calibration, "calibration")


def own(page: str) -> str:
    assert "<script" not in page
    return page


def page_of(measured: Calibration | None) -> str:
    return own(run_page(replace(sample_summary(), calibration=measured), sample_history([-1.0])))


def sample_run(task: str, model: str, objective: str, measured: Calibration | None) -> Run:
    return Run(task, model, objective, False, replace(sample_summary(), calibration=measured), sample_history([-1.0]))


def compared(*runs: Run) -> str:
    return own(comparison_page("Digits", "Two models.", FigureTable(("CONV",)), list(runs)))


def test_dots_are_where_confidence_and_accuracy_are_and_as_large_as_there_are_many():
    diagonal, dots = reliability([(Curve("run", [], 1), classes())]).data
    assert (diagonal.x, diagonal.y) == ((0, 100), (0, 100))
    assert dots.x == pytest.approx((45, 96))
    assert dots.y == pytest.approx((40, 88))
    sizes = [size - 5 for size in dots.marker.size]
    assert sizes[1] / sizes[0] == pytest.approx(2)  # the area by the count
    assert dots.customdata == (25, 100)


def test_coverage_is_drawn_against_the_level():
    figure = reliability([(Curve("run", [], 1), values())])
    assert figure.data[1].x == pytest.approx((50, 95))
    assert figure.data[1].y == pytest.approx((62, 93))
    assert "interval" in figure.layout.xaxis.title.text
    assert not figure.layout.showlegend


def test_the_page_of_a_run_has_plot_and_scores():
    page = page_of(classes())
    assert page.count('<div id="reliability"') == 1
    assert "On 1,125 data; predictions linearised (Laplace &amp; KFAC)." in page
    shown = [
        ("accuracy", "78.4 %"),
        ("calibration error", "7.4 %"),
        ("Brier score", "0.234"),
        ("negative log-likelihood", "0.568"),
    ]
    for name, value in shown:
        assert f'<td>{name}</td><td class="num">{value}</td>' in page
    assert "root mean squared error" not in page
    assert "interval" not in page


def test_the_page_of_a_run_of_values_is_about_intervals():
    page = page_of(values())
    assert '<td>root mean squared error</td><td class="num">0.0123</td>' in page
    assert '<td>negative log-likelihood</td><td class="num">−1.500</td>' in page
    assert "An interval of a level" in page
    assert "Confidence is" not in page


def test_runs_without_calibration_are_shown_without():
    summary = sample_summary()
    assert run_calibration(summary) is None
    page = own(run_page(summary, sample_history([-1.0])))
    assert "can be trusted" not in page
    assert 'id="reliability' not in page
    run = replace(sample_run("digit", "CONV", "MAP", None), summary=summary)
    assert task_calibration([run], curves([run]), "reliability0") is None
    assert "can be trusted" not in compared(run)


def test_a_comparison_has_a_line_for_every_run_that_was_measured():
    measured = [("CONV", "MAP", classes(accuracy=0.5)), ("CONV", "evidence", classes(accuracy=0.6)), ("FC", "MAP", None)]
    runs = [sample_run("digit", *run) for run in measured]
    found = task_calibration(runs, curves(runs), "reliability0")
    assert found is not None
    assert [(row.name, row.cells[0]) for row in found.rows] == [("CONV, MAP", "50.0 %"), ("CONV, evidence", "60.0 %")]
    page = compared(*runs, sample_run("curve", "MLP", "evidence", values()))
    assert page.count('<div id="reliability0_0"') == page.count('<div id="reliability1_0"') == 1
    drawn = reliability([(curve, run.summary.calibration) for curve, run in zip(curves(runs)[:2], runs, strict=False)])
    assert [trace.name for trace in drawn.data[1:]] == ["CONV, MAP", "CONV, evidence"]
    assert len({(trace.line.color, trace.line.dash) for trace in drawn.data[1:]}) == 2
    assert drawn.layout.showlegend
    for text in ("60.0 %", "0.0123", "An interval of a level", "Confidence is", "linearised (Laplace &amp; KFAC)"):
        assert text in page


def test_classes_and_values_of_one_task_have_plots_of_their_own():
    runs = [sample_run("digit", "CONV", "MAP", classes()), sample_run("digit", "CONV", "evidence", values())]
    found = task_calibration(runs, curves(runs), "reliability0")
    assert found is not None
    assert len(found.plots) == 2
    assert found.columns == [
        "accuracy",
        "calibration error",
        "Brier score",
        "root mean squared error",
        "negative log-likelihood",
    ]
    assert [row.cells[3] for row in found.rows] == ["", "0.0123"]


def test_names_are_escaped_and_nothing_is_loaded():
    page = compared(sample_run("digit", "<b>", "evidence", classes(by="<i>")))
    assert "<b>" not in page
    assert "<i>" not in page
    for load in ("http://", "https://", "<script src", "<link", "<img", "@import", "url("):
        assert load not in page
