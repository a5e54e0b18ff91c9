"""The contract of every path: `forward` equals its row form, and rows give the gradients of weights and biases."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.actions import board, copies, cyclic, pairs, symmetric
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import BlockPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import Path

CASES = {
    "dense": (lambda: DensePath((2, 3, 3), (4, 2)), (2, 3, 3)),
    "dense without bias": (lambda: DensePath((5,), (3,), bias=False), (5,)),
    "block": (lambda: BlockPath(3, 5, 4, deviation=0.5), (3, 5)),
    "conv 1-d": (lambda: ConvPath(2, 3, (3,)), (2, 7)),
    "conv 2-d circular": (lambda: ConvPath(2, 3, (3, 3)), (2, 5, 4)),
    "conv 2-d small map": (lambda: ConvPath(2, 3, (5, 5)), (2, 1, 1)),
    "conv 2-d zeros": (lambda: ConvPath(2, 3, (3, 3), padding_mode="zeros"), (2, 5, 4)),
    "conv 2-d reflect": (lambda: ConvPath(2, 3, (3, 3), padding_mode="reflect"), (2, 5, 4)),
    "conv 2-d replicate": (lambda: ConvPath(2, 3, (3, 3), padding_mode="replicate"), (2, 5, 4)),
    "conv 2-d even kernel": (lambda: ConvPath(2, 3, (2, 4), padding=(1, 2)), (2, 5, 4)),
    "conv 2-d groups": (lambda: ConvPath(4, 6, (3, 1), groups=2), (4, 5, 4)),
    "conv 2-d stride": (lambda: ConvPath(2, 3, (3, 3), stride=2), (2, 5, 4)),
    "orbit of a set": (lambda: OrbitPath(2, 3, symmetric(6)).parts[0], (2, 6)),
    "orbit pooled": (lambda: OrbitPath(2, 3, symmetric(6).pooled()).parts[0], (2, 6)),
    "orbit of a board": (lambda: OrbitPath(2, 3, board(3), in_shape=(3, 3)).parts[0], (2, 3, 3)),
    "orbit of pairs": (lambda: OrbitPath(2, 3, pairs(symmetric(4)), bias=False).parts[1], (2, 16)),
    "orbit of two cycles": (lambda: OrbitPath(2, 3, copies(cyclic(4), 2)).parts[0], (2, 8)),
    "conv 3-d": (lambda: ConvPath(1, 2, (3, 3, 3), stride=2), (1, 4, 4, 2)),
}


@pytest.fixture(params=CASES, ids=str)
def case(request, generator):
    build, shape = CASES[request.param]
    path = build().double()
    with torch.no_grad():
        if path.bias is not None:
            path.bias.normal_(generator=generator)
    return path, torch.randn(5, *shape, generator=generator, dtype=torch.float64)


def test_forward_equals_the_row_form(case):
    path, inputs = case
    expected = torch.einsum("nsbi,boi->nsbo", path.input_rows(inputs), path.weight_rows())
    if path.bias_rows() is not None:
        expected = expected + path.bias_rows()
    assert_close(path.output_rows(path(inputs)), expected)


def test_rows_give_the_gradients_of_each_datum(case, generator):
    path, inputs = case
    for datum in inputs[:2]:
        outputs = path(datum[None])
        direction = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
        wanted = torch.autograd.grad((outputs * direction).sum(), [p for p in (path.weight, path.bias) if p is not None])
        rows = path.output_rows(direction)
        weight = torch.einsum("nsbo,nsbi->boi", rows, path.input_rows(datum[None]))
        assert_close(path.weight_from_rows(weight), wanted[0].flatten())
        if path.bias is not None:
            assert_close(path.bias_from_rows(rows.sum((0, 1))), wanted[1].flatten())


def test_a_path_with_a_group_is_equivariant_under_all_of_it():
    for build, shape in CASES.values():
        path = build().double()
        if path.group is None or path.stride > 1:
            continue
        features = torch.randn(2, *shape, dtype=torch.float64)
        grid = shape[1:]
        out_grid = tuple(path(features).shape[2:])
        if out_grid != grid:  # an even kernel that changes the size of the map
            continue
        for element in path.group.elements(grid):
            assert_close(path(path.act_on_inputs(element, features)), path.act_on_outputs(element, path(features)))


def test_no_path_is_missing():
    def leaves(kind):
        below = kind.__subclasses__()
        return {kind} if not below else set().union(*map(leaves, below))

    package = {kind for kind in leaves(Path) if kind.__module__.startswith("symbayes.")}
    assert {type(build()) for build, _ in CASES.values()} == package
