"""Amounts of transformations: where they may lie, their mean and their covariance, drawn and evenly spread."""

from math import pi

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics.network import MEASURES, even_amounts, random_amounts

#: The variance of a coordinate, among k.
VARIANCES = {"uniform": lambda k: pi**2 / 3, "ball": lambda k: pi**2 / (k + 2), "gaussian": lambda k: pi**2 / 4}


def drawn(measure: str, samples: int, count: int, seed: int = 0) -> torch.Tensor:
    return random_amounts(measure, samples, count, np.random.default_rng(seed))


def test_all_measures_are_here():
    assert set(VARIANCES) == set(MEASURES)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("draw", [drawn, even_amounts])
def test_they_lie_within_the_reach(draw, count):
    cube, ball = draw("uniform", 500, count), draw("ball", 500, count)
    assert cube.shape == ball.shape == (500, count)
    assert 0.9 * pi < cube.abs().max() <= pi
    assert 0.9 * pi < ball.norm(dim=1).max() <= pi


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("measure", MEASURES)
def test_random_amounts_have_the_mean_and_covariance_of_their_measure(measure, count):
    found, variance = drawn(measure, 40_000, count), VARIANCES[measure](count)
    assert_close(found.mean(0), torch.zeros(count, dtype=torch.float64), atol=5 * (variance / 40_000) ** 0.5, rtol=0.0)
    covariance = found.T @ found / 40_000
    assert_close(covariance, variance * torch.eye(count, dtype=torch.float64), atol=0.04 * variance, rtol=0.0)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("measure", MEASURES)
def test_random_amounts_fill_their_measure(measure, count):
    found = drawn(measure, 20_000, count)
    shares = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    if measure == "uniform":
        quantiles = (found[:, 0] / pi + 1) / 2
    elif measure == "ball":
        quantiles = (found.norm(dim=1) / pi) ** count
    else:
        quantiles = torch.special.ndtr(found[:, 0] / (pi / 2))
    assert_close(quantiles.quantile(shares), shares, atol=0.02, rtol=0.0)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("measure", MEASURES)
def test_even_amounts_come_in_opposite_pairs(measure, count):
    found = even_amounts(measure, 32, count)
    assert torch.equal(found[16:], -found[:16])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("measure", MEASURES)
def test_even_amounts_have_the_covariance_nearly_exactly(measure, count):
    found, variance = even_amounts(measure, 480, count), VARIANCES[measure](count)
    covariance = found.T @ found / 480
    assert_close(covariance.trace() / count, torch.tensor(variance, dtype=torch.float64), atol=0.0, rtol=0.005)
    # In the cube, coordinates are paired at random; in the others, by turns.
    apart = {"uniform": 0.2, "ball": 0.1, "gaussian": 0.12}[measure]
    assert_close(covariance, variance * torch.eye(count, dtype=torch.float64), atol=apart * variance, rtol=0.0)


@pytest.mark.parametrize("measure", ["uniform", "ball"])
def test_even_amounts_along_one_observable_take_even_steps(measure):
    found = even_amounts(measure, 8, 1)[:, 0].sort().values
    assert_close(found, pi * (torch.arange(8, dtype=torch.float64) - 3.5) / 4)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_there_are_as_many_as_wanted(measure, samples):
    assert even_amounts(measure, samples, 3).shape == drawn(measure, samples, 3).shape == (samples, 3)


@pytest.mark.parametrize("measure", MEASURES)
def test_amounts_are_the_same_again_where_the_seed_is(measure):
    assert torch.equal(drawn(measure, 6, 2), drawn(measure, 6, 2))
    assert not torch.equal(drawn(measure, 6, 2), drawn(measure, 6, 2, seed=1))
    assert torch.equal(even_amounts(measure, 6, 2), even_amounts(measure, 6, 2))


def test_another_measure_is_refused():
    with pytest.raises(ValueError, match="must be one of uniform, ball, gaussian; got 'sphere'"):
        even_amounts("sphere", 4, 1)
    with pytest.raises(ValueError, match="must be one of uniform, ball, gaussian; got 'sphere'"):
        drawn("sphere", 4, 1)
