"""The evidence against closed forms and finite differences, in double precision."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.evidence.evidence import laplace_evidence
from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import LayerwisePrior, PathwisePrior, ScalarPrior, TensorwisePrior
from tests.oracles import finite_difference, linear_regression_evidence


class TwoGroups(nn.Module):
    """y = W₁ x₁ + W₂ x₂: linear regression whose weights fall into two tensors."""

    def __init__(self, split, outputs, dtype=torch.float64):
        super().__init__()
        self.split = split
        self.first = nn.Linear(split[0], outputs, bias=False, dtype=dtype)
        self.second = nn.Linear(split[1], outputs, bias=False, dtype=dtype)

    def forward(self, x):
        a, b = x.split(self.split, 1)
        return self.first(a) + self.second(b)


def regression(generator, outputs=2, n=15, d=5):
    features = torch.randn(n, d, generator=generator, dtype=torch.float64)
    targets = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    return features, targets


def at_the_mode(features, targets, precisions, noise):
    """The posterior mode of each output's weights."""
    columns = []
    for output in range(targets.shape[1]):
        H = features.T @ features / noise[output] ** 2 + torch.diag(precisions)
        columns.append(torch.linalg.solve(H, features.T @ targets[:, output] / noise[output] ** 2))
    return torch.stack(columns)


