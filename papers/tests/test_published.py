"""The sets of the papers against slow references: a loop over pixels, a canvas made by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from papers.data import _SPREADS, in_quadrants, load, motifs, moved
from symbayes.data.transform import Ranges
from tests.data.fakes import write_mnist


def at(image, y, x):
    """An image between pixels, by the four around; nothing outside."""
    top, left, total = math.floor(y), math.floor(x), 0.0
    for row, down in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, right in ((left, 1 - (x - left)), (left + 1, x - left)):
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                total += down * right * float(image[row, column])
    return total


@pytest.mark.parametrize("spread", [Ranges(180.0, 0.0, 1.0), Ranges(0.0, 54 / 7, 1.0), Ranges(0.0, 0.0, 2.0)])
def test_images_are_moved_as_a_loop_over_their_pixels_moves_them(spread, generator):
    images = torch.randint(0, 256, (3, 2, 9, 9), generator=generator, dtype=torch.uint8)
    found = moved(images, spread, seed=1)
    draws = spread.draw(3, torch.Generator().manual_seed(1))
    for image, result, (angle, right, down, size) in zip(images, found, draws.tolist(), strict=True):
        for y in range(9):
            for x in range(9):
                px, py = x - 4 - right, y - 4 - down
                qx = (math.cos(angle) * px - math.sin(angle) * py) / size
                qy = (math.sin(angle) * px + math.cos(angle) * py) / size
                for channel in range(2):
                    assert int(result[channel, y, x]) == int(at(image[channel], qy + 4, qx + 4) + 1e-9)


def test_shifts_are_those_that_were_published():
    """By 8/14 of torch's coordinates: −1 to 1 between the middles of the outermost pixels, or between the edges."""
    assert _SPREADS["mnist"]["translated"].translation == pytest.approx(7.714, abs=1e-3)
    assert _SPREADS["cifar10"]["translated"].translation == pytest.approx(9.143, abs=1e-3)


def test_digits_stand_in_the_quadrants_that_are_named(generator):
    images = torch.randint(1, 256, (40, 1, 28, 28), generator=generator, dtype=torch.uint8)
    found, quadrants = in_quadrants(images, seed=1001)
    assert set(quadrants.tolist()) == {0, 1, 2, 3}
    for image, result, quadrant in zip(images[:6, 0], found[:6, 0], quadrants[:6].tolist(), strict=True):
        canvas = np.zeros((56, 56))
        top, left = 28 * (quadrant in (2, 3)), 28 * (quadrant in (1, 3))
        canvas[top : top + 28, left : left + 28] = image
        for y in range(32):
            for x in range(32):
                value = at(canvas, (y + 0.5) * 1.75 - 0.5, (x + 0.5) * 1.75 - 0.5)
                assert abs(int(result[y, x]) - value) <= 0.5 + 1e-3
        inside = result[top // 28 * 16 : top // 28 * 16 + 16, left // 28 * 16 : left // 28 * 16 + 16]
        assert (inside > 0).all()
        assert int((result > 0).sum()) == 256


def test_sets_of_mnist_are_fixed_and_ask_what_they_should(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    sets = {
        name: load(name, tmp_path, verify=False)
        for name in ("mnist32", "digit-mnist", "quadrant-mnist", "rotated-mnist", "translated-mnist", "scaled-mnist")
    }
    for name, task in sets.items():
        again = load(name, tmp_path, verify=False)
        assert_close(task.train[0], again.train[0], rtol=0, atol=0)
        assert task.name == name
        assert task.train[0].shape == (60, 1, 32, 32)
        assert task.test[0].shape == (20, 1, 32, 32)
        assert task.classes == (40 if name == "quadrant-mnist" else 10)
        assert_close(task.train[1] % 10, sets["mnist32"].train[1])
    assert_close(sets["digit-mnist"].train[0], sets["quadrant-mnist"].train[0])
    assert sets["quadrant-mnist"].train[1].max() >= 30
    assert_close(sets["mnist32"].test[1], torch.arange(20) % 10)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(711))
    assert_close(sets["mnist32"].train[1], order % 10)
    assert not torch.equal(sets["rotated-mnist"].train[0], sets["translated-mnist"].train[0])


def test_mnist_is_read_at_32_by_32_between_pixels(tmp_path):
    write_mnist(tmp_path)
    small, large = load("mnist", tmp_path, verify=False).test[0], load("mnist32", tmp_path, verify=False).test[0]
    inner = [(y, x) for y in (1, 7, 20, 30) for x in (1, 13, 30)]
    for y, x in inner:
        assert float(large[3, 0, y, x]) == pytest.approx(
            at(small[3, 0], (y + 0.5) * 0.875 - 0.5, (x + 0.5) * 0.875 - 0.5), abs=1e-5
        )


def test_embedded_sequences_hold_a_motif_within_a_quarter():
    task = load("placed-motifs")
    inputs, targets = task.train
    assert (inputs.shape, len(task.test[0]), task.classes) == ((600, 1, 64), 1000, 16)
    shapes = torch.tensor(motifs(), dtype=torch.float32)
    assert_close(shapes.square().mean(1), torch.ones(4))
    # The motif that correlates best, wherever it does within a quarter, is nearly always the one that was put there.
    found = functional.conv1d(inputs, shapes[:, None]).unfold(2, 9, 16).amax(3)  # [n, motif, quarter]
    best = found.flatten(1).argmax(1)
    assert (best // 4 + 4 * (best % 4) == targets).float().mean() > 0.98
    assert targets.bincount().min() > 20


def test_sequences_ask_two_questions_about_the_same_inputs():
    task, placed = load("motifs"), load("placed-motifs")
    for (inputs, targets), (same, with_quarter) in ((task.train, placed.train), (task.test, placed.test)):
        assert_close(inputs, same)
        assert_close(targets, with_quarter % 4)
    assert task.classes == 4
