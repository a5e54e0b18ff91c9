"""The page of what is conserved: what it says, what it draws, and that it works where little is known."""

from dataclasses import replace
from math import inf, log10, nan

import pytest

from symbayes.data.storage import from_json
from symbayes.dynamics.summary import DiscoveryRecord, DiscoverySummary, Portrait
from symbayes.report import discovery as report
from symbayes.report.discovery import (
    error_line,
    generator_map,
    level_lines,
    measured,
    percent,
    portrait,
    singular_bars,
    training_lines,
)
from tests.report.discovery_sample import BODIES, bodies, oscillators, quantity


def read(found) -> DiscoverySummary:
    """What was saved."""
    return from_json(found, DiscoverySummary, "discovery")


def headline(found) -> str:
    return read(found).headline()


def discovery_table(found):
    return report.discovery_table(read(found))


def own(found) -> str:
    """The page without scripts."""
    page = report.discovery_page(read(found))
    assert "<script" not in page
    return page


def nothing(kind="quadratic", **more):
    """A discovery that found nothing, and of which little is known."""
    found = oscillators()
    found["model"] |= {"kind": kind, "quantities": 0, "samples": None, "measure": None}
    empty = {"singular_values": [], "generators": [], "quantities": [], "portraits": [], "history": [], "times": []}
    unknown = {"count": 0, "truth": None, "evidence": None, "noise": None, "rollout": None, "errors": {}}
    return found | empty | unknown | more


@pytest.fixture(scope="module")
def page() -> str:
    return own(oscillators())


@pytest.mark.parametrize(
    "text",
    [
        "<h1>4 conserved quantities in 2-oscillators, on 8 held-out trajectories of 8 time units</h1>",
        "Each row is a quantity that was found. All are confirmed on 8 held-out trajectories of 8 time units.",
        "Drift: how far it moves on 8 held-out trajectories of 8 time units",
        "4 conserved quadratics are known to be there.",
        "q1² + 0.99 p1²",
        "0.4 % ± 0.1",
        "1.0 % ± 0.2",
        "1.0003 ± 0.0004",
        "2 hidden layers of 50 units, and 8 quadratic quantities",
        "400 pairs of states, 0.2 apart",
        "−7.77",
        "−3,108.0",
        "evidence lower bound (matrix-normal)",
        "Noise 0.0316, given.",
        "Monte Carlo over weights",
        "mean weights",
        "0.00036",
        "25 times as long as the data",
        "drifts by 0.2 %",
        "ImplicitMidpoint(4)",
        "1,500 updates in 41 s",
    ],
)
def test_words_and_numbers_are_on_the_page(page, text):
    assert text in page


def test_every_figure_is_on_the_page(page):
    names = ["bars", "training", *(f"series_{at}" for at in range(4)), "portrait_0", "portrait_1"]
    for name in [*names, *(f"rollout_{at}" for at in range(3)), *(f"generator_{at}" for at in range(8))]:
        assert page.count(f'<div id="{name}"') == 1
    assert page.count("<svg viewBox") == 11 + 8
    assert page.count("<details>") == 4


def test_page_loads_nothing_and_offers_no_upload(page):
    for load in ("http://", "https://", "<script src", "<link", "<img", "@import", "url("):
        assert load not in page


def test_pages_of_the_same_discovery_are_equal(page):
    assert own(oscillators()) == page


def test_words_of_users_are_escaped():
    evil = "<script>alert(1)</script>"
    found = oscillators()
    found |= {"title": evil, "names": [evil, '"q2"', "p1", "p2"], "errors": {evil: {"sampled": 1.0, "plug-in": None}}}
    found["quantities"][0] |= {"formula": evil, "terms": [{"monomial": evil, "learned": 1.0, "fitted": None, "error": None}]}
    found["portraits"][0]["names"] = [evil, "p1"]
    found["evidence"]["estimator"] = found["model"]["integrator"] = found["rollout"]["integrator"] = evil
    page = own(found)
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<h1>4 conserved quantities in &lt;script&gt;alert(1)&lt;/script&gt;, on 8" in page


