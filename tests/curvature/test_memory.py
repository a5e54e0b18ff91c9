"""Curvature within a budget of memory."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import kfac
from symbayes.curvature.ggn import products_of
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.memory import bytes_held, bytes_of_datum, factor_numbers, fixed_bytes, memory_budget, within_budget
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical


class Counting(TensorSource):
    """Data that note the sizes of batches."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sizes = []

    def _batches(self, batch_size, generator):
        for batch in super()._batches(batch_size, generator):
            self.sizes.append(len(batch[0]))
            yield batch


def network():
    layers = [nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(384, 3)]
    return nn.Sequential(*layers).double().eval()


def points(generator, n=90):
    inputs = torch.randn(n, 1, 8, 8, generator=generator, dtype=torch.float64)
    return Counting(inputs, torch.arange(n) % 3, torch.device("cpu"))


def gib_for(model, data, count, **how):
    """A budget that holds just so many data."""
    return (fixed_bytes(model, **how) + (count + 0.5) * bytes_of_datum(model, data.inputs[:2], **how)) / 2**30


@pytest.mark.parametrize("rule", [Kfac(), Kfac(MonteCarloFisher()), sb.curvature.Ekfac(), sb.curvature.Diagonal()])
def test_results_are_the_same_within_a_budget(rule, generator):
    model, data = network(), points(generator)
    whole = rule.curvature(model, data, Categorical(), generator=torch.Generator().manual_seed(0))
    assert max(data.sizes) >= 90 / 2 or isinstance(rule, sb.curvature.Ekfac)
    data.sizes.clear()
    with memory_budget(gib_for(model, data, 7)):
        small = rule.curvature(model, data, Categorical(), generator=torch.Generator().manual_seed(0))
    assert max(data.sizes[-8:]) <= 8  # one more than fit, where a datum would be alone; the first pass of EKFAC has more
    assert_close(small.log_likelihood, whole.log_likelihood)
    for name, block in whole.blocks.items():
        assert_close(small.blocks[name].dense(), block.dense(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 4])
def test_models_that_change_what_they_gave_take_no_less(depth):
    """They are shown copies, so that more is held."""

    def build(in_place):
        layers = [nn.Conv2d(3, 8, 3, padding=1)]
        for _ in range(depth):
            layers += [nn.BatchNorm2d(8), nn.ReLU(in_place), nn.Conv2d(8, 8, 3, padding=1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 3)).eval()

    inputs = torch.randn(2, 3, 8, 8)
    assert bytes_of_datum(build(True), inputs) >= 0.9 * bytes_of_datum(build(False), inputs)


def test_products_are_the_same_within_a_budget(generator):
    model, data = network(), points(generator)
    products = products_of(model, data, Categorical(), 90)
    vector = torch.randn(sum(products.sizes.values()), generator=generator, dtype=torch.float64)
    wanted = products.product(vector)
    data.sizes.clear()
    with memory_budget(gib_for(model, data, 5, product=True)):
        fewer = products_of(model, data, Categorical(), 90)
        found = fewer.product(vector)
    assert max(data.sizes) <= 6
    assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_what_a_datum_takes_is_what_maps_and_autograd_hold(generator):
    model, data = network(), points(generator)
    # Of 64 pixels: the image as the convolution sees it, six maps three times (before and after the norm, and bent), 3 outputs.
    numbers = 64 + 3 * 6 * 64 + 3
    assert 0.9 * numbers * 8 < bytes_of_datum(model, data.inputs[:2]) / 3 < 1.6 * numbers * 8
    assert bytes_of_datum(model, data.inputs[:2]) == pytest.approx(bytes_of_datum(model, data.inputs[:8]), rel=0.05)


class Constant(nn.Module):
    """Has a tensor that belongs to no map, and gives it for all data."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))

    def forward(self, inputs):
        return self.weight.expand(len(inputs), 3)


def test_outputs_count_where_nothing_else_is_held(generator):
    assert bytes_of_datum(Constant(3), points(generator).inputs[:2]) == 3 * 3 * 8


class Grid(nn.Module):
    """With a module that sees the same for all data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.ones(1, 100, 4))
        self.each, self.all, self.head = nn.Linear(64, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head((self.each(inputs.flatten(1))[:, None] * self.all(self.grid).tanh()).mean(1))


def test_what_is_the_same_for_all_data_counts_for_each(generator):
    model = Grid().double()
    # What is given for the grid, and bent; each datum times that comes and goes.
    assert 2 * 400 * 8 <= bytes_held(model, points(generator).inputs) < 5 * 400 * 8


def test_what_attention_keeps_counts():
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.Flatten(), nn.Linear(400, 3))
    few, many = (bytes_held(model[:1], torch.randn(2, length, 4)) for length in (100, 200))
    assert few > 2 * 100**2 * 4
    assert many > 3 * few


@pytest.mark.parametrize(("shape", "largest"), [((1, 3), 40), ((3,), 7)])
def test_tensors_with_an_axis_for_the_data_do_not_hold_gradients_of_single_data(shape, largest, generator, monkeypatch):
    monkeypatch.setattr(kfac, "data_at_once", lambda model, data: 40)
    monkeypatch.setattr(kfac, "_DATA", 7)
    data = points(generator)
    Kfac().curvature(Constant(*shape), data, Categorical())
    assert max(data.sizes) == largest


def test_factors_are_counted(generator):
    model, data = network(), points(generator)
    blocks = Kfac().curvature(model, data, Categorical()).blocks.values()
    held = {id(f): f.matrices.numel() for b in blocks for f in vars(b).values() if hasattr(f, "matrices")}
    diagonal = sum(b.diagonal.numel() for b in blocks if hasattr(b, "diagonal"))
    assert sum(held.values()) + diagonal <= factor_numbers(model) <= sum(held.values()) + diagonal + 6**2 + 3**2


def test_a_budget_that_holds_nothing_is_refused_with_what_would_do(generator):
    model, data = network(), points(generator)
    assert within_budget(model, data, 33) == 33  # without a budget
    with memory_budget(1e-6), pytest.raises(ValueError, match=r"must hold factors and two data .* for each datum"):
        Kfac().curvature(model, data, Categorical())
    with pytest.raises(ValueError, match="must be positive and finite"), memory_budget(float("inf")):
        pass
    with pytest.raises(ValueError, match="must be positive"), memory_budget(0):
        pass
