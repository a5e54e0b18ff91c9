"""Pictures are XML, say what they should, and are the same for the same numbers."""

from xml.etree import ElementTree

from symbayes.report.svg import NEGATIVE, POSITIVE, STEPS, Card, diverging, largest

SVG = "{http://www.w3.org/2000/svg}"


def _brightness(colour: str) -> int:
    return sum(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def test_colours_go_from_one_end_through_white_to_the_other():
    values = [index / STEPS for index in range(STEPS + 1)]
    for sign, end in ((1, POSITIVE), (-1, NEGATIVE)):
        colours = [diverging(sign * value, 1.0) for value in values]
        brightness = [_brightness(colour) for colour in colours]
        assert colours[0] == "#ffffff"
        assert colours[-1].upper() == end
        assert brightness == sorted(brightness, reverse=True)
        assert len(set(brightness)) == len(brightness)


def test_colours_stay_at_the_ends_beyond_the_limit():
    assert diverging(7.0, 1.0).upper() == POSITIVE
    assert diverging(-7.0, 1.0).upper() == NEGATIVE
    assert diverging(0.0, 0.0) == "#ffffff"


def test_the_limit_of_maps_is_their_largest_absolute_value():
    assert largest([[[0.5, -3.0]], [[1.0, 2.0]]]) == 3.0


def test_a_heatmap_has_a_cell_for_every_value_in_its_colour():
    card = Card(100, 100, "title")
    card.heatmap(10, 20, [[1.0, -1.0, 1.0], [0.0, 0.0, 0.0]], 5, 1.0)
    shapes = {shape.get("stroke"): shape.get("d") for shape in ElementTree.fromstring(card.svg()).iter(f"{SVG}path")}
    assert shapes == {
        POSITIVE.lower(): "M0 0h1M2 0h1",
        NEGATIVE.lower(): "M1 0h1",
        "#ffffff": "M0 1h1M1 1h1M2 1h1",
    }


def test_the_parts_of_a_bar_are_as_wide_as_their_shares():
    card = Card(100, 100, "title")
    card.shares(10, 0, 200, {"dense": 0.25, "orbit": 0.75}, {"dense": "#000000", "orbit": "#ffffff"})
    parts = list(ElementTree.fromstring(card.svg()).iter(f"{SVG}rect"))[1:]
    assert [(part.get("x"), part.get("width")) for part in parts] == [("10", "50"), ("60", "150")]


def test_words_can_be_turned_and_lines_be_wide():
    card = Card(100, 100, "title")
    card.text(10, 50, "up", turned=True)
    card.line(0, 0, 9, 9, width=2)
    card.dot(5, 5, 3, width=1.5)
    picture = ElementTree.fromstring(card.svg())
    assert [text.get("transform") for text in picture.iter(f"{SVG}text")] == [None, "rotate(-90 10 50)"]
    assert [line.get("stroke-width") for line in picture.iter(f"{SVG}line")] == ["2"]
    assert [dot.get("stroke-width") for dot in picture.iter(f"{SVG}circle")] == ["1.5"]


def test_words_are_shown_as_they_are_and_pictures_load_nothing():
    card = Card(100, 100, "<script> & co")
    svg = card.svg()
    titles = [title.text for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert titles == ["<script> & co"]
    assert "<script" not in svg
    assert svg.count("http") == 1


def test_curves_go_through_their_points_and_images_are_set_in():
    card = Card(100, 100, "title")
    card.curve([(0, 1), (2.5, 3)], "#123456", 2)
    card.image(10, 20, 30, 40, "data:image/png;base64,AA==")
    picture = ElementTree.fromstring(card.svg())
    assert [curve.get("points") for curve in picture.iter(f"{SVG}polyline")] == ["0,1 2.5,3"]
    (image,) = picture.iter(f"{SVG}image")
    assert [image.get(name) for name in ("x", "y", "width", "height")] == ["10", "20", "30", "40"]
    assert image.get("href") == "data:image/png;base64,AA=="
