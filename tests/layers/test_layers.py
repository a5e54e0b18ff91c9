"""Layers against dense matrices, and what they refuse."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.groups.grids import p4m
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import SymmetricConvPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Layout


def test_a_factored_path_is_the_dense_map_of_its_outer_products(generator):
    path = FactoredPath((3, 4, 5), (2, 3, 2), bias=False).double()
    inputs = torch.randn(6, 3, 4, 5, generator=generator, dtype=torch.float64)
    theta = torch.einsum("dtc,cds->dtcs", path.scatter.weight, path.gather.weight)
    wanted = torch.einsum("dtcs,ncs->ndt", theta, inputs.flatten(2)).unflatten(2, (3, 2))
    assert_close(path(inputs), wanted)
    assert_close(path.dense_weight() @ inputs[0].flatten(), wanted[0].flatten())


def test_biases_of_a_factored_path_are_shared_as_the_specification_says():
    path = FactoredPath((3, 2, 2), (4, 2, 1))
    assert path.gather.bias.shape == (4,)
    assert path.scatter.bias.shape == (2,)
    with torch.no_grad():
        path.gather.bias.fill_(1.0)
        path.scatter.bias.copy_(torch.tensor([0.0, 10.0]))
    outputs = path(torch.zeros(1, 3, 2, 2))
    assert_close(outputs[0, :, 0, 0], path.scatter.weight.sum(2)[:, 0])
    assert_close(outputs[0, :, 1, 0], path.scatter.weight.sum(2)[:, 1] + 10)


@pytest.mark.parametrize("mode", ["circular", "zeros", "reflect", "replicate"])
def test_a_conv_path_equals_torch_s_convolution(mode, generator):
    path = ConvPath(2, 4, (3, 3), padding_mode=mode, groups=2, stride=2).double()
    plain = nn.Conv2d(2, 4, 3, padding=1, padding_mode=mode, groups=2, stride=2).double()
    plain.load_state_dict(path.state_dict())
    inputs = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert_close(path(inputs), plain(inputs))
    ours, theirs = (torch.autograd.grad(m(inputs).square().sum(), [inputs, *m.parameters()]) for m in (path, plain))
    assert_close(ours, theirs)


def test_circular_padding_has_second_derivatives_and_forward_ones(generator):
    path = ConvPath(1, 2, (3, 3)).double()
    inputs = torch.randn(1, 1, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(path, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(path, inputs)


def test_initial_paths_keep_the_variance_through_a_relu(generator):
    inputs = torch.randn(500, 4, 6, 6, generator=generator).relu()
    for path in (
        ConvPath(4, 50, (3, 3), generator=generator),
        DensePath((4, 6, 6), (50, 2, 2), generator=generator),
    ):
        ratio = path(inputs).square().mean() / (2 * inputs.square().mean())
        assert 0.7 < ratio < 1.4


def test_tensors_know_their_layer_path_and_symmetry():
    relaxed = RelaxedLayer({"conv": ConvPath(1, 2), "factored": FactoredPath((1, 3, 3), (2, 3, 3))})
    model = nn.Sequential(relaxed, nn.Flatten(), nn.Linear(18, 2))
    model[2].bias.requires_grad_(False)
    tensors = Layout.of(model).tensors
    assert list(tensors) == [name for name, p in model.named_parameters() if p.requires_grad]
    gather = tensors["0.paths.factored.gather.weight"]
    assert (gather.layer, gather.path, gather.symmetry, gather.kind) == ("0", "factored", None, "weight")
    conv = tensors["0.paths.conv.bias"]
    assert (conv.layer, conv.path, conv.symmetry, conv.kind) == ("0", "conv", "translation", "bias")
    assert tensors["2.weight"].path == "Linear"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConvPath(1, 2, (2, 2)), r"kernel_size must be odd unless padding is given, got \(2, 2\)"),
        (lambda: ConvPath(1, 2, (3,) * 4), "kernel_size must have 1, 2 or 3 entries"),
        (lambda: ConvPath(3, 4, groups=2), "groups must divide the channels, got 3 -> 4 in 2 groups"),
        (lambda: RelaxedLayer({}), "needs at least one path"),
        (lambda: RelaxedLayer({"a": ConvPath(1, 2, stride=2)}), "must be that of its paths, got 1; 'a' has 2"),
        (
            lambda: ConvPath(2, 2)(torch.zeros(1, 3, 4, 4)),
            r"ConvPath expects inputs \[n, 2, and 2 grid axes\], got \(1, 3, 4, 4\)",
        ),
        (lambda: DensePath((2, 2), (1,))(torch.zeros(1, 4)), r"DensePath expects inputs of shape \(n, 2, 2\), got \(1, 4\)"),
        (lambda: FactoredPath((2, 2), (1, 1))(torch.zeros(1, 4)), r"FactoredPath expects inputs of shape"),
        (
            lambda: RelaxedLayer({"a": ConvPath(1, 2), "b": DensePath((1, 3, 3), (2, 3))})(torch.zeros(1, 1, 3, 3)),
            r"path 'b' gives \(2, 3\) where those before it give \(2, 3, 3\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_convolution_that_changes_the_size_of_its_map_claims_no_exact_symmetry():
    for padding, exact in (((1, 1), True), ((0, 0), False), ((2, 2), False)):
        assert (ConvPath(1, 1, padding=padding).group is not None) == exact
        assert (SymmetricConvPath(1, 1, p4m(), padding=padding).group is not None) == exact
