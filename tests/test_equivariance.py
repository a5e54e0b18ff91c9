"""The equivariance error of layers: exact where it can be known, compared with sums over whole groups where it cannot."""

from collections import OrderedDict
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.equivariance import Equivariance, equivariance
from symbayes.groups.actions import carried, draw_elements
from symbayes.groups.grids import Translation, flips, p4, p4m
from symbayes.groups.permutation import symmetric
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.group_conv import GroupConvPath, GroupPool
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.models import build_allconv
from symbayes.posterior.posterior import Members, Posterior
from symbayes.posterior.spread import DiagonalSpread

SHIFT = Translation()


@pytest.fixture
def images(generator):
    return torch.randn(5, 2, 6, 6, generator=generator, dtype=torch.float64)


def named(**layers):
    return nn.Sequential(OrderedDict(layers)).double()


def error(found: Equivariance, layer: str, group: str | None = None) -> float:
    return found.row(layer, group).error.value


@torch.no_grad()
def brute_force(layer, inputs, size):
    """Over all shifts but none, for a layer that keeps the grid."""
    wanted = layer(inputs)
    parts = [
        (layer(inputs.roll(shift, (2, 3))) - wanted.roll(shift, (2, 3))).square().sum()
        for shift in product(range(size), repeat=2)
        if any(shift)
    ]
    return float(sum(parts) / len(parts) / wanted.square().sum())


def test_a_convolution_with_cyclic_padding_has_no_error(images):
    model = named(conv=ConvPath(2, 3), relu=nn.ReLU(), plain=nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"))
    found = equivariance(model, images, SHIFT)
    assert [row.layer for row in found.rows] == ["conv", "plain", ""]
    for row in found.rows:
        assert row.error.value < 1e-28
        assert row.from_input.value < 1e-28
        assert not row.invariance
        assert row.grid == (6, 6)
    assert "0 %" in str(found)
    assert found.words() == ["The output is equivariant under translation: error 0 %."]


@pytest.mark.parametrize("group", [p4(), p4m(), flips(2)], ids=lambda group: group.name)
def test_a_group_convolution_has_none_under_its_group(images, group):
    layers = {"lift": GroupConvPath(2, 2, group, lifting=True), "deep": GroupConvPath(2, 3, group)}
    model = named(**layers, pool=GroupPool(group.order), mean=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(3, 2))
    found = equivariance(model, images, [SHIFT, group])
    for row in found.rows:
        assert row.error.value < 1e-28
        assert row.from_input.value < 1e-28
    assert [(row.layer, row.group) for row in found.model] == [("", "translation"), ("", group.name)]
    assert all(row.invariance for row in found.model)
    assert {skipped.layer for skipped in found.skipped} == {"head"}


def test_parts_of_the_group_of_a_layer_have_none_and_larger_groups_are_refused(images):
    model = named(lift=GroupConvPath(2, 2, p4m(), lifting=True), deep=GroupConvPath(2, 1, p4m()))
    assert error(equivariance(model, images, p4()), "deep") < 1e-28
    small = named(lift=GroupConvPath(2, 2, p4(), lifting=True))
    (skipped,) = equivariance(small, images, p4m()).skipped
    assert skipped.reason == "features that carry the turns of a smaller group"


def test_a_convolution_has_an_error_under_turns(images):
    assert error(equivariance(named(conv=ConvPath(2, 3)), images, p4()), "conv") > 0.1


@pytest.mark.parametrize("group", [SHIFT, p4()], ids=lambda group: group.name)
def test_a_stride_that_follows_the_content_has_none_and_a_plain_one_has(generator, group):
    inputs = torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64)
    kinds = ("gconv",) if group is not SHIFT else ("conv",)
    exact = equivariance(build_allconv((1, 8, 8), 3, kinds, 1, generator=generator).double(), inputs, group)
    assert all(row.error.value < 1e-24 and row.from_input.value < 1e-24 for row in exact.rows)
    plain = build_allconv((1, 8, 8), 3, kinds, 1, equivariant_stride=False, generator=generator).double()
    found = equivariance(plain, inputs, group)
    strided = {name for name, layer in plain.named_children() if isinstance(layer, RelaxedLayer) and layer.stride > 1}
    assert {row.layer for row in found.rows if row.layer and row.error.value > 1e-20} == strided
    assert error(found, min(strided)) > 0.05
    assert found.model[0].error.value > 0.01


