"""Extents in training: grown by the evidence where data allow it, collapsed by the training loss, kept where they are fixed."""

from base64 import b64decode

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.kernel import Subsets, TangentKernel
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.load import load
from symbayes.errors import NotFiniteError
from symbayes.groups.lie import affine2d
from symbayes.invariance.augmentation import LearnedAugmentation
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.report.runs import make_page
from symbayes.training.by_curvature import Augerino, Laplace, Map
from symbayes.training.fit import fit
from symbayes.training.hyper import HyperAdam
from symbayes.training.loading import load_result
from symbayes.training.optimiser import ProximalAdam
from symbayes.training.trainer import Schedule

SCHEDULE = Schedule(40, batch_size=40, learning_rate=2e-2)


def points(kind, generator):
    """Points on two circles; the class is the circle, which no rotation changes, or the side, which half of them do."""
    angle = 6.2832 * torch.rand(120, generator=generator)
    circle = torch.arange(120) % 2
    inputs = (1 + circle)[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return inputs, circle if kind == "circle" else (inputs[:, 0] > 0).long()


def model_of(start=0.5, samples=6):
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    return OrbitAverage(net, affine2d("rotation", on="points").starting(start), samples)


def learn(kind, objective, generator, model=None):
    model = model or model_of()
    return fit(model, points(kind, generator), objective=objective, schedule=SCHEDULE, progress=False)


@pytest.mark.parametrize("rule", [Kfac(MonteCarloFisher()), Diagonal(), TangentKernel(40), Subsets(Kfac(), 60)], ids=str)
def test_the_evidence_finds_what_may_be_turned_and_what_may_not(rule, generator):
    found = {}
    for kind in ("circle", "side"):
        objective = Laplace(rule, burn_in=0.2, cool_down=0.2, hyper_every=1, damping=0.5, extent_rate=0.4, extent_share=1.0)
        result = learn(kind, objective, generator)
        found[kind] = result.model.extents["rotation"]
        assert result.history[-1].extents == result.model.extents
        assert result.evaluate(points(kind, generator))["accuracy"] > 0.9
    assert found["circle"] > 90
    assert found["side"] < 25


def test_the_training_loss_finds_nothing(generator):
    result = learn("side", Augerino(strength=0.0, extent_rate=0.05), generator)
    assert result.model.extents["rotation"] < 3
    rewarded = learn("side", Augerino(strength=1.0, extent_rate=0.05), generator)
    assert rewarded.model.extents["rotation"] > 40


def test_map_and_fixed_extents_keep_them(generator):
    assert learn("circle", Map(), generator).model.extents["rotation"] == pytest.approx(28.65, abs=0.01)
    fixed = model_of()
    fixed.orbit.requires_grad_(False)
    result = learn("circle", Laplace(Kfac(MonteCarloFisher())), generator, fixed)
    assert result.model.extents["rotation"] == pytest.approx(28.65, abs=0.01)


def test_extents_never_leave_their_bounds(generator):
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    model = OrbitAverage(net, affine2d("rotation", on="points").bounded(rotation=0.7).starting(0.5), 6)
    objective = Laplace(Kfac(MonteCarloFisher()), hyper_every=1, extent_rate=0.4)
    result = learn("circle", objective, generator, model)
    assert max(record.extents["rotation"] for record in result.history) == pytest.approx(40.1, abs=0.05)


def test_the_same_seed_gives_the_same_extents(generator):
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        objective = Laplace(Kfac(MonteCarloFisher()), hyper_every=2, extent_share=0.5)
        data = points("circle", torch.Generator().manual_seed(0))
        found.append(fit(model_of(), data, objective=objective, schedule=SCHEDULE, progress=False).model.extents)
    assert found[0] == found[1]


def test_a_gradient_that_is_no_number_is_refused():
    with pytest.raises(
        NotFiniteError, match=r"gradient of hyperparameters must be finite, got \[nan\]. Use a smaller extent_rate"
    ):
        HyperAdam(model_of()).step([torch.tensor([float("nan")])])


@pytest.mark.parametrize("settings", [{"extent_rate": 0.0}, {"extent_share": 0.0}, {"extent_share": 1.5}])
def test_rates_and_shares_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="extent_rate must be positive, and extent_share above 0 and at most 1; got"):
        Laplace(**settings)
    with pytest.raises(ValueError, match="must be at least 1; got 1, 1 and 0"):
        Laplace(extent_steps=0)
    with pytest.raises(ValueError, match="strength must not be negative and extent_rate be positive; got -1"):
        Augerino(strength=-1.0)


@pytest.fixture
def result(generator):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))
    model = OrbitAverage(net, affine2d("rotation", "translation").one_sided("translation_x"), samples=3)
    data = torch.randn(30, 1, 8, 8, generator=generator), torch.arange(30) % 3
    return fit(model, data, objective=Laplace(Kfac(MonteCarloFisher())), epochs=3, progress=False)


