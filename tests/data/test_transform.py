"""Transformed images against shifts and turns that are exact, what is drawn, and subsets."""

from math import e, log, pi, sqrt

import pytest
import torch
from torch.testing import assert_close

from symbayes.data import transform
from symbayes.data.load import load
from symbayes.data.task import Task
from symbayes.data.transform import Ranges, reading, resample

EMPTY = (-0.5, 2.0)


def images(generator, *grid, count=3):
    return torch.randn(count, 2, *grid, generator=generator, dtype=torch.float64)


def moved(inputs, angle=0.0, shift=(0.0, 0.0), size=1.0, background=EMPTY):
    drawn = torch.tensor([[angle, *shift, size]], dtype=torch.float64)
    return resample(inputs, reading(drawn).expand(len(inputs), -1, -1), background)


def task_of(inputs, **options):
    targets = torch.arange(len(inputs))
    return Task("images", (inputs, targets), (inputs, targets), len(inputs), **options)


def test_a_shift_by_whole_pixels_is_exact_and_brings_in_the_background(generator):
    inputs = images(generator, 5, 8)
    found = moved(inputs, shift=(3.0, -1.0))  # to the right, and up
    assert_close(found[:, :, :-1, 3:], inputs[:, :, 1:, :-3])
    empty = torch.tensor(EMPTY, dtype=torch.float64)[:, None]
    assert_close(found[:, :, -1], empty.expand(3, 2, 8))
    assert_close(found[:, :, :, :3], empty[:, None].expand(3, 2, 5, 3))


def test_half_a_pixel_is_the_mean_of_two(generator):
    inputs = images(generator, 4, 4)
    assert_close(moved(inputs, shift=(-0.5, 0.0))[..., :-1], (inputs[..., :-1] + inputs[..., 1:]) / 2)


@pytest.mark.parametrize("quarters", [-1, 1, 2])
@pytest.mark.parametrize("side", [5, 6])
def test_a_quarter_turn_is_exact(quarters, side, generator):
    inputs = images(generator, side, side)
    assert_close(moved(inputs, angle=quarters * pi / 2), inputs.rot90(quarters, (2, 3)))


def test_a_given_matrix_says_where_pixels_are_read(generator):
    inputs = images(generator, 6, 6)
    maps = torch.tensor([[0.0, -1, 0], [1, 0, 0]], dtype=torch.float64).expand(3, -1, -1)
    assert_close(resample(inputs, maps, EMPTY), inputs.rot90(1, (2, 3)))
    maps = torch.tensor([[1.0, 0, 2], [0, -1, 0]], dtype=torch.float64).expand(3, -1, -1)
    assert_close(resample(inputs, maps, EMPTY)[..., :-2], inputs.flip(2)[..., 2:])


def test_a_turn_of_a_rectangle_is_a_turn_in_pixels(generator):
    inputs = images(generator, 4, 8)
    found = moved(inputs, angle=pi / 2)
    assert_close(found[..., 2:6], inputs[..., 2:6].rot90(1, (2, 3)))
    assert_close(found[0, :, 0, 0], torch.tensor(EMPTY, dtype=torch.float64))
    assert_close(moved(inputs, angle=pi), inputs.rot90(2, (2, 3)))


def test_double_size_is_about_the_centre_and_shifts_come_last():
    ramp = torch.arange(8.0)[None, None, None].expand(1, 1, 8, 8) - 3.5  # its value is its place x
    assert_close(moved(ramp, size=2.0, background=(0.0,)), ramp / 2)
    found = moved(ramp, size=0.5, shift=(1.0, 0.0), background=(0.0,))
    assert_close(found[0, 0, 3:5, 3:7], 2 * (ramp[0, 0, 3:5, 3:7] - 1))


def test_drawn_values_fill_their_ranges(generator):
    angle, x, y, size = Ranges(90.0, 8.0, 2.0).draw(4000, generator).unbind(1)
    for values, bound in ((angle, pi / 2), (x, 8.0), (y, 8.0), (size.log(), log(2))):
        assert values.abs().max() <= bound
        assert values.abs().max() > 0.99 * bound
        assert abs(values.mean()) < 0.05 * bound
        assert float(values.std()) == pytest.approx(bound / sqrt(3), rel=0.05)
    assert torch.corrcoef(torch.stack([angle, x, y, size])).fill_diagonal_(0).abs().max() < 0.06


def test_what_is_drawn_of_one_does_not_depend_on_the_others():
    both, one = (Ranges(r, 3.0, 1.0).draw(5, torch.Generator().manual_seed(0)) for r in (30.0, 0.0))
    assert_close(both[:, 1:], one[:, 1:])
    assert (one[:, 0] == 0).all()