@pytest.mark.parametrize("rule", [Ggn(), TangentKernel(subset=15)], ids=str)
@pytest.mark.parametrize("noise", [[0.7, 0.7], [0.4, 1.3]])
def test_it_is_the_closed_form_for_linear_regression_with_several_prior_groups(rule, noise, generator):
    features, targets = regression(generator)
    noise = torch.tensor(noise, dtype=torch.float64)
    model = TwoGroups([2, 3], 2)
    prior = TensorwisePrior(model)
    with torch.no_grad():
        prior.log_precision.copy_(torch.tensor([math.log(0.5), math.log(4.0)]))
        precisions = torch.tensor([0.5] * 2 + [4.0] * 3, dtype=torch.float64)
        weights = at_the_mode(features, targets, precisions, noise)
        model.first.weight.copy_(weights[:, :2])
        model.second.weight.copy_(weights[:, 2:])
    likelihood = Gaussian(1.0, 2).double()
    with torch.no_grad():
        likelihood.log_noise.copy_(noise.log())
    found = laplace_evidence(model, (features, targets), likelihood, prior, rule=rule).total
    wanted = linear_regression_evidence(features, targets, precisions, noise)
    assert_close(found.detach(), wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("rule", [Kfac(), Kfac(batch_size=4), Ekfac(), Ggn(joint=False)], ids=str)
def test_kfac_gives_the_closed_form_for_linear_regression(rule, generator):
    features, targets = regression(generator)
    model = nn.Linear(5, 2, bias=False).double()
    prior = ScalarPrior(model, 2.0)
    noise = torch.tensor([0.4, 1.3], dtype=torch.float64)
    likelihood = Gaussian(1.0, 2).double()
    with torch.no_grad():
        likelihood.log_noise.copy_(noise.log())
        model.weight.copy_(at_the_mode(features, targets, torch.full((5,), 2.0, dtype=torch.float64), noise))
    found = laplace_evidence(model, (features, targets), likelihood, prior, rule=rule).total
    wanted = linear_regression_evidence(features, targets, torch.full((5,), 2.0, dtype=torch.float64), noise)
    assert_close(found.detach(), wanted, rtol=0, atol=1e-8)


def test_gradients_are_those_of_the_closed_form(generator):
    features, targets = regression(generator)
    model, likelihood = nn.Linear(5, 2, bias=False).double(), Gaussian(0.8).double()
    prior = ScalarPrior(model, 2.0)

    def closed(logs):
        return linear_regression_evidence(features, targets, logs[0].exp().expand(5), logs[1].exp().expand(2))

    logs = torch.tensor([math.log(2.0), math.log(0.8)], dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(at_the_mode(features, targets, logs[0].exp().expand(5), logs[1].exp().expand(2)))
    laplace_evidence(model, (features, targets), likelihood, prior).total.backward()
    found = torch.cat([prior.log_precision.grad, likelihood.log_noise.grad])
    assert_close(found, finite_difference(closed, logs), rtol=1e-6, atol=1e-8)


RULES = [
    Kfac(),
    Kfac(pool_blocks=True),
    Kfac(sharing="reduce"),
    Ekfac(),
    Diagonal(),
    Ggn(),
    Ggn(joint=False),
    TangentKernel(12),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("kind", [ScalarPrior, LayerwisePrior, PathwisePrior, TensorwisePrior])
def test_gradients_in_the_precisions_match_finite_differences(rule, kind, generator):
    paths = {"conv": ConvPath(1, 2, (3, 3)), "factored": FactoredPath((1, 3, 3), (2, 3, 3))}
    model = nn.Sequential(RelaxedLayer(paths), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)).double()
    data = torch.randn(12, 1, 3, 3, generator=generator, dtype=torch.float64), torch.arange(12) % 3
    prior = kind(model, 0.7)

    def evidence(log_precision):
        with torch.no_grad():
            prior.log_precision.copy_(log_precision)
            return laplace_evidence(model, data, Categorical(), prior, rule=rule).total

    start = torch.randn(prior.log_precision.shape, generator=generator, dtype=torch.float64)
    wanted = finite_difference(evidence, start)
    evidence(start)
    laplace_evidence(model, data, Categorical(), prior, rule=rule).total.backward()
    assert_close(prior.log_precision.grad, wanted, rtol=1e-5, atol=1e-6)


def test_the_closed_form_gradient_is_half_of_gamma_minus_the_penalty(generator):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    data = torch.randn(20, 4, generator=generator, dtype=torch.float64), torch.arange(20) % 3
    prior = TensorwisePrior(model, 0.7)
    evidence = laplace_evidence(model, data, Categorical(), prior)
    evidence.total.backward()
    weights = dict(model.named_parameters())
    wanted = torch.stack([(evidence.effective[g] - 0.7 * weights[g].square().sum()).detach() / 2 for g in prior.groups])
    assert_close(prior.log_precision.grad, wanted)


def test_groups_of_each_prior_structure():
    paths = {"conv": ConvPath(1, 2, (3, 3)), "factored": FactoredPath((1, 3, 3), (2, 3, 3))}
    model = nn.Sequential(RelaxedLayer(paths), nn.Flatten(), nn.Linear(18, 3))
    assert ScalarPrior(model).groups == ["all"]
    assert LayerwisePrior(model).groups == ["0", "2"]
    assert PathwisePrior(model).groups == ["0/conv", "0/factored", "2/Linear"]
    assert len(TensorwisePrior(model).groups) == 8


def test_effective_parameters_are_known_by_path(generator):
    paths = {"conv": ConvPath(1, 2, (3, 3)), "factored": FactoredPath((1, 3, 3), (2, 3, 3))}
    model = nn.Sequential(RelaxedLayer(paths), nn.Flatten(), nn.Linear(18, 3)).double()
    data = torch.randn(12, 1, 3, 3, generator=generator, dtype=torch.float64), torch.arange(12) % 3
    evidence = laplace_evidence(model, data, Categorical(), ScalarPrior(model))
    assert set(evidence.effective_by_path) == {("0", "conv"), ("0", "factored"), ("2", "Linear")}
    assert_close(
        evidence.effective_by_path["0", "conv"], sum(evidence.effective[f"0.paths.conv.{t}"] for t in ("weight", "bias"))
    )


def test_float32_terms_do_not_lose_what_cancels():
    model = nn.Linear(2000, 1000, bias=False)
    data = torch.zeros(1, 2000), torch.zeros(1, 1000)
    with torch.no_grad():
        model.weight.zero_()
    likelihood = Gaussian(1.0)
    for delta in (1.0, 1e6):
        found = laplace_evidence(model, data, likelihood, ScalarPrior(model, delta), rule=Diagonal()).total.detach()
        assert_close(found, likelihood.log_prob(data[1], data[1]).sum().detach().double(), rtol=0, atol=0.5)


def test_terms_add_up_and_name_their_estimator(generator):
    model = nn.Linear(4, 3).double()
    data = torch.randn(20, 4, generator=generator, dtype=torch.float64), torch.arange(20) % 3
    evidence = laplace_evidence(model, data, Categorical(), ScalarPrior(model), rule=Lanczos(2, 5))
    assert_close(evidence.total, evidence.log_likelihood + evidence.log_prior + evidence.log_volume)
    assert "Lanczos (2 probes, 5 steps)" in str(evidence)
    assert "per datum" in str(evidence)


def test_a_prior_of_another_model_is_refused():
    data = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must have the same trainable tensors; unmatched=\['bias'\]"):
        laplace_evidence(nn.Linear(3, 2), data, Categorical(), ScalarPrior(nn.Linear(3, 2, bias=False)))


def test_precisions_that_overflow_are_refused_by_name():
    model = nn.Linear(3, 2)
    prior = TensorwisePrior(model)
    with torch.no_grad():
        prior.log_precision[1] = 200.0
    with pytest.raises(ValueError, match=r"within ±80 so that δ can be represented; that of 'bias' is not"):
        prior.precisions()
    with pytest.raises(ValueError, match="precision must be positive and finite, got -1"):
        TensorwisePrior(model, -1.0)
