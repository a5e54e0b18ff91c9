"""A network averaged over transformations: what it is at its limits, what is drawn, and its extents in people's units."""

from copy import deepcopy
from math import log, pi

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.groups.lie import affine1d, affine2d
from symbayes.invariance.extents import Extents, all_extents
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import Hyperparameter, Layout, hyperparameters


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(192, 4)).double()


@pytest.fixture
def images(generator):
    return torch.randn(5, 1, 8, 8, generator=generator, dtype=torch.float64)


def set_extents(model, value):
    with torch.no_grad():
        model.orbit.value.copy_(torch.as_tensor(value, dtype=torch.float64))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("antithetic", [True, False])
def test_at_extent_zero_it_is_the_plain_network(net, images, training, antithetic):
    model = OrbitAverage(net, affine2d(), samples=6, antithetic=antithetic).train(training)
    set_extents(model, torch.zeros(6))
    assert_close(model(images), net(images), rtol=0, atol=1e-13)


def test_it_is_the_mean_over_transformed_inputs(net, images):
    model = OrbitAverage(net, affine2d("rotation"), samples=4).eval()
    set_extents(model, [pi])
    wanted = torch.stack([net(affine2d("rotation").transform(angle.view(1, 1, 1), images)[:, 0])
                          for angle in torch.tensor([-0.75, -0.25, 0.25, 0.75], dtype=torch.float64) * pi]).mean(0)  # fmt: skip
    assert_close(model(images), wanted)


def test_quarter_turns_spread_evenly_make_it_exactly_invariant(net, images):
    model = OrbitAverage(net, affine2d("rotation"), samples=4).eval()
    set_extents(model, [pi])
    assert_close(model(images), model(torch.rot90(images, 1, (2, 3))), rtol=0, atol=1e-10)
    assert (net(images) - net(torch.rot90(images, 1, (2, 3)))).abs().max() > 0.1


def test_draws_are_new_in_training_and_fixed_in_evaluation(net, images):
    model = OrbitAverage(net, affine2d(), samples=4)
    set_extents(model, torch.full((6,), 0.4))
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    fixed = OrbitAverage(net, affine2d(), samples=4, stochastic=False).train()
    assert torch.equal(fixed(images), fixed(images))


def test_the_same_seed_draws_the_same(net, images):
    outputs = []
    for seed in (0, 0, 1):
        model = OrbitAverage(net, affine2d(), samples=4, seed=seed)
        set_extents(model, torch.full((6,), 0.4))
        outputs.append(model(images))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("antithetic", [True, False])
def test_draws_are_uniform_within_one_and_both_sides(antithetic):
    extents = Extents(affine2d("rotation", "scale").one_sided("scale_x"))
    drawn = extents.random(2000, 4, seed=3, antithetic=antithetic)
    assert drawn.shape == (2000, 4, 3)
    low, high = drawn.amin((0, 1)), drawn.amax((0, 1))
    assert_close(low, torch.tensor([-1.0, 0.0, -1.0], dtype=torch.float64), rtol=0, atol=0.01)
    assert_close(high, torch.ones(3, dtype=torch.float64), rtol=0, atol=0.01)
    assert_close(drawn.mean((0, 1)), torch.tensor([0, 0.5, 0], dtype=torch.float64), rtol=0, atol=0.02)
    assert_close(drawn[..., 0].var(), torch.tensor(1 / 3, dtype=torch.float64), rtol=0.05, atol=0)
    if antithetic:
        assert_close(drawn[:, :2, 0], -drawn[:, 2:, 0])
        assert_close(drawn[:, :2, 1], 1 - drawn[:, 2:, 1])


def test_even_draws_take_the_same_steps_in_every_generator_and_are_nearly_uncorrelated():
    extents = Extents(affine2d())
    for samples in (1, 2, 5, 20):
        even = extents.even(samples)[0]
        steps = (torch.arange(samples, dtype=torch.float64) * 2 + 1) / samples - 1
        assert_close(even.sort(0).values, steps[:, None].expand(samples, 6))
    assert (torch.corrcoef(extents.even(20)[0].T) - torch.eye(6)).abs().max() < 0.5


