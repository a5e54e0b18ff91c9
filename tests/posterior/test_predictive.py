"""Predictions against closed forms: linear regression, softmax by quadrature, Jacobians one by one."""

import math
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature.evaluate import evaluating
from symbayes.data.source import TensorSource
from symbayes.posterior.functional import outputs_under
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.posterior import Members, Posterior
from symbayes.posterior.predict import predict
from symbayes.posterior.spread import DiagonalSpread, FullSpread
from tests.small import Recurrent

#: The module, whose name is that of its function, too.
predictive = sys.modules[predict.__module__]
CPU = torch.device("cpu")
EXACT = {"rtol": 0, "atol": 1e-8}
WAYS = ("linearised", "sampled", "plug-in")


def regression(generator, outputs=2):
    """A linear model at its posterior mean, in closed form: inputs, its posterior by output, and all that `predict` takes."""
    x, y = (torch.randn(20, k, generator=generator, dtype=torch.float64) for k in (3, outputs))
    features = torch.cat([x, torch.ones(20, 1, dtype=torch.float64)], 1)
    likelihood = sb.Gaussian(0.5, outputs).double()
    with torch.no_grad():
        likelihood.log_noise.copy_(torch.linspace(-1, 0.3, outputs))
    model = nn.Linear(3, outputs).double()
    prior = sb.ScalarPrior(model, 1.7)
    closed = []
    for output in range(outputs):
        noise = float(likelihood.noise()[output].detach())
        S = torch.linalg.inv(features.T @ features / noise**2 + 1.7 * torch.eye(4, dtype=torch.float64))
        closed.append((S @ features.T @ y[:, output] / noise**2, S, noise))
    with torch.no_grad():
        model.weight.copy_(torch.stack([mean[:3] for mean, _, _ in closed]))
        model.bias.copy_(torch.stack([mean[3] for mean, _, _ in closed]))
    curvature = sb.curvature.Ggn().curvature(model, TensorSource(x, y, CPU), likelihood)
    return closed, model, laplace_posterior(curvature, model, prior), likelihood


def test_a_linear_model_predicts_as_linear_regression_in_closed_form(generator):
    closed, model, posterior, likelihood = regression(generator)
    inputs, targets = (torch.randn(7, k, generator=generator, dtype=torch.float64) for k in (3, 2))
    features = torch.cat([inputs, torch.ones(7, 1, dtype=torch.float64)], 1)
    mean = torch.stack([features @ m for m, _, _ in closed], 1)
    epistemic = torch.stack([((features @ S) * features).sum(1) for _, S, _ in closed], 1)
    variance = epistemic + torch.tensor([noise**2 for _, _, noise in closed], dtype=torch.float64)
    found = predict(model, posterior, likelihood, inputs)
    assert_close(found.mean, mean, **EXACT)
    assert_close(found.epistemic.square(), epistemic, **EXACT)
    assert_close(found.std.square(), variance, **EXACT)
    assert_close(found.log_prob(targets), Normal(mean, variance.sqrt()).log_prob(targets).sum(1), **EXACT)
    low, high = found.interval(0.9)
    assert_close((high - low) / 2, 1.6448536269514722 * variance.sqrt(), **EXACT)
    assert_close((high + low) / 2, mean, **EXACT)


def test_draws_of_weights_converge_to_the_closed_form(generator):
    _, model, posterior, likelihood = regression(generator)
    inputs, targets = (torch.randn(7, k, generator=generator, dtype=torch.float64) for k in (3, 2))
    exact = predict(model, posterior, likelihood, inputs)
    count = 4000
    found = predict(model, posterior, likelihood, inputs, by="sampled", samples=count, generator=generator)
    assert ((found.mean - exact.mean).abs() < 4 * exact.epistemic / count**0.5).all()
    spread = exact.epistemic.square()
    assert ((found.epistemic.square() - spread).abs() < 4 * spread * (2 / count) ** 0.5).all()
    assert_close(found.std.square() - found.epistemic.square(), exact.std.square() - spread, **EXACT)
    # The average of p(y | f) over draws, and its standard error.
    p = torch.stack([likelihood.log_prob(f, targets).exp() for f in found.outputs.values]).detach()
    error = p.std(0) / p.mean(0) / count**0.5
    assert_close(found.log_prob(targets), p.mean(0).log())
    assert ((found.log_prob(targets) - exact.log_prob(targets)).abs() < 4 * error).all()


class Tied(nn.Module):
    """Two outputs that share weights, so that they are correlated under the posterior."""

    def __init__(self):
        super().__init__()
        self.shared, self.own = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(()))

    def forward(self, inputs):
        together = inputs @ self.shared
        return torch.stack([together, self.own - 2 * together], 1)


