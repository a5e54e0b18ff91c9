"""Values with a noise of their own: what is refused, outputs far from zero, and a noise that is recovered."""

from math import e, log, pi

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (3, torch.ones(5, 1), "its mean and its log-variance; the model has 3. Give its last layer twice as many"),
        (4, torch.ones(5, 4), r"real numbers of shape \(5, 2\), as their means are; got torch.float32 of shape \(5, 4\)"),
        (2, torch.ones(5), r"shape \(5,\). Reshape them \(for one mean, targets\[:, None\]\)"),
        (2, torch.ones(5, 1).long(), r"got torch.int64 .* call .float\(\)"),
        (2, torch.full((5, 1), torch.nan), "must be finite, got 5 that are not"),
        (2, torch.ones(4, 1), "a target for each of the 5"),
    ],
)
def test_targets_that_cannot_be_are_refused(outputs, targets, message):
    with pytest.raises(ValueError, match=message):
        sb.Heteroscedastic().check(torch.zeros(5, outputs), targets)


@pytest.mark.parametrize("s", [-80.0, 80.0])
def test_it_is_finite_in_single_precision_where_its_values_are(s):
    outputs, targets = torch.tensor([[1.0, s], [0.0, s]]), torch.ones(2, 1) + torch.tensor([[0.0], [1e-10]])
    likelihood = sb.Heteroscedastic()
    for find in (likelihood.log_prob, likelihood.score):
        assert_close(find(outputs, targets).double(), find(outputs.double(), targets.double()), rtol=1e-4, atol=1e-4)
    assert likelihood.fisher_columns(outputs).isfinite().all()
    assert likelihood.product(outputs, torch.ones(2, 2)).isfinite().all()


def test_a_noise_that_grows_is_recovered_predicted_and_saved(generator, tmp_path):
    inputs = torch.rand(300, 1, generator=generator) * 4 - 2
    noise = (0.8 * inputs - 1).exp()
    errors = noise * torch.randn(300, 1, generator=generator)
    targets = torch.sin(2 * inputs) + errors

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))

    result = sb.fit(network(), (inputs, targets), likelihood=sb.Heteroscedastic(), epochs=60, progress=False)
    one_for_all = (log(2 * pi * e) + float(errors.square().mean().log())) / 2  # nll of the true mean, with the same noise
    assert result.evaluate((inputs, targets))["nll"] < one_for_all - 0.3
    found = result.predict(inputs)
    assert found.mean.shape == found.std.shape == (300, 1)
    own = (found.std.square() - found.epistemic.square()).sqrt()
    assert float((own / noise).log().abs().mean()) < 0.25
    low, high = found.interval(0.9)
    assert 0.85 < float(((low <= targets) & (targets <= high)).float().mean()) < 0.95
    assert result.calibration((inputs, targets)).of == "values"
    result.save(tmp_path)
    again = sb.load_result(tmp_path, network())
    assert type(again.likelihood) is sb.Heteroscedastic
    assert_close(again.predict(inputs).std, found.std)
