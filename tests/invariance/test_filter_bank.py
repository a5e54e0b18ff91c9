"""Filter banks: the plain layer, turns of the grid, rows, derivatives, the multi-sample bound, curvature."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import symbayes as sb
from symbayes.groups.lie import affine1d, affine2d, colours
from symbayes.invariance.filters import RadialFilterBank
from symbayes.layout import hyperparameters, weights
from tests.oracles import dense_ggn, finite_difference, joined, softmax_hessian

TURN = affine2d("rotation")


def a_bank(group=None, samples=6, **options):
    return sb.FilterBank((2, 5, 5), 3, group or affine2d().starting(0.3), samples, **options).double().eval()


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def quarter_turns(**options):
    """Turns by at most π/2, in double precision."""
    bank = a_bank(TURN, **options)
    with torch.no_grad():
        bank.orbit.value.fill_(math.pi / 2)
    return bank


def set_draws(bank, draws):
    """Transformations that a test chooses."""
    bank.filters.draws = lambda: draws
    bank.filters.copies = len(draws)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu"])
def test_at_extents_zero_it_is_the_plain_layer(activation, generator):
    bank = a_bank(affine2d().starting(0.0), activation=activation)
    images, filters = draw(generator, 4, 2, 5, 5), bank.filters
    plain = functional.linear(images.flatten(1), filters.weight.flatten(1), filters.bias)
    phi = getattr(torch, activation, None) or getattr(functional, activation)
    for mode in (True, False):
        assert_close(bank.train(mode)(images), phi(plain), rtol=0, atol=1e-12)


def test_at_extents_zero_radial_units_are_those_of_the_images(generator):
    centres, images = draw(generator, 3, 1, 4, 4), draw(generator, 5, 1, 4, 4)
    bank = sb.FilterBank.from_images(centres, TURN.starting(0.0), lengthscale=2.0)
    wanted = (-torch.cdist(images.flatten(1), centres.flatten(1)).square() / 8).exp()
    assert_close(bank(images), wanted, rtol=0, atol=1e-12)


def test_a_quarter_turn_turns_filters_on_the_grid():
    bank = quarter_turns()
    set_draws(bank, torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    ahead, back = bank.filters.moved()
    # y points down, so that a positive turn takes x to y: clockwise as images are drawn.
    assert_close(ahead, torch.rot90(bank.filters.weight, -1, (2, 3)), rtol=0, atol=1e-12)
    assert_close(back, torch.rot90(bank.filters.weight, 1, (2, 3)), rtol=0, atol=1e-12)


def test_filters_or_inputs_can_be_transformed(generator):
    bank, images = a_bank(bias=False), draw(generator, 4, 2, 5, 5)
    R = bank.filters.operators()
    back = torch.einsum("sqp,ncq->nscp", R, images.flatten(2))  # Tᵀ x
    wanted = torch.einsum("nscp,ocp->nso", back, bank.filters.weight.flatten(2))
    assert_close(bank.filters(images), wanted)
    turning = quarter_turns(bias=False)
    set_draws(turning, torch.tensor([[1.0]], dtype=torch.float64))  # on the grid the transpose is the inverse
    turned_back = torch.rot90(images, 1, (2, 3))
    assert_close(turning.filters(images)[:, 0], turned_back.flatten(1) @ turning.filters.weight.flatten(1).T)


@pytest.mark.parametrize("stochastic", [True, False])
def test_forward_is_the_row_form_while_training_and_after(stochastic, generator):
    bank, images = a_bank(stochastic=stochastic), draw(generator, 4, 2, 5, 5)
    found = []
    for mode in (True, True, False, False):
        outputs = bank.train(mode)(images)
        rows = torch.einsum("nsbi,boi->nso", bank.filters.input_rows(images), bank.filters.weight_rows())
        assert_close(outputs, (rows + bank.filters.bias).relu().mean(1))
        found.append(outputs)
    assert torch.equal(found[2], found[3])
    assert torch.equal(found[0], found[1]) is not stochastic


def test_draws_come_from_the_seed(generator):
    images = draw(generator, 2, 2, 5, 5)
    bank = a_bank(seed=1).train()
    same, other = deepcopy(bank), deepcopy(bank)
    other.filters.seed = 2
    assert torch.equal(bank(images), same(images))
    assert not torch.allclose(same(images), other(images))


@pytest.mark.parametrize("padding", ["border", "zeros"])
@pytest.mark.parametrize("kind", ["relu", "tanh", "rbf"])
def test_gradients_in_the_extents_match_finite_differences(kind, padding, generator):
    group, images = affine2d(padding=padding).starting(0.3), draw(generator, 4, 2, 5, 5)
    if kind == "rbf":
        bank = sb.FilterBank.from_images(draw(generator, 3, 2, 5, 5), group, 6, lengthscale=5.0).eval()
    else:
        bank = a_bank(group, activation=kind)
    direction, start = draw(generator, 4, 3), bank.orbit.value.detach() + 0.05 * draw(generator, 6)

    def value(extents):
        return (torch.func.functional_call(bank, {"filters.orbit.value": extents}, (images,)) * direction).sum()

    extents = start.clone().requires_grad_()
    (found,) = torch.autograd.grad(value(extents), extents)
    assert_close(found, finite_difference(value, start), rtol=1e-6, atol=1e-8)
    assert found.abs().min() > 1e-6


def test_the_bound_of_several_samples_grows_with_them():
    """An orbit of two points with margins 2 and −1, and the draws of S from it: the expectation is over all of them."""
    bank = sb.FilterBank((1, 3, 3), 1, TURN.starting(math.pi / 2), 1).double()
    with torch.no_grad():
        bank.filters.weight.zero_()
        bank.filters.weight[0, 0, 0, 0] = 1.0
        bank.filters.bias.fill_(1.0)
    image = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    image[0, 0, 0, 2], image[0, 0, 2, 0] = 2.0, -1.0
    bounds = []
    for samples in (1, 2, 3, 5, 9, 20):
        bound = 0.0
        for ahead in range(samples + 1):
            set_draws(bank, torch.tensor([[1.0]] * ahead + [[-1.0]] * (samples - ahead), dtype=torch.float64))
            margin = bank(image)[0, 0] - 1  # relu(2 + 1) − 1 = 2 and relu(−1 + 1) − 1 = −1
            bound += math.comb(samples, ahead) / 2**samples * functional.logsigmoid(margin).item()
        bounds.append(bound)
    assert_close(torch.tensor(bounds), torch.tensor([-0.7201, -0.5971, -0.5574, -0.5250, -0.5028, -0.4872]), rtol=0, atol=5e-5)
    assert bounds == sorted(bounds)
    assert bounds[-1] < functional.logsigmoid(torch.tensor(0.5)).item()


def test_extents_are_hyperparameters_and_filters_weights(generator):
    model = nn.Sequential(a_bank(affine2d("rotation", "translation_x").starting(rotation=math.pi, translation_x=0.4)))
    assert set(weights(model)) == {"0.filters.weight", "0.filters.bias"}
    assert set(hyperparameters(model)) == {"0.filters.orbit.value"}
    assert model[0].extents == pytest.approx({"rotation": 180.0, "translation_x": 1.0})
    assert model[0].samples == 6
    radial = sb.FilterBank.from_images(draw(generator, 3, 1, 4, 4), TURN, lengthscale=2.0, learn_lengthscale=True)
    assert not weights(radial)
    assert set(hyperparameters(radial)) == {"filters.orbit.value", "log_lengthscale"}
    assert radial.lengthscale == pytest.approx(2.0)
    assert isinstance(radial, RadialFilterBank)
    assert radial.filters.weight.dtype == radial.orbit.value.dtype == torch.float64


def test_the_full_curvature_is_that_of_the_averaged_network(generator):
    bank = sb.FilterBank((1, 3, 3), 2, TURN.starting(1.0), 4, activation="tanh")
    model = nn.Sequential(bank, nn.Linear(2, 3)).double().eval()
    inputs, targets = draw(generator, 6, 1, 3, 3), torch.arange(6) % 3
    bank.orbit.value.requires_grad_(False)
    names = list(weights(model))
    H = joined(dense_ggn(model, inputs, softmax_hessian), names)
    prior = sb.ScalarPrior(model, 0.7)
    found = sb.laplace_evidence(model, (inputs, targets), sb.Categorical(), prior, rule=sb.curvature.Ggn())
    wanted = -(torch.logdet(H + 0.7 * torch.eye(len(H), dtype=H.dtype)) - len(H) * math.log(2 * math.pi)) / 2
    assert_close(found.log_volume.detach(), wanted)
    kronecker = sb.laplace_evidence(model, (inputs, targets), sb.Categorical(), prior)
    assert kronecker.total.isfinite()


def test_impossible_banks_are_refused():
    with pytest.raises(
        ValueError, match=r"affine maps of images, sb.affine2d\(\.\.\., on='images'\); got Sequences. For other"
    ):
        sb.FilterBank((1, 4, 4), 2, affine1d())
    with pytest.raises(ValueError, match=r"got Product\. For other groups average the network"):
        sb.FilterBank((1, 4, 4), 2, TURN * colours(channels=1))
    with pytest.raises(ValueError, match=r"in_shape must be channels, height and width of an image, .* got \(4, 4\) and 2"):
        sb.FilterBank((4, 4), 2, TURN)
    with pytest.raises(ValueError, match="samples must be at least 1, and even when antithetic; got 3"):
        sb.FilterBank((1, 4, 4), 2, TURN, 3, antithetic=True)
    with pytest.raises(ValueError, match=r"activation must be one of relu, tanh, sigmoid, gelu, got 'rbf'.*from_images"):
        sb.FilterBank((1, 4, 4), 2, TURN, activation="rbf")
    with pytest.raises(ValueError, match=r"expects inputs of shape \(n, 2, 5, 5\), got \(4, 2, 5, 6\)"):
        a_bank()(torch.zeros(4, 2, 5, 6))
    with pytest.raises(ValueError, match=r"images of real numbers, \[width, c, h, w\]; got torch.int64 of shape \(3, 4, 4\)"):
        sb.FilterBank.from_images(torch.zeros(3, 4, 4, dtype=torch.long), TURN, lengthscale=1.0)
    with pytest.raises(ValueError, match=r"lengthscale must be positive, got 0\.0\. The distance"):
        sb.FilterBank.from_images(torch.zeros(3, 1, 4, 4), TURN, lengthscale=0.0)