def test_outputs_that_share_weights_are_predicted_with_their_correlation(generator):
    model = Tied().double()
    L = torch.tril(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    posterior = Posterior(dict(model.named_parameters()), ((Members({"shared": (3,), "own": ()}), FullSpread(L)),), "made up")
    inputs, targets = (torch.randn(5, k, generator=generator, dtype=torch.float64) for k in (3, 2))
    likelihood = sb.Gaussian(0.4).double()
    found = predict(model, posterior, likelihood, inputs, by="linearised")
    for n, x in enumerate(inputs):
        J = torch.stack([torch.cat([x, x.new_zeros(1)]), torch.cat([-2 * x, x.new_ones(1)])])
        C = J @ L @ L.T @ J.T + likelihood.noise().detach() ** 2 * torch.eye(2, dtype=torch.float64)
        assert_close(
            found.log_prob(targets)[n], MultivariateNormal(model(x[None])[0], C).log_prob(targets[n]).detach(), **EXACT
        )
    assert not found.mean.requires_grad


def norms():
    layers = (nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    return nn.Sequential(*layers).double()


def convolutions():
    layers = (
        nn.Conv2d(1, 4, 2),
        nn.InstanceNorm2d(4, affine=True),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)).double()


def attention():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 4), layer, nn.Flatten(), nn.Linear(12, 3)).double()


MODELS = {"norms": (norms, (3,)), "convolutions": (convolutions, (1, 3, 3)), "attention": (attention, (3,))}


def made_up(model, generator, scale=0.1):
    """A posterior with a std of its own for every weight."""
    parts = []
    for name, parameter in model.named_parameters():
        std = scale * torch.rand(parameter.numel(), generator=generator, dtype=parameter.dtype)
        parts.append((Members({name: tuple(parameter.shape)}), DiagonalSpread(std)))
    return Posterior({name: p.detach().clone() for name, p in model.named_parameters()}, tuple(parts), "made up")


@pytest.mark.parametrize("name", MODELS)
def test_any_model_is_linearised_at_the_mean_in_evaluation_mode(name, generator, monkeypatch):
    build, shape = MODELS[name]
    model, inputs = build(), torch.randn(6, *shape, generator=generator, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.add_(0.3)
    posterior, reference = made_up(model, generator), deepcopy(model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)  # what the posterior is around is its mean, whatever the model has moved to
    model.train()
    whole = predict(model, posterior, sb.Gaussian().double(), inputs, by="linearised")
    assert all(module.training for module in model.modules())
    monkeypatch.setattr(sys.modules[predict.__module__], "JACOBIAN_BUDGET", 2 * 3 * posterior.size)
    parts = predict(model, posterior, sb.Gaussian().double(), inputs, by="linearised")
    assert_close((parts.mean, parts.outputs.covariance), (whole.mean, whole.outputs.covariance))
    variances = torch.cat([spread.variances() for _, spread in posterior.parts])
    for n, datum in enumerate(inputs):
        outputs = reference(datum[None])[0]
        assert_close(whole.mean[n], outputs.detach(), **EXACT)
        rows = [torch.autograd.grad(output, list(reference.parameters()), retain_graph=True) for output in outputs]
        J = torch.stack([torch.cat([gradient.flatten() for gradient in row]) for row in rows])
        assert_close(whole.outputs.covariance[n], J * variances @ J.T, **EXACT)


@pytest.mark.parametrize("name", MODELS)
def test_weights_run_together_give_what_they_give_one_after_the_other(name, generator):
    build, shape = MODELS[name]
    model, inputs = build(), torch.randn(6, *shape, generator=generator, dtype=torch.float64)
    posterior = made_up(model, generator)
    drawn = posterior.sample(4, generator=torch.Generator().manual_seed(0))
    with evaluating(model):
        both = [outputs_under(model, drawn, inputs, together=together).detach() for together in (True, False)]
    assert_close(*both)
    found = predict(model, posterior, sb.Categorical(), inputs, by="sampled", samples=4, batch_size=4)
    assert_close(found.outputs.values, both[0])
    assert_close(found.mean, both[0].softmax(-1).mean(0))
    assert_close(found.epistemic, both[0].softmax(-1).std(0, correction=0))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, inputs):
        outputs = self.head(inputs)
        return outputs if outputs.sum() > 0 else -2 * outputs


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:LSTM with projections")
@pytest.mark.parametrize(("build", "shape"), [(Recurrent, (5, 2)), (Branching, (2,))])
def test_models_that_cannot_be_batched_over_weights_are_run_one_after_the_other(build, shape, generator):
    model, inputs = build(), torch.randn(3, *shape, generator=generator)
    posterior = made_up(model, generator)
    drawn = posterior.sample(3, generator=generator)
    found = outputs_under(model, drawn, inputs, together=True)
    for index in range(3):
        other = deepcopy(model)
        other.load_state_dict({name: value[index] for name, value in drawn.items()})
        assert_close(found[index], other(inputs))
    with pytest.raises(RuntimeError, match=r"could not differentiate the model datum by datum .* by='sampled' or by='plug-in'"):
        predict(model, posterior, sb.Categorical(), inputs, by="linearised")


