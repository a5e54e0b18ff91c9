"""The contract of every group: its elements act, and form a group."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.grids import Translation, cube, flips, p4, p4m
from symbayes.groups.group import Group
from symbayes.groups.permutation import board, copies, cyclic, dihedral, pairs, symmetric

GROUPS = [
    (Translation(), (3,)),
    (Translation(), (2, 3)),
    (Translation(), (2, 2, 2)),
    (p4(), (2, 2)),
    (p4(), (3, 3)),
    (p4m(), (2, 2)),
    (flips(), (2, 3)),
    (flips(2, (0, 1)), (2, 3)),
    (flips(1), (4,)),
    (cube(), (1, 1, 1)),
    (symmetric(4), (4,)),
    (symmetric(3).pooled(), (3,)),
    (cyclic(5).onto(pairs(cyclic(5))), (5,)),
    (copies(dihedral(4), 2), (2, 4)),
    (board(3), (3, 3)),
]


@pytest.mark.parametrize(("group", "grid"), GROUPS, ids=lambda part: getattr(part, "name", part))
def test_elements_act_as_a_group(group, grid):
    features = torch.randn(2, 1, *grid)
    identity = group.identity(grid)
    elements = list(group.elements(grid))
    assert identity in elements
    assert_close(group.act(identity, features), features)
    for a, b in itertools.product(elements, elements):
        product = group.product(a, b, grid)
        assert product in elements
        assert_close(group.act(product, features), group.act(a, group.act(b, features)))
    for a in elements:
        assert any(group.product(a, b, grid) == identity for b in elements)


def test_no_group_is_missing():
    package = {kind for kind in Group.__subclasses__() if kind.__module__.startswith("symbayes.")}
    assert {type(group) for group, _ in GROUPS} == package
