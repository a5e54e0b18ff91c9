"""Temperatures against closed forms: the scale of a posterior, what a right one costs on its data, and what is predicted."""

import json
import warnings
from dataclasses import replace
from math import prod

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

import symbayes as sb
from symbayes.data.source import TensorSource
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.posterior import Members, Posterior, load_posterior, save_posterior
from symbayes.posterior.predict import NormalOutputs, predict
from symbayes.posterior.spread import FullSpread
from symbayes.posterior.tempering import COST, TEMPERATURES, matched_scale, passes, tempered, tempered_posterior
from tests.small import Recurrent

CPU = torch.device("cpu")
EXACT = {"rtol": 0, "atol": 1e-8}


def source(inputs, targets):
    return TensorSource(inputs, targets, CPU)


def inflated(posterior, factor):
    parts = tuple((members, FullSpread(factor**0.5 * spread.lower)) for members, spread in posterior.parts)
    return replace(posterior, parts=parts)


def conjugate(seed, n=200, d=10, noise=0.5):
    """Linear regression with data from the prior: the model at its mode, the exact posterior, and what that was found from."""
    generator = torch.Generator().manual_seed(seed)
    x, w, e = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((n, d), (d, 1), (n, 1)))
    y = x @ w + noise * e
    model, likelihood = nn.Linear(d, 1, bias=False).double(), sb.Gaussian(noise).double()
    S = torch.linalg.inv(x.T @ x / noise**2 + torch.eye(d, dtype=torch.float64))
    with torch.no_grad():
        model.weight.copy_((S @ x.T @ y / noise**2).T)
    prior, data = sb.ScalarPrior(model, 1.0), source(x, y)
    curvature = sb.curvature.Ggn().curvature(model, data, likelihood)
    return model, laplace_posterior(curvature, model, prior), likelihood, data, prior.precisions()


def network(generator):
    """A network, its exact posterior and what that was found from; it is at no mode, which the scale does not ask for."""
    x, y = (torch.randn(30, k, generator=generator, dtype=torch.float64) for k in (3, 2))
    model, likelihood = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), sb.Gaussian(0.5).double()
    prior, data = sb.TensorwisePrior(model, 0.3), source(x, y)
    curvature = sb.curvature.Ggn().curvature(model, data, likelihood)
    return model, laplace_posterior(curvature, model, prior), likelihood, data, prior.precisions()


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.25])
@pytest.mark.parametrize("build", [network, lambda generator: conjugate(0)])
def test_the_scale_of_an_exact_posterior_is_one_and_that_of_a_multiple_its_inverse(build, factor, generator):
    model, posterior, *rest = build(generator)
    assert matched_scale(inflated(posterior, factor), model, *rest) == pytest.approx(1 / factor, rel=1e-8)


