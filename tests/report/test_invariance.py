"""Extents on pages: in words, over epochs, beside the truth, and as images."""

import re
from base64 import b64decode, b64encode
from dataclasses import replace
from io import BytesIO
from typing import Any

import PIL.Image
import pytest

from symbayes.invariance.orbit_average import Image
from symbayes.report.invariance import (
    amount,
    data_uri,
    extent_name,
    extent_panel,
    extent_words,
    invariance_headline,
    kept_extents,
)
from symbayes.report.page import FigureTable
from symbayes.report.plots import Curve, Run
from symbayes.report.runs import comparison_page, run_page
from symbayes.training.record import Record, Summary
from tests.report.samples import (
    invariant_history,
    invariant_summary,
    sample_extent,
    sample_history,
    sample_image,
    sample_summary,
)

TABLE = FigureTable()
ROTATION = {"rotation": [6.0, 20.0, 44.0]}
BOTH = {"rotation": [6.0, 20.0, 44.0], "translation_x": [1.0, 0.4, 0.02]}
EXTENTS = [sample_extent("rotation", 44.0, "°", 180.0), sample_extent("translation_x", 0.02, "px", 10.0)]


def panel(values: list[float], unit: str = "°", truth: float | None = None) -> Any:
    curve = Curve("run", invariant_history({"rotation": values}), 1)
    return extent_panel([curve], sample_extent("rotation", values[-1], unit), truth)


def invariant_run(task: str, objective: str, values: dict[str, list[float]], **more: Any) -> Run:
    units = {"rotation": "°", "translation_x": "px"}
    extents = [sample_extent(name, found[-1], units.get(name, "")) for name, found in values.items()]
    summary = replace(invariant_summary(*extents), words=())
    return Run(task, "average", objective, False, summary, invariant_history(values), **more)


def compared(*runs: Run) -> str:
    page = comparison_page("Digits", "How far?", TABLE, runs)
    return page[page.index("<body>") :]


def body(summary: Summary, history: list[Record], **more: Any) -> str:
    page = run_page(summary, history, **more)
    return page[page.index("<body>") :]


def sources(page: str) -> list[str]:
    return re.findall(r'<img[^>]* src="([^"]*)"', page)


@pytest.mark.parametrize(
    ("extent", "words"),
    [
        (sample_extent("rotation", 57.23, "°", 180.0), "rotation: up to 57.2° to either side"),
        (sample_extent("rotation", 179.99, "°", 180.0), "rotation: up to 180.0° to either side, at its bound"),
        (sample_extent("translation_x", 0.304, "px"), "translation x: up to 0.30 px to either side"),
        (sample_extent("scale", -12.34, "%", 300.0, one_sided=True), "scale: from 0 to −12.3 %"),
        (
            replace(sample_extent("mirror_x", 25.0, "%", 50.0, one_sided=True), is_probability=True),
            "mirror x: with a probability of 25.0 %",
        ),
        (sample_extent("shift", 0.25, ""), "shift: up to 0.250 to either side"),
        (sample_extent("shear", 0.004, "%", 100.0), "shear: not at all (less than 0.1 %)"),
        (sample_extent("net_1.scale_x+scale_y", 5.0, "%"), "net_1.scale x + scale y: up to 5.0 % to either side"),
    ],
)
def test_extents_are_said_in_words(extent, words):
    assert extent_words(extent) == words


def test_words_end_with_the_truth_where_it_is_known():
    assert extent_words(EXTENTS[0], 45.0) == "rotation: up to 44.0° to either side (truth: 45°)"


def test_amounts_that_round_to_zero_have_no_sign():
    assert amount(-0.001, "%") == "0.0 %"
    assert amount(10.0, "%", short=True) == "10 %"


def test_only_the_own_name_of_an_extent_is_rewritten():
    assert extent_name("my_net.translation_x") == "my_net.translation x"


def test_a_restored_state_is_marked_where_it_was_first_reached():
    records, kept = kept_extents(invariant_history({"rotation": [6.0, 30.0, 40.0, 30.0]}))
    assert [record.epoch for record in records] == [1, 2, 3]
    assert kept == 1


