"""Likelihoods of values and labels: what torch's distributions say of the same."""

import pytest
import torch
from torch.testing import assert_close

import symbayes as sb


@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_a_gaussian_is_that_of_torch(noise, generator):
    outputs, targets = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    found = sb.Gaussian(noise).double().log_prob(outputs, targets)
    assert_close(found, torch.distributions.Normal(outputs, noise).log_prob(targets).sum(1))


def test_certain_predictions_have_a_calibration():
    """Probabilities of exactly zero and one are probabilities."""
    outputs = torch.tensor([[400.0, -400.0], [-400.0, 400.0]])
    mean = sb.Categorical().moments(outputs)[0]
    assert set(mean.flatten().tolist()) == {0.0, 1.0}
    assert_close(sb.Categorical()._check_probabilities(mean, torch.tensor([0, 1])), mean.double())
    with pytest.raises(ValueError, match=r"its means, from 0 to 1\.1, are none"):
        sb.Categorical()._check_probabilities(1.1 * mean, torch.tensor([0, 1]))