def test_extents_are_in_degrees_pixels_and_percent(net, images):
    model = OrbitAverage(net, affine2d(), samples=2)
    with pytest.raises(RuntimeError, match=r"'translation_x' is given in pixels, and no image has been seen"):
        _ = model.extents
    model(images)
    set_extents(model, [0.5, -0.25, pi / 2, log(1.5), log(2), 0.3])
    wanted = {"translation_x": 2, "translation_y": 1, "rotation": 90, "scale_x": 50, "scale_y": 100, "shear": 30}
    assert model.extents == pytest.approx(wanted)
    assert all_extents(nn.Sequential(model)) == pytest.approx(wanted)
    two = nn.ModuleList([model, deepcopy(model)])
    assert set(all_extents(two)) == {f"{index}.orbit.{name}" for index in (0, 1) for name in wanted}
    assert all_extents(net) == {}


def test_extents_stay_within_bounds_and_may_be_shared_or_one_sided():
    extents = Extents(affine2d("rotation", "scale").shared("scale").one_sided("scale").starting(5.0))
    assert extents.names == ("rotation", "scale")
    assert_close(extents.value.detach(), torch.tensor([pi, log(4)]))
    with torch.no_grad():
        extents.value.copy_(torch.tensor([-9.0, -log(2)]))
    extents.clamp()
    assert extents.natural() == pytest.approx({"rotation": 180, "scale": -50})
    draws = torch.tensor([[0.5, 1.0, 0.25]])
    assert_close(extents.coefficients(draws), torch.tensor([[-pi / 2, -log(2), -log(2) / 4]]))


def test_the_bound_of_a_shared_extent_is_the_smallest():
    extents = Extents(affine2d("rotation", "shear").shared("rotation", "shear").starting(9.0))
    (described,) = extents.described()
    assert described.value == pytest.approx(described.bound) == pytest.approx(180 / pi)


def test_extents_are_hyperparameters_and_no_weights(net):
    model = OrbitAverage(net, affine2d("rotation"))
    assert list(hyperparameters(model)) == ["orbit.value"]
    assert all(name.startswith("net.") for name in Layout.of(model).tensors)
    assert isinstance(deepcopy(model).float().orbit.value, Hyperparameter)
    model.orbit.value.requires_grad_(False)
    assert hyperparameters(model) == {}


def test_a_model_that_is_saved_knows_its_pixels(net, images):
    model = OrbitAverage(net, affine2d("translation"), samples=2)
    model(images)
    other = OrbitAverage(deepcopy(net), affine2d("translation"), samples=2)
    other.load_state_dict(model.state_dict())
    assert other.extents == model.extents


def test_any_module_can_be_averaged():
    recurrent = OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(20, 3)), affine1d(), samples=4)
    assert recurrent(torch.randn(6, 2, 10)).shape == (6, 3)
    points = OrbitAverage(nn.Linear(2, 3), affine2d("rotation", on="points"), samples=4)
    assert points(torch.randn(6, 2)).shape == (6, 3)


def test_numbers_of_samples_that_make_no_sense_are_refused(net):
    with pytest.raises(ValueError, match="samples must be at least 1, and even when antithetic; got 0"):
        OrbitAverage(net, affine2d(), samples=0)
    with pytest.raises(ValueError, match="even when antithetic; got 5"):
        OrbitAverage(net, affine2d(), samples=5, antithetic=True)


@pytest.mark.parametrize(
    ("group", "shape", "message"),
    [
        (affine2d(), (5, 64), r"act on images \[n, c, h, w\], got inputs of shape \(5, 64\)"),
        (affine1d(), (5, 10), r"act on sequences \[n, c, length\], got inputs of shape \(5, 10\).*sb\.groups\.affine1d\(on="),
        (affine2d(on="points"), (5, 4, 3), r"act on points \[n, m, 2\] or \[n, 2\], got inputs of shape \(5, 4, 3\)"),
    ],
)
def test_inputs_of_another_shape_or_type_are_refused(group, shape, message):
    model = OrbitAverage(nn.Flatten(), group, samples=2)
    with pytest.raises(ValueError, match=message):
        model(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"must be real numbers .* got torch.uint8. Convert them: inputs.float\(\)"):
        model(torch.zeros(shape, dtype=torch.uint8))


def test_even_pairs_are_all_different():
    for group in (affine2d("rotation"), affine2d()):
        even = Extents(group).even(6, antithetic=True)[0]
        steps = (torch.arange(6, dtype=torch.float64) * 2 + 1) / 6 - 1
        assert_close(even.sort(0).values, steps[:, None].expand_as(even))
        assert_close(even[:3], -even[3:])


def test_what_is_no_group_of_generators_is_refused(net):
    with pytest.raises((TypeError, Exception), match=r"must have generators|Type-check error"):
        OrbitAverage(net, "rotation")
    with pytest.raises(ValueError, match="A subgroup needs at least one generator; there are translation_x"):
        affine2d().only()