def test_errors_of_a_model_are_its_own(generator):
    model = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        outputs_under(model, made_up(model, generator).sample(2), torch.zeros(4, 5), together=True)


def classifier(generator, classes=2, scale=1.0):
    model = nn.Linear(3, classes).double()
    L = scale * torch.tril(torch.randn(4 * classes, 4 * classes, generator=generator, dtype=torch.float64))
    shapes = {"weight": (classes, 3), "bias": (classes,)}
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return model, Posterior(mean, ((Members(shapes), FullSpread(L)),), "made up")


def test_averaged_probabilities_are_those_of_quadrature(generator):
    model, posterior = classifier(generator)
    inputs = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    found = predict(model, posterior, sb.Categorical(), inputs, by="linearised", samples=4096)
    # Of two classes the difference of logits counts, a number that is normal.
    normal = predict(model, posterior, sb.Gaussian().double(), inputs, by="linearised").outputs
    difference = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    mean, variance = normal.mean @ difference, normal.covariance @ difference @ difference
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = Normal(0.0, 1.0).log_prob(grid).exp()
    p = (mean[:, None] + variance.sqrt()[:, None] * grid).sigmoid()
    wanted, square = (torch.trapezoid(function * density, grid) for function in (p, p.square()))
    assert_close(found.mean[:, 1], wanted, rtol=0, atol=1e-3)
    assert_close(found.epistemic[:, 1], (square - wanted.square()).sqrt(), rtol=0, atol=1e-3)
    assert_close(found.std, (found.mean * (1 - found.mean)).sqrt())
    assert_close(found.mean.sum(1), torch.ones(8, dtype=torch.float64))
    assert_close(found.log_prob(torch.ones(8, dtype=torch.long)), found.mean[:, 1].log())
    sure = predict(model, posterior, sb.Categorical(), inputs, by="plug-in").mean
    assert ((found.mean - 0.5).abs() < (sure - 0.5).abs()).all()  # between what the mean says and not knowing
    assert torch.equal(found.classes(), sure.argmax(1))


def test_a_linear_model_is_predicted_the_same_linearised_and_sampled(generator):
    model, posterior = classifier(generator, 3, 0.5)
    inputs = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    count = 4000
    linearised = predict(model, posterior, sb.Categorical(), inputs, by="linearised", samples=count)
    sampled = predict(model, posterior, sb.Categorical(), inputs, by="sampled", samples=count)
    assert ((sampled.mean - linearised.mean).abs() < 4 * sampled.epistemic / count**0.5 + 1e-3).all()
    for n in range(8):
        wanted, found = (torch.cov(outputs.outputs.values[:, n].T) for outputs in (linearised, sampled))
        variances = wanted.diagonal()
        error = ((variances[:, None] * variances + wanted.square()) / count).sqrt()
        assert ((found - wanted).abs() < 4.5 * error).all()


def test_labels_of_a_datum_are_taken_together(generator):
    model, posterior = classifier(generator, 3)
    inputs, targets = torch.randn(4, 3, generator=generator, dtype=torch.float64), torch.eye(3)[[0, 1, 2, 0]]
    found = predict(model, posterior, sb.Bernoulli(), inputs, by="sampled", samples=50)
    signs = 2 * targets.double() - 1
    wanted = (signs * found.outputs.values).sigmoid().prod(-1).mean(0).log()
    assert_close(found.log_prob(targets), wanted)
    assert not torch.allclose(wanted, torch.where(targets > 0, found.mean, 1 - found.mean).log().sum(1), atol=1e-2)
    assert_close(found.metrics(targets)["accuracy"], ((found.mean > 0.5) == (targets > 0.5)).double().mean(1))
    assert_close(found.metrics(targets)["nll"], -wanted)


@pytest.mark.parametrize("likelihood", [sb.Categorical(), sb.Bernoulli(), sb.Gaussian(0.3)])
def test_plug_in_is_the_model_itself(likelihood, generator):
    model, posterior = classifier(generator)
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    found = predict(model, posterior, likelihood, inputs, by="plug-in", batch_size=2)
    outputs = model(inputs).detach()
    mean, variance = likelihood.moments(outputs)
    assert_close((found.mean, found.std), (mean.detach(), variance.detach().sqrt()))
    assert_close(found.epistemic, torch.zeros_like(outputs))
    targets = likelihood.sample(outputs, generator=generator).detach()
    assert_close(found.log_prob(targets), likelihood.log_prob(outputs, targets).detach())
    point = Posterior(posterior.mean, (), "a point")
    for by in WAYS:
        assert_close(predict(model, point, likelihood, inputs, by=by).mean, found.mean)