@pytest.mark.parametrize("values", [[6.0, 30.0, 40.0, 40.0], [5.0, 5.0, 5.0]])
def test_a_state_that_stayed_is_marked_at_the_end(values):
    records, kept = kept_extents(invariant_history({"rotation": values}))
    assert len(records) == len(values)
    assert kept == len(values) - 1


def test_histories_without_extents_have_none_to_draw():
    assert kept_extents(sample_history([-2.0, -1.0])) == ([], 0)


def test_small_extents_look_small_and_large_ones_fit():
    low, high = panel([0.3, 0.2]).layout.yaxis.range
    assert low < 0 < 10 < high
    low, high = panel([6.0, 170.0], truth=180.0).layout.yaxis.range
    assert low < 0
    assert high > 180
    low, high = panel([-3.0, -30.0], "%").layout.yaxis.range
    assert low < -30


def test_extents_of_no_unit_and_of_zero_have_an_axis():
    low, high = panel([0.0, 0.0], "").layout.yaxis.range
    assert low < 0 < high


def test_the_truth_is_a_dashed_line_with_its_number():
    figure = panel([6.0, 44.0], truth=45.0)
    (line,) = figure.layout.shapes
    assert line.y0 == line.y1 == 45.0
    assert line.line.dash
    assert [words.text for words in figure.layout.annotations] == ["truth<br>45°"]
    assert not panel([6.0, 44.0]).layout.shapes


def test_run_page_has_sentences_panels_and_images_above_what_was_learned():
    summary = invariant_summary(*EXTENTS)
    page = body(summary, invariant_history(BOTH), truth={"rotation": 45})
    assert page.index("How far it is invariant") < page.index("precision δ")
    assert "<li>rotation: up to 44.0° to either side (truth: 45°)</li>" in page
    assert "<figcaption>translation x (px)</figcaption>" in page
    assert page.count('<div id="extents_') == 2
    assert sources(page) == [data_uri(image) for row in summary.orbits for image in row]
    assert page.count('<img class="datum"') == len(summary.orbits)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 3), (28, 28)])
def test_pixels_are_read_back(width, height, channels):
    pixels = bytes((7 * index) % 256 for index in range(width * height * channels))
    kind, _, content = data_uri(Image(width, height, channels, b64encode(pixels).decode())).partition(",")
    assert kind == "data:image/png;base64"
    with PIL.Image.open(BytesIO(b64decode(content, validate=True)), formats=["PNG"]) as found:
        assert (found.size, found.mode) == ((width, height), "RGB" if channels == 3 else "L")
        assert found.tobytes() == pixels


@pytest.mark.parametrize(
    ("change", "message"),
    [({"channels": 2}, "1 channel"), ({"height": 7}, "as many bytes"), ({"width": 0, "pixels": ""}, "as many bytes")],
)
def test_images_that_are_not_what_they_say_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        data_uri(replace(sample_image(0), **change))


def test_images_are_drawn_with_sharp_pixels():
    assert ".orbit img { display: block; width: 100%; image-rendering: pixelated; }" in run_page(
        invariant_summary(*EXTENTS), invariant_history(BOTH)
    )


def test_a_run_without_extents_has_the_page_it_had():
    old = sample_history([None, -1500.0, -1234.5])
    new = [replace(record, extents={}) for record in old]
    page = run_page(replace(sample_summary(), extents=(), orbits=()), new)
    assert page == run_page(sample_summary(), old)
    assert "invariant" not in page[page.index("<body>") :]
    assert "image-rendering: pixelated" not in page


def test_pages_hold_everything_themselves():
    pages = [run_page(invariant_summary(*EXTENTS), invariant_history(BOTH), truth={"rotation": 45})]
    pages.append(comparison_page("", "", TABLE, [invariant_run("turned", "evidence", ROTATION, truth={"rotation": 45})]))
    for page in pages:
        own = page
        assert all(load not in own for load in ("http://", "https://", "<script src", "<link", "@import", "url("))
        assert len(sources(own)) == own.count("<img") == 6
        assert all(source.startswith("data:image/png;base64,") for source in sources(own))
        assert "<script" not in own


