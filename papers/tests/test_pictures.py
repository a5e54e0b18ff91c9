"""The pictures that are committed are those of the numbers beside them."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from papers.figures.pictures import PICTURES

FOLDER = Path(__file__).parent.parent.parent / "docs" / "gallery"
NUMBERS = json.loads((FOLDER / "gallery.json").read_text(encoding="utf-8"))
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.mark.parametrize("name", PICTURES)
def test_committed_pictures_are_drawn_from_the_committed_numbers(name):
    svg = PICTURES[name](NUMBERS[name])
    assert svg == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(svg.encode()) < 30_000
    ElementTree.fromstring(svg)


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_drawn_outside_the_card(name):
    card = ElementTree.fromstring(PICTURES[name](NUMBERS[name]))
    for box in card.iter(TEXT.replace("text", "rect")):
        assert float(box.get("x")) + float(box.get("width")) <= float(card.get("width"))
        assert float(box.get("y")) + float(box.get("height")) <= float(card.get("height"))
    assert all(float(words.get("y")) < float(card.get("height")) for words in card.iter(TEXT))


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_shown_in_the_gallery(name):
    assert f"({name}.svg)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_shares_are_written_in_their_bars():
    task = {"task": "which?", "accuracy": 0.5, "log_evidence": -1.25}
    task["shares"] = [{"layer": "block1", "path": "factored", "share": 0.3}, {"layer": "block1", "path": "conv", "share": 0.7}]
    words = [text.text for text in ElementTree.fromstring(PICTURES["translation"]({"tasks": [task]})).iter(TEXT)]
    assert {"block 1", "which?", "30 %", "70 %", "test 50.0 %", "log evidence \N{MINUS SIGN}1.25"} <= set(words)


def test_an_open_lengthscale_is_hollow():
    row = {"tensor": "block1.paths.sparse.gather.basis.omega", "omega": 0.5, "deviation": 22.0, "effective": 0.01}
    task = {"task": "which?", "rows": [row], "accuracy": 0.5, "log_evidence": -1.0}
    svg = PICTURES["lengthscales"]({"tasks": [task]})
    assert [dot.get("fill") for dot in ElementTree.fromstring(svg).iter(TEXT.replace("text", "circle"))] == ["#ffffff"]
    assert "block 1, S-FC, seen" in svg


def test_every_line_of_the_gallery_builds_what_it_says():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) == 1 + len(PICTURES)
