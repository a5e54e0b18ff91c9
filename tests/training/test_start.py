"""Training begins alike, whatever weights and precisions it is given."""

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.layers import ConvPath, DensePath, FactoredPath, RelaxedLayer
from symbayes.layout import weights
from symbayes.training.start import SMALL, begin_symmetric, breaking_weights, slow_share
from symbayes.training.trainer import Problem

TASK = sb.load("placed-digits").subset(40, 0)
INPUTS = TASK.train[0].double()
PATHS = ("factored", "conv", "gconv")


def network(relaxation: float, paths: tuple[str, ...] = PATHS) -> nn.Module:
    return sb.allconv(TASK, paths, 1, relaxation=relaxation, generator=torch.Generator().manual_seed(0)).double()


def begin(model: nn.Module, prior: sb.priors.Prior | None = None) -> sb.priors.Prior:
    prior = prior if prior is not None else sb.TensorwisePrior(model)
    begin_symmetric(model, prior, INPUTS, torch.Generator().manual_seed(0))
    return prior


def sizes(model: nn.Module) -> dict[tuple[str, str], float]:
    """Of the outputs of every path, and of the sum of those that break nothing."""
    found: dict[tuple[str, str], float] = {}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, RelaxedLayer)}
    for name, layer in layers.items():
        for path, module in layer.paths.items():

            def note(module, args, output, key=(name, path)):
                found[key] = float(output.square().mean().sqrt())

            module.register_forward_hook(note)
    with torch.no_grad():
        model(INPUTS)
    return found


def test_networks_at_equal_scales_and_at_small_ones_begin_alike():
    at_equal, at_small = network(1.0), network(0.03)
    of_equal, of_small = begin(at_equal), begin(at_small)
    torch.testing.assert_close(of_equal.log_precision, of_small.log_precision)
    with torch.no_grad():
        torch.testing.assert_close(at_equal(INPUTS), at_small(INPUTS))


def test_paths_that_break_a_symmetry_are_small_in_every_layer():
    model = network(1.0)
    begin(model)
    found = sizes(model)
    for layer in {layer for layer, _ in found}:
        for path in ("factored", "conv"):
            assert found[layer, path] == pytest.approx(SMALL * found[layer, "gconv"], rel=1e-6)


@torch.no_grad()
def test_a_path_that_keeps_the_symmetry_is_brought_back_where_it_was_off():
    model = network(1.0)
    prior = sb.TensorwisePrior(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "gconv" in name:
                weight.mul_(1e-4)
        prior.log_precision.fill_(15.0)
    begin(model, prior)
    found, usual = sizes(model), sizes(begun := network(0.03))
    begin(begun)
    for layer in {layer for layer, _ in found}:
        assert 1 / 4 < found[layer, "gconv"] / usual[layer, "gconv"] < 4  # of its order, from 1e-4
        assert found[layer, "conv"] == pytest.approx(SMALL * found[layer, "gconv"], rel=1e-6)
    precisions = prior.precisions()
    assert all(float(precisions[name]) == pytest.approx(1.0) for name in precisions if "gconv" in name or "head" in name)


@torch.no_grad()
def test_precisions_begin_at_the_first_value_of_the_prior_for_all_paths_alike():
    model = network(0.5, ("factored", "conv"))
    prior = sb.TensorwisePrior(model, 3.0)
    prior.log_precision.uniform_(-5, 5)
    assert all(float(value) == pytest.approx(3.0) for value in begin(model, prior).precisions().values())


@torch.no_grad()
def test_weights_that_are_zero_are_drawn():
    layer = RelaxedLayer({"conv": ConvPath(1, 2, (3, 3)), "factored": FactoredPath((1, 4, 4), (2, 4, 4))})
    with torch.no_grad():
        for weight in layer.paths["factored"].parameters():
            weight.zero_()
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3)).double()
    inputs = torch.randn(8, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    begin_symmetric(model, sb.TensorwisePrior(model), inputs, torch.Generator().manual_seed(0))
    given = [path(inputs).square().mean().sqrt() for path in (layer.paths["factored"], layer.paths["conv"])]
    assert float(given[0] / given[1]) == pytest.approx(SMALL)


@torch.no_grad()
def test_frozen_precisions_and_models_without_a_choice_stay_as_they_are():
    model = network(1.0, ("factored", "conv"))
    prior = sb.TensorwisePrior(model, 2.0, learn=["*conv.weight"])
    before = {name: float(value) for name, value in prior.precisions().items()}
    begin(model, prior)
    assert {name: float(value) for name, value in prior.precisions().items()} == pytest.approx(before)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(256, 10)).double()
    weight = plain[1].weight.detach().clone()
    begin(plain)
    assert torch.equal(plain[1].weight, weight)


