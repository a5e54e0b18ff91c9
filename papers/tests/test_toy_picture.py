"""The picture of points in the plane: what it says, and that it stays on its card."""

from base64 import b64decode
from xml.etree import ElementTree

from papers.figures.toy_picture import panels, picture

SVG = "{http://www.w3.org/2000/svg}"


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
    card = ElementTree.fromstring(picture(FOUND))
    words = [text.text for text in card.iter(f"{SVG}text")]
    for expected in ("±70°, from 45°", "0°, fixed", "−0.42", "90.0 %", "Learned by the evidence"):
        assert expected in words
    assert any("3 points of two classes" in (text or "") and "±80°" in text for text in words)


def test_there_is_an_image_for_each_panel_a_dot_for_each_point_and_a_curve_for_each_run():
    card = ElementTree.fromstring(picture(FOUND))
    images = [image.get("href") for image in card.iter(f"{SVG}image")]
    assert len(images) == 4
    assert all(b64decode(image.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG") for image in images)
    fixed, learned = 2, 2
    assert len(list(card.iter(f"{SVG}circle"))) == 4 * len(FOUND["data"]) + fixed + learned + 2
    assert len(list(card.iter(f"{SVG}polyline"))) == 4 + 1


def test_nothing_is_drawn_outside_the_card():
    card = ElementTree.fromstring(picture(FOUND))
    width, height = float(card.get("width")), float(card.get("height"))
    for kind in ("rect", "image"):
        for box in card.iter(SVG + kind):
            assert float(box.get("x")) + float(box.get("width")) <= width
            assert float(box.get("y")) + float(box.get("height")) <= height
    for curve in card.iter(f"{SVG}polyline"):
        for place in curve.get("points").split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
