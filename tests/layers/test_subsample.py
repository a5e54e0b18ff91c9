"""Exact equivariance of subsampling, for each datum on its own."""

import math

import pytest
import torch
from torch.testing import assert_close

from symbayes.data.load import load
from symbayes.groups.grids import Translation
from symbayes.layers.conv import ConvPath
from symbayes.layers.relaxed import RelaxedLayer, align, centre
from symbayes.models import build_allconv


def test_the_centre_moves_with_the_content(generator):
    features = torch.randn(20, 2, 6, 8, generator=generator, dtype=torch.float64)
    start = centre(features)
    for shift in Translation().elements((6, 8)):
        moved = centre(Translation().act(shift, features))
        assert_close(moved, (start + torch.tensor(shift)) % torch.tensor([6, 8]))


def test_the_centre_of_symmetric_content_moves_with_it_too():
    square = torch.zeros(1, 1, 16, 16)
    square[..., :2, :2] = 1
    start = centre(square)
    for shift in Translation().elements((16, 16)):
        assert_close(centre(square.roll(shift, (2, 3))), (start + torch.tensor(shift)) % 16)


def test_aligned_data_differ_by_whole_strides_however_the_input_was_moved(generator):
    features = torch.randn(5, 1, 8, 8, generator=generator, dtype=torch.float64)
    start = align(features, centre(features), 2)
    for shift in Translation().elements((8, 8)):
        moved = Translation().act(shift, features)
        found = align(moved, centre(moved), 2)
        for datum, reference in zip(found, start, strict=True):
            candidates = (
                reference.roll(step, (1, 2)) for step in Translation().elements((8, 8)) if not any(s % 2 for s in step)
            )
            assert any(torch.equal(datum, candidate) for candidate in candidates)


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 32), (1, 4, 8, 4)])
def test_a_circular_convolutional_network_is_exactly_invariant(shape, generator):
    model = build_allconv(shape, 3, ("conv",), 2, generator=generator).double()
    inputs = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    wanted = model(inputs)
    for shift in list(Translation().elements(shape[1:]))[::7]:
        assert_close(model(Translation().act(shift, inputs)), wanted, rtol=0, atol=1e-12)


def test_a_strided_layer_alone_is_equivariant_up_to_a_shift_of_its_output(generator):
    layer = RelaxedLayer({"conv": ConvPath(1, 2, (3, 3), stride=2)}, stride=2).double()
    inputs = torch.randn(2, 1, 6, 6, generator=generator, dtype=torch.float64)
    wanted = layer(inputs)
    for shift in Translation().elements((6, 6)):
        for found, reference in zip(layer(inputs.roll(shift, (2, 3))), wanted, strict=True):
            candidates = [reference.roll(step, (1, 2)) for step in Translation().elements((3, 3))]
            assert min(float((found - candidate).abs().max().detach()) for candidate in candidates) < 1e-12


def test_the_choice_of_one_datum_does_not_depend_on_the_others(generator):
    model = build_allconv((1, 16, 16), 3, ("factored", "conv"), 2, generator=generator).double()
    inputs = torch.randn(6, 1, 16, 16, generator=generator, dtype=torch.float64)
    assert_close(model(inputs)[2:3], model(inputs[2:3]))


def test_a_relaxed_network_is_not_invariant(generator):
    model = build_allconv((1, 8, 8), 3, ("factored", "conv"), 2, generator=generator).double()
    inputs = torch.randn(3, 1, 8, 8, generator=generator, dtype=torch.float64)
    assert (model(inputs.roll(3, 3)) - model(inputs)).abs().max() > 1e-6


def test_maps_that_a_stride_does_not_divide_are_refused():
    layer = RelaxedLayer({"conv": ConvPath(1, 2, (3, 3), stride=2)}, stride=2)
    with pytest.raises(ValueError, match=r"needs map sizes that are multiples of 2, got \(5, 6\)"):
        layer(torch.zeros(1, 1, 5, 6))


def test_the_centre_turns_and_flips_with_the_content_even_half_way_between_cells():
    place = 2 * math.pi / 8 * (torch.arange(8) - 2.5)
    # The first harmonic is half-way between cells 2 and 3, the second tells left from right.
    energy = torch.stack([2 + place.cos() + tilt * (2 * place).sin() for tilt in (0.5, -0.5)])
    features = energy.sqrt()[:, None]
    assert_close(centre(features), torch.tensor([[3], [2]]))
    for shift in range(8):
        moved = features.roll(shift, 2)
        assert_close(centre(moved), (centre(features) + shift) % 8)
        assert_close(centre(moved.flip(2)), 7 - centre(moved))


def test_networks_of_group_convolutions_are_exactly_invariant_on_real_digits():
    digits = load("upright-digits").test[0].double()
    network = build_allconv((1, 16, 16), 10, ("gconv",), 1, group="p4m").double()
    found = network(digits)
    for moved in (digits.rot90(1, (2, 3)), digits.rot90(2, (2, 3)), digits.flip(3), digits.flip(2).roll((3, 4), (2, 3))):
        assert_close(network(moved), found)
