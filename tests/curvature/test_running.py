"""The running curvature: that of a whole pass where nothing moves, a mean that decays as said, and batches that count alike."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.blocks import DiagonalBlock, KroneckerBlock
from symbayes.curvature.kfac import Kfac, RunningCurvature
from symbayes.curvature.rule import ExactFisher, MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian

CPU = torch.device("cpu")


class Mixed(nn.Module):
    """Has a map of every kind, a norm, and a tensor that belongs to no map."""

    def __init__(self):
        super().__init__()
        paths = {"conv": ConvPath(2, 3, (3, 3)), "factored": FactoredPath((2, 4, 4), (3, 4, 4))}
        paths["dense"] = DensePath((2, 4, 4), (3, 4, 4))
        self.layer, self.norm = RelaxedLayer(paths), nn.LayerNorm(4)
        self.free, self.head = nn.Parameter(torch.randn(3, 1, 1)), nn.Linear(48, 3)

    def forward(self, inputs):
        return self.head((self.norm(self.layer(inputs)) * self.free).tanh().flatten(1))


def pair(likelihood, n, generator):
    inputs = torch.randn(n, 2, 4, 4, generator=generator, dtype=torch.float64)
    if isinstance(likelihood, Categorical):
        return inputs, torch.randint(3, (n,), generator=generator)
    return inputs, torch.randn(n, 3, generator=generator, dtype=torch.float64)


def noisy():
    likelihood = Gaussian(0.3, 3).double()
    with torch.no_grad():
        likelihood.log_noise.copy_(torch.tensor([-1.0, 0.0, 0.5]))
    return likelihood


def seen(model, likelihood, batches, memory, rule=None):
    running = RunningCurvature(model, likelihood, rule or Kfac(ExactFisher()), memory, torch.Generator().manual_seed(0))
    for batch in batches:
        running.add(batch)
    return running


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("likelihood", [Categorical(), noisy()], ids=["categorical", "gaussian"])
def test_one_epoch_at_fixed_weights_is_a_pass_over_all_data(likelihood, sharing, generator):
    model, rule = Mixed().double(), Kfac(ExactFisher(), sharing)
    inputs, targets = pair(likelihood, 20, generator)
    batches = list(zip(inputs.split(5), targets.split(5), strict=True))
    found = seen(model, likelihood, batches, 100, rule).curvature(20)
    with torch.no_grad():
        wanted = rule.curvature(model, TensorSource(inputs, targets, CPU), likelihood)
    assert found.blocks.keys() == wanted.blocks.keys() == dict(model.named_parameters()).keys()
    assert isinstance(found.blocks["free"], DiagonalBlock)
    assert isinstance(found.blocks["norm.weight"], DiagonalBlock)
    assert isinstance(found.blocks["layer.paths.factored.gather.weight"], KroneckerBlock)
    for name, block in found.blocks.items():
        assert_close(block.dense(), wanted.blocks[name].dense(), rtol=1e-10, atol=1e-12)
    assert_close(found.log_likelihood, wanted.log_likelihood, rtol=1e-10, atol=1e-12)
    assert found.estimator == f"{rule}, running mean"


def test_the_mean_is_over_all_batches_at_first_and_then_decays(generator):
    model, likelihood = nn.Linear(2, 3).double(), Categorical()
    batches = [
        (torch.randn(4, 2, generator=generator, dtype=torch.float64), torch.randint(3, (4,), generator=generator))
        for _ in range(5)
    ]
    # Shares of 1, ½, ⅓, ⅓, ⅓ in turn, as memory=3 says.
    weights = [4 / 27, 4 / 27, 4 / 27, 2 / 9, 1 / 3]
    assert sum(weights) == pytest.approx(1)
    found = seen(model, likelihood, batches, 3).curvature(12)
    alone = [seen(model, likelihood, [batch], 3).curvature(4) for batch in batches]
    scale = 12 / 4
    for factor, times in (("A", 1), ("G", scale)):
        wanted = sum(w * getattr(c.blocks["weight"], factor).matrices for w, c in zip(weights, alone, strict=True)) * times
        assert_close(getattr(found.blocks["weight"], factor).matrices, wanted)
    wanted = sum(w * c.blocks["bias"].dense() for w, c in zip(weights, alone, strict=True)) * scale
    assert_close(found.blocks["bias"].dense(), wanted)
    log_likelihoods = [likelihood.log_prob(model(x), y).sum().detach() for x, y in batches]
    assert_close(found.log_likelihood, scale * sum(w * p for w, p in zip(weights, log_likelihoods, strict=True)))


def test_a_memory_of_one_is_the_last_batch_at_the_weights_there_were(generator):
    model, likelihood = nn.Linear(2, 3).double(), Categorical()
    first, last = ((torch.randn(4, 2, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 0])) for _ in range(2))
    found = seen(model, likelihood, [first, last], 1).curvature(4)
    alone = seen(model, likelihood, [last], 1).curvature(4)
    for name, block in found.blocks.items():
        assert_close(block.dense(), alone.blocks[name].dense())
    before = found.blocks["weight"].dense().clone()
    with torch.no_grad():
        model.weight.mul_(3)
    assert_close(found.blocks["weight"].dense(), before)


def test_curvature_that_was_given_stays_when_more_batches_are_seen(generator):
    model, likelihood = nn.Linear(2, 3), Categorical()
    batches = [(torch.randn(4, 2, generator=generator), torch.tensor([0, 1, 2, 0])) for _ in range(2)]
    running = seen(model, likelihood, batches[:1], 5)
    found = running.curvature(4)
    kept = {name: block.dense().clone() for name, block in found.blocks.items()}, found.log_likelihood.clone()
    running.add(batches[1])
    for name, block in found.blocks.items():
        assert_close(block.dense(), kept[0][name], rtol=0, atol=0)
    assert_close(found.log_likelihood, kept[1], rtol=0, atol=0)


def test_sampled_columns_are_right_on_average_and_follow_the_generator(generator):
    model, likelihood = nn.Linear(2, 3).double(), Categorical()
    batch = torch.randn(8, 2, generator=generator, dtype=torch.float64), torch.randint(3, (8,), generator=generator)
    rule = Kfac(MonteCarloFisher())
    found = seen(model, likelihood, [batch] * 400, 400, rule).curvature(8).blocks["bias"].dense()
    assert_close(found, seen(model, likelihood, [batch], 1).curvature(8).blocks["bias"].dense(), rtol=0, atol=0.15)
    one, same = (seen(model, likelihood, [batch], 1, rule).curvature(8).blocks["bias"].dense() for _ in range(2))
    assert_close(one, same, rtol=0, atol=0)


def test_the_model_is_left_in_training_as_it_was(generator):
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    seen(model, Categorical(), [(torch.randn(6, 2, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2]))], 1)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert_close(value, state[name])


def test_batches_of_another_size_and_no_batch_and_no_memory_are_refused():
    model, likelihood = nn.Linear(2, 3), Categorical()
    running = seen(model, likelihood, [], 4)
    assert not running.is_known
    with pytest.raises(RuntimeError, match=r"No batch was seen yet, so there is no curvature\. Add batches first\."):
        running.curvature(10)
    running.add((torch.zeros(4, 2), torch.zeros(4).long()))
    assert running.is_known
    with pytest.raises(ValueError, match=r"All batches must be of one size, so that they count alike: 4, got 3\."):
        running.add((torch.zeros(3, 2), torch.zeros(3).long()))
    with pytest.raises(ValueError, match=r"memory must be at least one batch, got 0\."):
        seen(model, likelihood, [], 0)


def test_it_cannot_be_differentiated_and_says_so():
    curvature = seen(nn.Linear(2, 3), Categorical(), [(torch.zeros(4, 2), torch.zeros(4).long())], 4).curvature(10)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated: KFAC .*running mean has no data to go through again"):
        curvature.surrogates({"weight": torch.tensor(1.0), "bias": torch.tensor(1.0)})


def test_squares_are_those_of_the_mode_not_of_the_noise_around_it(generator):
    """Where weights jitter, of their mean; where they fall, of what they are now."""
    model = nn.Linear(4, 3, dtype=torch.float64)
    inputs = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    running = RunningCurvature(model, Categorical(), Kfac(), 100, generator)
    falling = torch.linspace(3, 1, 50, dtype=torch.float64)
    for size in falling:
        with torch.no_grad():
            model.weight.copy_(torch.randn(3, 4, generator=generator, dtype=torch.float64))
            model.bias.fill_(size)
        running.add((inputs, torch.arange(10) % 3))
    squares = running.squares()
    assert squares["bias"] == pytest.approx(3 * 1.0)
    assert squares["weight"] < 0.2 * model.weight.square().sum()
    assert squares["weight"] == pytest.approx(12 / 50, rel=0.8)
