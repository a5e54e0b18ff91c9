"""Points in the plane, small: the data are what they are said to be, and the evidence turns the network as far as they are."""

from dataclasses import replace
from math import degrees, pi

import pytest
import torch

from papers.figures.toy import Settings, learn, points, run

SMALL = Settings(data=12, test=20, width=3, samples=4, epochs=4, starts=(20.0,), scan=(0.0, 180.0), cells=3)


def test_classes_lie_within_their_extent_on_three_rings():
    inputs, classes = points(replace(SMALL, noise=0.0), 600, seed=0)
    radius, angle = inputs.norm(dim=1), torch.atan2(inputs[:, 1], inputs[:, 0])
    assert set(radius.round().int().tolist()) == {1, 2, 3}
    above = inputs[:, 1] > 0
    middle = torch.where(above, pi / 2, -pi / 2)
    offset = ((angle - middle + pi) % (2 * pi) - pi).abs()
    assert 78 < degrees(offset.max().item()) <= 80.001
    assert torch.equal(classes, (radius.round().long() - 1 + (~above).long()) % 2)


def test_a_run_gives_numbers_and_a_picture():
    told = []
    found = run(SMALL, lambda share, what: told.append(share))
    assert told == sorted(told)
    assert len(told) == len(found["runs"]) == 4
    assert [(one["by"], one["start"]) for one in found["runs"]] == [
        ("fixed", 0.0),
        ("fixed", 180.0),
        ("evidence", 20.0),
        ("training loss", 20.0),
    ]
    assert found["runs"][0]["extent"] == 0.0
    assert found["runs"][1]["extent"] == pytest.approx(180)
    assert all(len(one["history"]) == 4 and len(one["surface"]) == 3 for one in found["runs"])
    assert len(found["data"]) == 12
    assert found["picture"].startswith("<svg")


def test_it_is_the_same_again():
    assert learn(SMALL, "evidence", 20.0) == learn(SMALL, "evidence", 20.0)


def test_the_evidence_learns_turns_and_gains_by_them():
    settings = Settings(data=48, extent=75.0, test=500, width=20, samples=16, epochs=250, cells=2)
    learned, plain = learn(settings, "evidence", 45.0), learn(settings, "fixed", 0.0)
    assert 55 < learned["extent"] < 105  # up to 180 − 75 degrees, no middle of the other class comes into view
    assert learned["log_evidence"] > plain["log_evidence"] + 0.1


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"extent is above 0 and below 90 degrees.* got extent=120.0"):
        Settings(extent=120.0)
