"""What cannot be learned, or was not, is said in a sentence; what can be is taken."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import Ggn, Lanczos, Preconditioned, TangentKernel
from symbayes.posterior import FullCovariance
from symbayes.training.optimiser import PLAIN

N = 40


def data(classes=3):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, 4, generator=generator)
    return inputs, (inputs @ torch.randn(4, classes, generator=generator)).argmax(1)


def network(outputs=3):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))


class Tempered(nn.Module):
    """A parameter without axes."""

    def __init__(self):
        super().__init__()
        self.inner, self.temperature = network(), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.inner(x) * self.temperature


def test_epochs_are_said_once():
    with pytest.raises(ValueError, match=r"Epochs must be said once: give Schedule\(epochs=7, \.\.\.\)"):
        sb.fit(network(), data(), epochs=7, schedule=sb.Schedule(batch_size=64), progress=False)
    assert len(sb.fit(network(), data(), schedule=sb.Schedule(2, 64), progress=False).history) == 2
    assert len(sb.fit(network(), data(), epochs=3, progress=False).history) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_wherever_curvature_is(dtype):
    model, (inputs, targets) = network().to(dtype), data()
    with pytest.raises(ValueError, match=rf"Weights must be in single or double precision.*'0.weight' is {dtype}.*\.float\(\)"):
        sb.TensorwisePrior(model)
    for rule in (sb.Kfac(), Ggn(), Preconditioned()):
        with pytest.raises(ValueError, match="Weights must be in single or double precision"):
            sb.laplace_evidence(model, (inputs.to(dtype), targets), sb.Categorical(), sb.TensorwisePrior(network()), rule=rule)
    with pytest.raises(ValueError, match="Weights must be in single or double precision"):
        sb.fit(model, (inputs.to(dtype), targets), progress=False)


@pytest.mark.parametrize(
    ("objective", "optimiser"),
    [(sb.Laplace(), PLAIN), (sb.Laplace(), sb.Optimiser(2)), (sb.Elbo(), PLAIN)],
    ids=["passes", "running factors", "bound"],
)
def test_training_takes_an_autocast_and_its_evidence_does_not(objective, optimiser):
    pair, schedule = data(), sb.Schedule(4, 10)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = sb.fit(network(), pair, objective=objective, optimiser=optimiser, schedule=schedule, progress=False)
    if not isinstance(objective, sb.Elbo):
        generator = torch.Generator().manual_seed(0)
        rule = sb.Kfac()
        again = sb.laplace_evidence(result.model, pair, result.likelihood, result.prior, rule=rule, generator=generator)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            within = sb.laplace_evidence(result.model, pair, result.likelihood, result.prior, rule=rule, generator=generator)
        assert_close(within.total, again.total)
        assert_close(float(again.log_likelihood.detach()), result.evidence.log_likelihood)


@pytest.mark.parametrize("rate", [1e30, 1e3])
def test_training_that_diverges_is_no_result(rate):
    with pytest.raises(
        sb.NotFiniteError, match=r"Training diverged: the loss per datum is .* Use a smaller learning rate than"
    ):
        sb.fit(network(), data(), schedule=sb.Schedule(6, 8, learning_rate=rate), progress=False)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.bool, torch.complex64], ids=str)
def test_inputs_of_a_type_that_the_model_does_not_take_are_refused(kind):
    inputs, targets = data()
    with pytest.raises(TypeError, match=rf"must take inputs of .* type {kind}; it does not .*images\.float\(\) / 255"):
        sb.fit(network(), (inputs.to(kind), targets), progress=False)
    result = sb.fit(network(), (inputs, targets), epochs=1, progress=False)
    with pytest.raises(TypeError, match=rf"must take inputs of .* type {kind}"):
        result.predict(inputs.to(kind))


OUTPUTS = {
    "one axis": (lambda h: h[:, 0], r"got shape \(8,\)"),
    "three axes": (lambda h: h[:, None].expand(-1, 2, -1), r"got shape \(8, 2, 3\)"),
    "a pair": (lambda h: (h, h), "got a tuple"),
    "a dictionary": (lambda h: {"logits": h}, "got a dict"),
    "a sum": (lambda h: h.sum(), r"got shape \(\)"),
}
RULES = [sb.Kfac(), Ggn(), TangentKernel(N), Lanczos(1, 2)]


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_another_shape_are_refused_by_every_rule(name):
    class Shaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return OUTPUTS[name][0](self.inner(x))

    model, message = Shaped(), rf"must give outputs \[n, c\], a row for each of the 8 inputs; {OUTPUTS[name][1]}"
    for rule in RULES:
        with pytest.raises(ValueError, match=message):
            sb.laplace_evidence(model, data(), sb.Categorical(), sb.TensorwisePrior(model), rule=rule)
    for objective in (sb.Laplace(), sb.Elbo()):
        with pytest.raises(ValueError, match=message):
            sb.fit(model, data(), objective=objective, progress=False)


def test_one_output_is_no_class():
    inputs, targets = data()
    with pytest.raises(
        ValueError, match=r"Categorical needs two outputs or more, .* got one\. Use Bernoulli\(\), with targets\[:, None\]"
    ):
        sb.fit(network(1), (inputs, torch.zeros_like(targets)), progress=False)


@pytest.mark.parametrize(
    "family",
    [sb.MeanField(), sb.MatrixNormal(), sb.MatrixNormal(diagonal=True), FullCovariance()],
    ids=lambda f: f.name,
)
@pytest.mark.parametrize("draws", ["antithetic", "cubature"])
def test_a_parameter_without_axes_has_a_spread(family, draws):
    result = sb.fit(Tempered(), data(), objective=sb.Elbo(family, draws=draws), epochs=2, progress=False)
    assert result.posterior.variances()["temperature"].shape == ()


def test_a_parameter_without_axes_has_a_variance_and_predicts(tmp_path):
    result = sb.fit(Tempered(), data(), epochs=2, progress=False)
    assert result.posterior.variances()["temperature"] > 0
    inputs, _ = data()
    assert result.predict(inputs, by="sampled").mean.isfinite().all()
    result.save(tmp_path)
    again = sb.load_result(tmp_path, Tempered())
    assert_close(again.predict(inputs).mean, result.predict(inputs).mean)


def test_predictions_take_what_users_have():
    inputs, targets = data()
    result = sb.fit(network(), (inputs, targets), epochs=2, progress=False)
    wanted = result.predict(inputs).mean
    for given in (inputs.double(), inputs.numpy(), inputs.numpy().astype(np.float64)):
        assert_close(result.predict(given).mean, wanted)
    assert_close(result.evaluate((inputs.double(), targets)), result.evaluate((inputs.numpy(), targets.numpy())))
    with pytest.raises(ValueError, match=r"Inputs must be a batch of data as in training, \[n, 4\].*inputs\[None\]"):
        result.predict(inputs[0])


def test_a_result_is_described_in_a_line():
    result = sb.fit(network(), data(), epochs=2, progress=False)
    found = repr(result)
    assert found.startswith("Result(Sequential with 51 weights, Categorical, 40 data, 2 epochs, log evidence -")
    assert len(found) < 120


@pytest.mark.parametrize("learns", [True, False])
def test_a_noise_comes_back_as_it_was(learns, tmp_path):
    inputs, _ = data()
    likelihood = sb.Gaussian(0.3).double().requires_grad_(learns)
    pair = inputs.double(), inputs.double()[:, :1]
    result = sb.fit(network(1).double(), pair, likelihood=likelihood, epochs=2, progress=False)
    result.save(tmp_path)
    again = sb.load_result(tmp_path, network(1).double()).likelihood
    assert again.log_noise.dtype == torch.float64
    assert again.learns_noise == learns
    assert_close(again.log_noise, result.likelihood.log_noise, rtol=0, atol=0)


def test_soft_targets_are_learned_from():
    inputs, targets = data()
    smooth = 0.9 * nn.functional.one_hot(targets, 3) + 0.1 / 3
    result = sb.fit(network(), (inputs, smooth), schedule=sb.Schedule(40, 10, 0.02), progress=False)
    found = result.evaluate((inputs, smooth), by="plug-in")
    assert found["accuracy"] > 0.8
    assert_close(found["nll"], -result.evidence.log_likelihood / N, rtol=1e-4, atol=0)
    labels = (inputs[:, :2] > 0) * 0.8 + 0.1
    schedule = sb.Schedule(40, 10, 0.02)
    labelled = sb.fit(network(2), (inputs, labels), likelihood=sb.Bernoulli(), schedule=schedule, progress=False)
    assert labelled.evaluate((inputs, labels))["accuracy"] > 0.8