def test_a_plain_stride_is_the_better_of_two_neighbours(images):
    """Over all shifts: even ones are exact, others are compared with the nearer of both."""
    model = named(kept=nn.AvgPool2d(1, stride=2))
    wanted = images[:, :, ::2, ::2]
    total = 0.0
    for down, right in product(range(6), repeat=2):
        moved = images.roll((down, right), (2, 3))[:, :, ::2, ::2]
        ways = product({down // 2, -(-down // 2)}, {right // 2, -(-right // 2)})
        each = [(moved - wanted.roll(way, (2, 3))).square().flatten(1).sum(1) for way in ways]
        total += float(torch.stack(each).amin(0).sum()) / 35
    assert error(equivariance(model, images, SHIFT, samples=None), "kept") == pytest.approx(
        total / float(wanted.square().sum())
    )


class Gain(nn.Module):
    """y(s) = w(s) x(s) + b(s)."""

    def __init__(self, gain, bias):
        super().__init__()
        self.gain, self.bias = nn.Parameter(gain), nn.Parameter(bias)

    def forward(self, inputs):
        return self.gain * inputs + self.bias


def test_a_gain_that_depends_on_position_has_the_error_of_the_formula():
    """x constant: f(g x) = f(x) = w, so the error is the mean of ‖w − g w‖² over g, which is 2 (‖w‖² − Σ_g ⟨w, g w⟩ / 3)."""
    w = torch.tensor([1.0, 2.0, 0.0, -1.0], dtype=torch.float64)
    found = equivariance(named(gain=Gain(w, torch.zeros(4))), torch.ones(3, 1, 4, dtype=torch.float64), SHIFT, samples=None)
    inner = sum(float(w @ w.roll(t)) for t in (1, 2, 3)) / 3
    row = found.row("gain")
    assert row.error.value == pytest.approx(2 * (6 - inner) / 6)
    assert row.error.standard_error == pytest.approx(0, abs=1e-12)
    assert row.from_input == row.error


def test_a_bias_that_depends_on_position_is_seen_alone(images, generator):
    bias = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    layer = Gain(torch.ones(6, 6), bias).double()
    found = equivariance(named(gain=layer), images, SHIFT, samples=None)
    assert error(found, "gain") == pytest.approx(brute_force(layer, images, 6))
    assert error(found, "gain") > 0.1
    relaxed = RelaxedLayer({"dense": DensePath((2, 6, 6), (2, 6, 6), scale=0.0), "conv": ConvPath(2, 2)}).double()
    with torch.no_grad():
        relaxed.paths["dense"].bias.copy_(torch.randn(72, generator=generator))
    assert error(equivariance(nn.Sequential(relaxed), images, SHIFT), "0") > 0.1


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(3, 1, 1), nn.LayerNorm([2, 6, 6]), nn.Conv2d(2, 2, 3, padding="same")],
    ids=lambda layer: type(layer).__name__,
)
def test_zero_padding_is_seen_and_matches_brute_force(images, layer):
    layer = layer.double()
    found = error(equivariance(nn.Sequential(layer), images, SHIFT, samples=None), "0")
    assert found == pytest.approx(brute_force(layer, images, 6), rel=1e-12, abs=1e-25)
    assert isinstance(layer, nn.LayerNorm) == (found < 1e-3)
    few = equivariance(nn.Sequential(layer), images.repeat(20, 1, 1, 1), SHIFT, samples=4).row("0").error
    assert few.value == pytest.approx(found, abs=5 * few.standard_error + 1e-25)


def test_the_standard_error_is_that_of_a_ratio_of_means(images):
    layer = nn.Conv2d(2, 3, 3, padding=1).double()
    row = equivariance(nn.Sequential(layer), images, SHIFT, samples=None).row("0")
    with torch.no_grad():
        single = [equivariance(nn.Sequential(layer), one[None], SHIFT, samples=None).row("0").error.value for one in images]
        energy = layer(images).square().flatten(1).sum(1)
    offsets = (torch.tensor(single, dtype=torch.float64) - row.error.value) * energy / energy.mean()
    assert row.error.standard_error == pytest.approx(float(offsets.std() / 5**0.5))