def test_the_scale_is_of_the_weights_that_the_posterior_is_of(generator):
    model, posterior, *rest = network(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    moved = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert matched_scale(posterior, model, *rest) == pytest.approx(1, rel=1e-8)
    assert_close(dict(model.named_parameters()), moved)


def test_blocks_that_leave_correlations_out_have_a_scale_below_one(generator):
    model, _, likelihood, data, precisions = network(generator)
    curvature = sb.curvature.Ggn(joint=False).curvature(model, data, likelihood)
    blocks = laplace_posterior(curvature, model, sb.TensorwisePrior(model, 0.3))
    assert matched_scale(blocks, model, likelihood, data, precisions) < 0.95


def test_a_right_posterior_keeps_its_temperature_and_a_wide_one_gets_it():
    """Data are drawn from the prior; a standard error is allowed, so about one in six falls below."""
    found = {factor: [] for factor in (1.0, 10.0)}
    for seed in range(20):
        model, posterior, *rest = conjugate(seed)
        for factor, kept in found.items():
            kept.append(factor * tempered(inflated(posterior, factor), model, *rest).temperature)
    for kept in found.values():
        assert max(kept) == pytest.approx(1, rel=1e-6)
        assert sum(value > 0.99 for value in kept) >= 14


def test_normal_noise_is_allowed_what_a_right_posterior_costs():
    """With residuals of variance (1 − s) σ² the mean cost is the closed form, which alone is far more than COST."""
    s, n = 0.5, 4000
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    likelihood = sb.Gaussian(2.0).double().requires_grad_(False)
    outputs = NormalOutputs(torch.zeros(n, 1, dtype=torch.float64), torch.full((n, 1, 1), s * 4.0, dtype=torch.float64))
    right = 2.0 * (1 - s) ** 0.5 * z / z.square().mean().sqrt()
    assert passes(outputs, right, likelihood, 1.0)
    assert not passes(outputs, 0.5 * right, likelihood, 1.0)  # fitted better than this much uncertainty allows for


def test_few_data_do_not_pass_by_luck():
    """Uncertainty costs little where a guess is right and gains much where it is wrong: one in eight, here."""
    mean = torch.zeros(8, 2, dtype=torch.float64)
    mean[:, 0] = 3.0
    right = torch.zeros(8, dtype=torch.long)
    right[0] = 1
    outputs = NormalOutputs(mean, torch.eye(2, dtype=torch.float64).expand(8, 2, 2))
    many = NormalOutputs(mean.repeat(50, 1), outputs.covariance.repeat(50, 1, 1))
    assert passes(many, right.repeat(50), sb.Categorical(), 1.0)
    assert not passes(outputs, right, sb.Categorical(), 1.0)


def test_the_temperature_is_the_highest_at_which_data_seen_are_predicted_as_well(generator):
    inputs = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(), torch.no_grad():
        torch.random.manual_seed(0)
        model, likelihood = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double(), sb.Categorical()
        model[2].weight.mul_(8)  # a network that is sure, and right
        targets = model(inputs).argmax(1)
    prior = sb.ScalarPrior(model, 0.1)
    posterior = laplace_posterior(sb.Kfac().curvature(model, source(inputs, targets), likelihood), model, prior)
    found = tempered(posterior, model, likelihood, source(inputs, targets), prior.precisions())
    assert TEMPERATURES[-1] < found.temperature < 1

    def cost(temperature):
        metrics = predict(model, replace(posterior, temperature=temperature), likelihood, inputs).metrics(targets)
        return float((metrics["nll"] - metrics["nll plug-in"]).mean())

    assert cost(found.temperature) <= COST < cost(found.temperature * 2**0.5)
    assert tempered(found, model, likelihood, source(inputs, targets), prior.precisions()).temperature == found.temperature


def test_every_question_to_a_posterior_knows_its_temperature(generator):
    L = torch.tril(torch.randn(3, 3, generator=generator, dtype=torch.float64)) + 2 * torch.eye(3, dtype=torch.float64)
    mean = {"w": torch.randn(3, generator=generator, dtype=torch.float64)}
    posterior = Posterior(mean, ((Members({"w": (3,)}), FullSpread(L)),), "made up", temperature=0.3)
    same = MultivariateNormal(mean["w"], 0.3 * L @ L.T)
    weights = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    assert_close(posterior.log_prob({"w": weights}), same.log_prob(weights), **EXACT)
    assert_close(posterior.entropy(), same.entropy(), **EXACT)
    assert_close(posterior.variances()["w"], same.variance, **EXACT)
    J = torch.randn(1, 2, 3, generator=generator, dtype=torch.float64)
    assert_close(posterior.covariance({"w": J})[0], J[0] @ same.covariance_matrix @ J[0].T, **EXACT)
    offsets = posterior.cubature()["w"] - mean["w"]
    assert_close(offsets.T @ offsets / len(offsets), same.covariance_matrix, **EXACT)
    assert posterior.words == "made up, temperature 0.3"
    assert posterior.only(["w"]).temperature == 0.3  # that is all of it
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature of a posterior must be positive"):
            replace(posterior, temperature=wrong)


def test_temperatures_are_saved_and_older_files_have_none(generator, tmp_path):
    posterior = replace(network(generator)[1], temperature=0.125)
    path = tmp_path / "posterior.safetensors"
    save_posterior(posterior, path)
    assert load_posterior(path).temperature == 0.125
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["posterior"])
    del about["temperature"]
    save_file(load_file(path), path, {"posterior": json.dumps(about)})
    assert load_posterior(path).temperature == 1


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:LSTM with projections")
def test_a_model_that_cannot_be_linearised_keeps_its_posterior_and_says_so(generator):
    model, data = Recurrent(), source(torch.randn(6, 5, 2, generator=generator), torch.arange(6) % 2)
    parts = tuple(
        (Members({name: tuple(p.shape)}), FullSpread(torch.eye(prod(p.shape)))) for name, p in model.named_parameters()
    )
    posterior = Posterior({name: p.detach() for name, p in model.named_parameters()}, parts, "made up", "linearised")
    found = tempered_posterior(lambda: posterior, model, sb.Categorical(), data, {})
    assert (found.temperature, found.kind) == (1, "made up, no temperature found")


