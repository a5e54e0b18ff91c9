"""The picture of points in the plane: what it says, and that it stays on its card."""

from papers.figures.toy_picture import panels, picture
from papers.tests.drawings import check_layout, figure_of, words


def one(by, start, extent, log_evidence, loss):
    return {
        "by": by,
        "start": start,
        "extent": extent,
        "log_evidence": log_evidence,
        "estimator": "exact GGN",
        "training": {"accuracy": 1.0, "loss": loss},
        "test": {"accuracy": 0.9, "loss": 0.3},
        "history": [start, extent],
        "surface": [[0.0, 0.5], [0.25, 1.0]],
    }


FOUND = {
    "settings": {"extent": 80.0, "epochs": 2, "test": 5000},
    "reach": 4.0,
    "data": [[0.0, 1.0, 0], [1.0, -2.0, 1], [0.0, 3.0, 0]],
    "runs": [
        one("fixed", 0.0, 0.0, -0.73, 0.05),
        one("fixed", 180.0, 180.0, -0.69, 0.69),
        one("evidence", 10.0, 88.9, -0.44, 0.06),
        one("evidence", 45.0, 70.2, -0.42, 0.05),
        one("training loss", 10.0, 0.0, -0.82, 0.01),
        one("training loss", 45.0, 62.0, -0.45, 0.02),
    ],
}


def test_of_several_starts_the_best_by_its_own_measure_is_shown():
    shown = panels(FOUND["runs"])
    assert shown["No invariance"]["extent"] == 0.0
    assert shown["Learned by the training loss"]["extent"] == 0.0
    assert shown["Learned by the evidence"]["extent"] == 70.2
    assert shown["A full circle, by hand"]["extent"] == 180.0


def test_the_picture_says_extents_evidence_and_accuracy():
    said = words(picture(FOUND))
    for expected in ("±70°, from 45°", "0°, fixed", "−0.42", "90.0 %", "Learned by the evidence"):
        assert expected in said
    assert any("3 points of two classes" in text and "±80°" in text for text in said)


def test_there_is_an_image_for_each_panel_a_dot_for_each_point_and_a_curve_for_each_run():
    *shown, epochs, evidence = figure_of(picture, FOUND).axes
    assert len(shown) == 4
    for axes in shown:
        (image,) = axes.images
        assert image.get_array().tolist() == [[0.0, 0.5], [0.25, 1.0]]
        assert image.get_extent() == [-4.0, 4.0, -4.0, 4.0]
        assert [line.get_xydata().tolist() for line in axes.lines] == [[[0.0, 1.0], [0.0, 3.0]], [[1.0, -2.0]]]
    truth, *curves = epochs.lines
    assert list(truth.get_ydata()) == [80.0, 80.0]
    learned = [run for run in FOUND["runs"] if run["by"] != "fixed"]
    assert [list(curve.get_ydata()) for curve in curves] == [[run["start"], *run["history"]] for run in learned]
    truth, fixed, ended = evidence.lines
    assert list(truth.get_xdata()) == [80.0, 80.0]
    assert fixed.get_xydata().tolist() == [[0.0, -0.73], [180.0, -0.69]]
    assert ended.get_xydata().tolist() == [[88.9, -0.44], [70.2, -0.42]]


def test_nothing_is_drawn_outside_the_card():
    check_layout(picture(FOUND))