def test_extents_without_images_are_shown():
    page = body(invariant_summary(*EXTENTS, orbits=0), invariant_history(BOTH))
    assert '<div id="extents_0' in page
    assert not sources(page)


def test_names_of_extents_and_runs_are_escaped():
    extent = sample_extent("<b>", 1.0, "<i>")
    page = body(invariant_summary(extent), invariant_history({"<b>": [1.0, 2.0]}), truth={"<b>": 2.0})
    page += compared(invariant_run("<i>", "<b>", {"<b>": [1.0, 2.0]}, truth={"<b>": 2.0}))
    assert "<b>" not in page
    assert "<i>" not in page


def test_a_task_has_a_panel_for_each_extent_with_all_its_runs():
    page = compared(
        invariant_run("turned", "evidence", BOTH, truth={"rotation": 45.0}),
        invariant_run("turned", "training loss", {"rotation": [6.0, 1.0, 0.0], "translation_x": [1.0, 0.3, 0.0]}),
        invariant_run("upright", "evidence", ROTATION),
    )
    assert re.findall(r'<div id="(extents\w+)"', page) == ["extents0_0", "extents0_1", "extents1_0"]
    assert page.count(">truth</text>") == 1
    table = page[page.index('<table class="extents">') : page.index("<figcaption>")]
    rows = [re.findall(r"(?:</svg>|<td[^>]*>)([^<]*)<", row) for row in table.split("<tr>")[2:]]
    assert rows == [
        ["average, evidence", "44.0°", "0.02 px"],
        ["average, training loss", "0.0°", "0.00 px"],
        ["truth", "45°", ""],
    ]


def test_tasks_and_runs_without_extents_are_left_out():
    plain = Run("turned", "average", "none", False, sample_summary(), sample_history([-2.0, -1.0]))
    page = compared(plain, invariant_run("turned", "evidence", ROTATION), replace(plain, task="plain"))
    section = page[page.index("How far the models are invariant") : page.index("<h2>Training</h2>")]
    assert "average, none" not in section
    assert "<h3>plain</h3>" not in section
    assert "How far the models are invariant" not in compared(plain)


def test_images_are_those_of_runs_that_learned_by_evidence():
    fixed = {"rotation": [30.0, 30.0, 30.0]}
    runs = [
        invariant_run("turned", "evidence", ROTATION),
        invariant_run("turned", "training loss", {"rotation": [6.0, 1.0, 0.0]}),
        replace(invariant_run("turned", "evidence", fixed), model="a fixed guess"),
    ]
    page = compared(*runs)
    assert sources(page) == [data_uri(image) for row in runs[0].summary.orbits for image in row]


def test_runs_may_have_different_extents():
    page = compared(invariant_run("turned", "evidence", ROTATION), invariant_run("turned", "other", {"shear": [1.0, 2.0, 3.0]}))
    assert re.findall(r'<div id="(extents\w+)"', page) == ["extents0_0", "extents0_1"]


def test_what_was_learned_of_extents_is_said_in_a_sentence():
    turned, moved = sample_extent("rotation", 60.0), sample_extent("translation_x", 0.01, "px")
    turned, moved = (replace(extent, learned=True) for extent in (turned, moved))
    said = invariance_headline([turned, moved])
    assert said == "The data ask for augmentation by rotation up to 60.0° to either side; all else is little (below 0.25 px)."
    assert invariance_headline([turned]) == "The data ask for augmentation by rotation up to 60.0° to either side."
    assert invariance_headline([moved]) == "The data ask for no augmentation by translation x (below 0.25 px)."
    assert invariance_headline([replace(turned, learned=False)]) == ""
    assert "other (below 0.02)" in invariance_headline([replace(turned, name="other", unit="", value=0.0)])
