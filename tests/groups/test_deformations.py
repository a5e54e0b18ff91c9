"""Local deformations: against a field written out, by how far they displace, and as extents that evidence learns."""

from math import pi

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.groups.fields import deformations
from symbayes.groups.lie import affine2d, resampling


def drawn(group, n=3, s=4, scale=0.1):
    return scale * torch.randn(n, s, len(group.generators), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_nothing_moves_without_amounts():
    group = deformations(2)
    images = torch.randn(3, 2, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moved = group.transform(0 * drawn(group), images)
    assert_close(moved, images[:, None].expand_as(moved))


def test_pixels_are_read_where_the_field_says():
    group, (h, w) = deformations(3), (5, 7)
    amounts = drawn(group)
    places = group.places(amounts, (h, w))
    for row, column in ((0, 0), (2, 5), (4, 6)):
        x, y = (2 * column + 1) / w - 1, (2 * row + 1) / h - 1
        there = torch.tensor([x, y], dtype=torch.float64).expand(3, 4, 2).clone()
        for place, wave in enumerate(group.waves):
            i, j = wave.halves
            crest = torch.tensor(pi * i * (x + 1) / 2).cos() * torch.tensor(pi * j * (y + 1) / 2).cos()
            there[..., wave.axis] += amounts[..., place] * wave.size * crest * max(h, w) / (w, h)[wave.axis]
        assert_close(places[..., row, column, :], there, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("band", [1, 2, 3])
def test_a_band_displaces_by_as_much_as_a_shift_of_its_extent(band):
    group, extent = deformations(3), 0.2
    on = torch.tensor([wave.extent == f"deformation_{band}" for wave in group.generators])
    draws = 2 * torch.rand(20_000, len(on), generator=torch.Generator().manual_seed(band)) - 1
    moved = group.places(extent * on * draws, (16, 16)) - group.places(0 * draws[:1], (16, 16))
    for axis in range(2):
        assert float(moved[..., axis].square().mean().sqrt()) == pytest.approx(extent / 3**0.5, rel=0.02)


def test_they_are_the_matrices_that_resampling_gives():
    group = deformations(2)
    images = torch.randn(1, 1, 5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    amounts = drawn(group, 1)
    matrices = resampling(group, amounts[0], (5, 6))
    assert_close(torch.einsum("sqp,p->sq", matrices, images.flatten()), group.transform(amounts, images)[0].flatten(1))


def test_bands_have_extents_of_their_own_and_can_be_chosen():
    group = deformations(2)
    model = sb.OrbitAverage(nn.Flatten(), group, samples=2)
    model(torch.zeros(2, 1, 8, 8))
    assert list(model.extents) == ["deformation_1", "deformation_2"]
    assert {wave.extent for wave in group.only("deformation_2").generators} == {"deformation_2"}
    both = affine2d("rotation") * deformations(1)
    assert both.transform(torch.zeros(1, 1, len(both.generators)), torch.zeros(2, 1, 8, 8)).shape == (2, 1, 1, 8, 8)
    only_x = group.only(*(wave.name for wave in group.waves if wave.axis == 0))
    assert_close(
        only_x.places(drawn(only_x).float(), (4, 4))[0, 0, ..., 1], group.places(0 * drawn(group).float(), (4, 4))[0, 0, ..., 1]
    )


def test_what_is_no_band_or_no_matrix_is_refused():
    with pytest.raises(ValueError, match="at least one band, got 0"):
        deformations(0)
    with pytest.raises(ValueError, match="padding must be one of"):
        deformations(padding="mirror")
    with pytest.raises(TypeError, match="no matrix"):
        deformations().elements(torch.zeros(16))


def test_an_average_over_them_becomes_plain_layers():
    torch.manual_seed(0)
    model = sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), deformations(1), samples=3).eval()
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        expected = model(images)
        assert_close(sb.harden(model, images)(images), expected, rtol=1e-4, atol=1e-5)


def test_the_evidence_has_a_gradient_in_their_extents():
    torch.manual_seed(0)
    model = sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), deformations(2), samples=4).double().eval()
    images, labels = torch.randn(30, 1, 8, 8, dtype=torch.float64), torch.arange(30) % 3
    prior = sb.TensorwisePrior(model)

    def evidence():
        return sb.laplace_evidence(model, (images, labels), sb.Categorical(), prior).total

    value = model.orbit.value
    (slope,) = torch.autograd.grad(evidence(), value)
    for place in range(2):
        with torch.no_grad():
            step = 1e-6 * torch.eye(2, dtype=torch.float64)[place]
            value += step
            up = evidence()
            value -= 2 * step
            down = evidence()
            value += step
        assert float(slope[place]) == pytest.approx(float(up - down) / 2e-6, rel=1e-3)
