"""Results predict, are evaluated and calibrated under their posterior, and keep it when they are saved."""

import json
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.errors import NoPosteriorError
from symbayes.posterior.families import MeanField
from symbayes.posterior.predict import calibration
from tests.damage import reseal
from tests.small import Arrivals

CPU = torch.device("cpu")


def blobs(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 3
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])
    return centres[targets] + torch.randn(n, 2, generator=generator), targets


def network(seed=0):
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def with_posterior(result, data, rule=None):
    curvature = (rule or sb.Kfac()).curvature(result.model, as_source(data, CPU), result.likelihood)
    return replace(result, make_posterior=partial(sb.laplace_posterior, curvature, result.model, result.prior))


@pytest.fixture(scope="module")
def bare():
    with torch.random.fork_rng():
        return replace(sb.fit(network(), blobs(), objective=sb.Laplace(), epochs=12, progress=False), make_posterior=None)


@pytest.fixture(scope="module")
def result(bare):
    return with_posterior(bare, blobs())


@pytest.fixture(scope="module")
def regression():
    inputs, classes = blobs()
    data = (inputs, torch.eye(3)[classes])
    with torch.random.fork_rng():
        fitted = sb.fit(network(), data, likelihood=sb.Gaussian(0.5), objective=sb.Laplace(), epochs=12, progress=False)
        return with_posterior(fitted, data)


def test_the_posterior_is_found_once(bare):
    asked = []
    posterior = MeanField().over(bare.model)().detached()
    result = replace(bare, make_posterior=lambda: asked.append(1) or posterior)
    assert asked == []
    assert result.posterior is result.posterior is posterior
    assert asked == [1]


def test_a_result_predicts_as_its_posterior_is_meant_to(result, bare):
    inputs, _ = blobs(seed=1)
    found = result.predict(inputs)
    assert "linearised (Laplace with KFAC" in found.by
    assert_close(found.mean, sb.predict(result.model, result.posterior, result.likelihood, inputs, by="linearised").mean)
    assert_close(result.predict(inputs).mean, found.mean, rtol=0, atol=0)
    assert "sampled (20 draws; Laplace" in result.predict(inputs, by="sampled", samples=20).by
    variational = replace(bare, make_posterior=lambda: MeanField().over(bare.model)().detached())
    assert "sampled (5 draws; mean-field)" in variational.predict(inputs, samples=5).by


def test_plug_in_needs_no_posterior(bare):
    inputs, targets = blobs(seed=1)
    outputs = bare.model(inputs).detach()
    assert_close(bare.predict(inputs, by="plug-in").mean, outputs.softmax(1))
    found = bare.evaluate((inputs, targets), batch_size=7)
    assert found["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).float().mean()))
    assert found["nll"] == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)), rel=1e-5)
    assert bare.calibration((inputs, targets), by="plug-in").nll == pytest.approx(found["nll"], rel=1e-5)
    assert found.keys() == {"accuracy", "nll"}
    for call in (bare.predict, lambda x: bare.evaluate((x, targets), by="linearised"), lambda x: bare.posterior):
        with pytest.raises(NoPosteriorError, match=r"no posterior.*Fit again, or find one by sb\.laplace_posterior"):
            call(inputs)


@pytest.mark.parametrize("by", [None, "linearised", "sampled"])
def test_metrics_are_those_of_the_prediction(by, result, regression):
    inputs, targets = blobs(seed=1)
    prediction = result.predict(inputs, by, samples=16)
    loader = DataLoader(TensorDataset(inputs, targets), 25)
    found = result.evaluate(loader, by=by, samples=16)
    assert found["accuracy"] == pytest.approx(float((prediction.classes() == targets).float().mean()))
    assert found["nll"] == pytest.approx(-float(prediction.mean[range(60), targets].log().mean()), rel=1e-5)
    hot = torch.eye(3)[targets]
    values = regression.evaluate((inputs, hot), by=by, samples=16)
    prediction = regression.predict(inputs, by, samples=16)
    assert values["squared error"] == pytest.approx(float((prediction.mean - hot).square().mean()), rel=1e-5)
    assert values["nll"] == pytest.approx(-float(prediction.log_prob(hot).mean()), rel=1e-5)


