"""Affine maps on images: exact where they land on pixels, and the words that choose among generators."""

from math import log, pi

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.lie import affine1d, affine2d, colours


@pytest.fixture
def images(generator):
    return torch.randn(2, 3, 28, 28, generator=generator, dtype=torch.float64)


def by(group, **amounts):
    """One element, as coefficients."""
    return torch.tensor([[[amounts.get(name, 0.0) for name in group.names]]], dtype=torch.float64)


def test_a_quarter_turn_is_one(images):
    group = affine2d("rotation")
    for quarters in (1, 2, 3, -1):
        turned = group.transform(by(group, rotation=quarters * pi / 2), images)[:, 0]
        assert_close(turned, torch.rot90(images, -quarters, (2, 3)), rtol=0, atol=1e-11)  # clockwise, as y points down


def test_a_shift_by_whole_pixels_moves_the_content(images):
    group = affine2d(padding="zeros")
    right = group.transform(by(group, translation_x=3 * 2 / 28), images)[:, 0]
    assert_close(right[..., 3:], images[..., :-3], rtol=0, atol=1e-12)
    assert_close(right[..., :3], torch.zeros_like(right[..., :3]), rtol=0, atol=1e-12)
    down = group.transform(by(group, translation_y=2 * 2 / 28), images)[:, 0]
    assert_close(down[..., 2:, :], images[..., :-2, :], rtol=0, atol=1e-12)


def test_rotation_is_one_on_rectangles_too(generator):
    tall = torch.randn(2, 1, 12, 20, generator=generator, dtype=torch.float64)
    group = affine2d("rotation")
    assert_close(group.transform(by(group, rotation=pi), tall)[:, 0], tall.flip(2, 3), rtol=0, atol=1e-11)
    # A square in the middle turns as a square does: rotation keeps distances.
    dots = torch.zeros(1, 1, 11, 21, dtype=torch.float64)
    dots[0, 0, 5, 13] = 1.0  # three cells to the right
    turned = group.transform(by(group, rotation=pi / 2), dots)[0, 0, 0]
    assert turned.argmax() == 8 * 21 + 10  # three cells below


def test_elements_are_exponentials():
    group = affine2d()
    T = group.elements(by(group, rotation=0.3))[0, 0]
    c, s = torch.cos(torch.tensor(0.3)), torch.sin(torch.tensor(0.3))
    assert_close(T.float(), torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]))
    T = group.elements(by(group, scale_x=log(2), scale_y=log(2)))[0, 0]
    assert_close(T, torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)))


def test_beyond_the_edge_is_what_one_asks_for():
    ones = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    for padding, outside in (("border", 1.0), ("zeros", 0.0), ("reflection", 1.0)):
        group = affine2d("translation", padding=padding)
        moved = group.transform(by(group, translation_x=0.5), ones)[0, 0, 0]
        assert_close(moved[:, 0], torch.full((8,), outside, dtype=torch.float64))


def test_sequences_shift_and_colours_turn(generator):
    sequence = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64)
    group = affine1d(padding="zeros")
    assert_close(group.transform(by(group, shift=2 * 2 / 16), sequence)[:, 0, :, 2:], sequence[:, :, :-2])
    image = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    hue = colours("hue")
    assert_close(hue.transform(by(hue, hue=2 * pi / 3), image)[:, 0], image[:, [2, 0, 1]])
    grey = image.mean(1, keepdim=True).expand_as(image)
    both = colours("hue", "saturation")
    assert_close(both.transform(by(both, hue=0.7, saturation=0.4), grey)[:, 0], grey)


def test_generators_are_chosen_by_name():
    group = affine2d("rotation", "scale")
    assert group.names == ("rotation", "scale_x", "scale_y")
    assert group.bounded(scale=0.5).generators[2].bound == 0.5
    assert [g.one_sided for g in group.one_sided("scale_x").generators] == [False, True, False]
    assert [g.extent for g in group.shared("scale").generators] == ["rotation", "scale", "scale"]
    assert [g.start for g in group.starting(0.3, rotation=1.0).generators] == [1.0, 0.3, 0.3]
    product = (group * colours("hue")).bounded(hue=1.0).only("rotation", "hue")
    assert product.names == ("rotation", "hue")
    assert product.generators[1].bound == 1.0


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"no generator 'turn'; there are translation_x, .*shear"):
        affine2d("turn")
    with pytest.raises(ValueError, match="on must be one of images, points, got 'graphs'"):
        affine2d(on="graphs")
    with pytest.raises(ValueError, match="padding must be one of border, zeros, reflection, got 'wrap'"):
        affine2d(padding="wrap")
    with pytest.raises(ValueError, match="bound of 'rotation' must be positive, got -1"):
        affine2d().bounded(rotation=-1.0)
    with pytest.raises(ValueError, match=r"for 3 channels, the inputs have 1\. Use sb\.groups\.colours\(channels=1\)"):
        colours().transform(torch.zeros(1, 1, 4), torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match=r"must have different names, got rotation, rotation"):
        affine2d("rotation") * affine2d("rotation")
    with pytest.raises(ValueError, match=r"nothing is left of hue\. Use the other"):
        (affine2d("rotation") * colours("hue")).only("rotation")
    with pytest.raises(TypeError, match="a pair of matrices"):
        (affine2d("rotation") * colours("hue")).elements(torch.zeros(2))
