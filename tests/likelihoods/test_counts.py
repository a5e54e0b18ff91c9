"""Counts: what is refused, intervals, rates and scatter that are learned, and outputs far from zero."""

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
        (torch.full((3, 2), 0.5), "whole numbers from 0 on, got values from 0.5 to 0.5"),
        (torch.full((3, 2), -1), "from -1 to -1"),
        (torch.full((3, 2), torch.inf), "whole numbers"),
    ],
)
@pytest.mark.parametrize("likelihood", [sb.Poisson(), sb.NegativeBinomial(0.5)], ids=str)
def test_what_is_no_count_is_refused(targets, message, likelihood):
    with pytest.raises(ValueError, match=f"{type(likelihood).__name__} targets must be .*{message}"):
        likelihood.check(torch.zeros(3, 2), targets)


@pytest.mark.parametrize("dispersion", [0.0, -1.0, torch.inf, torch.nan])
def test_a_dispersion_is_positive(dispersion):
    with pytest.raises(ValueError, match=f"must be positive and finite, got {dispersion}. Where there is none, use Poisson"):
        sb.NegativeBinomial(dispersion)


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


def test_a_negative_binomial_is_that_of_scipy(generator):
    outputs = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 6, (5, 2), generator=generator)
    likelihood, size = sb.NegativeBinomial(0.5), 2
    wanted = nbinom.logpmf(targets.numpy(), size, size / (size + outputs.exp().numpy()))
    assert_close(likelihood.log_prob(outputs, targets).numpy(), wanted.sum(1))
    best = nbinom.logpmf(targets.numpy(), size, size / (size + targets.numpy()))
    assert_close(likelihood.metrics(outputs, targets)["deviance"].numpy(), 2 * (best - wanted).mean(1))
    mean, variance = likelihood.moments(outputs)
    low, high = likelihood.interval(mean, variance.sqrt(), 0.9)
    shares = [nbinom.ppf(share, size, size / (size + mean.numpy())) for share in (0.05, 0.95)]
    assert_close((low.numpy(), high.numpy()), tuple(shares))


def test_next_to_no_dispersion_is_a_poisson_in_single_precision(generator):
    outputs = 2 * torch.randn(50, 2, generator=generator)
    targets = sb.Poisson().sample(outputs, generator=generator)
    near, poisson_ = sb.NegativeBinomial(1e-7), sb.Poisson()
    assert_close(near.log_prob(outputs, targets), poisson_.log_prob(outputs, targets), rtol=1e-4, atol=1e-3)
    assert_close(near.score(outputs, targets), poisson_.score(outputs, targets), rtol=1e-4, atol=1e-3)
    assert_close(near.fisher_root(outputs), poisson_.fisher_root(outputs), rtol=1e-4, atol=1e-4)
    assert_close(near.metrics(outputs, targets), poisson_.metrics(outputs, targets), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("output", [-1e4, -80.0, 80.0, 1e4])
def test_a_negative_binomial_is_finite_far_from_zero(output):
    outputs, targets = torch.full((3, 1), output), torch.tensor([[0.0], [1.0], [1e5]])
    likelihood = sb.NegativeBinomial(0.3)
    for find in (likelihood.log_prob, likelihood.score):
        assert_close(find(outputs, targets).double(), find(outputs.double(), targets.double()), rtol=1e-4, atol=1e-4)
    assert likelihood.fisher_columns(outputs).isfinite().all()


def test_the_evidence_finds_the_dispersion(generator, tmp_path):
    inputs = torch.rand(200, 1, generator=generator) * 4 - 2
    targets = sb.NegativeBinomial(0.7).sample(inputs + 1.5, generator=generator)

    def learn(likelihood):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        return sb.fit(net, (inputs, targets), likelihood=likelihood, epochs=20, progress=False)

    few, right, many = (learn(sb.NegativeBinomial(dispersion)) for dispersion in (0.1, 0.7, 4.0))
    assert right.log_evidence > max(few.log_evidence, many.log_evidence) + 10
    assert 0.8 < right.evaluate((inputs, targets))["deviance"] < 1.4
    right.save(tmp_path)
    again = sb.load_result(tmp_path, nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
    assert again.likelihood.dispersion == 0.7
    assert_close(again.predict(inputs).mean, right.predict(inputs).mean)
