"""Counts: what is refused, intervals, and a rate that is learned."""

import pytest
import torch
from scipy.stats import nbinom, poisson
from torch import nn
from torch.testing import assert_close

import symbayes as sb


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.ones(3), r"counts of shape \(3, 2\)"),
        (torch.full((3, 2), 0.5), "must be whole numbers from 0 on, got values from 0.5 to 0.5"),
        (torch.full((3, 2), -1), "from -1 to -1"),
        (torch.full((3, 2), torch.inf), "must be whole numbers"),
    ],
)
def test_what_is_no_count_is_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        sb.Poisson().check(torch.zeros(3, 2), targets)


def test_intervals_are_of_the_counts_and_of_the_rate():
    mean = torch.tensor([[0.5, 4.0, 50.0]], dtype=torch.float64)
    low, high = sb.Poisson().interval(mean, mean.sqrt(), 0.9)  # a rate that is known
    assert_close(torch.cat([low, high]).numpy(), poisson.ppf([[0.05], [0.95]], mean.numpy()))
    low, high = sb.Poisson().interval(mean, (mean + mean.square() / 2).sqrt(), 0.9)
    assert_close(torch.cat([low, high]).numpy(), nbinom.ppf([[0.05], [0.95]], 2, 2 / (2 + mean.numpy())))


def test_the_deviance_is_that_of_the_log_probability(generator):
    outputs = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 6, (5, 2), generator=generator)
    found = sb.Poisson().metrics(outputs, targets)["deviance"]
    best = poisson.logpmf(targets.numpy(), targets.numpy().clip(1e-300)).mean(1)
    assert_close(found, 2 * (torch.as_tensor(best) - sb.Poisson().log_prob(outputs, targets) / 2))


def test_a_rate_is_learned_predicted_and_saved(generator, tmp_path):
    inputs = torch.rand(200, 1, generator=generator) * 4 - 2
    targets = torch.poisson((inputs + 1).exp(), generator=generator)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    result = sb.fit(net, (inputs, targets), likelihood=sb.Poisson(), epochs=60, progress=False)
    assert result.evaluate((inputs, targets))["deviance"] < 1.4
    low, high = result.predict(inputs).interval(0.9)
    assert 0.85 < float(((low <= targets) & (targets <= high)).float().mean()) < 1
    assert result.calibration((inputs, targets)) is not None
    result.save(tmp_path)
    again = sb.load_result(tmp_path, nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    assert type(again.likelihood) is sb.Poisson