def test_the_same_seed_gives_the_same_task_and_every_image_is_moved_in_its_own_way():
    task = task_of(torch.randn(1, 1, 8, 8).expand(20, -1, -1, -1))
    first, again, other = (task.transformed(rotation=180, seed=seed) for seed in (3, 3, 4))
    for found, same, different in ((first.train, again.train, other.train), (first.test, again.test, other.test)):
        assert torch.equal(found[0], same[0])
        assert torch.equal(found[1], task.train[1])
        assert not torch.equal(found[0], different[0])
        assert len(found[0].flatten(1).unique(dim=0)) == 20
    seen = torch.cat([part[0] for part in (first.train, first.test, other.train, other.test)])
    assert len(seen.flatten(1).unique(dim=0)) == 80


def test_parts_of_a_large_task_are_as_the_whole(monkeypatch):
    task = task_of(torch.randn(7, 2, 4, 6), background=EMPTY)
    whole = task.transformed(rotation=45, translation=1, scale=1.5)
    monkeypatch.setattr(transform, "_BUDGET", 2 * 48 + 1)
    assert_close(task.transformed(rotation=45, translation=1, scale=1.5).train[0], whole.train[0])


def test_digits_are_shifted_over_their_background():
    task = load("upright-digits")
    assert task.background == (pytest.approx(float(task.train[0].min())),)
    assert task.background[0] < -0.1
    shifted = task.transformed(translation=4)
    assert shifted.train[0].dtype == torch.float32
    assert_close(shifted.train[0].amin((1, 2, 3)), task.train[0].amin((1, 2, 3)))
    # Digits of 8×8 in the middle of 16×16 stay within the canvas, and so does their ink.
    ink = [(inputs - task.background[0]).sum((1, 2, 3)) for inputs in (task.train[0], shifted.train[0])]
    assert_close(*ink, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        ({"rotation": 90}, "images, rotated by up to 90°"),
        ({"translation": 1}, "images, shifted by up to 1 pixel"),
        ({"rotation": 22.5, "translation": 8.0}, "images, rotated by up to 22.5°, shifted by up to 8 pixels"),
        ({"scale": 2}, "images, scaled by up to 2"),
    ],
)
def test_the_name_says_what_was_done(bounds, name):
    task = task_of(torch.randn(2, 1, 4, 4), background=(1.0,)).transformed(**bounds)
    assert task.name == name
    assert (task.classes, task.background) == (2, (1.0,))


def test_to_transform_by_nothing_changes_nothing():
    task = task_of(torch.randn(2, 1, 4, 4))
    same = task.transformed()
    assert same.name == task.name
    assert same.train[0] is task.train[0]
    assert same.test[0] is task.test[0]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"rotation": -1.0}, "rotation must be 0 or more degrees, got -1. It bounds the angle on both sides"),
        ({"rotation": float("nan")}, "rotation must be 0 or more degrees, got nan"),
        ({"translation": -2}, "translation must be 0 or more pixels, got -2. It bounds the shifts"),
        ({"scale": -e}, "scale must be 1 or more, got -2.71828. .* from half to double size"),
        ({"scale": 0.5}, "scale must be 1 or more, got 0.5"),
        ({"scale": float("inf")}, "scale must be 1 or more, got inf"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        task_of(torch.randn(2, 1, 4, 4)).transformed(**bounds)


def test_only_images_are_transformed():
    with pytest.raises(
        ValueError, match=r"Only images \[n, c, h, w\] can be transformed; an input of 'images' has shape \(1, 64"
    ):
        task_of(torch.zeros(2, 1, 64)).transformed(rotation=90)


def test_a_background_of_other_channels_is_refused():
    with pytest.raises(ValueError, match="one value, or one for each of the 3 channels; got 2"):
        task_of(torch.randn(2, 3, 4, 4), background=EMPTY).transformed(rotation=90)


def test_a_subset_has_no_repeats_and_keeps_the_test_data():
    inputs = torch.arange(50.0)[:, None]
    task = Task("numbers", (inputs, torch.arange(50)), (inputs, torch.arange(50)), 50, background=(3.0,))
    some, again, other = (task.subset(20, seed) for seed in (0, 0, 1))
    assert len(set(some.train[1].tolist())) == 20
    assert_close(some.train[0][:, 0].long(), some.train[1])
    assert torch.equal(some.train[1], again.train[1])
    assert not torch.equal(some.train[1], other.train[1])
    assert some.test[0] is task.test[0]
    assert (some.name, some.classes, some.background) == ("numbers", 50, (3.0,))
    assert sorted(task.subset(50).train[1].tolist()) == list(range(50))
    assert str(some).startswith("numbers: 20 training and 50 test inputs")


@pytest.mark.parametrize("size", [0, 51, -1])
def test_a_subset_of_more_than_there_is_or_of_nothing_is_refused(size):
    inputs = torch.arange(50.0)[:, None]
    task = Task("numbers", (inputs, torch.arange(50)), (inputs, torch.arange(50)), 50)
    with pytest.raises(ValueError, match=rf"from 1 to 50 training data, as many as 'numbers' has; got {size}"):
        task.subset(size)
