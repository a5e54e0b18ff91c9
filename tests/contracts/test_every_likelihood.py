"""The contract of every likelihood: normalised, its columns a square root of its Fisher, its score a derivative."""

from inspect import isabstract

import pytest
import torch
from torch.nn.functional import one_hot
from torch.testing import assert_close

from symbayes.likelihoods.classes import Bernoulli, Categorical, Ordinal
from symbayes.likelihoods.counts import NegativeBinomial, Poisson
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.likelihoods.positions import PerPosition
from symbayes.likelihoods.values import Gaussian, Heteroscedastic
from tests.oracles import hessian_of

OUTPUTS = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.5, -0.5]], dtype=torch.float64)
#: Two data at four positions, with three outputs at each.
AT_POSITIONS = torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
#: Two means and two log-variances, for each of two data.
PAIRS = torch.tensor([[0.3, -1.0, 1.5, -0.5], [0.0, 0.5, -0.5, 0.0]], dtype=torch.float64)
CLASSES = torch.tensor([[[0, 1], [2, -1]], [[-1, -1], [1, 2]]])
VALUES = torch.randn(2, 2, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
SOME_LABELS = torch.where(VALUES[..., :1] > 0.5, -1.0, (VALUES > 0).double())
CASES = {
    "categorical": (Categorical(), torch.tensor([2, 0])),
    "categorical, soft": (Categorical(), torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]], dtype=torch.float64)),
    "bernoulli, soft": (Bernoulli(), torch.tensor([[0.9, 0.1, 1.0], [0.5, 0.0, 0.3]], dtype=torch.float64)),
    "bernoulli": (Bernoulli(), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)),
    "poisson": (Poisson(), torch.tensor([[1.0, 0.0, 9.0], [2.0, 0.0, 1.0]], dtype=torch.float64)),
    "negative binomial": (NegativeBinomial(0.5), torch.tensor([[1.0, 0.0, 9.0], [2.0, 0.0, 1.0]], dtype=torch.float64)),
    "ordinal": (Ordinal(), torch.tensor([3, 1])),
    "ordinal, soft": (Ordinal(), torch.tensor([[0.1, 0.2, 0.7, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)),
    "heteroscedastic": (Heteroscedastic(), torch.tensor([[1.0, 0.0], [0.2, 3.0]], dtype=torch.float64)),
    "gaussian": (Gaussian(0.7).double(), torch.tensor([[1.0, 0.0, 1.5], [0.2, 0.0, 1.0]], dtype=torch.float64)),
    "gaussian by output": (Gaussian(0.7, outputs=3).double(), torch.zeros(2, 3, dtype=torch.float64)),
    "classes at positions": (PerPosition(Categorical(), 3), CLASSES.abs()),
    "some classes at positions": (PerPosition(Categorical(), 3, ignore=-1), CLASSES),
    "smoothed classes at positions": (PerPosition(Categorical(), 3), VALUES.softmax(-1)),
    "labels at positions": (PerPosition(Bernoulli(), 3), (VALUES > 0).double()),
    "some labels at positions": (PerPosition(Bernoulli(), 3, ignore=-1), SOME_LABELS),
    "labels, one at a position": (PerPosition(Bernoulli(), 1), (VALUES > 0).double().flatten(1)),
    "counts at positions": (PerPosition(Poisson(), 3), VALUES.abs().round()),
    "scattered counts at positions": (PerPosition(NegativeBinomial(0.5), 3), VALUES.abs().round()),
    "some ordered classes at positions": (PerPosition(Ordinal(), 3, ignore=-1), torch.where(CLASSES == 2, 3, CLASSES)),
    "values at positions, and their noise": (PerPosition(Heteroscedastic(), 2), VALUES.flatten(1)[:, :6]),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    likelihood, targets = CASES[request.param]
    if isinstance(likelihood, Gaussian) and not likelihood.shared:
        with torch.no_grad():
            likelihood.log_noise.copy_(torch.tensor([-0.5, 0.1, 0.8]))
    outputs = PAIRS if isinstance(likelihood, Heteroscedastic) else OUTPUTS
    return likelihood, AT_POSITIONS if likelihood.has_positions else outputs, targets


def scaled(likelihood, columns):
    return torch.einsum("k,kvnc,kvnd->ncd", likelihood.scales().to(columns).detach(), columns, columns)


def expected(likelihood, outputs, targets):
    """Weights and targets over which the mean of the Hessian is its expectation."""
    of, c = (likelihood.of, likelihood.outputs) if likelihood.has_positions else (likelihood, outputs.shape[1])
    split = outputs.reshape(-1, c)
    if isinstance(of, NegativeBinomial):  # it is linear in the target
        return [(1, split.exp().reshape(outputs.shape))]
    if isinstance(of, Heteroscedastic):  # quadratic
        mean, std = split[:, : c // 2], (split[:, c // 2 :] / 2).exp()
        return [(0.5, (mean + sign * std).reshape(1, -1)) for sign in (-1, 1)]
    if isinstance(of, Ordinal):  # linear in the indicators of classes
        mean = of.moments(split)[0]
        if likelihood.has_positions:
            mean = torch.where((targets == -1).view(-1, 1), -1.0, mean)[None]
        return [(1, mean)]
    return [(1, targets)]  # the Hessian does not depend on the target, so its expectation is itself


def test_columns_are_a_square_root_of_the_expected_hessian(case):
    likelihood, outputs, targets = case
    here = likelihood.at(targets)
    found = scaled(here, here.fisher_columns(outputs))
    for n in range(2):
        wanted = sum(
            weight * hessian_of(lambda f, y=y: -likelihood.log_prob(f[None], y).sum())(outputs[n])
            for weight, y in expected(likelihood, outputs[n : n + 1], targets[n : n + 1])
        )
        assert_close(found[n], wanted)


def test_products_are_those_of_the_columns(case, generator):
    likelihood, outputs, targets = case
    here = likelihood.at(targets)
    vectors = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
    information = scaled(here, here.fisher_columns(outputs))
    assert_close(here.product(outputs, vectors).detach(), torch.einsum("ncd,nd->nc", information, vectors))


def test_sampled_columns_agree_with_exact_ones_on_average(case, generator):
    likelihood, outputs, targets = case
    here = likelihood.at(targets)
    columns = here.sampled_columns(outputs, 40_000, generator=generator)
    assert_close(scaled(here, columns), scaled(here, here.fisher_columns(outputs)), atol=0.05, rtol=0.05)


def test_the_score_is_the_derivative_of_the_log_probability(case):
    likelihood, outputs, targets = case
    moved = outputs.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(likelihood.log_prob(moved, targets).sum(), moved)
    assert_close(likelihood.score(outputs, targets).detach(), wanted)


def test_samples_have_mean_score_zero(case, generator):
    likelihood, outputs, _ = case
    many = outputs.repeat_interleave(40_000, 0)
    targets = likelihood.sample(many, generator=generator).detach()
    likelihood.check(many, targets)
    mean = likelihood.score(many, targets).detach().unflatten(0, (2, -1)).mean(1)
    assert_close(mean, torch.zeros_like(mean), atol=0.05, rtol=0)


def test_samples_have_the_mean_and_the_variance_that_are_said(case, generator):
    likelihood, outputs, _ = case
    count = 40_000
    drawn = likelihood.sample(outputs.repeat_interleave(count, 0), generator=generator).detach()
    mean, variance = (moment.detach() for moment in likelihood.moments(outputs))
    if not drawn.is_floating_point():  # a class as indicators
        drawn = one_hot(drawn, mean.shape[1] // drawn[0].numel()).reshape(len(drawn), -1)
    values = drawn.double().unflatten(0, (2, count))
    assert ((values.mean(1) - mean).abs() < 4 * (variance / count).sqrt()).all()
    squares = (values - mean[:, None]).square()
    assert ((squares.mean(1) - variance).abs() < 4 * squares.std(1) / count**0.5 + 1e-9).all()


def test_moments_are_taken_of_many_draws_at_once_and_linked_back_to_outputs(case):
    likelihood, outputs, targets = case
    draws = torch.stack([outputs, 2 * outputs, outputs - 1])
    mean, variance = likelihood.moments(draws)
    for index in range(3):
        assert_close((mean[index], variance[index]), likelihood.moments(draws[index]))
    again = likelihood.link(mean)
    assert_close(likelihood.moments(again)[0], mean)
    for metric, values in likelihood.metrics(outputs, targets).items():
        assert_close(likelihood.metrics(again[0], targets)[metric], values)


def test_no_likelihood_is_missing():
    package = {kind for kind in subclasses(Likelihood) if kind.__module__.startswith("symbayes.") and not isabstract(kind)}
    assert {type(likelihood) for likelihood, _ in CASES.values()} == package


def subclasses(kind):
    return {found for child in kind.__subclasses__() for found in (child, *subclasses(child))}


def test_products_of_classes_are_right_where_one_is_nearly_sure():
    """In single precision p (1 − p) would be lost beside one, and with it most of what is left of the curvature."""
    outputs = torch.tensor([[14.0, 0.0, -1.0], [0.0, 1.0, 15.0]])
    vectors = torch.tensor([[1.0, -0.5, 2.0], [0.3, 0.7, -1.0]])
    p = outputs.double().softmax(1)
    wanted = p * vectors - p * (p * vectors).sum(1, keepdim=True)
    assert_close(Categorical().product(outputs, vectors).double(), wanted, rtol=1e-5, atol=0)
    plain = p.float() * vectors - p.float() * (p.float() * vectors).sum(1, keepdim=True)
    assert (plain.double() / wanted - 1).abs().max() > 1e-3


def test_products_of_a_likelihood_of_a_user_are_those_of_its_columns(generator):
    class Tempered(Categorical):
        def fisher_columns(self, outputs):
            return super().fisher_columns(outputs / 2) / 2

    vectors = torch.randn(OUTPUTS.shape, generator=generator, dtype=OUTPUTS.dtype)
    information = scaled(Tempered(), Tempered().fisher_columns(OUTPUTS))
    assert_close(Tempered().product(OUTPUTS, vectors), torch.einsum("ncd,nd->nc", information, vectors))