def test_long_names_are_cut_beside_heatmaps_and_shown_as_they_are():
    figure = generator_map([[0.0] * 3] * 3, ["angle_of_the_left_arm", "<b>"], 1.0)
    for axis in (figure.layout.xaxis, figure.layout.yaxis):
        assert axis.ticktext == ("angle_o…", "&lt;b&gt;", "1")
        assert axis.tickvals == (0, 1, 2)


def test_labels_of_very_many_coordinates_do_not_lie_on_each_other():
    names = [f"q{at}" for at in range(60)]
    assert generator_map([[0.0] * 61] * 61, names, 1.0).layout.xaxis.ticktext[-2:] == ("q58", "1")


def test_a_heatmap_shows_every_value_in_colours_that_are_white_at_zero():
    figure = generator_map([[1.0, -0.5], [0.0, 0.25]], ["q"], 2.0)
    (heatmap,) = figure.data
    assert [list(row) for row in heatmap.z] == [[1.0, -0.5], [0.0, 0.25]]
    assert (heatmap.zmin, heatmap.zmax) == (-2.0, 2.0)
    assert heatmap.colorscale == ((0.0, "#0072B2"), (0.5, "#ffffff"), (1.0, "#D55E00"))
    assert figure.layout.yaxis.autorange == "reversed"  # the first row on top
    nothing_moves = generator_map([[0.0, 0.0], [0.0, 0.0]], ["q"], 0.0).data[0]
    assert nothing_moves.zmin < 0 < nothing_moves.zmax


def test_generators_share_their_colours_and_say_how_strong_they_are():
    maps = [[[1.0, 0.0], [0.0, 0.0]], [[-0.125, 0.0], [0.0, 0.0]]]
    page = own(oscillators() | {"generators": maps, "names": ["q"], "singular_values": [2.0, 0.01, 0.001], "count": 1})
    assert page.count('fill="#d55e00"') == 1  # 1 in the first
    assert page.count('fill="#dfedf5"') == 1  # −1/8 in the second, an eighth of the way to the end of the scale
    assert "<figcaption>1: strength 2, above the threshold</figcaption>" in page
    assert "<figcaption>2: strength 0.01, below the threshold</figcaption>" in page


def test_three_bodies_have_small_multiples():
    page = own(bodies())
    assert "7 conserved quantities in 3-body-2d" in page
    assert page.count('<div id="series_') == 7
    assert page.count('<div id="portrait_') == 6
    assert page.count('<div id="generator_') == 10
    for name in [*BODIES, "1"]:
        assert page.count(f">{name}</text>") >= 20


@pytest.mark.parametrize(
    ("kind", "said"), [("quadratic", "nothing of this form is conserved"), ("none", "had no symmetry"), ("neural", "too few")]
)
def test_page_says_that_nothing_was_found(kind, said):
    page = own(nothing(kind))
    assert "<h1>No conserved quantity found in 2-oscillators</h1>" in page
    assert "Nothing was found to be conserved." in page
    assert said in page
    assert "<svg" not in page
    assert "<table" not in page


def test_weak_singular_values_are_shown_where_nothing_was_found():
    page = own(nothing(singular_values=[0.01, 0.002], generators=[[[0.5, 0.5], [0.5, 0.5]]], names=["q"]))
    assert "No direction is stronger than the threshold of 0.05" in page
    assert page.count("<svg viewBox") == 2
    assert page.count(">below the threshold</text>") == page.count("below the threshold</figcaption>") == 1
    assert "None is above the threshold." in page
    assert "None of these is above the threshold." in page


def test_quantities_without_strength_or_truth_are_shown():
    known = {"strength": None, "bracket": None, "rate": None, "rate_error": None}
    one = quantity("q1² + p1²", [[1.0, 1.01]], **known, terms=[])
    found = nothing("neural", quantities=[one], times=[0.0, 0.2], errors={"held out": {"sampled": 1e-4, "plug-in": 2e-3}})
    page = own(found)
    assert headline(found) == "1 conserved quantity in 2-oscillators, on 8 held-out trajectories of 8 time units"
    assert discovery_table(found).columns == ("variation, held out", "drift")
    for absent in ("strength", "bracket", "Rate:", "<details>", "known to be there"):
        assert absent not in page
    assert '<div id="series_0"' in page
    assert "held-out trajectories of the data" in page


