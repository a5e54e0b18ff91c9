"""LILA's networks: exact parameter counts, how they start, their curvature, and what they refuse."""

from math import sqrt

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature import capture
from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import EmpiricalFisher
from symbayes.data.load import load
from symbayes.data.source import TensorSource
from symbayes.layers.dense import Scale, Shift
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.models import lenet, mlp, residual, small_cnn

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def pair(shape, classes=10, count=4):
    return torch.randn(count, *shape), torch.arange(count) * (classes - 1) // (count - 1)


@pytest.mark.parametrize(
    ("build", "shape", "parameters", "tensors"),
    [
        (mlp, MNIST, 795_010, 4),
        (lambda data: mlp(data, 50), (2,), 2 * 50 + 50 + 500 + 10, 4),
        (lenet, MNIST, 60_170, 10),
        (lenet, CIFAR, 62_006, 10),
        (residual, CIFAR, 18_995, 26),
        (lambda data: residual(data, 8, 16), CIFAR, 74_827, 26),
        (lambda data: residual(data, 14, 16), CIFAR, 171_610, 47),
        (small_cnn, (1, 16, 16), 80 + 1168 + (256 * 32 + 32) + 330, 8),
        (lambda data: small_cnn(data, 4, 2), (1, 8, 8), 40 + 148 + (64 * 16 + 16) + 170, 8),
    ],
)
def test_parameter_counts(build, shape, parameters, tensors):
    data = pair(shape)
    model = build(data)
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert (sum(sizes), len(sizes)) == (parameters, tensors)
    assert model(data[0]).shape == (4, 10)


@pytest.mark.parametrize(
    ("build", "shape"),
    [(residual, (1, 16, 16)), (residual, (2, 7, 7)), (residual, (1, 5, 9)), (residual, (3, 1, 1))]
    + [(small_cnn, shape) for shape in [(1, 3, 3), (3, 28, 28), (2, 17, 3), (1, 1, 9)]],
)
def test_images_of_any_size_are_taken(build, shape):
    data = pair(shape, 3)
    assert build(data)(data[0]).shape == (4, 3)


def test_maps_of_the_small_network_are_halved_to_four_by_four():
    model = small_cnn(pair((1, 28, 28)), 4)
    sides, features = [], torch.randn(1, 1, 28, 28)
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            sides.append((layer.out_channels, features.shape[-1]))
        features = layer(features)
    assert sides == [(4, 28), (8, 14), (16, 7)]
    assert model.hidden.in_features == 16 * 4 * 4


def test_shape_and_classes_come_from_a_task():
    task = load("upright-digits")
    for build in (mlp, residual, small_cnn):
        assert build(task)(task.test[0][:2]).shape == (2, 10)


@pytest.mark.parametrize("build", [mlp, lenet, residual, small_cnn])
def test_the_generator_alone_says_what_the_initial_weights_are(build):
    def weights(seed):
        model = build(pair(MNIST), generator=torch.Generator().manual_seed(seed))
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    first = weights(0)
    torch.rand(1)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


@pytest.mark.parametrize("name", ["conv2.weight", "conv2.bias", "hidden.weight", "head.bias"])
def test_weights_start_as_those_of_torch(name):
    start = lenet(pair(MNIST)).get_parameter(name)
    bound = {"conv2": 1 / sqrt(6 * 9), "hidden": 1 / sqrt(120), "head": 1 / sqrt(84)}[name.partition(".")[0]]
    assert start.abs().max() <= bound
    assert start.abs().max() > 0.7 * bound


def test_a_residual_network_starts_as_fixup_says(generator):
    data = pair((3, 8, 8))
    model = residual(data, 14, 32, generator=generator)
    assert len([name for name, _ in model.named_children() if name.startswith("block")]) == 6
    for block in (model.block2, model.block3):
        wanted = sqrt(2 / (9 * block.conv1.out_channels)) / sqrt(6)
        assert float(block.conv1.weight.detach().std()) == pytest.approx(wanted, rel=0.05)
        assert not block.conv2.weight.any()
    assert model.stem.weight.abs().max() <= 1 / sqrt(27)
    assert not model(data[0]).any()
    features = torch.randn(2, 32, 8, 8)
    assert_close(model.block1(features), features.relu())
    halved = model.block3(features)
    assert_close(halved[:, :32], features[:, :, ::2, ::2].relu())
    assert halved.shape == (2, 64, 4, 4)
    assert not halved[:, 32:].any()


def tiny(generator):
    """A residual network with weights that are all different from their start, and its data."""
    inputs = torch.randn(6, 2, 4, 4, generator=generator, dtype=torch.float64)
    targets = torch.arange(6) % 3
    model = residual((inputs, targets), 8, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    return model, inputs, targets


def scalars(model):
    """The names of the single numbers by which maps are scaled and shifted."""
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, Scale | Shift)]
    names = [f"{name}.{tensor}" for name, module in modules for tensor, _ in module.named_parameters()]
    assert len(names) == 17
    return names


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(0.5)], ids=lambda likelihood: type(likelihood).__name__)
@pytest.mark.parametrize("budget", [1, 2**20], ids=["column by column", "all columns at once"])
def test_the_curvature_of_scales_and_shifts_is_exact(likelihood, budget, generator, monkeypatch):
    monkeypatch.setattr(capture, "COLUMN_BUDGET_CPU", budget)
    model, inputs, targets = tiny(generator)
    likelihood = likelihood.double()
    if isinstance(likelihood, Gaussian):
        targets = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, targets, torch.device("cpu"))
    exact = Ggn(joint=False).curvature(model, data, likelihood).blocks
    for rule in (Diagonal(batch_size=4), Kfac(batch_size=4), Kfac(sharing="reduce")):
        found = rule.curvature(model, data, likelihood).blocks
        assert found.keys() == exact.keys()
        for name in scalars(model):
            assert exact[name].dense().item() > 0
            assert_close(found[name].dense(), exact[name].dense())


def test_empirical_gradients_of_scales_and_shifts_are_those_of_each_datum(generator):
    model, inputs, targets = tiny(generator)
    data = TensorSource(inputs, targets, torch.device("cpu"))
    names = scalars(model)
    wanted = dict.fromkeys(names, 0.0)
    for datum, target in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(datum[None]), target[None])
        for name, gradient in zip(names, torch.autograd.grad(loss, [model.get_parameter(n) for n in names]), strict=True):
            wanted[name] += float(gradient) ** 2
    for rule in (Diagonal(EmpiricalFisher()), Kfac(EmpiricalFisher(), batch_size=4)):
        found = rule.curvature(model, data, Categorical()).blocks
        assert {name: float(found[name].dense()) for name in names} == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lenet(pair((1, 16, 16))), "lenet takes images of 28×28 or 32×32, .* got 16×16. Resize them, or use small_cnn"),
        (lambda: lenet(pair((28, 28))), r"lenet needs images \[n, c, h, w\], got a shape of \(28, 28\) .* Use mlp"),
        (lambda: small_cnn(pair((64,))), r"small_cnn needs images \[n, c, h, w\], got a shape of \(64,\)"),
        (lambda: small_cnn(pair((1, 8, 8)), depth=0), "depth must be 1 or more, the convolutions on each map; got 0"),
        (lambda: residual(pair((1, 8, 8)), 10), "depth must be 6 n .* 2 with n blocks in each of three stages.* got 10"),
        (lambda: residual(pair((1, 8, 8)), 2), "depth must be 6 n .* got 2"),
        (lambda: residual(pair((1, 64))), r"residual needs images \[n, c, h, w\], got a shape of \(1, 64\)"),
    ],
)
def test_what_cannot_be_built_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
