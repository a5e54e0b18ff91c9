"""Resampling as a matrix against torch's own resampling, and its derivatives against finite differences."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.lie import affine2d, resample, resampling

SHAPES = [(5, 5), (4, 7), (6, 3), (1, 1)]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_what_the_group_does_to_images(padding, shape, generator):
    group = affine2d(padding=padding)
    coefficients = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    images = torch.randn(3, 2, *shape, generator=generator, dtype=torch.float64)
    moved = torch.einsum("sqp,ncp->nscq", resampling(group, coefficients, shape), images.flatten(2))
    assert_close(moved, group.transform(coefficients[None], images).flatten(3), rtol=0, atol=1e-12)
    assert_close(resample(group, coefficients, images).transpose(0, 1).flatten(3), moved, rtol=0, atol=1e-12)


def test_without_a_transformation_it_is_the_identity():
    R = resampling(affine2d(), torch.zeros(1, 6, dtype=torch.float64), (4, 5))
    assert_close(R[0], torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_it_has_first_and_second_derivatives(padding, generator):
    group = affine2d(padding=padding)
    coefficients = (0.3 * torch.randn(2, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    image = torch.randn(12, generator=generator, dtype=torch.float64)

    def moved(coefficients):
        return resampling(group, coefficients, (3, 4)) @ image

    assert torch.autograd.gradcheck(moved, (coefficients,))
    assert torch.autograd.gradgradcheck(moved, (coefficients,))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_images_that_are_moved_have_first_and_second_derivatives(padding, generator):
    group = affine2d(padding=padding)
    coefficients = (0.3 * torch.randn(2, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    images = torch.randn(2, 1, 3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(partial(resample, group), (coefficients, images))
    assert torch.autograd.gradgradcheck(partial(resample, group), (coefficients, images))