def test_results_with_extents_are_saved_and_read_again(result, tmp_path):
    result.save(tmp_path)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))
    other = OrbitAverage(net, affine2d("rotation", "translation").one_sided("translation_x"), samples=3)
    loaded = load_result(tmp_path, other)
    assert loaded.model.extents == result.model.extents
    assert loaded.history == result.history
    assert loaded.summary() == result.summary()
    page = make_page(tmp_path)
    assert "How far it is invariant" in page
    assert page.count('alt="transformed"') == 4 * 8


def test_a_summary_shows_examples_under_what_was_learned(result):
    summary = result.summary()
    assert [extent.name for extent in summary.extents] == ["translation_x", "translation_y", "rotation"]
    assert summary.extents[2].unit == "°"
    assert summary.extents[0].one_sided
    assert [len(row) for row in summary.orbits] == [9] * 4
    image = summary.orbits[0][0]
    assert (image.width, image.height, image.channels) == (8, 8, 1)
    levels = torch.tensor(list(b64decode(image.pixels)), dtype=torch.float32)
    examples = result.examples[:4]
    wanted = 255 * (examples[0].flatten() - examples.min()) / (examples.max() - examples.min())
    assert_close(levels, wanted.round(), rtol=0, atol=1)


def test_what_was_learned_is_an_augmentation_for_any_pipeline(result, generator):
    augment = result.augmentation()
    assert "rotation ±" in repr(augment)
    batch = torch.randn(50, 1, 8, 8, generator=generator)
    moved = augment(batch)
    assert moved.shape == batch.shape
    assert not moved.requires_grad
    assert not torch.equal(moved, batch)
    assert augment(batch[0]).shape == batch[0].shape
    with torch.no_grad():
        result.model.orbit.value.zero_()
    assert_close(result.augmentation()(batch), batch)
    with pytest.raises(
        ValueError, match=r"as many axes as those learned from, of shape \(1, 8, 8\), or one of them; got \(8, 8\)"
    ):
        augment(batch[0, 0])


def test_an_augmentation_draws_up_to_the_extents_and_to_the_sides_it_should():
    model = OrbitAverage(nn.Linear(2, 2), affine2d("rotation", "translation_x", on="points").one_sided("translation_x"), 2)
    with torch.no_grad():
        model.orbit.value.copy_(torch.tensor([0.5, 0.0]))  # in the order of the group: translation_x, rotation
    model(torch.zeros(1, 2))
    augment = LearnedAugmentation(model.orbit, torch.Generator().manual_seed(0))
    moved = augment(torch.zeros(4000, 2))
    assert moved[:, 1].abs().max() == 0
    assert_close(
        torch.stack([moved[:, 0].min(), moved[:, 0].max(), moved[:, 0].mean()]), torch.tensor([0, 0.5, 0.25]), rtol=0, atol=0.01
    )


def test_a_model_without_extents_has_no_augmentation(generator):
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    plain = fit(net, points("circle", generator), epochs=1, progress=False)
    assert plain.summary().extents == () == plain.summary().orbits
    assert plain.history[0].extents == {}
    with pytest.raises(ValueError, match=r"has extents once, .*; this one has them 0 times"):
        plain.augmentation()


def test_weights_behind_others_that_begin_at_zero_are_not_lost():
    """Fixup: where the last layer begins at zero, the first has no gradient at first; the prior alone must not empty it."""
    first, last = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
    optimiser = ProximalAdam([first, last])
    for _ in range(3):
        loss = ((first * last).sum() - 1).square()
        optimiser.set(0.01, [1e-3, 1e-3])
        optimiser.step(torch.autograd.grad(loss, [first, last]))
    assert first.detach().min() > 0.9


def test_filters_that_are_trained_learn_how_far_they_are_turned(generator):
    """By Laplace's method, through the rows of the filters; by the training loss nothing."""
    task = load("upright-digits").transformed(rotation=180).subset(200)
    found = {}
    evidence = Laplace(
        Kfac(MonteCarloFisher()), burn_in=0.2, cool_down=0.2, hyper_every=1, damping=0.5, extent_rate=0.4, extent_share=0.5
    )
    for name, objective in {"evidence": evidence, "loss": Augerino(strength=0.0, extent_rate=0.05)}.items():
        bank = FilterBank((1, 16, 16), 24, affine2d("rotation"), samples=8, generator=torch.Generator().manual_seed(0))
        net = nn.Sequential(bank, nn.Linear(24, 10))
        fit(net, task.train, objective=objective, schedule=Schedule(30, 20, 1e-2), progress=False)
        found[name] = bank.extents["rotation"]
    assert found["evidence"] > 100
    assert found["loss"] < 3