def test_a_layer_of_dense_and_conv_with_biases_gives_up_those_that_break():
    layer = RelaxedLayer({"dense": DensePath((1, 4, 4), (2, 4, 4)), "conv": ConvPath(1, 2, (3, 3))})
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3)).double()
    with torch.no_grad():
        layer.paths["dense"].bias.fill_(1.0)
        layer.paths["conv"].bias.fill_(0.5)
    inputs = torch.randn(8, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    begin_symmetric(model, sb.TensorwisePrior(model), inputs, torch.Generator().manual_seed(0))
    assert not layer.paths["dense"].bias.any()
    assert (layer.paths["conv"].bias == 0.5).all()


def test_training_from_three_starts_begins_at_one_loss():
    losses = []
    for relaxation in (1.0, 0.03):
        model = sb.allconv(TASK, ("factored", "conv"), 1, relaxation=relaxation, generator=torch.Generator().manual_seed(0))
        result = sb.fit(model, TASK.train, epochs=1, progress=False)
        losses.append(result.history[0].loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def dense_and_conv() -> tuple[RelaxedLayer, nn.Module, torch.Tensor]:
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        layer = RelaxedLayer({"dense": DensePath((1, 4, 4), (2, 4, 4)), "conv": ConvPath(1, 2, (3, 3))})
        inputs = torch.randn(8, 1, 4, 4, dtype=torch.float64)
        return layer, nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3)).double(), inputs


def begun(model: nn.Module, inputs: torch.Tensor) -> sb.priors.Prior:
    prior = sb.TensorwisePrior(model)
    begin_symmetric(model, prior, inputs, torch.Generator().manual_seed(0))
    return prior


@torch.no_grad()
@pytest.mark.parametrize("scale", [1e-3, 0.0])
def test_a_bias_does_not_hide_that_weights_are_off(scale):
    layer, model, inputs = dense_and_conv()
    layer.paths["conv"].weight.mul_(scale)
    layer.paths["conv"].bias.fill_(0.01)
    begun(model, inputs)
    dense, conv = (path(inputs).square().mean().sqrt() for path in layer.paths.values())
    assert float(dense / conv) == pytest.approx(SMALL, rel=1e-3)
    assert float(conv) == pytest.approx(2**0.5 * float(inputs.square().mean().sqrt()), rel=0.1)


@torch.no_grad()
@pytest.mark.parametrize(("size", "share", "is_off"), [(30.0, 0.02, True), (30.0, 0.5, False), (0.03, 0.5, False)])
def test_a_path_is_off_by_what_it_gives_against_the_others(size, share, is_off):
    layer, model, inputs = dense_and_conv()
    for path, times in zip(layer.paths.values(), (size, size * share), strict=True):
        path.bias.zero_()
        path.weight.mul_(times / float(path(inputs).square().mean().sqrt()))
    before = layer.paths["conv"].weight.clone()
    begun(model, inputs)
    assert torch.equal(layer.paths["conv"].weight, before) != is_off


@torch.no_grad()
def test_blank_inputs_do_not_leave_a_path_on():
    layer, model, inputs = dense_and_conv()
    begun(model, torch.zeros_like(inputs))
    dense, conv = (path(inputs).square().mean().sqrt() for path in layer.paths.values())
    assert float(dense / conv) == pytest.approx(SMALL, rel=0.3)


@torch.no_grad()
def test_frozen_weights_and_tiny_ones_are_taken():
    layer, model, inputs = dense_and_conv()
    layer.paths["dense"].weight.requires_grad_(False)
    assert begun(model, inputs).log_precision.isfinite().all()
    layer, model, inputs = dense_and_conv()
    for weight in model.parameters():
        weight.mul_(1e-20)
    assert begun(model, inputs).log_precision.max() <= 20


def test_a_layer_that_is_called_twice_is_scaled_once():
    layer = RelaxedLayer({"dense": DensePath((2, 4, 4), (2, 4, 4)), "conv": ConvPath(2, 2, (3, 3))})

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = layer, nn.Linear(32, 3)

        def forward(self, x):
            return self.head(self.layer(5 * self.layer(x)).flatten(1))

    inputs = torch.randn(8, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    begun(Twice().double(), inputs)
    dense, conv = (path(inputs).square().mean().sqrt() for path in layer.paths.values())
    assert float((dense / conv).detach()) == pytest.approx(SMALL, rel=1e-6)


def test_what_hooks_of_users_do_is_done_once():
    layer, model, inputs = dense_and_conv()
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append(1) or (2 * args[0],))
    expected = layer.paths["conv"](2 * inputs)
    begun(model, inputs)
    assert seen == [1]
    torch.testing.assert_close(layer.paths["conv"](2 * inputs), expected)


def test_weights_that_break_a_symmetry_are_known():
    model = network(1.0)
    breaking = {name for name, breaks in zip(weights(model), breaking_weights(model), strict=True) if breaks}
    assert breaking == {name for name in weights(model) if ".factored." in name or ".paths.conv." in name}


def test_they_come_to_move_as_others_do():
    assert [slow_share(epoch, 8) for epoch in (1, 2, 8, 20)] == [1 / 8, 1 / 4, 1, 1]


@pytest.mark.parametrize("symmetric", [False, True])
def test_they_move_slowly_where_training_begins_symmetric(symmetric):
    model = network(1.0).float()
    problem = Problem(model, as_source(TASK.train, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
    trainer = sb.Laplace(symmetric_start=symmetric).trainer(problem, sb.Schedule(4, 20), sb.Optimiser())
    state = trainer.init(torch.Generator().manual_seed(0))
    assert state.descent.slow == (breaking_weights(model) if symmetric else [False] * len(weights(model)))
    for epoch in (1, 2):
        trainer.epoch(state)
        rate, slow_rate, *_ = state.descent.rates
        assert float(slow_rate) == pytest.approx(slow_share(epoch, 4) * float(rate))