def test_page_works_without_a_threshold():
    found = oscillators() | {"threshold": None, "count": None}
    page = own(found)
    assert '<div id="bars"' in page
    assert "threshold None" not in page
    assert "of this form" in own(found | {"quantities": []})


def test_a_false_count_is_said():
    found = oscillators()
    found["truth"]["count"] = 1
    assert "1 conserved quadratic is known to be there, another number than was confirmed." in own(found)


def test_the_table_has_a_row_for_every_quantity():
    table = discovery_table(oscillators())
    assert table.columns == ("strength", "variation, held out", "drift", "bracket, true energy")
    assert [row.task for row in table.rows] == ["q1² + 0.99 p1²", "q2² + 1.01 p2²", "q1 p2 − q2 p1", "q1 q2 + p1 p2"]
    assert [cell.value for cell in table.rows[0].cells][1:] == ["0.4 % ± 0.1", "0.5 %", "0.003"]
    assert not any(cell.beneath or cell.best for row in table.rows for cell in row.cells)
    assert "on 8 trajectories" in table.legend
    on = "on 8 held-out trajectories of 8 time units"
    assert f"Drift: how far it moves {on}, relative to what a quadratic of random coefficients does" in table.legend
    assert table.note == f"4 conserved quantities in 2-oscillators, {on}. 4 conserved quadratics are known to be there."


def test_the_table_of_nothing_says_so():
    table = discovery_table(nothing())
    assert (table.columns, table.rows) == ((), ())
    assert table.note == "No conserved quantity found in 2-oscillators."


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0.004, 0.001, "0.4 % ± 0.1"),
        (0.4, 0.25, "40 % ± 25"),
        (0.01234, None, "1.23 %"),
        (0.01234, 0.0, "1.23 %"),
        (1e-9, 1e-10, "< 0.001 %"),
        (None, None, "–"),
        (nan, 0.1, "–"),
        (0.1, inf, "10 %"),
    ],
)
def test_shares_are_written_to_the_first_digit_of_their_error(value, error, words):
    assert percent(value, error) == words


def test_coefficients_are_written_to_the_first_digit_of_their_error():
    assert measured(-1.00034, 0.0004) == "−1.0003 ± 0.0004"
    assert measured(12.3, 2.0) == "12 ± 2"
    assert measured(1.0, 1e-12) == "1"


def test_bars_are_coloured_by_count_and_axis_stops_below_the_threshold():
    figure = singular_bars([2.0, 1.0, 1e-17, 0.0], 0.05, 2, [0.999, 0.5, 0.0, 0.0])
    assert [bar.name for bar in figure.data] == ["above the threshold", "below the threshold"]
    assert list(figure.data[0].text) == ["1.00", "0.50"]
    low, high = figure.layout.yaxis.range
    assert log10(0.05) - 4 < low < log10(0.05)
    assert log10(2.0) < high < 2
    assert figure.data[1].customdata[0][0] == "1e−17"
    assert figure.layout.annotations[0].y == pytest.approx(log10(0.05))


@pytest.mark.parametrize("count", [0, 3])
def test_bars_of_one_kind_have_one_trace(count):
    assert len(singular_bars([0.3, 0.2, 0.1], 0.25, count).data) == 1


def test_numbers_of_many_bars_are_turned_and_of_very_many_left_out():
    assert singular_bars([1.0] * 12, 0.05, 12, [1.0] * 12).data[0].textangle == -90
    assert singular_bars([1.0] * 50, 0.05, 50, [1.0] * 50).data[0].text is None
    assert singular_bars([], 0.05, 0) is None
    assert singular_bars([0.0], 0.05, 0) is None


def test_training_is_drawn_with_what_records_hold():
    history = read(oscillators()).history
    assert len(training_lines(history, 0.05, 4).data) == 9
    bounds = [replace(record, singular_values=()) for record in history]
    assert [trace.y[-1] for trace in training_lines(bounds, 0.05, 0).data] == [history[-1].negative_elbo]
    assert training_lines(history[:1], 0.05, 4) is None
    assert training_lines([DiscoveryRecord(1), DiscoveryRecord(2)], 0.05, 4) is None


