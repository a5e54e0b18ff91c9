"""The evidence in closed form, against the dense normal distribution and against Laplace's method at the mode."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

import symbayes as sb
from symbayes.errors import NotFiniteError
from symbayes.evidence.exact import exact_evidence, posterior_mode
from symbayes.groups.lie import affine2d
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import ScalarPrior
from tests.oracles import finite_difference

#: Data and features: more of the one, more of the other, as many.
SIZES = [(15, 5), (5, 15), (8, 8)]


def regression(generator, n, h, outputs=3):
    draw = [torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (h, outputs)]
    return draw[0], draw[1]


def dense(features, targets, precision, noise):
    covariance = features @ features.T / precision + noise**2 * torch.eye(len(features), dtype=features.dtype)
    return MultivariateNormal(torch.zeros(len(features), dtype=features.dtype), covariance).log_prob(targets.T).sum()


@pytest.mark.parametrize(("n", "h"), SIZES)
@pytest.mark.parametrize(("precision", "noise"), [(1.0, 0.5), (0.01, 2.0), (300.0, 0.1)])
def test_its_terms_sum_to_the_dense_normal(n, h, precision, noise, generator):
    features, targets = regression(generator, n, h)
    evidence = exact_evidence(features, targets, precision, noise)
    assert_close(evidence.total, dense(features, targets, precision, noise), rtol=1e-10, atol=1e-8)
    assert evidence.num_data == n
    assert "exact" in str(evidence)


@pytest.mark.parametrize(("n", "h"), SIZES)
def test_its_terms_are_those_of_laplace_at_the_mode(n, h, generator):
    features, targets = regression(generator, n, h)
    model, likelihood = nn.Linear(h, 3, bias=False).double(), Gaussian(0.6).double()
    prior = ScalarPrior(model, 2.0)
    with torch.no_grad():
        model.weight.copy_(posterior_mode(features, targets, 2.0, 0.6).T)
        likelihood.log_noise.fill_(math.log(0.6))
    wanted = sb.laplace_evidence(model, (features, targets), likelihood, prior, rule=sb.curvature.Ggn())
    found = exact_evidence(features, targets, 2.0, 0.6)
    for term in ("log_likelihood", "log_prior", "log_volume"):
        assert_close(getattr(found, term), getattr(wanted, term).detach(), rtol=1e-9, atol=1e-8)
    assert_close(found.effective["weight"], wanted.effective["weight"])


@pytest.mark.parametrize(("n", "h"), SIZES)
def test_gradients_match_finite_differences(n, h, generator):
    features, targets = regression(generator, n, h)
    logs = torch.tensor([0.3, -0.4], dtype=torch.float64)

    def total(values):
        return exact_evidence(values[2:].view_as(features), targets, values[0].exp(), values[1].exp()).total

    point = torch.cat([logs, features.flatten()])
    (found,) = torch.autograd.grad(total(point.requires_grad_()), point)
    assert_close(found, finite_difference(lambda values: total(values).detach(), point.detach()), rtol=1e-6, atol=1e-6)


def test_extents_are_learned_through_it(generator):
    bank = sb.FilterBank.from_images(
        torch.randn(4, 1, 4, 4, generator=generator, dtype=torch.float64),
        affine2d("rotation").starting(0.7),
        5,
        lengthscale=4.0,
        learn_lengthscale=True,
    ).eval()
    images = torch.randn(9, 1, 4, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(9, 2, generator=generator, dtype=torch.float64)

    def total(values):
        parameters = {"filters.orbit.value": values[:1], "log_lengthscale": values[1]}
        return exact_evidence(torch.func.functional_call(bank, parameters, (images,)), targets, 0.5, 0.7).total

    point = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(total(point), point)
    assert_close(found, finite_difference(lambda values: total(values).detach(), point.detach()), rtol=1e-6, atol=1e-8)


def test_single_precision_features_are_solved_in_double(generator):
    features, targets = regression(generator, 30, 6)
    single = features.float().requires_grad_()
    found = exact_evidence(single, targets.float(), torch.tensor([2.0]), torch.tensor(0.5)).total
    assert found.dtype == torch.float64
    assert_close(found, exact_evidence(features.float().double(), targets.float().double(), 2.0, 0.5).total)
    found.backward()
    assert single.grad.dtype == torch.float32


def test_impossible_problems_are_refused():
    features, targets = torch.ones(4, 2), torch.ones(4, 1)
    with pytest.raises(ValueError, match=r"got shapes \(4, 2\) and \(3, 1\)\. For one output, targets\[:, None\]"):
        exact_evidence(features, targets[:3], 1.0, 1.0)
    with pytest.raises(ValueError, match=r"targets must be real numbers, got torch.int64. For classes"):
        exact_evidence(features, targets.long(), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"precision must be one positive number, got 0.0. Learn its logarithm"):
        exact_evidence(features, targets, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"noise must be one positive number, got -1.0"):
        exact_evidence(features, targets, 1.0, -1.0)
    with pytest.raises(NotFiniteError, match="Features and targets must be finite, got NaN or infinity"):
        exact_evidence(features / 0, targets, 1.0, 1.0)
    with pytest.raises(NotFiniteError, match="it is singular, because precision · noise² is too small"):
        exact_evidence(1e6 * features, targets, 1e-30, 1e-3)
