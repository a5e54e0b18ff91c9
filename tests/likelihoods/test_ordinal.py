"""Ordered classes: what is refused, outputs far from zero, any probabilities, and classes that are learned."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 1, 4]), "Ordinal targets must lie in 0 … 3, because the model has outputs for 4 classes; got 0 … 4"),
        (torch.tensor([-1, 1, 3]), "got -1 … 3"),
        (torch.ones(3), r"Ordinal targets must be class numbers, .* or probabilities of shape \(3, 4\); got torch.float32"),
        (torch.ones(3, 4), "must be probabilities of classes, with sum 1; got"),
        (torch.zeros(2).long(), "a target for each of the 3"),
    ],
)
def test_targets_that_cannot_be_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        sb.Ordinal().check(torch.zeros(3, 3), targets)


def test_it_is_finite_in_single_precision_far_from_zero():
    outputs = torch.tensor([[1e4, -1e4, 1e4], [-1e4, 1e4, -1e4], [90.0, 90.0, 90.0]])
    likelihood = sb.Ordinal()
    for y in range(4):
        targets = torch.full((3,), y)
        for find in (likelihood.log_prob, likelihood.score):
            assert_close(find(outputs, targets).double(), find(outputs.double(), targets))
    assert likelihood.fisher_columns(outputs).isfinite().all()
    moved = outputs.clone().requires_grad_()
    likelihood.fisher_columns(moved).sum().backward()
    assert moved.grad.isfinite().all()


@pytest.mark.parametrize(
    "probabilities", [[0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0]], ids=str
)
def test_any_probabilities_have_outputs(probabilities):
    mean = torch.tensor([probabilities])
    assert_close(sb.Ordinal().moments(sb.Ordinal().link(mean))[0], mean)


def test_two_classes_are_a_label(generator):
    outputs, targets = torch.randn(5, 1, generator=generator), torch.tensor([0, 1, 1, 0, 1])
    label = sb.Bernoulli()
    assert_close(sb.Ordinal().log_prob(outputs, targets), label.log_prob(outputs, targets[:, None]))
    assert_close(sb.Ordinal().fisher_columns(outputs), label.fisher_columns(outputs))


def test_classes_are_learned_predicted_and_saved(generator, tmp_path):
    inputs = torch.rand(300, 1, generator=generator) * 4 - 2
    noisy = 2 * inputs + torch.rand(300, 1, generator=generator).logit() / 4
    targets = torch.bucketize(noisy[:, 0], torch.tensor([-3.0, -1.0, 0.5, 2.0]))

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 4))

    result = sb.fit(network(), (inputs, targets), likelihood=sb.Ordinal(), epochs=60, progress=False)
    scores = result.evaluate((inputs, targets))
    assert scores["accuracy"] > 0.7
    assert scores["absolute error"] < 0.35
    found = result.predict(torch.linspace(-2, 2, 9)[:, None])
    assert found.mean.shape == (9, 5)
    assert_close(found.mean.sum(1), torch.ones(9))
    assert (found.classes().diff() >= 0).all()
    assert result.calibration((inputs, targets)).accuracy == pytest.approx(scores["accuracy"])
    with pytest.raises(ValueError, match=r"Intervals are of values.*this is Ordinal"):
        found.interval()
    result.save(tmp_path)
    again = sb.load_result(tmp_path, network())
    assert type(again.likelihood) is sb.Ordinal
    assert_close(again.predict(inputs).mean, result.predict(inputs).mean)
