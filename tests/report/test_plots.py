from dataclasses import replace

import pytest

from symbayes.report.plots import Curve, Run, curves, estimates, path_colours, precision_curves, share_bars, training_curves
from tests.report.samples import path_row, sample_history, sample_summary


def test_restored_state_is_marked_at_the_epoch_it_comes_from():
    history = sample_history([None, -5.0, -3.0, -4.0, -3.0])
    found, kept = estimates(history)
    assert [record.epoch for record in found] == [2, 3, 4]
    assert found[kept].epoch == 3


def test_last_state_is_marked_where_it_was_kept():
    found, kept = estimates(sample_history([None, -5.0, -3.0]))
    assert [record.epoch for record in found] == [2, 3]
    assert kept == 1


def test_shares_of_a_layer_fill_its_bar():
    rows = [
        path_row("a", "x", 0.25),
        path_row("a", "y", 0.75),
        path_row("b", "y", 0.6),
        path_row("b", "z", 0.4),
        path_row("c", "x", 1.0),
    ]
    figure = share_bars(rows, path_colours((row.layer, row.path) for row in rows))
    total: dict[str, float] = {}
    for bar in figure.data:
        for layer, share in zip(bar.y, bar.x, strict=True):
            total[layer] = total.get(layer, 0) + share
    assert total == pytest.approx({"a": 100, "b": 100})
    assert list(figure.layout.yaxis.categoryarray) == ["a", "b"]


def test_gamma_stands_beside_bars_even_where_a_share_is_nothing():
    rows = [path_row("a", "x", 0.0, effective=60.34), path_row("a", "y", 1.0, effective=1234.5)]
    figure = share_bars([*rows, path_row("b", "y", 0.6), path_row("b", "z", 0.4)], dict.fromkeys("xyz", "#000000"))
    assert [note.text for note in figure.layout.annotations] == ["γ 60.3 | 1,234 | –", "γ – | 303 | 303"]
    assert list(figure.data[0].customdata) == ["60.3"]


def test_a_path_has_one_colour_and_paths_have_different_ones():
    rows = [path_row(layer, path, 0.5) for layer in "abc" for path in ("conv", "dense")]
    colours = path_colours((row.layer, row.path) for row in rows)
    assert list(colours) == ["conv", "dense"]
    assert len(set(colours.values())) == 2


def test_evidence_of_a_run_that_has_it_once_is_drawn_beside_others():
    runs = [Curve("map", sample_history([None, None, -6.0]), 2), Curve("evidence", sample_history([-8.0, -4.0, -2.0]), 2)]
    figure = training_curves(runs)
    diamonds = {trace.name: (trace.x, trace.y) for trace in figure.data if trace.mode == "markers"}
    assert diamonds == {"map": ((3,), (-3.0,)), "evidence": ((3,), (-1.0,))}


def test_negative_losses_are_on_a_linear_axis():
    history = [replace(record, loss=-1.0) for record in sample_history([-1.0])]
    assert training_curves([Curve("run", history, 1)]).layout.yaxis.type == "linear"
    assert training_curves([Curve("run", sample_history([-1.0]), 1)]).layout.yaxis.type == "log"


def test_models_differ_in_colour_and_objectives_in_dash():
    summary = sample_summary()
    runs = [Run("task", model, objective, False, summary, []) for model in ("FC", "CONV") for objective in ("MAP", "evidence")]
    found = curves(runs)
    assert found[0].colour == found[1].colour != found[2].colour
    assert found[0].dash == found[2].dash != found[1].dash == "solid"


@pytest.mark.parametrize("models", [1, 2])
def test_kinds_of_runs_that_are_not_crossed_have_colours_of_their_own(models):
    kinds = [("average", "training loss"), ("average", "evidence"), ("average", "a fixed guess"), ("plain", "evidence")]
    runs = [Run("task", m, o, False, sample_summary(), []) for m, o in kinds[: 2 + models]]
    found = curves(runs)
    assert len({curve.colour for curve in found}) == len(runs)
    assert [curve.dash == "solid" for curve in found] == [run.objective == "evidence" for run in runs]


def test_any_number_of_objectives_and_models_can_be_drawn():
    names = [f"objective {index}" for index in range(9)]
    runs = [Run("task", m, o, False, sample_summary(), []) for m in "ab" for o in names]
    assert len(curves(runs[:-1])) == 17
    assert [curve.name for curve in curves([replace(runs[0], model=names[0])])] == [names[0]]


def test_each_path_has_a_panel_of_precisions_on_a_log_axis():
    figure = precision_curves(sample_history([-3.0, -2.0, -1.0]), sample_summary().symmetries)
    assert {trace.yaxis for trace in figure.data} == {"y", "y2", "y3"}
    assert [title.text for title in figure.layout.annotations] == ["conv", "dense", "Linear"]
    assert {figure.layout[name].type for name in ("yaxis", "yaxis2", "yaxis3")} == {"log"}