def test_a_convolution_without_padding_is_wrong_at_the_border_only(generator):
    inputs = torch.randn(4, 1, 16, 16, generator=generator, dtype=torch.float64)
    model = named(first=nn.Conv2d(1, 3, 3), second=nn.Conv2d(3, 3, 3), pool=nn.MaxPool2d(2), third=nn.Conv2d(3, 2, 3))
    found = equivariance(model, inputs, SHIFT)
    assert found.row("first").grid == (14, 14)
    assert all(0.05 < row.error.value < 1.2 for row in found.rows)
    centred = torch.zeros(2, 1, 16, 16, dtype=torch.float64)
    centred[:, :, 7:9, 7:9] = inputs[:2, :, 7:9, 7:9]
    small = SmallShifts()
    assert error(equivariance(named(first=nn.Conv2d(1, 3, 3, bias=False)), centred, small), "first") < 1e-28


class SmallShifts(Translation):
    """By a few cells, so that what is in the middle stays off the border; closed it is not, nor need it be."""

    def elements(self, grid):
        return iter([(0, 0), (1, 0), (15, 2), (3, 14)])


class Patches(nn.Module):
    """A small vision transformer: patches of 4 × 4, a class token, attention, and positions if wanted."""

    def __init__(self, positions, classes=True):
        super().__init__()
        self.embed = nn.Conv2d(1, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, int(classes), 8))
        self.positions = nn.Parameter(torch.randn(1, 16 + int(classes), 8) * positions)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        tokens = self.embed(inputs).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1) + self.positions
        seen = self.norm(tokens)
        mixed, _ = self.attention(seen, seen, value=seen, need_weights=False)
        return self.head(self.mlp(tokens + mixed)[:, 0])


class PatchShifts(Translation):
    """By whole patches of 4 × 4."""

    name = "shifts by patches"

    def elements(self, grid):
        step = grid[0] // 4
        return iter([(a, b) for a in range(0, grid[0], step) for b in range(0, grid[0], step)])


@pytest.mark.parametrize("classes", [True, False])
def test_a_network_on_patches_is_measured_on_their_grid(generator, classes):
    inputs = torch.randn(4, 1, 16, 16, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    found = equivariance(Patches(0.0, classes).double(), inputs, PatchShifts())
    names = ["embed", "norm", "attention", "mlp.0"]
    assert [row.layer for row in found.rows] == [*names, ""]
    assert all(found.row(name).grid == (4, 4) for name in names)
    assert all(row.error.value < 1e-28 and row.from_input.value < 1e-28 for row in found.rows if row.layer)
    assert (found.model[0].error.value < 1e-28) == classes  # without, it is the first patch that is looked at
    assert [(skipped.layer, skipped.reason) for skipped in found.skipped] == [("head", "no grid in the input")]
    placed = equivariance(Patches(1.0, classes).double(), inputs, PatchShifts())
    assert error(placed, "attention") < 1e-28
    assert placed.row("norm").from_input.value > 0.1
    fine = equivariance(Patches(0.0, classes).double(), inputs, SHIFT)
    assert error(fine, "embed") > 0.1
    assert error(fine, "attention") < 1e-28


class Tokens(nn.Module):
    """A transformer on sequences of numbers, with data along the first axis of what its layers see, or the second."""

    def __init__(self, batch_first):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, ids):
        features = self.embed(ids)
        return self.layer(features if self.batch_first else features.transpose(0, 1)).mean(int(self.batch_first))


@pytest.mark.parametrize("group", [SHIFT, symmetric(12)], ids=lambda group: group.name)
def test_sequences_of_numbers_have_a_grid_without_channels(generator, group):
    ids = torch.randint(20, (4, 12), generator=generator)
    found = equivariance(Tokens(True).double(), ids, group)
    assert [row.layer for row in found.rows if row.error.value > 1e-25] == []
    assert found.row("embed").grid == found.row("layer.self_attn").grid == (12,)
    other = equivariance(Tokens(False).double(), ids, group)
    assert [row.layer for row in other.rows] == ["embed", ""]
    assert {skipped.reason for skipped in other.skipped} == {"a first axis that is not that of data"}


