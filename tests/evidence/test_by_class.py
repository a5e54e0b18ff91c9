"""Gradients of classes: they add up to the gradient of the evidence, and say which class wants more."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.evidence.by_class import gradients_by_class
from symbayes.groups.lie import affine2d


def problem(n=60):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 6), nn.Tanh(), nn.Linear(6, 3))
    model = sb.OrbitAverage(net, affine2d("rotation", "scale_x").starting(0.4), samples=4).double().eval()
    data = torch.randn(n, 1, 5, 5, dtype=torch.float64), torch.arange(n) % 3
    return model, data, sb.TensorwisePrior(model)


def test_they_add_up_to_the_gradient_of_the_evidence():
    model, data, prior = problem()
    found = gradients_by_class(model, data, prior)
    (whole,) = sb.evidence_gradient(model, data, sb.Categorical(), prior)
    counts = torch.tensor(found.counts, dtype=torch.float64)
    assert_close(counts @ found.gradients, (whole * model.orbit.value).detach(), rtol=1e-9, atol=1e-12)
    assert found.names == ("rotation", "scale_x")
    assert found.classes == (0, 1, 2)
    assert found.counts == (20, 20, 20)
    assert (found.errors > 0).all()


def test_a_class_that_was_turned_wants_to_be_turned_more_than_one_that_was_not():
    """A cross at any angle, a bar that lies, and one that stands."""
    generator = torch.Generator().manual_seed(0)
    bars = torch.zeros(3, 1, 7, 7)
    bars[0, 0, 3, 1:6] = bars[0, 0, 1:6, 3] = 1  # a cross, turned
    bars[1, 0, 3, :] = 1  # lying
    bars[2, 0, :, 3] = 1  # standing
    labels = torch.arange(120) % 3
    images = bars[labels] + 0.3 * torch.randn(120, 1, 7, 7, generator=generator)
    angles = torch.where(labels == 0, 3.0 * (2 * torch.rand(120, generator=generator) - 1), torch.zeros(()))
    images = affine2d("rotation").transform(angles[:, None, None], images)[:, 0]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(49, 16), nn.Tanh(), nn.Linear(16, 3))
    model = sb.OrbitAverage(net, affine2d("rotation").starting(0.5), samples=8)
    model.orbit.requires_grad_(False)
    result = sb.fit(model, (images, labels), objective=sb.Laplace(), epochs=40, progress=False)
    model.orbit.requires_grad_(True)
    found = result.gradients_by_class((images, labels)).gradients[:, 0]
    assert found[0] > found[1:].max()
    assert found[1:].max() < 0


def test_they_are_written_as_a_table():
    model, data, prior = problem()
    found = gradients_by_class(model, data, prior)
    lines = str(found).splitlines()
    assert lines[0].split() == ["class", "data", "rotation", "scale_x"]
    assert len(lines) == 4
    assert lines[1].split()[:2] == ["0", "20"]
    assert "<table>" in found._repr_html_()


def test_what_cannot_be_told_is_refused():
    model, data, prior = problem(18)
    with pytest.raises(ValueError, match="Every class must have 8 data or more for its gradient to be told; class 0 has 6"):
        gradients_by_class(model, data, prior)
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 3))
    with pytest.raises(ValueError, match="must have extents or probabilities that are learned; it has none"):
        gradients_by_class(net, data, sb.TensorwisePrior(net))
    values = torch.randn(20, 2), torch.randn(20, 1)
    line = sb.fit(nn.Linear(2, 1), values, likelihood=sb.Gaussian(), objective=sb.Map(), epochs=1, progress=False)
    with pytest.raises(ValueError, match="Targets must be classes, as of Categorical; got Gaussian"):
        line.gradients_by_class(values)
