"""Discrete generators: against numpy's own flips and turns, their orders, and the elements that several make."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.discrete import elements_of, mirror, permuted_channels, quarter_turns, time_reversal
from symbayes.groups.grids import p4m

GENERATORS = {
    "mirror x": (mirror("x"), (3, 4, 5), lambda a: a[:, :, :, ::-1]),
    "mirror y": (mirror("y"), (3, 4, 5), lambda a: a[:, :, ::-1]),
    "mirror x of volumes": (mirror("x", 3), (2, 3, 4, 5), lambda a: a[..., ::-1]),
    "mirror z of volumes": (mirror("z", 3), (2, 3, 4, 5), lambda a: a[:, :, ::-1]),
    "quarter turns": (quarter_turns(), (2, 4, 4), lambda a: np.rot90(a, 1, (2, 3))),
    "quarter turns of volumes": (quarter_turns(3), (2, 3, 4, 4), lambda a: np.rot90(a, 1, (3, 4))),
    "time reversal": (time_reversal(), (2, 7), lambda a: a[..., ::-1]),
    "channels": (permuted_channels((2, 0, 1)), (3, 4, 5), lambda a: np.stack([a[:, 2], a[:, 0], a[:, 1]], 1)),
    "channels of sequences": (permuted_channels((1, 0), 1), (2, 5), lambda a: a[:, ::-1]),
}
ORDERS = {"quarter turns": 4, "quarter turns of volumes": 4, "channels": 3}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_does_what_numpy_does_and_its_powers_come_back(name, generator):
    found, shape, wanted = GENERATORS[name]
    inputs = torch.randn(2, *shape, generator=generator)
    assert_close(found.step.act(inputs), torch.from_numpy(wanted(inputs.numpy()).copy()), rtol=0, atol=0)
    assert found.order == ORDERS.get(name, 2)
    moved = inputs
    for power in found.powers:
        assert_close(power.act(inputs), moved, rtol=0, atol=0)
        moved = found.step.act(moved)
    assert_close(moved, inputs, rtol=0, atol=0)


def test_products_act_one_after_the_other(generator):
    inputs = torch.randn(2, 3, 4, 4, generator=generator)
    steps = [mirror("x").step, quarter_turns().step, permuted_channels((2, 0, 1)).step]
    for first in steps:
        for second in steps:
            assert_close(second.after(first).act(inputs), second.act(first.act(inputs)), rtol=0, atol=0)


def test_products_that_do_the_same_are_one_element(generator):
    """Two mirrors and quarter turns make the eight elements of a square, each of them twice."""
    found = elements_of([mirror("x"), mirror("y"), quarter_turns()])
    assert (len(found.rearrangements), len(found.powers)) == (8, 16)
    assert {element.matrix for element in found.rearrangements} == set(p4m().matrices)
    assert sorted(found.element) == sorted(2 * list(range(8)))
    inputs = torch.randn(1, 1, 4, 4, generator=generator)
    for powers, number in zip(found.powers, found.element, strict=True):
        moved = inputs
        for of, power in zip((mirror("x"), mirror("y"), quarter_turns()), powers, strict=True):
            moved = of.powers[power].act(moved)
        assert_close(found.rearrangements[number].act(inputs), moved, rtol=0, atol=0)
    assert_close(found.rearrangements[0].act(inputs), inputs, rtol=0, atol=0)


def test_what_cannot_be_rearranged_is_refused():
    with pytest.raises(ValueError, match=r"Inputs must be images \[n, c, h, w\], .* got shape \(2, 3, 4\)\. Reshape them"):
        mirror("x").step.act(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"must be equally long; got inputs of shape \(2, 3, 4, 5\)\. Crop or pad"):
        quarter_turns().step.act(torch.zeros(2, 3, 4, 5))
    with pytest.raises(ValueError, match=r"A permutation of 3 channels needs inputs with as many, got 1 of them"):
        permuted_channels((2, 1, 0)).step.act(torch.zeros(2, 1, 4, 5))
    with pytest.raises(ValueError, match=r"A grid of 2 axes has mirrors along x, y; got 'z'"):
        mirror("z")
    with pytest.raises(ValueError, match=r"Quarter turns are of images \(dims=2\) and volumes \(dims=3\), got dims=1"):
        quarter_turns(1)
    with pytest.raises(ValueError, match=r"every number from 0 to 2 once, got \(0, 0, 2\)"):
        permuted_channels((0, 0, 2))
    with pytest.raises(ValueError, match=r"must change something; 'channels' leaves every datum as it is"):
        permuted_channels((0, 1, 2))
    with pytest.raises(ValueError, match=r"must have different names, got mirror_x, mirror_x"):
        elements_of([mirror("x"), mirror("x")])
    with pytest.raises(ValueError, match=r"same number of axes, got 2, 3\. Give all of them the same dims="):
        elements_of([mirror("x"), mirror("y", 3)])
    with pytest.raises(ValueError, match=r"at most 64 elements together.*quarter_turns, channels, mirror_x make more\. Leave"):
        elements_of([quarter_turns(), permuted_channels((1, 2, 3, 0, 5, 6, 4, 8, 7)), mirror("x")])
