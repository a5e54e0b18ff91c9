"""The contract of every likelihood: normalised, its columns a square root of its Fisher, its score a derivative."""

import pytest
import torch
from torch.nn.functional import one_hot
from torch.testing import assert_close

from symbayes.counts import Poisson
from symbayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from symbayes.positions import PerPosition
from tests.oracles import hessian_of

OUTPUTS = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.5, -0.5]], dtype=torch.float64)
CASES = {
    "categorical": (Categorical(), torch.tensor([2, 0])),
    "categorical, soft": (Categorical(), torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]], dtype=torch.float64)),
    "bernoulli, soft": (Bernoulli(), torch.tensor([[0.9, 0.1, 1.0], [0.5, 0.0, 0.3]], dtype=torch.float64)),
    "bernoulli": (Bernoulli(), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)),
    "labels at positions": (PerPosition(Bernoulli(), 1), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)),
    "poisson": (Poisson(), torch.tensor([[1.0, 0.0, 9.0], [2.0, 0.0, 1.0]], dtype=torch.float64)),
    "gaussian": (Gaussian(0.7).double(), torch.tensor([[1.0, 0.0, 1.5], [0.2, 0.0, 1.0]], dtype=torch.float64)),
    "gaussian by output": (Gaussian(0.7, outputs=3).double(), torch.zeros(2, 3, dtype=torch.float64)),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    likelihood, targets = CASES[request.param]
    if isinstance(likelihood, Gaussian) and not likelihood.shared:
        with torch.no_grad():
            likelihood.log_noise.copy_(torch.tensor([-0.5, 0.1, 0.8]))
    return likelihood, targets


def scaled(likelihood, columns):
    return torch.einsum("k,kvnc,kvnd->ncd", likelihood.scales().to(columns).detach(), columns, columns)


def test_columns_are_a_square_root_of_the_expected_hessian(case):
    likelihood, targets = case
    found = scaled(likelihood, likelihood.fisher_columns(OUTPUTS))
    for n in range(2):
        # For these likelihoods the Hessian does not depend on the target, so its expectation is itself.
        wanted = hessian_of(lambda f, n=n: -likelihood.log_prob(f[None], targets[n : n + 1]).sum())(OUTPUTS[n])
        assert_close(found[n], wanted)


def test_products_are_those_of_the_columns(case, generator):
    likelihood, _ = case
    vectors = torch.randn(OUTPUTS.shape, generator=generator, dtype=OUTPUTS.dtype)
    information = scaled(likelihood, likelihood.fisher_columns(OUTPUTS))
    assert_close(likelihood.product(OUTPUTS, vectors).detach(), torch.einsum("ncd,nd->nc", information, vectors))


def test_sampled_columns_agree_with_exact_ones_on_average(case, generator):
    likelihood, _ = case
    columns = likelihood.sampled_columns(OUTPUTS, 40_000, generator=generator)
    assert_close(scaled(likelihood, columns), scaled(likelihood, likelihood.fisher_columns(OUTPUTS)), atol=0.05, rtol=0.05)


def test_the_score_is_the_derivative_of_the_log_probability(case):
    likelihood, targets = case
    outputs = OUTPUTS.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(likelihood.log_prob(outputs, targets).sum(), outputs)
    assert_close(likelihood.score(OUTPUTS, targets).detach(), wanted)


def test_samples_have_mean_score_zero(case, generator):
    likelihood, _ = case
    many = OUTPUTS.repeat_interleave(40_000, 0)
    targets = likelihood.sample(many, generator=generator).detach()
    likelihood.check(many, targets)
    mean = likelihood.score(many, targets).detach().unflatten(0, (2, -1)).mean(1)
    assert_close(mean, torch.zeros_like(mean), atol=0.05, rtol=0)


def test_samples_have_the_mean_and_the_variance_that_are_said(case, generator):
    likelihood, _ = case
    count = 40_000
    drawn = likelihood.sample(OUTPUTS.repeat_interleave(count, 0), generator=generator).detach()
    values = one_hot(drawn, 3) if drawn.ndim == 1 else drawn  # a class as indicators
    values = values.double().unflatten(0, (2, count))
    mean, variance = (moment.detach() for moment in likelihood.moments(OUTPUTS))
    assert ((values.mean(1) - mean).abs() < 4 * (variance / count).sqrt()).all()
    squares = (values - mean[:, None]).square()
    assert ((squares.mean(1) - variance).abs() < 4 * squares.std(1) / count**0.5 + 1e-9).all()


def test_moments_are_taken_of_many_draws_at_once_and_linked_back_to_outputs(case):
    likelihood, targets = case
    draws = torch.stack([OUTPUTS, 2 * OUTPUTS, OUTPUTS - 1])
    mean, variance = likelihood.moments(draws)
    for index in range(3):
        assert_close((mean[index], variance[index]), likelihood.moments(draws[index]))
    again = likelihood.link(mean)
    assert_close(likelihood.moments(again)[0], mean)
    for metric, values in likelihood.metrics(OUTPUTS, targets).items():
        assert_close(likelihood.metrics(again[0], targets)[metric], values)


def test_no_likelihood_is_missing():
    package = {kind for kind in Likelihood.__subclasses__() if kind.__module__.startswith("symbayes.")}
    assert {type(likelihood) for likelihood, _ in CASES.values()} == package