@pytest.mark.parametrize("by", WAYS)
def test_a_datum_is_predicted_the_same_whatever_it_is_beside_and_whenever(by, generator):
    model, posterior = classifier(generator)
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    whole = predict(model, posterior, sb.Categorical(), inputs, by=by, samples=20)
    alone = predict(model, posterior, sb.Categorical(), inputs[3:4], by=by, samples=20)
    assert_close(alone.mean[0], whole.mean[3])
    other = predict(model, posterior, sb.Categorical(), inputs, by=by, samples=20, generator=generator)
    assert torch.allclose(other.mean, whole.mean) == (by == "plug-in")


def test_the_posterior_says_how_it_predicts(generator):
    model, posterior = classifier(generator)
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    assert "sampled (7 draws; made up)" in str(predict(model, posterior, sb.Categorical(), inputs, samples=7))
    local = replace(posterior, predicts="linearised").detached()
    found = predict(model, local, sb.Categorical(), inputs)
    assert str(found) == "5 predictions of 2 outputs (Categorical), linearised (made up)"
    assert len(found) == 5


def test_what_is_in_no_part_is_known_for_sure(generator):
    model, _ = classifier(generator)
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    parts = ((Members({"bias": (2,)}), DiagonalSpread(torch.tensor([0.3, 0.7], dtype=torch.float64))),)
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    for by, tolerance in (("linearised", 1e-8), ("sampled", 0.05)):
        found = predict(model, Posterior(mean, parts, "biases"), sb.Gaussian().double(), inputs, by=by, samples=2000)
        assert_close(found.epistemic, torch.tensor([[0.3, 0.7]], dtype=torch.float64).expand(5, 2), rtol=tolerance, atol=0)


def test_a_prediction_keeps_the_noise_that_there_was(generator):
    model, posterior = classifier(generator)
    inputs, targets = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    likelihood = sb.Gaussian(0.5).double()
    found = predict(model, posterior, likelihood, inputs, by="plug-in")
    before = found.log_prob(targets)
    with torch.no_grad():
        likelihood.log_noise.fill_(math.log(3))
    assert_close(found.log_prob(targets), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, q, x: predict(m, q, sb.Categorical(), x, by="guessed"), "by must be one of linearised, sampled, plug-in"),
        (lambda m, q, x: predict(m, q, sb.Categorical(), x, samples=0), "at least 1, got 0 and 250"),
        (lambda m, q, x: predict(m, q, sb.Categorical(), x[:0]), "at least one input"),
        (lambda m, q, x: predict(nn.Linear(3, 5), q, sb.Categorical(), x), r"of this model; it has bias, weight, which"),
        (lambda m, q, x: predict(nn.Sequential(m, nn.Flatten(0)), q, sb.Categorical(), x), "it has bias, weight, which"),
        (lambda m, q, x: predict(m, q, sb.Categorical(), x).interval(), "of a Gaussian likelihood; this is Categorical"),
        (lambda m, q, x: predict(m, q, sb.Bernoulli(), x).classes(), "of a Categorical likelihood; this is Bernoulli"),
        (lambda m, q, x: predict(m, q, sb.Gaussian(), x).interval(1.0), r"level must lie between 0 and 1.*got 1\.0"),
        (lambda m, q, x: predict(m, q, sb.Categorical(), x).log_prob(torch.full((5,), 2)), "must lie in 0 … 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message, generator):
    model, posterior = classifier(generator)
    with pytest.raises(ValueError, match=message):
        call(model, posterior, torch.randn(5, 3, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("by", WAYS)
def test_models_without_a_row_for_each_datum_are_refused(by, generator):
    class Flat(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs)[:, 0]

    model = Flat(3, 2).double()
    with pytest.raises(ValueError, match=r"must give outputs \[n, c\]"):
        predict(model, made_up(model, generator), sb.Gaussian(), torch.zeros(4, 3, dtype=torch.float64), by=by)


def test_inputs_that_are_no_numbers_are_refused(generator):
    model, posterior = classifier(generator)
    with pytest.raises(sb.NotFiniteError, match="first in datum 1"):
        predict(model, posterior, sb.Categorical(), torch.tensor([[0.0] * 3, [torch.nan] * 3], dtype=torch.float64))


@pytest.mark.parametrize("by", WAYS)
def test_outputs_that_are_no_numbers_are_refused(by, generator):
    _, model, posterior, likelihood = regression(generator)
    inputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1e308, 1e308]], dtype=torch.float64)
    posterior = replace(posterior, mean={**posterior.mean, "weight": torch.full((2, 3), 1e3, dtype=torch.float64)})
    with pytest.raises(sb.NotFiniteError, match="must be finite under its posterior"):
        predict(model, posterior, likelihood, inputs, by=by, samples=4)
