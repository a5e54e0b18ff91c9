"""Some random kills of a small fit; `python -m tests.kill` has more, of larger ones."""

import warnings

import pytest
import torch

import symbayes as sb
from tests import kill

TASK = sb.load("upright-digits")
FEW = TASK.train[0][:16], TASK.train[1][:16]


def small(seed, checkpoint=None):
    model = sb.allconv(TASK, ("conv",), 1, generator=torch.Generator().manual_seed(seed))
    options = {"checkpoint": checkpoint, "checkpoint_every": 0.0, "resume": checkpoint is not None}
    return sb.fit(model, FEW, objective=sb.Map(), epochs=4, seed=seed, progress=False, **options)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(kill, "fitted", small)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of processes that are forked
        yield


def test_a_fit_that_is_killed_goes_on_to_the_same_numbers(tmp_path):
    found = kill.kill_fits(3, 0, tmp_path)
    assert found["kills"] == found["resumes"] == 3
    assert found["older results"] + found["new results"] == 3
    assert found["unequal"] == 0


def test_a_process_that_is_killed_while_it_saves_leaves_one_result(tmp_path):
    found = kill.kill_saves(4, 0, tmp_path)
    assert found["older results"] + found["new results"] == 4
    assert found["unequal"] == 0
