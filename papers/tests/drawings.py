"""What a picture shows, read back: its words and where they stand, and the figure that it is drawn from."""

import re
from itertools import combinations
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from papers.drawing import STYLE

SVG = "{http://www.w3.org/2000/svg}"


def figure_of(picture, *given):
    """The figure behind a function that returns SVG."""
    with rc_context(STYLE):
        return picture.__wrapped__(*given)


def words(svg):
    """All that is written."""
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def check_layout(svg):
    """Words and axes lie on the card, and no words on others."""
    card = ElementTree.fromstring(svg)
    _, _, width, height = map(float, card.get("viewBox").split())
    boxes = [_box(text) for text in card.iter(f"{SVG}text")]
    for text, left, top, right, bottom in boxes:
        assert 0 < left < right < width, text
        assert 0 < top < bottom < height, text
    for one, other in combinations(boxes, 2):
        apart = one[1] > other[3] or other[1] > one[3] or one[2] > other[4] or other[2] > one[4]
        assert apart, f"{one} lies on {other}"
    for box in card.iter(f"{SVG}rect"):  # what axes are cut to
        x, y, wide, high = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x < x + wide <= width
        assert 0 <= y < y + high <= height


def _box(text):
    """Words, and left, top, right and bottom of where they are."""
    style = text.get("style")
    weight = "bold" if re.search(r"font-weight: (bold|700)|font: (bold|700)", style) else "normal"
    size = float(re.search(r"([\d.]+)px", style).group(1))
    shape = TextPath((0, 0), text.text, size, prop=FontProperties(family="DejaVu Sans", weight=weight)).get_extents()
    shift = shape.x1 * (0.5 if "anchor: middle" in style else "anchor: end" in style)
    # One of several lines is placed by a transformation.
    place = (text.get("x"), text.get("y")) if text.get("x") else re.findall(r"[\d.]+", text.get("transform"))[:2]
    x, y = map(float, place)
    return text.text, x - shift, y - shape.y1, x - shift + shape.x1, y - shape.y0
