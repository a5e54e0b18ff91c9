"""Space groups: how many turns they have, how they act, and what they refuse."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.grids import SpaceGroup, cube, flips, p4, p4m


@pytest.mark.parametrize(("group", "order"), [(p4(), 4), (p4m(), 8), (flips(), 2), (flips(3, (0, 1, 2)), 8), (cube(), 24)])
def test_generators_make_the_whole_point_group(group, order):
    assert group.order == order
    assert all(group.table[k][group.inverse[k]] == 0 for k in range(order))
    assert all(sorted(row) == list(range(order)) for row in group.table)


def test_quarter_turns_are_those_of_numpy():
    features = torch.randn(1, 2, 4, 4)
    turned = {tuple(p4().turn(k, features).flatten().tolist()) for k in range(4)}
    assert turned == {tuple(np.rot90(features.numpy(), k, (2, 3)).flatten().tolist()) for k in range(4)}


def test_a_mirror_swaps_left_and_right_only():
    features = torch.randn(1, 1, 2, 3)
    assert_close(flips().turn(1, features), features.flip(3))


def test_the_regular_action_permutes_turns_and_is_an_action():
    group, features = p4m(), torch.randn(2, 3 * 8, 3, 3)
    elements = list(group.elements((3, 3)))
    for a, b in zip(elements[::7], elements[::5], strict=False):
        together = group.act_regular(group.product(a, b, (3, 3)), features)
        assert_close(together, group.act_regular(a, group.act_regular(b, features)))


def test_equal_groups_number_their_turns_alike_whatever_generated_them():
    other = SpaceGroup([((0, 1), (-1, 0)), ((-1, 0), (0, -1))], "p4")
    assert other == p4()
    assert other.matrices == p4().matrices
    features = torch.randn(1, 1, 3, 3)
    for k in range(4):  # numbered by their angle, also where there are mirrors
        assert_close(p4().turn(k, features), features.rot90(k, (2, 3)))
        assert_close(p4m().turn(k, features), features.rot90(k, (2, 3)))


def test_groups_are_equal_when_their_turns_are():
    assert p4() == SpaceGroup([((0, 1), (-1, 0))], "turned the other way")
    assert len({p4(), p4m(), SpaceGroup([((0, 1), (-1, 0))], "p4")}) == 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SpaceGroup([], "none"), "needs a generator; for translations alone there is Translation"),
        (lambda: SpaceGroup([((1, 1), (0, 1))], "shear"), "a 2 × 2 matrix with a single 1 or -1 in every row and column"),
        (lambda: SpaceGroup([((1, 0), (1, 0))], "projection"), "in every row and column"),
        (lambda: SpaceGroup([((1, 0),)], "half"), "a 1 × 1 matrix"),
        (lambda: SpaceGroup([tuple(tuple(int(i == j) for j in range(4)) for i in range(4))], "4-d"), "1, 2 or 3 dimensions"),
        (lambda: p4().turn(1, torch.zeros(1, 1, 3, 4)), r"equally long; got \(3, 4\)"),
        (lambda: p4().turn(1, torch.zeros(1, 1, 3)), r"p4 acts on grids of 2 dimensions, got a grid \(3,\)"),
    ],
)
def test_what_is_no_space_group_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
