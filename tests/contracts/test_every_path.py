"""The contract of every path: `forward` equals its row form, and rows give the gradients of weights and biases."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.groups.grids import cube, flips, p4, p4m
from symbayes.groups.lie import affine2d
from symbayes.groups.permutation import board, copies, cyclic, pairs, symmetric
from symbayes.invariance.filters import FilterPath
from symbayes.layers.basis import RadialBasis
from symbayes.layers.conv import ConvPath, LayerPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import BlockPath, FactoredPath
from symbayes.layers.group_conv import GroupConvPath, SeparableGroupPath, SymmetricConvPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import LinearMap, Path, Shaped
from symbayes.layers.smooth import ExpandedPath, ProjectedPath, SparseConvPath, SparseFactoredPath, SparseGroupConvPath
from symbayes.layout import Layout

CASES = {
    "dense": (lambda: DensePath((2, 3, 3), (4, 2)), (2, 3, 3)),
    "dense without bias": (lambda: DensePath((5,), (3,), bias=False), (5,)),
    "block": (lambda: BlockPath(3, 5, 4, std=0.5), (3, 5)),
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
    "filters": (lambda: FilterPath((2, 4, 5), 3, affine2d(padding="zeros").starting(0.3), 6, stochastic=False), (2, 4, 5)),
    "filters, drawn": (lambda: FilterPath((1, 4, 4), 3, affine2d("rotation"), 4, bias=False), (1, 4, 4)),
    "conv 3-d": (lambda: ConvPath(1, 2, (3, 3, 3), stride=2), (1, 4, 4, 2)),
    "gconv p4": (lambda: GroupConvPath(2, 3, p4()), (8, 4, 4)),
    "gconv p4 lifting": (lambda: GroupConvPath(2, 3, p4(), lifting=True), (2, 5, 5)),
    "gconv p4 pointwise": (lambda: GroupConvPath(2, 3, p4(), mixing="pointwise"), (8, 4, 4)),
    "gconv p4 stride": (lambda: GroupConvPath(2, 3, p4(), stride=2), (8, 4, 4)),
    "gconv p4 depthwise": (lambda: GroupConvPath(2, 4, p4(), channel_groups=2), (8, 3, 3)),
    "gconv p4 over turns": (lambda: GroupConvPath(2, 3, p4(), 1, bias=False), (8, 3, 3)),
    "gconv p4m": (lambda: GroupConvPath(1, 2, p4m()), (8, 3, 3)),
    "gconv flips": (lambda: GroupConvPath(2, 3, flips()), (4, 3, 5)),
    "gconv flips 1-d": (lambda: GroupConvPath(2, 3, flips(1), 5), (4, 7)),
    "gconv cube": (lambda: GroupConvPath(1, 1, cube(), lifting=True), (1, 3, 3, 3)),
    "symmetric conv p4m": (lambda: SymmetricConvPath(2, 3, p4m()), (2, 4, 4)),
    "symmetric conv flips 1-d": (lambda: SymmetricConvPath(4, 6, flips(1), 5, groups=2, bias=False), (4, 7)),
    "symmetric conv zeros": (lambda: SymmetricConvPath(2, 3, p4(), stride=2, padding_mode="zeros"), (2, 5, 5)),
    "sparse conv 1-d": (lambda: SparseConvPath(2, 3, (5,), anchors=0.5), (2, 7)),
    "sparse conv 2-d": (lambda: SparseConvPath(2, 3, learn_lengthscale=True, learn_locations=True), (2, 5, 4)),
    "sparse conv 2-d dense": (lambda: SparseConvPath(2, 3, anchors=None, bias=False), (2, 5, 4)),
    "sparse conv 2-d groups": (lambda: SparseConvPath(4, 6, anchors=7, groups=2, stride=2), (4, 5, 4)),
    "sparse conv 2-d zeros": (lambda: SparseConvPath(2, 3, padding_mode="zeros", learn_lengthscale=True), (2, 5, 4)),
    "sparse conv 3-d": (lambda: SparseConvPath(1, 2, (3, 3, 3), anchors=0.3, stride=2), (1, 4, 4, 2)),
    "sparse gconv p4": (lambda: SparseGroupConvPath(2, 3, p4(), learn_lengthscale=True, learn_locations=True), (8, 4, 4)),
    "sparse gconv p4 lifting": (lambda: SparseGroupConvPath(2, 3, p4(), lifting=True, learn_lengthscale=True), (2, 5, 5)),
    "sparse gconv p4 pointwise": (lambda: SparseGroupConvPath(2, 3, p4(), anchors=0.8, mixing="pointwise"), (8, 4, 4)),
    "sparse gconv p4m depthwise": (lambda: SparseGroupConvPath(2, 4, p4m(), channel_groups=2, stride=2), (16, 4, 4)),
    "sparse gconv p4 dense": (lambda: SparseGroupConvPath(2, 3, p4(), anchors=None, bias=False), (8, 3, 3)),
    "sparse gconv flips 1-d": (lambda: SparseGroupConvPath(2, 3, flips(1), 5, anchors=0.3), (4, 7)),
    "sparse gconv cube": (lambda: SparseGroupConvPath(1, 1, cube(), lifting=True), (1, 3, 3, 3)),
    "projected": (lambda: ProjectedPath(3, RadialBasis((2, 3), 0.5), 4, std=0.5), (3, 6)),
    "projected, weights first": (
        lambda: ProjectedPath(3, RadialBasis((8,), 7, learn_lengthscale=True), 2, std=1.0),
        (3, 8),
    ),
    "expanded": (lambda: ExpandedPath(3, 4, RadialBasis((2, 3), 0.5), std=0.5), (3, 4)),
    "expanded, weights first": (
        lambda: ExpandedPath(3, 2, RadialBasis((8,), 7, learn_lengthscale=True), std=1.0),
        (3, 2),
    ),
}
#: Products of paths: each has its rows, together they must keep the symmetry.
PRODUCTS = {
    "factored": (lambda: FactoredPath((2, 3, 3), (3, 3, 3)), (2, 3, 3)),
    "separable": (lambda: SeparableGroupPath(2, 3, p4()), (8, 4, 4)),
    "separable lifting": (lambda: SeparableGroupPath(2, 3, p4m(), lifting=True), (2, 4, 4)),
    "depthwise separable": (lambda: SeparableGroupPath(2, 3, p4(), depthwise=True), (8, 4, 4)),
    "orbit of a set": (lambda: OrbitPath(2, 3, symmetric(4)), (2, 4)),
    "orbit of two cycles": (lambda: OrbitPath(2, 3, copies(cyclic(3), 2)), (2, 6)),
    "sparse factored": (lambda: SparseFactoredPath((2, 3, 3), (3, 3, 3)), (2, 3, 3)),
    "torch's linear layer": (lambda: LayerPath(nn.Linear(6, 8), (2, 4)), (2, 3)),
    "torch's convolution": (lambda: LayerPath(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), (2, 4, 5)),
}


@pytest.fixture(params=CASES, ids=str)
def case(request, generator):
    build, shape = CASES[request.param]
    path = build().double()
    with torch.no_grad():
        if path.bias is not None:
            path.bias.normal_(generator=generator)
    return path, torch.randn(5, *shape, generator=generator, dtype=torch.float64)


def test_forward_equals_the_row_form(case, generator):
    path, inputs = case
    expected = torch.einsum("nsbi,boi->nsbo", path.input_rows(inputs), path.weight_rows())
    if path.bias_rows() is not None:
        expected = expected + path.bias_rows()
    outputs = path(inputs)
    direction = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
    assert_close((outputs * direction).flatten(1).sum(1), (path.output_rows(direction) * expected).flatten(1).sum(1))
    if not isinstance(path, ExpandedPath):  # whose outputs are a function of rows, not rows put in order
        assert_close(path.output_rows(outputs), expected)


def test_distinct_rows_are_arranged_into_the_input_rows(case):
    path, inputs = case
    rows, ways = path.distinct_rows(inputs), path.arrangements
    arranged = rows if ways is None else torch.cat([rows[..., way] for way in ways], 1)
    assert_close(arranged, path.input_rows(inputs))


def test_rows_are_values_that_say_what_is_known_of_them(case):
    path, inputs = case
    rows = path.rows(inputs)
    assert_close(rows.values, path.input_rows(inputs))
    assert_close(path.rows(inputs, distinct=True).values, path.distinct_rows(inputs))
    assert (rows.copies, rows.structure) == (path.copies, path.structure)
    assert rows.values.shape[1] % rows.copies == 0


def test_matrices_are_those_of_the_weight(case):
    path, inputs = case
    blocks, d_out, d_in = path.matrices(path.weight.shape)
    assert (blocks, d_out, d_in) == path.weight_rows().shape
    assert path.input_rows(inputs).shape[2:] == (blocks, d_in)


def test_dense_rows_are_linear_in_the_inputs(case):
    path, inputs = case
    if path.structure == "dense":
        assert_close(path.input_rows(inputs.mean(0, keepdim=True)), path.input_rows(inputs).mean(0, keepdim=True))


def test_weights_that_meet_a_datum_once_give_rows_reshaped(case):
    path, inputs = case
    if Layout.of(path).sites[""].may_meet_once and path.meets_once(inputs):
        rows = torch.einsum("nsbi,boi->nsbo", path.input_rows(inputs), path.weight_rows())
        rows = rows if path.bias_rows() is None else rows + path.bias_rows()
        assert rows.shape[1] == 1
        assert_close(rows[:, 0].reshape(path(inputs).shape), path(inputs))


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


def test_rows_of_a_shape_give_its_gradients_for_each_datum(case, generator):
    path, inputs = case
    learned = {name: path.get_parameter(name) for name, _ in path.named_parameters() if name.endswith("omega")}
    for name, parameter in learned.items():
        assert isinstance(path, Shaped)
        form = path.shape_rows()[name]
        for datum in inputs[:2]:
            outputs = path(datum[None])
            direction = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
            (wanted,) = torch.autograd.grad((outputs * direction).sum(), parameter)
            found = torch.einsum("nsbo,nsbi->boi", form.output_rows(direction), form.input_rows(datum[None]))
            assert_close(form.weight_from_rows(found), wanted)


def test_a_map_with_a_group_is_equivariant_under_all_of_it():
    for build, shape in (CASES | PRODUCTS).values():
        path = build().double()
        if path.group is None or path.stride > 1:
            continue
        features = torch.randn(2, *shape, dtype=torch.float64)
        outputs = path(features)
        if outputs.shape[2:] != features.shape[2:]:  # an even kernel that changes the size of the map
            continue
        for element in path.group.elements(shape[1:]):
            assert_close(path(path.act_on_inputs(element, features)), path.act_on_outputs(element, outputs))


def test_a_map_without_a_group_says_so():
    with pytest.raises(ValueError, match="DensePath has no symmetry"):
        DensePath((2,), (2,)).act_on_inputs((0,), torch.zeros(1, 2))


def test_no_map_is_missing():
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    package = {kind for kind in below(LinearMap) - {LinearMap, Path} if kind.__module__.startswith("symbayes.")}
    assert {type(build()) for build, _ in CASES.values()} == {kind for kind in package if issubclass(kind, Path)}
    assert {type(build()) for build, _ in PRODUCTS.values()} == {kind for kind in package if not issubclass(kind, Path)}
