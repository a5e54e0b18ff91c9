"""The pictures that are committed are those of the numbers beside them."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from papers.drawing import TEXT
from papers.figures.pictures import PICTURES
from papers.tests.drawings import check_layout, figure_of, words

FOLDER = Path(__file__).parent.parent.parent / "docs" / "gallery"
NUMBERS = json.loads((FOLDER / "gallery.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PICTURES)
def test_committed_pictures_are_drawn_from_the_committed_numbers(name):
    svg = PICTURES[name](NUMBERS[name])
    assert svg == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(svg.encode()) < 40_000
    ElementTree.fromstring(svg)


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_drawn_outside_the_card_and_no_words_on_others(name):
    check_layout(PICTURES[name](NUMBERS[name]))


@pytest.mark.parametrize(("name", "maps"), [("smooth_filters", 8), ("smooth_maps", 6), ("turned_filters", 12)])
def test_heatmaps_show_the_numbers(name, maps):
    found = NUMBERS[name]
    rows = found["filters"] if "filters" in found else [row["maps"] for row in found["rows"]]
    shown = [image.get_array().tolist() for axes in figure_of(PICTURES[name], found).axes[1:] for image in axes.images]
    assert len(shown) == maps
    assert shown == [values for row in rows for values in row]


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_shown_in_the_gallery(name):
    assert f"({name}.svg)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_shares_are_written_in_their_bars():
    task = {"task": "which?", "accuracy": 0.5, "log_evidence": -1.25}
    task["shares"] = [{"layer": "block1", "path": "factored", "share": 0.3}, {"layer": "block1", "path": "conv", "share": 0.7}]
    said = words(PICTURES["translation"]({"tasks": [task]}))
    assert {"block 1", "which?", "30 %", "70 %", "test 50.0 %", "log evidence \N{MINUS SIGN}1.25"} <= set(said)
    assert not any("γ " in text and "|" in text for text in said)
    for row, effective in zip(task["shares"], (15.2, 160.3), strict=True):
        row["effective"] = effective
    assert "γ 15.2 | 160" in words(PICTURES["translation"]({"tasks": [task]}))


def test_an_open_lengthscale_is_hollow():
    row = {"tensor": "block1.paths.sparse.gather.basis.omega", "omega": 0.5, "deviation": 22.0, "effective": 0.01}
    known = {"tensor": "block2.paths.sparse_conv.basis.omega", "omega": 0.75, "deviation": 0.25, "effective": 0.9}
    task = {"task": "which?", "rows": [row, known], "accuracy": 0.5, "log_evidence": -1.0}
    (axes,) = figure_of(PICTURES["lengthscales"], {"tasks": [task]}).axes
    (dots,) = axes.collections
    assert dots.get_offsets().tolist() == [[0.5, 0.0], [0.75, 1.0]]
    assert [to_hex(colour) for colour in dots.get_facecolor()] == ["#ffffff", TEXT]
    assert [(bar.get_width(), to_hex(bar.get_facecolor())) for bar in axes.patches] == [(22.0, "#d6ecf8"), (0.25, "#56b4e9")]
    assert {"block 1, S-FC, seen", "block 2, S-CONV"} <= set(words(PICTURES["lengthscales"]({"tasks": [task]})))


def test_every_line_of_the_gallery_builds_what_it_says():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) == 1 + len(PICTURES)
