"""Pictures are XML, say what they should, load nothing, and are the same for the same numbers."""

from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from papers.drawing import NEGATIVE, POSITIVE, card, diverging, drawn, heatmap, largest, plain, share_bars
from papers.tests.drawings import SVG, check_layout, figure_of, words

EVIL = "<script> $x$ & $y$"


@drawn
def example(title, values=((1.0, -1.0, 1.0), (0.0, 0.0, 0.0)), limit=1.0):
    figure = card(400, 300, title, "below", notes=["a note"], legend={"name <b>": "#0072B2"}, scale=True)
    left, right = figure.subplots(1, 2)
    heatmap(left, values, limit)
    right.plot([1, 2, 3], label="line")
    plain(right, "plot")
    return figure


def test_colours_go_from_one_end_through_white_to_the_other():
    colours = diverging()
    assert [to_hex(colours(at)).upper() for at in (0.0, 0.5, 1.0)] == [NEGATIVE, "#FFFFFF", POSITIVE]
    for sign in (1, -1):
        brightness = [sum(colours(0.5 + sign * step / 32)[:3]) for step in range(17)]
        assert brightness == sorted(brightness, reverse=True)
        assert len(set(brightness)) == len(brightness)
    assert to_hex(diverging(0.5)(1.0)) == "#eaae80"  # half way to white


@pytest.mark.parametrize(("value", "limit", "colour"), [(7, 1, POSITIVE), (-7, 1, NEGATIVE), (0, 0, "#FFFFFF")])
def test_colours_stay_at_the_ends_beyond_the_limit(value, limit, colour):
    (image,) = figure_of(example, "title", [[value]], limit).axes[1].images
    assert to_hex(image.to_rgba(image.get_array())[0, 0]).upper() == colour


def test_the_limit_of_maps_is_their_largest_absolute_value():
    assert largest([[[0.5, -3.0]], [[1.0, 2.0]]]) == 3.0
    assert largest([]) == 0.0


def test_a_heatmap_has_a_cell_for_every_value_and_the_first_row_on_top():
    axes = figure_of(example, "title").axes[1]
    (image,) = axes.images
    assert image.get_array().tolist() == [[1.0, -1.0, 1.0], [0.0, 0.0, 0.0]]
    assert image.get_clim() == (-1.0, 1.0)
    assert axes.get_ylim() == (1.5, -0.5)


@drawn
def bars(layers):
    figure = card(400, 300, "title", "")
    share_bars(figure.subplots(), layers, {"dense": "#000000", "orbit": "#ffffff"})
    return figure


def test_the_parts_of_a_bar_are_as_wide_as_their_shares_and_wide_ones_hold_their_number():
    layers = {
        "first": {"dense": {"share": 0.25, "effective": 3.0}, "orbit": {"share": 0.75, "effective": 120.0}},
        "second": {"dense": {"share": 0.02}, "orbit": {"share": 0.98}},
    }
    axes = figure_of(bars, layers).axes[0]
    assert [(part.get_x(), part.get_width()) for part in axes.patches] == [(0, 0.25), (0.25, 0.75), (0, 0.02), (0.02, 0.98)]
    assert axes.get_ylim() == (1.5, -0.5)  # the first on top
    assert {"first", "second", "25 %", "75 %", "98 %", "γ 3.0 | 120"} <= set(words(bars(layers)))
    assert "2 %" not in words(bars(layers))
    assert {text.get_text(): to_hex(text.get_color()) for text in axes.texts if "25" in text.get_text()} == {"25 %": "#ffffff"}


def test_words_are_shown_as_they_are_and_pictures_load_nothing():
    svg = example(EVIL)
    assert [title.text for title in ElementTree.fromstring(svg).iter(f"{SVG}title")] == [EVIL]
    assert {EVIL, "below", "a note", "name <b>", "negative", "positive", "plot", "line"} <= set(words(svg))
    assert "<script" not in svg
    assert "<b>" not in svg
    links = [value for part in ElementTree.fromstring(svg).iter() for name, value in part.attrib.items() if "href" in name]
    assert links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not any(load in svg for load in ("@import", "url(http", "<!DOCTYPE", "<script"))


def test_the_same_is_drawn_again_and_without_a_date():
    assert len({example("title") for _ in range(5)}) == 1
    assert "date" not in example("title")


def test_cards_are_white_and_as_large_as_asked_for():
    picture = ElementTree.fromstring(example("title"))
    ground = next(picture.iter(f"{SVG}path"))
    assert picture.get("viewBox") == "0 0 300 225"  # in points of print, three quarters of pixels
    assert (picture.get("width"), picture.get("height")) == ("300pt", "225pt")
    assert "fill: #ffffff" in ground.get("style")
    assert ground.get("d").split()[:7] == ["M", "0", "225", "L", "300", "225", "L"]
    check_layout(example("title"))


def test_words_on_words_and_beside_the_card_are_found():
    @drawn
    def crowded(x):
        figure = card(400, 300, "title", "below")
        figure.text(x, 0.5, "one")
        figure.text(0.5, 0.5, "other")
        return figure

    check_layout(crowded(0.2))
    with pytest.raises(AssertionError, match="lies on"):
        check_layout(crowded(0.49))
    with pytest.raises(AssertionError, match="one"):
        check_layout(crowded(0.99))
