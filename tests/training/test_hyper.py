"""MacKay's fixed point against the maximum of the evidence it belongs to."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.blocks import DiagonalBlock
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import TensorSource
from symbayes.evidence.evidence import evidence_at, expected_log_prior, log_precisions
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import LOG_PRECISION_RANGE, LayerwisePrior, PathwisePrior, ScalarPrior, TensorwisePrior
from symbayes.training.hyper import update_noise, update_precisions
from symbayes.training.trainer import Problem


def test_it_converges_to_a_stationary_point_of_the_evidence(generator):
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    data = TensorSource(torch.randn(40, 3, generator=generator, dtype=torch.float64), torch.arange(40) % 2, torch.device("cpu"))
    prior = TensorwisePrior(model)
    for rule in (Kfac(), Ggn()):
        curvature = rule.curvature(model, data, Categorical())
        before = evidence_at(curvature, model, prior, 40).total
        for _ in range(300):
            update_precisions(curvature, model, prior, 0.5)
        after = evidence_at(curvature, model, prior, 40).total
        assert after > before
        (slope,) = torch.autograd.grad(after, prior.log_precision)
        free = (prior.log_precision > LOG_PRECISION_RANGE[0] + 0.1) & (prior.log_precision < LOG_PRECISION_RANGE[1] - 0.1)
        assert free.any()
        assert_close(slope[free], torch.zeros_like(slope[free]), rtol=0, atol=1e-5)


GROUPS = {
    ScalarPrior: (("0.weight", "0.bias", "2.weight", "2.bias"),),
    LayerwisePrior: (("0.weight", "0.bias"), ("2.weight", "2.bias")),
    TensorwisePrior: (("0.weight",), ("0.bias",), ("2.weight",), ("2.bias",)),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_precision_goes_to_the_sums_over_all_tensors_of_its_group(kind, generator):
    """δ = Σ γ / Σ ‖θ‖², with γ = p − δ tr (H + δI)⁻¹ of each tensor from its own dense block."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = TensorSource(torch.randn(40, 3, generator=generator, dtype=torch.float64), torch.arange(40) % 2, torch.device("cpu"))
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    prior = kind(model, 0.7).double()
    before = prior.precisions()["0.weight"].item()
    curvature = Kfac().curvature(model, data, Categorical())
    gamma = {}
    for name, block in curvature.blocks.items():
        size = named[name].numel()
        inverse = torch.linalg.inv(block.dense() + before * torch.eye(size, dtype=torch.float64))
        gamma[name] = size - before * float(inverse.trace())
    update_precisions(curvature, model, prior, 1.0)
    for names in GROUPS[kind]:
        wanted = sum(gamma[name] for name in names) / sum(float(named[name].square().sum()) for name in names)
        for name in names:
            assert_close(prior.precisions()[name].item(), wanted, rtol=1e-8, atol=0.0)
    given = {name: torch.tensor(float(index + 1), dtype=torch.float64) for index, name in enumerate(named)}
    prior = kind(model, 0.7).double()
    update_precisions(curvature, model, prior, 1.0, given)
    for names in GROUPS[kind]:
        wanted = sum(gamma[name] for name in names) / sum(float(given[name]) for name in names)
        assert_close(prior.precisions()[names[0]].item(), wanted, rtol=1e-8, atol=0.0)


