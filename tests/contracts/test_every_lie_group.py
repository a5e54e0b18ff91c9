"""The contract of every Lie group: amounts of a generator add up, each datum may have its own, and they are differentiable."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.lie import Colours, Images, LieGroup, Points, Product, Sequences, affine1d, affine2d, colours

#: A group, and the shape of data that it acts on.
GROUPS = {
    "images": (affine2d(), (2, 6, 8)),
    "points": (affine2d(on="points"), (5, 2)),
    "vectors": (affine2d(on="points"), (2,)),
    "sequences": (affine1d(), (2, 9)),
    "times": (affine1d(on="points"), (4, 1)),
    "colours": (colours(), (3, 4, 4)),
    "greys": (colours(channels=1), (1, 5)),
    "product": (affine2d("rotation") * colours("brightness", channels=2), (2, 6, 6)),
}
#: Those whose elements move data without resampling, so that the action is exact.
EXACT = ("points", "vectors", "times", "colours", "greys")


@pytest.fixture(params=GROUPS)
def case(request, generator):
    group, shape = GROUPS[request.param]
    return group, torch.randn(4, *shape, generator=generator, dtype=torch.float64)


def test_zero_changes_nothing(case):
    group, data = case
    moved = group.transform(torch.zeros(1, 3, len(group.generators), dtype=torch.float64), data)
    assert moved.shape == (4, 3, *data.shape[1:])
    assert_close(moved, data[:, None].expand_as(moved))


def test_each_datum_may_be_transformed_in_its_own_way(case, generator):
    group, data = case
    amounts = 0.3 * torch.randn(4, 2, len(group.generators), generator=generator, dtype=torch.float64)
    moved = group.transform(amounts, data)
    for index in range(4):
        assert_close(moved[index], group.transform(amounts[index : index + 1], data[index : index + 1])[0])


@pytest.mark.parametrize("name", EXACT)
def test_amounts_of_one_generator_add_up(name, generator):
    group, shape = GROUPS[name]
    data = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    for index in range(len(group.generators)):
        one = torch.zeros(1, 1, len(group.generators), dtype=torch.float64)
        one[..., index] = 0.4
        twice = group.transform(one, group.transform(one, data)[:, 0])
        assert_close(twice, group.transform(2 * one, data))
        assert_close(group.transform(-one, group.transform(one, data)[:, 0])[:, 0], data)


def test_data_are_differentiable_in_amounts(case, generator):
    group, data = case
    amounts = 0.2 * torch.randn(1, 2, len(group.generators), generator=generator, dtype=torch.float64)
    amounts.requires_grad_()
    probe = torch.randn(4, 2, *data.shape[1:], generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: (group.transform(a, data) * probe).sum(), amounts)


def test_extents_have_a_side_where_they_are_in_pixels(case):
    group, data = case
    if any(g.unit == "px" for g in group.generators):
        assert group.side(data) == max(data.shape[2:])
    else:
        assert all(g.natural(0.5, 1) == g.natural(0.5, 7) for g in group.generators)


def test_no_lie_group_is_missing():
    package = {kind for kind in LieGroup.__subclasses__() if kind.__module__.startswith("symbayes.")}
    assert {type(group) for group, _ in GROUPS.values()} == package == {Colours, Images, Points, Product, Sequences}