def test_noise_of_one_trajectory_looks_as_small_as_it_is():
    low, high = level_lines([0.0, 1.0], [[10.0, 10.01]]).layout.yaxis.range
    assert high - low > 1.9
    low, high = level_lines([0.0, 1.0], [[1.0, 1.0], [-1.0, nan]]).layout.yaxis.range
    assert low < -1 < 1 < high < 2
    assert level_lines([0.0, 1.0], []) is None


def test_errors_are_on_a_log_axis_without_zeros():
    figure = error_line([0.0, 1.0, 2.0, 3.0], [0.0, 1e-3, 1.0, inf])
    assert figure.layout.yaxis.type == "log"
    assert list(figure.data[0].x) == [1.0, 2.0]
    assert error_line([0.0], None) is None


def test_trajectories_of_a_portrait_are_not_joined():
    figure = portrait(Portrait(("q", "p"), (((0.0, 1.0),), ((1.0, 0.0),)), ()))
    dots = figure.data[1]
    assert list(dots.x) == [0, None, 1, None]
    assert figure.layout.xaxis.title.text == "q"


ON = "on 8 held-out trajectories of 8 time units"


def unconfirmed(*places, too_short=False, **more):
    found = oscillators() | more
    for place in places:
        found["quantities"][place] |= {"confirmed": False, "too_short": too_short, "drift": 0.5}
    return found


@pytest.mark.parametrize(
    ("found", "title", "verdict"),
    [
        (
            unconfirmed(0),
            f"3 conserved quantities in 2-oscillators, {ON}; 1 more found and not confirmed",
            f"3 of 4 are confirmed {ON}; the others are marked.",
        ),
        (
            unconfirmed(*range(4)),
            f"No conserved quantity in 2-oscillators is confirmed {ON}; 4 found",
            f"None is confirmed {ON}.",
        ),
        (
            unconfirmed(*range(4), too_short=True, truth=None, followed={"time": 0.25, "from_start": True}),
            "Too short to tell what is conserved in 2-oscillators, along the whole trajectory of 0.25 time units; 4 found",
            "None is confirmed along the whole trajectory of 0.25 time units.",
        ),
    ],
)
def test_what_held_out_trajectories_do_not_confirm_is_said_and_not_counted(found, title, verdict):
    page = own(found)
    assert headline(found) == title
    assert f"<h1>{title}</h1>" in page
    assert verdict in page
    doubt = "too short to tell" if found["quantities"][0]["too_short"] else "not confirmed"
    assert discovery_table(found).rows[0].task.endswith(f"({doubt})")
    assert page.count(f"<figcaption>1: q1² + 0.99 p1² ({doubt})</figcaption>") == 1


@pytest.mark.parametrize(
    "found", [nothing(singular_values=[0.01, 0.002]), unconfirmed(*range(4)), unconfirmed(*range(4), truth=None)]
)
def test_no_caption_of_a_page_calls_conserved_what_was_not_confirmed(found):
    page = own(found)
    for claim in (">conserved<", '"conserved"', "count as conserved", "stays the same along", ">conserved quantity<"):
        assert claim not in page
    assert "another number than was confirmed" in page or found["truth"] is None


def test_what_was_given_is_not_said_to_be_found():
    found = unconfirmed(0)
    found["model"]["kind"] = "fixed"
    assert headline(found).endswith("; 1 more given and not confirmed")
    assert "Each row is a quantity that was given." in own(found)


def test_discoveries_that_were_saved_before_the_time_was_kept_are_shown():
    found = oscillators()
    del found["followed"]
    for one in found["quantities"]:
        del one["drift"], one["reference"], one["too_short"]
    assert headline(found) == "4 conserved quantities in 2-oscillators, on 8 held-out trajectories"
    assert discovery_table(found).columns == ("strength", "variation, held out", "bracket, true energy")
    assert "Drift" not in own(found)