@pytest.mark.parametrize("kind", GROUPS)
def test_the_precision_of_a_bound_is_that_of_all_tensors_of_its_group(kind, generator):
    """δ = Σ p / Σ E‖θ‖², and the expected log-prior has every tensor."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    named = dict(model.named_parameters())
    moments = {name: 0.3 + torch.rand((), generator=generator, dtype=torch.float64) for name in named}
    prior = kind(model, 2.0).double()
    found = log_precisions(prior, moments, frozenset())
    by_group = dict(zip(prior.groups, found.exp().tolist(), strict=True))
    for names in GROUPS[kind]:
        wanted = sum(named[name].numel() for name in names) / sum(float(moments[name]) for name in names)
        assert_close(by_group[prior.group_of[names[0]]], wanted, rtol=1e-12, atol=0.0)
    (left_out, *rest) = next(names for names in GROUPS[kind] if "2.bias" in names)[::-1]
    found = log_precisions(prior, moments, frozenset({left_out}))
    if rest:
        wanted = sum(named[name].numel() for name in rest) / sum(float(moments[name]) for name in rest)
        assert_close(float(found[prior.groups.index(prior.group_of[left_out])].exp()), wanted, rtol=1e-12, atol=0.0)
    draws = {name: (float(moments[name]) / named[name].numel()) ** 0.5 * torch.ones_like(named[name]) for name in named}
    density = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), prior.precisions()["0.weight"].rsqrt())
    log_density = sum(density.log_prob(value).sum().item() for value in draws.values())
    assert_close(expected_log_prior(prior, moments, prior.precisions(), frozenset()).item(), log_density, rtol=1e-9, atol=0.0)


def test_precisions_that_are_not_learned_stay_as_they_are(generator):
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    data = TensorSource(torch.randn(40, 3, generator=generator, dtype=torch.float64), torch.arange(40) % 2, torch.device("cpu"))
    curvature = Kfac().curvature(model, data, Categorical())
    some, every = TensorwisePrior(model, 2.0, learn=["0.*"]), TensorwisePrior(model, 2.0)
    for prior in (some, every):
        update_precisions(curvature, model, prior, 0.5)
    assert_close(some.log_precision[:2], every.log_precision[:2])
    assert_close(some.log_precision[2:].exp(), torch.full((2,), 2.0, dtype=torch.float64))


def test_weights_that_vanished_get_a_bounded_precision(generator):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.zero_()
    data = TensorSource(torch.randn(10, 3, generator=generator), torch.arange(10) % 2, torch.device("cpu"))
    prior = PathwisePrior(model)
    curvature = Kfac().curvature(model, data, Categorical())
    for _ in range(100):
        update_precisions(curvature, model, prior, 1.0)
    assert prior.log_precision.isfinite().all()
    assert (prior.log_precision <= LOG_PRECISION_RANGE[1]).all()


def test_where_the_data_say_nothing_a_precision_stays_while_weights_are_left(generator):
    """Of the two factors of a map that is off, each hides the other: while weights are left, the prior keeps its hold."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model[1].weight.zero_()
    data = TensorSource(torch.randn(10, 3, generator=generator), torch.arange(10) % 2, torch.device("cpu"))
    curvature = Kfac().curvature(model, data, Categorical())
    prior = TensorwisePrior(model, 1e6)
    for _ in range(20):
        update_precisions(curvature, model, prior, 0.5)
    assert_close(prior.log_precision[0].exp(), torch.tensor(1e6), rtol=1e-3, atol=0.0)
    assert prior.log_precision[1] > LOG_PRECISION_RANGE[1] - 1  # it has curvature, and no weights
    with torch.no_grad():
        model[0].weight.zero_()
    nothing = Kfac().curvature(model, data, Categorical())
    before = evidence_at(nothing, model, prior, 10).total
    for _ in range(20):
        update_precisions(nothing, model, prior, 0.5)
    assert (prior.log_precision > LOG_PRECISION_RANGE[1] - 1e-3).all()  # nothing of them is left: they are off
    assert_close(evidence_at(nothing, model, prior, 10).total, before)
    unknown = {name: DiagonalBlock(torch.full((1,), torch.nan)) for name in curvature.blocks}
    update_precisions(replace(curvature, blocks=unknown), model, prior, 0.5)
    assert prior.log_precision.isnan().all()  # what is no number is not passed over


@pytest.mark.parametrize(("scales", "off"), [((1e-17, 1e-17), True), ((1e-8, 1e-8), False), ((1e-14, 1e-3), False)])
def test_the_noise_of_rounding_does_not_move_a_precision(scales, off, generator):
    """Where both factors are next to nothing, γ / ‖θ‖² is of the order of one, whatever the data are."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        for parameter, scale in zip(model.parameters(), scales, strict=True):
            parameter.mul_(scale)
    data = TensorSource(torch.randn(10, 4, generator=generator), torch.arange(10) % 2, torch.device("cpu"))
    prior = TensorwisePrior(model, 1e6)
    curvature = Kfac().curvature(model, data, Categorical())
    before = evidence_at(curvature, model, prior, 10).total
    for _ in range(40):
        update_precisions(curvature, model, prior, 0.5)
    assert prior.log_precision[1].exp() > 0.99e6
    if off:
        assert (prior.log_precision > LOG_PRECISION_RANGE[1] - 1e-3).all()
        assert_close(evidence_at(curvature, model, prior, 10).total, before)


def test_the_noise_of_linear_regression_is_found(generator):
    features = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    noise = torch.tensor([0.1, 0.5], dtype=torch.float64)
    targets = features[:, :2] + noise * torch.randn(400, 2, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(features, targets).solution.T)
    data = TensorSource(features, targets, torch.device("cpu"))
    for outputs in (None, 2):
        likelihood, prior = Gaussian(1.0, outputs).double(), TensorwisePrior(model, 1e-3)
        problem = Problem(model, data, likelihood, prior)
        for _ in range(50):
            assert update_noise(Kfac().curvature(model, data, likelihood), problem, 100, 0.5)
        wanted = noise if outputs else noise.square().mean().sqrt()[None]
        assert_close(likelihood.noise().detach(), wanted, rtol=0.1, atol=0)
        evidence = evidence_at(Kfac().curvature(model, data, likelihood), model, prior, 400)
        (slope,) = torch.autograd.grad(evidence.total, likelihood.log_noise)
        assert slope.abs().max() < 0.01 * 400


def test_precisions_follow_the_squares_they_are_given(generator):
    model = nn.Linear(3, 2, dtype=torch.float64)
    data = TensorSource(torch.randn(40, 3, generator=generator, dtype=torch.float64), torch.arange(40) % 2, torch.device("cpu"))
    prior = TensorwisePrior(model)
    curvature = Kfac().curvature(model, data, Categorical())
    gamma = curvature.effective(prior.precisions())
    update_precisions(curvature, model, prior, 1.0, {"weight": torch.tensor(0.5), "bias": torch.tensor(4.0)})
    found = prior.precisions()
    assert_close(found["weight"].double(), gamma["weight"] / 0.5, rtol=1e-5, atol=0)
    assert_close(found["bias"].double(), gamma["bias"] / 4.0, rtol=1e-5, atol=0)