def normed():
    """A small network with batch norms, which fits few digits, and whose layers are far from independent."""
    layers = (nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    more = (nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, *more, nn.Linear(64, 10))


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    inputs = (torch.as_tensor(found.images)[order, None] / 8 - 0.6).double()
    targets = torch.as_tensor(found.target)[order].long()
    return (inputs[:200], targets[:200]), (inputs[200:500], targets[200:500])


@pytest.fixture(scope="module")
def fitted(digits):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return sb.fit(normed().double(), digits[0], objective=sb.Map(final_rule=sb.Kfac()), epochs=25, progress=False)


def test_predictions_are_as_good_as_plug_in_where_the_posterior_as_it_is_ruins_them(fitted, digits):
    _, test = digits
    found = fitted.evaluate(test)
    assert found["accuracy"] > 0.8
    assert found["nll"] < found["nll plug-in"] + 0.01
    assert fitted.posterior.temperature < 0.1
    untempered = replace(fitted, make_posterior=lambda: replace(fitted.posterior, temperature=1.0))
    assert untempered.evaluate(test)["nll"] > found["nll plug-in"] + 0.1
    assert (fitted.predict(test[0]).epistemic > 0).all()


def test_the_same_number_has_the_same_name_everywhere(fitted, digits):
    _, test = digits
    found, said, measured = fitted.evaluate(test, batch_size=90), fitted.predict(test[0]), fitted.calibration(test)
    metrics = {name: float(values.mean()) for name, values in said.metrics(test[1]).items()}
    assert found == pytest.approx(metrics, rel=1e-6)
    assert (measured.nll, measured.nll_plug_in) == pytest.approx((found["nll"], found["nll plug-in"]), rel=1e-6)
    assert f"nll {measured.nll:.4g}, nll plug-in {measured.nll_plug_in:.4g}" in measured.words()
    assert said.by == measured.by
    assert "temperature 0.0" in said.by
    alone = fitted.evaluate(test, by="plug-in")
    assert alone.keys() == {"accuracy", "nll"}
    assert alone["nll"] == pytest.approx(found["nll plug-in"], rel=1e-6)
    assert fitted.calibration(test, by="plug-in").nll_plug_in is None


def test_weights_that_ruin_the_network_are_warned_of(fitted, digits):
    inputs = digits[1][0][:50]
    untempered = replace(fitted, make_posterior=lambda: replace(fitted.posterior, temperature=1.0))
    with pytest.warns(UserWarning, match=r"predict .* nats per datum worse than the linearised model.*Use by='linearised'"):
        untempered.predict(inputs, by="sampled", samples=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calm = replace(fitted, make_posterior=lambda: replace(fitted.posterior, temperature=1e-6))
        calm.predict(inputs, by="sampled", samples=16)


def test_uncertainty_still_grows_far_from_the_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, generator=generator, dtype=torch.float64) * 2 - 1
    y = torch.sin(3 * x) + 0.1 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        result = sb.fit(model, (x, y), likelihood=sb.Gaussian(0.3).double(), epochs=150, progress=False)
    near, far = (result.predict(torch.full((1, 1), at, dtype=torch.float64)).epistemic for at in (0.0, 4.0))
    assert float(far) > 3 * float(near) > 0


def test_a_model_of_very_many_outputs_keeps_its_posterior_and_says_so(generator, monkeypatch):
    """Rather than computing covariances of all of them; and it is evaluated at its mean."""
    monkeypatch.setattr("symbayes.posterior.tempering._MOST_OUTPUTS", 20)
    monkeypatch.setattr("symbayes.training.result._LONG", 100)
    inputs = torch.randn(30, 6, generator=generator)
    targets = torch.randint(0, 3, (30, 8), generator=generator)
    torch.manual_seed(0)
    model = sb.AtPositions(nn.Sequential(nn.Linear(6, 24), nn.Unflatten(1, (8, 3))), channels_last=True)
    result = sb.fit(model, (inputs, targets), likelihood=sb.PerPosition(sb.Categorical(), 3), epochs=3, progress=False)
    assert "no temperature found" in result.posterior.kind
    assert set(result.evaluate((inputs, targets))) == {"accuracy", "nll"}
