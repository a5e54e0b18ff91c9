"""The picture of learned against true extents: points are where they should be."""

from typing import Any
from xml.etree import ElementTree

import pytest

from symbayes.report.extents import extents_picture

SVG = "{http://www.w3.org/2000/svg}"


def sample_panel(name: str, pairs: list[tuple[float, float]], unit: str = "°", method: str = "evidence") -> dict[str, Any]:
    points = [{"method": method, "truth": truth, "learned": learned} for truth, learned in pairs]
    return {"name": name, "unit": unit, "points": points}


def drawn(*panels: dict[str, Any], notes: tuple[str, ...] = ()) -> ElementTree.Element:
    return ElementTree.fromstring(extents_picture("How far?", "Digits", panels, notes))


def words(picture: ElementTree.Element) -> list[str | None]:
    return [text.text for text in picture.iter(f"{SVG}text")]


def test_points_that_agree_lie_on_the_diagonal_and_others_off_it():
    picture = drawn(sample_panel("digits", [(0.0, 0.0), (90.0, 90.0), (180.0, 45.0)]))
    (diagonal,) = [line for line in picture.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    x1, y1, x2, y2 = (float(diagonal.get(name)) for name in ("x1", "y1", "x2", "y2"))
    assert x2 - x1 == pytest.approx(y1 - y2)
    _, *dots = picture.iter(f"{SVG}circle")  # the first is that of the legend
    above = [(y1 - float(dot.get("cy"))) - (float(dot.get("cx")) - x1) for dot in dots]
    assert above[:2] == pytest.approx([0, 0], abs=0.03)
    assert above[2] < -30


def test_methods_have_marks_of_their_own():
    panel = sample_panel("digits", [(0.0, 1.0), (90.0, 88.0)])
    panel["points"] += sample_panel("", [(0.0, 0.0), (90.0, 0.0)], method="training loss & co")["points"]
    picture = drawn(panel)
    assert "training loss & co" in words(picture)
    fills = [dot.get("fill") for dot in picture.iter(f"{SVG}circle")]
    assert len(fills) == 2 + 4
    assert fills.count("none") == 1 + 2


def test_a_line_goes_through_the_means_of_seeds():
    picture = drawn(sample_panel("digits", [(0.0, 0.0), (90.0, 80.0), (90.0, 100.0)]))
    (line,) = [line for line in picture.iter(f"{SVG}line") if line.get("stroke-width") == "1.2"]
    _, _, *seeds = (float(dot.get("cy")) for dot in picture.iter(f"{SVG}circle"))
    assert float(line.get("y2")) == pytest.approx(sum(seeds) / 2, abs=0.02)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_everything_is_on_the_card(count):
    panels = [sample_panel(f"data {index}", [(0.0, -3.0), (4.0, 5.0)], "px") for index in range(count)]
    picture = drawn(*panels, notes=("Three seeds.",))
    width, height = float(picture.get("width")), float(picture.get("height"))
    for box in picture.iter(f"{SVG}rect"):
        assert float(box.get("x")) + float(box.get("width")) <= width
        assert float(box.get("y")) + float(box.get("height")) <= height
    for dot in picture.iter(f"{SVG}circle"):
        assert 0 < float(dot.get("cx")) < width
        assert 0 < float(dot.get("cy")) < height
    assert {f"data {index}" for index in range(count)} <= set(words(picture))
    assert "Three seeds." in words(picture)
    assert all(0 < float(text.get("y")) < height for text in picture.iter(f"{SVG}text"))


@pytest.mark.parametrize(
    ("unit", "largest", "tick"), [("°", 180.0, "180°"), ("px", 4.0, "4 px"), ("%", 50.0, "50 %"), ("", 0.0, "0")]
)
def test_ticks_are_round_numbers_with_their_unit(unit, largest, tick):
    assert tick in words(drawn(sample_panel("digits", [(0.0, 0.0), (largest, largest)], unit)))


def test_the_same_points_give_the_same_bytes():
    panels = [sample_panel("digits", [(0.0, 1.0), (45.0, 47.0)])]
    assert extents_picture("a", "b", panels) == extents_picture("a", "b", panels)


@pytest.mark.parametrize("panels", [[], [sample_panel("digits", [])]])
def test_a_picture_of_nothing_is_refused(panels):
    with pytest.raises(ValueError, match="at least one"):
        extents_picture("a", "b", panels)
