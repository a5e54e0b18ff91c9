"""The study of filter banks, small: what it returns and draws, and that the evidence turns filters where data are turned."""

from math import pi

import pytest

from papers.figures.filters import DATA, Settings, learn, run
from papers.figures.filters_picture import picture
from papers.tests.drawings import check_layout, figure_of, words

SMALL = Settings(data=30, filters=20, samples=3, steps=2)


def test_there_is_a_row_for_each_data_set_and_a_picture_of_it():
    told = []
    found = run(SMALL, lambda share, name: told.append(name))
    assert told == [row["data"] for row in found["rows"]] == list(DATA)
    for row in found["rows"]:
        assert row["plain"]["extents"] == {"translation": 0.0, "rotation": 0.0, "scale": 0.0}
        assert set(row["evidence"]["extents"]) == set(row["true"])
        assert row["evidence"]["log_evidence"] == max(start["log_evidence"] for start in row["starts"])
        assert len(row["maps"]) == 2
    assert found["rows"][2]["true"]["rotation"] == pytest.approx(180)
    check_layout(found["picture"])
    assert any("turned by up to 90°" in text for text in words(found["picture"]))
    shown = [image.get_array().tolist() for axes in figure_of(picture, found).axes for image in axes.images]
    assert shown == [values for row in found["rows"] for versions in row["maps"] for values in versions]


def test_it_is_the_same_again():
    assert learn(SMALL, "turned by up to 180°") == learn(SMALL, "turned by up to 180°")


def test_the_evidence_turns_filters_where_digits_are_turned():
    row = learn(Settings(data=100, filters=120, samples=12, steps=25, learning_rate=0.3), "turned by up to 180°")
    assert DATA["turned by up to 180°"] == {"rotation": pi}
    assert row["evidence"]["extents"]["rotation"] > 120
    assert row["evidence"]["log_evidence"] > row["plain"]["log_evidence"] + 0.5
    assert row["evidence"]["training_error"] < 1e-6


def test_too_many_digits_are_refused():
    with pytest.raises(
        ValueError, match=r"There are 1400 digits for data and filters together.* got data=1000 and filters=500"
    ):
        learn(Settings(data=1000, filters=500), "upright")