def test_recurrent_layers_see_channels_last(generator):
    inputs = torch.randn(4, 7, 3, generator=generator, dtype=torch.float64)
    row = equivariance(nn.Sequential(nn.GRU(3, 4, batch_first=True)).double(), inputs, SHIFT).row("0")
    assert row.grid == (7,)
    assert row.error.value > 0.01


class Windows(nn.Module):
    """A convolution in windows of 3 × 3 cells, which it sees as if they were data."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")

    def forward(self, inputs):
        windows = inputs.unfold(2, 3, 3).unfold(3, 3, 3).permute(0, 2, 3, 1, 4, 5)
        return self.inside(windows.flatten(0, 2)).view(windows.shape).permute(0, 3, 1, 4, 2, 5).reshape_as(inputs)


def test_parts_of_data_that_a_layer_sees_as_data_are_not_traced_to_the_input(images):
    found = equivariance(Windows().double(), images, SHIFT)
    row = found.row("inside")
    assert row.error.value < 1e-28
    assert (row.grid, row.from_input, row.note) == ((3, 3), None, "parts of data")
    assert found.model[0].error.value > 0.01


def test_copies_in_an_average_are_traced_to_the_input(images):
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = equivariance(sb.OrbitAverage(net, sb.affine2d(), samples=3).double(), images, SHIFT)
    assert found.row("net.0").from_input.value > 0.01
    assert found.row("net.1").error.value < 1e-28


def test_finer_grids_are_shifted_by_whole_cells(images):
    model = named(up=nn.Upsample(scale_factor=2), turned=nn.ConvTranspose2d(2, 1, 2, stride=2))
    found = equivariance(model, images, SHIFT)
    assert [row.grid for row in found.rows] == [(12, 12), (24, 24), (24, 24)]
    assert all(row.error.value < 1e-28 for row in found.rows)
    assert error(equivariance(model, images, flips(2)), "up") < 1e-28


class SetNetwork(nn.Module):
    """φ of every point, then the sum over points, then ρ; or a weight for every point."""

    def __init__(self, weighted):
        super().__init__()
        self.phi = nn.Linear(3, 4)
        self.weights = nn.Parameter(torch.arange(5.0) if weighted else torch.ones(5))
        self.rho = nn.Linear(4, 2)

    def forward(self, points):
        return self.rho((self.phi(points).tanh() * self.weights[:, None]).sum(1))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_network_on_sets_is_invariant_or_not(generator, weighted):
    points = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64)
    found = equivariance(SetNetwork(weighted).double(), points, symmetric(5))
    assert error(found, "phi") < 1e-28
    assert (found.row("phi").invariance, found.model[0].invariance) == (False, True)
    assert (found.model[0].error.value < 1e-28) != weighted


def test_layers_for_permutations_act_on_their_points(generator):
    group = symmetric(8)  # 40,320 elements, which are walked through
    model = named(deep=OrbitPath(1, 3, group), relu=nn.ReLU(), pool=OrbitPath(3, 2, group.pooled()), flat=nn.Flatten())
    found = equivariance(model, torch.randn(6, 1, 8, generator=generator, dtype=torch.float64), group)
    assert all(row.error.value < 1e-28 for row in found.rows)
    assert found.row("pool").invariance
    flat = equivariance(named(hidden=nn.Linear(8, 4)), torch.randn(6, 8, generator=generator, dtype=torch.float64), group)
    assert error(flat, "hidden") > 0.1
    assert flat.row("hidden").invariance


def test_a_breaking_path_of_zero_leaves_no_error_and_all_the_energy_to_the_other(images):
    layer = RelaxedLayer({"dense": DensePath((2, 6, 6), (3, 6, 6), scale=0.0), "conv": ConvPath(2, 3)}).double()
    row = equivariance(nn.Sequential(layer), images, SHIFT).row("0")
    assert row.error.value < 1e-28
    assert row.energy == {"dense": 0.0, "conv": 1.0}
    with torch.no_grad():
        layer.paths["dense"].bias.fill_(1.0)
    again = equivariance(nn.Sequential(layer), images, SHIFT).row("0")
    conv = float(layer.paths["conv"](images).detach().square().sum())
    assert again.energy["dense"] == pytest.approx(540 / (540 + conv))
    assert again.error.value < 1e-28  # a bias that is the same everywhere breaks nothing


def test_a_model_that_is_a_layer_has_one_row(images):
    layer = RelaxedLayer({"dense": DensePath((2, 6, 6), (3, 6, 6)), "conv": ConvPath(2, 3)}).double()
    (row,) = equivariance(layer, images, SHIFT, samples=None).rows
    assert (row.layer, row.error) == ("", row.from_input)
    assert row.energy.keys() == {"dense", "conv"}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.unused = nn.Conv2d(2, 2, 3)

    def forward(self, inputs):
        return self.conv(input=self.conv(inputs).relu_())  # in place, and by keyword


def test_every_call_of_a_layer_has_a_row(images):
    model = Twice().double()
    found = equivariance(model, images, SHIFT, samples=None)
    assert [(row.layer, row.call) for row in found.rows] == [("conv", 1), ("conv", 2), ("", 1)]
    assert error(found, "conv") == pytest.approx(brute_force(model.conv, images, 6))
    second = found.row("conv", call=2)
    assert second.error.value == pytest.approx(brute_force(model.conv, model.conv(images).relu(), 6))
    assert second.from_input.value == pytest.approx(brute_force(model, images, 6))
    assert "conv, call 2" in str(found)
    assert [(skipped.layer, skipped.reason) for skipped in found.skipped] == [("unused", "not called")]


def test_draws_of_weights_give_a_mean_and_a_spread(images):
    model = named(gain=Gain(torch.ones(6, 6), torch.zeros(6, 6)))
    shapes = {"gain.gain": (6, 6)}
    mean = {name: value.detach() for name, value in model.named_parameters()}
    std = torch.full((36,), 0.5, dtype=torch.float64)
    posterior = Posterior(mean, ((Members(shapes), DiagonalSpread(std)),), "made by hand")
    row = equivariance(model, images, SHIFT, posterior=posterior, draws=3).row("gain")
    assert row.error.value < 1e-28
    assert len(row.over_draws) == 3
    assert min(row.over_draws) > 0.05
    # For white inputs it is 2 var w / (1 + var w).
    many = equivariance(model, images, SHIFT, posterior=posterior, draws=40).row("gain").over_draws
    assert sum(many) / 40 == pytest.approx(2 * 0.25 / 1.25, rel=0.1)
    assert torch.equal(model.gain.gain, torch.ones(6, 6))
    sure = Posterior(mean, (), "known")
    assert max(equivariance(model, images, SHIFT, posterior=sure, draws=2).row("gain").over_draws) < 1e-28


def test_the_model_is_left_as_it_was(images):
    model = named(conv=nn.Conv2d(2, 3, 3), norm=nn.BatchNorm2d(3), drop=nn.Dropout(0.5))
    model.conv.eval()
    model(images).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient, state = model.conv.weight.grad.clone(), torch.get_rng_state()
    equivariance(model, images, [SHIFT, p4()], batch_size=2)
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(model.conv.weight.grad, gradient)
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.training, model.conv.training, model.norm.training) == (True, False, True)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_and_seeds_change_what_is_drawn_alone(images):
    model = named(conv=nn.Conv2d(2, 3, 3, padding=1))
    whole = equivariance(model, images, SHIFT, samples=None)
    parts = equivariance(model, (images, torch.zeros(5)), SHIFT, samples=None, batch_size=2)
    assert_close(error(parts, "conv"), error(whole, "conv"))
    assert_close(parts.row("conv").error.standard_error, whole.row("conv").error.standard_error)
    first, again, other = (error(equivariance(model, images, SHIFT, seed=seed), "conv") for seed in (1, 1, 2))
    assert first == again != other


def test_layers_can_be_named(images):
    model = named(conv=nn.Conv2d(2, 3, 3, padding=1), act=nn.ReLU(), last=nn.Sequential(nn.Flatten(), nn.Linear(108, 2)))
    assert [row.layer for row in equivariance(model, images, SHIFT, layers="*").rows] == ["conv", "last.0", ""]
    found = equivariance(model, images, SHIFT, layers=["a*", "last"])
    assert [row.layer for row in found.rows] == ["act", "last", ""]
    assert error(found, "act") == 0
    assert found.row("last").invariance
    assert error(found, "last") > 0.01
    with pytest.raises(ValueError, match="'nowhere' matches none of conv"):
        equivariance(model, images, SHIFT, layers="nowhere")


def test_a_layer_that_gives_zeros_says_so(images):
    model = named(conv=nn.Conv2d(2, 3, 3, padding=1))
    nn.init.zeros_(model.conv.weight)
    nn.init.zeros_(model.conv.bias)
    found = equivariance(model, images, SHIFT)
    assert found.row("conv").error is None
    assert "gives zeros" in str(found)
    assert "nan" not in str(found)


class MeanOverData(nn.Module):
    def forward(self, inputs):
        return inputs - inputs.mean(0)


@pytest.mark.parametrize(
    ("model", "group", "shape", "wanted"),
    [
        (nn.Linear(4, 2), SHIFT, (3, 4), "Data must have a grid for translation"),
        (nn.Conv2d(2, 2, 3), p4(), (3, 2, 6, 8), "equally long"),
        (nn.Conv1d(2, 2, 3), p4(), (3, 2, 6), "grids of 2 dimensions"),
        (nn.Linear(4, 2), symmetric(5), (3, 4), "5 points that permutation permutes"),
        (nn.Sequential(MeanOverData()), SHIFT, (3, 2, 6, 6), "treat data one by one"),
        (nn.Conv2d(3, 2, 3), SHIFT, (3, 2, 6, 6), "must take inputs of shape"),
    ],
)
def test_what_cannot_be_measured_is_refused(generator, model, group, shape, wanted):
    with pytest.raises(ValueError, match=wanted):
        equivariance(model, torch.randn(shape, generator=generator), group)


def test_settings_that_make_no_sense_are_refused(images):
    model = named(conv=nn.Conv2d(2, 3, 3))
    with pytest.raises(ValueError, match="must be 1 or more"):
        equivariance(model, images, SHIFT, samples=0)
    with pytest.raises(ValueError, match="there must be a posterior and draws"):
        equivariance(model, images, SHIFT, draws=3)
    other = Posterior({"nothing": torch.zeros(1)}, (), "made by hand")
    with pytest.raises(ValueError, match="has no nothing"):
        equivariance(model, images, SHIFT, posterior=other, draws=1)
    for group in (sb.affine2d(), "p4", []):
        with pytest.raises(TypeError, match="The group must be a finite one"):
            equivariance(model, images, group)


def test_numbers_that_are_none_are_refused_by_the_name_of_the_layer(images):
    model = named(conv=nn.Conv2d(2, 3, 3), other=nn.Conv2d(3, 3, 3))
    with torch.no_grad():
        model.other.weight[0] = torch.inf
    with pytest.raises(sb.NotFiniteError, match="Layer 'other' must give finite numbers"):
        equivariance(model, images, SHIFT)


def test_elements_are_carried_to_coarser_grids():
    assert carried(SHIFT, (4, 1), (8, 8), (4, 4)) == [(2, 0), (2, 1)]
    assert carried(SHIFT, (7, 0), (8, 8), (4, 4)) == [(0, 0), (3, 0)]  # −1 / 2
    assert carried(SHIFT, (27,), (28,), (24,)) == [(23,)]
    assert carried(SHIFT, (3,), (4,), (8,)) == [(6,)]
    assert carried(flips(1), (1, 0), (8,), (4,)) == [(1, 0), (1, 1)]
    assert carried(flips(1), (0, 0), (8,), (4,)) == [(0, 0)]


def test_elements_are_drawn_evenly_without_the_identity(generator):
    drawn = draw_elements(SHIFT, (2, 2), 3000, generator)
    assert {element: drawn.count(element) > 900 for element in set(drawn)} == {(0, 1): True, (1, 0): True, (1, 1): True}
    assert draw_elements(SHIFT, (1, 1), 5, generator) == []
    group = symmetric(7)
    walked = draw_elements(group, (7,), 400, generator)
    images_of_first = [element[0] for element in walked]
    assert min(images_of_first.count(point) for point in range(7)) > 30
    assert group.identity((7,)) not in walked
