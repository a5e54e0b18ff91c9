"""The picture of learned frequencies: what it says, and that it stays on its card."""

import pytest

from papers.demos.frequency_page import best, frequency_page, frequency_table, panels, picture
from papers.tests import drawings
from papers.tests.drawings import check_layout, figure_of


def one(by, start, square, log_evidence=None, spread=0.1):
    found = {
        "by": by,
        "start": start,
        "square": square,
        "history": [start, square],
        "training": 0.031,
        "test": 0.052,
        "mean": [-0.5, 9.0, 0.4, 0.8],  # far above what is drawn, in one place
        "deviation": [spread, 8.0 if spread else 0.0, spread, spread],
    }
    return found if log_evidence is None else {**found, "log_evidence": log_evidence, "estimator": "a bound", "noise": [0.2]}


def exact(square, log_evidence, **more):
    errors = {"training": 0.04, "test": 0.05}
    return {"square": square, "log_evidence": log_evidence, "bayes": errors, "least squares": errors, **more}


FOUND = {
    "settings": {"data": 3, "square": 1.5, "noise": 0.2, "epochs": 1, "starts": (0.3, 10.0)},
    "reach": 4.0,
    "grid": [-4.0, -1.0, 1.0, 4.0],
    "function": [0.0, 0.5, 1.0, -1.0],
    "data": [[-1.0, 0.4], [0.0, 0.7], [2.0, 0.9]],
    "runs": [
        one("evidence", 0.3, 1.91, -39.7),
        one("evidence", 10.0, 1.86, -39.5),
        one("maximum likelihood", 0.3, 0.5, spread=0.0),
        one("maximum likelihood", 10.0, 9.7, spread=0.0),
        one("fixed", 10.0, 10.0, -71.2),
        one("fixed", 0.3, 0.3, -980.4),
    ],
    "twin": {
        "scan": [exact(0.1, -300.0), exact(1.2, -7.0), exact(20.0, -60.0)],
        "starts": [exact(1.18, -6.9, start=0.3, history=[0.3, 1.18])],
    },
}


def words():
    return drawings.words(picture(FOUND))


def test_of_several_starts_the_one_of_most_evidence_is_shown_between_the_lowest_and_the_highest():
    assert best(FOUND)["start"] == 10.0
    assert list(panels(FOUND, "evidence")) == [
        "lowest by hand: ω² = 0.3",
        "learned, of most evidence: ω² = 1.86",
        "highest by hand: ω² = 10",
    ]
    assert list(panels(FOUND, "maximum likelihood")) == ["from ω² = 0.3 to 0.5", "from ω² = 10 to 9.7"]


def test_titles_say_what_came_out_and_not_what_should():
    """Also where learning was cut short, and the evidence has led nowhere yet."""
    assert "ω² ends at 0.5 to 9.7 by maximum likelihood, at 1.86 to 1.91 by the evidence" in words()
    short = FOUND | {"runs": [run | {"square": run["start"]} for run in FOUND["runs"]]}
    title = "ω² ends at 0.3 to 10 by maximum likelihood, at 0.3 to 10 by the evidence"
    assert frequency_table(short).outcome == f"{title}."
    assert f"<title>{title}</title>" in picture(short)
    page = frequency_page(short)
    for claim in ("finds one", "takes any", "any frequency will do", "ever better"):
        assert claim not in page
    assert "most closely at ω² = 0.1." in page


def test_the_picture_says_evidence_and_errors():
    for expected in ("log evidence", "−39.5", "−980.4", "training error", "0.031", "test error", "0.052"):
        assert expected in words()
    assert any("3 points of a smooth function" in text for text in words())


def test_there_is_a_band_where_weights_are_integrated_over_and_nowhere_else():
    shown = figure_of(picture, FOUND).axes[:5]
    assert [len(axes.collections) for axes in shown] == [0, 0, 1, 1, 1]
    edges = shown[3].collections[0].get_paths()[0].vertices.tolist()
    assert [-4.0, -0.7] in edges  # two deviations of 0.1 below a mean of −0.5
    assert [-4.0, -0.3] in edges


def test_curves_go_through_their_points():
    *shown, epochs, network, twin = figure_of(picture, FOUND).axes
    for axes in shown:
        function, data, mean = (line.get_xydata().tolist() for line in axes.lines)
        assert function == [[-4.0, 0.0], [-1.0, 0.5], [1.0, 1.0], [4.0, -1.0]]
        assert data == FOUND["data"]
        assert mean == [[-4.0, -0.5], [-1.0, 9.0], [1.0, 0.4], [4.0, 0.8]]
        assert axes.get_ylim()[1] < 2  # the mean is cut off where it is far above
    truth, *curves = epochs.lines
    assert list(truth.get_ydata()) == [1.5, 1.5]
    assert [list(curve.get_ydata()) for curve in curves] == [[0.3, 0.5], [10.0, 9.7], [0.3, 1.91], [10.0, 1.86]]
    low, high = epochs.get_ylim()
    assert low < 0.3 < 10 < high
    _, scanned, ended = network.lines
    assert scanned.get_xydata().tolist() == [[0.3, -980.4], [10.0, -71.2]]
    assert ended.get_xydata().tolist() == [[1.91, -39.7], [1.86, -39.5]]
    assert -160 < network.get_ylim()[0] < -139.5  # a hundred nats below the best, not all the way down
    _, scanned, ended = twin.lines
    assert scanned.get_xydata().tolist() == [[0.1, -300.0], [1.2, -7.0], [20.0, -60.0]]
    assert ended.get_xydata().tolist() == [[1.18, -6.9]]


def test_all_of_it_stays_on_the_card():
    check_layout(picture(FOUND))


@pytest.mark.parametrize("said", ["ω² ends between\n0.5 and 9.7", "between 1.86 and\n1.91", "<b>1.86</b>", "ω² = 1.18"])
def test_the_page_says_where_learning_ended(said):
    page = frequency_page(FOUND)
    assert said in page
    assert picture(FOUND) in page


def test_maximum_likelihood_has_no_evidence():
    values = {row.task: [cell.value for cell in row.cells] for row in frequency_table(FOUND).rows}
    assert values["maximum likelihood, from 10"] == ["9.7", "–", "0.031", "0.052"]
    assert values["evidence, from 10"] == ["1.86", "−39.5", "0.031", "0.052"]
    assert values["twin, from 0.3"] == ["1.18", "−6.9", "0.04", "0.05"]
