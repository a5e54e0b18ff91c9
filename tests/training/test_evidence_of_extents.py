"""Extents while training: what moves them, and that the evidence of a result is that of the extents it has."""

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.layout import Hyperparameter

QUICK = {"epochs": 6, "progress": False}


def images(generator):
    return torch.randn(40, 1, 6, 6, generator=generator), torch.arange(40) % 2


def averaged(generator):
    net = sb.models.small_cnn((torch.zeros(2, 1, 6, 6), torch.arange(2)), width=2, generator=generator)
    return sb.OrbitAverage(net, sb.affine2d(), samples=3)


@pytest.mark.parametrize("keep_best", [True, False])
def test_the_evidence_of_a_result_is_that_of_the_extents_it_has(keep_best, generator):
    data, model = images(generator), averaged(generator)
    objective = sb.Laplace(sb.Kfac(), burn_in=0.0, cool_down=0.0, hyper_every=1, extent_rate=0.5, keep_best=keep_best)
    result = sb.fit(model, data, objective=objective, **QUICK)
    again = sb.laplace_evidence(model, data, result.likelihood, result.prior, rule=sb.Kfac())
    assert result.log_evidence == pytest.approx(float(again.total.detach()), abs=1e-4)
    assert result.history[-1].extents == model.extents
    assert result.history[-1].extents != result.history[0].extents


class Sharpened(nn.Module):
    """A hyperparameter that is no extent."""

    def __init__(self, net):
        super().__init__()
        self.net, self.sharpness = net, Hyperparameter(torch.ones(()))

    def forward(self, inputs):
        return self.net(self.sharpness * inputs)


@pytest.mark.parametrize("objective", [sb.Augerino(), sb.Laplace(burn_in=0.0)], ids=["Augerino", "Laplace"])
def test_hyperparameters_without_extents_are_learned_too(objective, generator):
    model = Sharpened(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    sb.fit(model, images(generator), objective=objective, **QUICK)
    assert model.sharpness.item() != 1


@pytest.mark.parametrize("settings", [{"samples": 1}, {"samples": 2, "antithetic": True}])
def test_an_average_that_moves_nothing_is_refused_where_the_evidence_should_learn(settings, generator):
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    model = sb.OrbitAverage(net, sb.affine2d("rotation"), **settings)
    if settings["samples"] == 2:  # a pair of opposite sides moves, one to either
        sb.fit(model, images(generator), **QUICK)
        return
    with pytest.raises(ValueError, match=r"at least two transformations; 'the model' has samples=1, .* Use more samples"):
        sb.fit(model, images(generator), **QUICK)
    bank = nn.Sequential(sb.FilterBank((1, 6, 6), 3, sb.affine2d("rotation"), samples=1), nn.Linear(3, 2))
    with pytest.raises(ValueError, match="'0' has samples=1"):
        sb.fit(bank, images(generator), **QUICK)
    sb.fit(model, images(generator), objective=sb.Augerino(), **QUICK)
    model.orbit.requires_grad_(False)
    sb.fit(model, images(generator), **QUICK)


def test_a_result_does_not_hold_the_data(generator):
    data = torch.randn(70, 1, 6, 6, generator=generator), torch.arange(70) % 2
    result = sb.fit(averaged(generator), data, epochs=1, progress=False)
    assert result.examples.untyped_storage().nbytes() == 64 * 36 * 4


def test_records_pair_the_evidence_with_its_extents(generator):
    data, model = images(generator), averaged(generator)
    objective = sb.Laplace(sb.Kfac(), burn_in=0.0, cool_down=0.4, hyper_every=1, extent_rate=0.5)
    history = sb.fit(model, data, objective=objective, **QUICK).history
    start = averaged(generator)
    start(data[0])
    assert history[0].evidence is not None
    assert history[0].extents == pytest.approx(start.extents)  # the first evidence is that of the first extents
    assert history[1].extents != pytest.approx(start.extents)
