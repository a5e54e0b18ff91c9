"""Scales and shifts by one number: their row form."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.layers.dense import Scale, Shift


@pytest.mark.parametrize("shape", [(3,), (2, 4, 3)])
def test_they_begin_as_the_identity(shape):
    inputs = torch.randn(5, *shape)
    assert torch.equal(Scale()(inputs), inputs)
    assert torch.equal(Shift()(inputs), inputs)
    assert (Scale().weight.shape, Shift().bias.shape) == ((1,), (1,))


@pytest.mark.parametrize("shape", [(3,), (2, 4, 3)])
def test_forward_equals_the_row_form(shape):
    scale, shift, inputs = Scale(), Shift(), torch.randn(5, *shape)
    with torch.no_grad():
        scale.weight.fill_(0.3)
        shift.bias.fill_(-2.0)
    assert_close(scale.output_rows(scale(inputs)), 0.3 * scale.input_rows(inputs))
    assert_close(shift.output_rows(shift(inputs)), shift.input_rows(inputs) - 2)


def test_rows_give_the_gradients_of_each_datum(generator):
    for datum in torch.randn(2, 2, 3, 3, generator=generator):
        direction = torch.randn(1, 2, 3, 3, generator=generator)
        scale, shift = Scale(), Shift()
        (of_weight,) = torch.autograd.grad((scale(datum[None]) * direction).sum(), scale.weight)
        rows = torch.einsum("nsbo,nsbi->boi", scale.output_rows(direction), scale.input_rows(datum[None]))
        assert_close(scale.weight_from_rows(rows), of_weight)
        (of_bias,) = torch.autograd.grad((shift(datum[None]) * direction).sum(), shift.bias)
        assert_close(shift.bias_from_rows(shift.output_rows(direction).sum((0, 1))), of_bias)