def test_calibration_is_that_of_the_prediction(result, regression):
    data = blobs(seed=1)
    found = result.calibration(DataLoader(TensorDataset(*data), 25), bins=5)
    wanted = calibration(result.predict(data[0]), data[1], 5)
    assert found.by == wanted.by
    assert found.ece == pytest.approx(wanted.ece, rel=1e-4)
    assert [row.count for row in found.rows] == [row.count for row in wanted.rows]
    values = regression.calibration((data[0], torch.eye(3)[data[1]]), by="sampled", samples=8)
    assert values.of == "values"
    assert "sampled (8 draws" in values.by


def test_calibration_of_an_unknown_likelihood_is_refused_before_anything_is_predicted(result):
    other = replace(result, likelihood=Arrivals(), make_posterior=None)
    with pytest.raises(ValueError, match=r"this is Arrivals. Use prediction.metrics\(targets\), whose 'nll' scores any"):
        other.calibration((torch.zeros(1, 1), torch.zeros(1, 1)))


def test_the_posterior_and_the_calibration_are_saved(result, tmp_path):
    data = blobs(seed=1)
    measured = result.calibration(data)
    result.save(tmp_path, measured)
    again = sb.load_result(tmp_path, model=network(seed=5))
    assert again.posterior.kind == result.posterior.kind
    assert_close(again.predict(data[0]).mean, result.predict(data[0]).mean, rtol=0, atol=1e-6)
    found = again.calibration(data)
    assert (found.nll, found.ece, found.brier) == pytest.approx((measured.nll, measured.ece, measured.brier), rel=1e-5)
    summary = json.loads((tmp_path / "result.json").read_text())
    assert summary["calibration"] == json.loads(json.dumps(asdict(measured)))
    assert result.summary().calibration is None


def test_a_result_without_posterior_is_saved_without_and_says_so(result, bare, tmp_path):
    result.save(tmp_path)
    assert (tmp_path / "posterior.safetensors").is_file()
    for other in (bare, with_posterior(bare, blobs(), sb.curvature.Lanczos(1, 2))):
        (tmp_path / "posterior.safetensors").write_text("of another result")
        other.save(tmp_path)
        assert not (tmp_path / "posterior.safetensors").exists()
        again = sb.load_result(tmp_path, model=network())
        with pytest.raises(NoPosteriorError, match=r"saved without one.*Fit again"):
            again.predict(blobs()[0])
        assert again.evaluate(blobs()) == bare.evaluate(blobs())


def test_results_predict_in_the_type_that_their_model_has_now(tmp_path):
    inputs, targets = blobs()
    with torch.random.fork_rng():
        result = sb.fit(network(), (inputs, targets), objective=sb.Elbo(), epochs=2, progress=False)
    found = result.predict(inputs, samples=8).mean
    result.save(tmp_path)
    again = sb.load_result(tmp_path, model=network().double())
    result.model.double()
    for other in (result, again):
        for by in ("sampled", "linearised"):
            assert other.predict(inputs.double(), by, samples=8).mean.dtype == torch.float64
    assert found.dtype == torch.float32


def test_posteriors_that_are_damaged_or_of_others_are_refused(result, tmp_path):
    result.save(tmp_path / "one")
    path = tmp_path / "one" / "posterior.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    reseal(tmp_path / "one")
    with pytest.raises(ValueError, match=r"The posterior in .* is damaged"):
        sb.load_result(tmp_path / "one", model=network())
    data = blobs()
    small = with_posterior(sb.fit(nn.Linear(2, 3), data, epochs=1, progress=False), data)
    small.save(tmp_path / "other")
    path.write_bytes((tmp_path / "other" / "posterior.safetensors").read_bytes())
    reseal(tmp_path / "one")
    with pytest.raises(ValueError, match=r"does not fit the weights beside it. Copy the folder again"):
        sb.load_result(tmp_path / "one", model=network())
    path.unlink()  # as it says
    assert sb.load_result(tmp_path / "one", model=network()).make_posterior is None


def test_the_posterior_is_that_of_the_end_of_training():
    generator = torch.Generator().manual_seed(0)
    data = (torch.randn(20, 3, generator=generator), torch.arange(20) % 2)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    result = sb.fit(model, data, epochs=2, progress=False)
    kept = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
        result.prior.log_precision += 1
    assert torch.equal(result.posterior.mean["weight"], kept)


def test_the_temperature_is_found_for_the_model_as_it_was():
    expected, moved = (sb.fit(network(), blobs(), objective=sb.Laplace(), epochs=12, progress=False) for _ in range(2))
    moved.model.double()
    assert moved.posterior.temperature == expected.posterior.temperature < 1
