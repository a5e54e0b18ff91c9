"""Where the posterior is normal the bound is the evidence: waves with linear weights, at any frequency."""

from dataclasses import dataclass
from math import log

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import symbayes as sb
from papers.demos.waves import twin_features
from symbayes.evidence.exact import posterior_mode
from symbayes.layout import Hyperparameter
from symbayes.posterior.families import Variational

#: What a likelihood keeps of 0.3, which it is given in single precision.
LIKELIHOOD = sb.Gaussian(0.3).double()
NOISE = LIKELIHOOD.noise().item()
WIDTH = 7
SQUARES = (0.3, 1.5, 6.0)


class Twin(nn.Module):
    """f = wᵀ √(2/H) cos(ω² W₁ x + π/4)."""

    def __init__(self, square: float) -> None:
        super().__init__()
        self.log_omega = Hyperparameter(torch.tensor(log(square) / 2, dtype=torch.float64))
        self.linear = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)

    def features(self, inputs: Tensor) -> Tensor:
        return twin_features(inputs, (2 * self.log_omega).exp(), WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(self.features(inputs))


@dataclass
class Case:
    model: Twin
    variational: Variational
    data: tuple[Tensor, Tensor]

    def exact(self) -> Tensor:
        return sb.exact_evidence(self.model.features(self.data[0]), self.data[1], 1.0, NOISE).total

    def bound(self) -> Tensor:
        objective = sb.Elbo(draws="cubature", collapsed=False)
        prior = sb.TensorwisePrior(self.model, 1.0)
        return objective.evidence(self.model, self.variational, self.data, LIKELIHOOD, prior).total


def case(square: float) -> Case:
    generator = torch.Generator().manual_seed(0)
    inputs = 6 * torch.rand(15, 1, generator=generator, dtype=torch.float64) - 3
    targets = (2 * inputs).sin() + NOISE * torch.randn(15, 1, generator=generator, dtype=torch.float64)
    torch.nn.init.normal_((model := Twin(square)).linear.weight, generator=generator)
    return Case(model, sb.posterior.FullCovariance().over(model), (inputs, targets))


@torch.no_grad()
def settle(case: Case) -> None:
    """Mean and Cholesky factor become those of the posterior."""
    features = case.model.features(case.data[0])
    case.model.linear.weight.copy_(posterior_mode(features, case.data[1], 1.0, NOISE).T)
    precision = features.T @ features / NOISE**2 + torch.eye(WIDTH, dtype=torch.float64)
    lower = torch.linalg.cholesky(torch.linalg.inv(precision))
    parameters = case.variational.spreads[0].lower
    parameters.log_diagonal.copy_(lower.diagonal().log()[None])
    parameters.below.copy_((lower / lower.diagonal()).tril(-1)[None])


@pytest.mark.parametrize("square", SQUARES)
def test_at_the_posterior_the_bound_is_the_evidence_and_so_is_its_gradient(square):
    found = case(square)
    assert found.bound() < found.exact() - 1
    settle(found)
    bound, exact = found.bound(), found.exact()
    assert_close(bound, exact, rtol=0, atol=1e-8)
    slopes = [torch.autograd.grad(value, found.model.log_omega)[0] for value in (bound, exact)]
    assert abs(slopes[1]) > 0.1
    assert_close(slopes[0], slopes[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("square", SQUARES)
def test_the_best_bound_is_the_evidence(square):
    found = case(square)
    learned = [found.model.linear.weight, *found.variational.parameters()]
    optimiser = torch.optim.LBFGS(
        learned, max_iter=2000, history_size=100, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -found.bound()
        for parameter, slope in zip(learned, torch.autograd.grad(value, learned), strict=True):
            parameter.grad = slope
        return value

    optimiser.step(loss)
    assert_close(found.bound(), found.exact(), rtol=0, atol=1e-8)
