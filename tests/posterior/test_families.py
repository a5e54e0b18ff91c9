"""Variational families: over which tensors, in which form, and where they begin."""

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.layout import weights
from symbayes.posterior.spread import DiagonalSpread, FullSpread, MatrixSpread

FAMILIES = (sb.MeanField, sb.MatrixNormal, sb.posterior.FullCovariance)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), sb.layers.DensePath((16,), (3,)), nn.Tanh(),
        nn.Linear(3, 2),
    )  # fmt: skip


@pytest.mark.parametrize("biases", ["column", "separate", "deterministic"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_in_one_part_or_deterministic(family, biases):
    model = network()
    variational = family(biases=biases).over(model)
    names = [name for members, _ in variational.members for name in members.shapes]
    assert len(names) == len(set(names))
    assert set(names) | variational.deterministic == set(weights(model))
    expected = {name for name in weights(model) if name.endswith("bias")} if biases == "deterministic" else set()
    assert variational.deterministic == expected
    joined = any(len(members.shapes) == 2 for members, _ in variational.members)
    assert joined == (biases == "column")


def test_matrices_are_those_of_the_rows():
    forms = {next(iter(members.shapes)): matrix for members, matrix in sb.MatrixNormal().over(network()).members}
    assert forms["0.weight"] == (2, 2, 10)  # two groups, 1 · 3 · 3 inputs and the bias
    assert forms["1.weight"] is None
    assert forms["4.weight"] == (1, 3, 17)
    assert forms["6.weight"] == (1, 2, 4)


def test_a_bias_that_blocks_share_is_no_column():
    variational = sb.MatrixNormal().over(sb.layers.FactoredPath((2, 3), (4, 3)))
    forms = {tuple(members.shapes): matrix for members, matrix in variational.members}
    assert forms[("gather.weight",)] == (2, 4, 3)
    assert forms[("gather.bias",)] is None


def test_a_linear_map_in_one_block_has_its_column():
    variational = sb.MatrixNormal().over(sb.layers.FactoredPath((1, 3), (4, 3)))
    assert ("gather.weight", "gather.bias") in [tuple(members.shapes) for members, _ in variational.members]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (sb.MeanField(), DiagonalSpread),
        (sb.MatrixNormal(), MatrixSpread),
        (sb.MatrixNormal(diagonal=True), DiagonalSpread),
        (sb.posterior.FullCovariance(), FullSpread),
    ],
)
def test_spread_begins_at_a_share_of_the_weights(family, kind):
    model = network()
    posterior = family.over(model)()
    last = next(spread for members, spread in posterior.parts if "6.weight" in members.shapes)
    assert isinstance(last, kind)
    size = model[6].weight.square().mean().sqrt()
    wanted = (family.std * size).square().expand(2, 3)
    torch.testing.assert_close(posterior.variances()["6.weight"], wanted)


def test_biases_that_begin_at_zero_have_a_spread():
    model = sb.layers.DensePath((3,), (2,))
    for biases in ("column", "separate"):
        variances = sb.MeanField(biases=biases).over(model)().variances()
        torch.testing.assert_close(variances["bias"][0], variances["weight"][0, 0])


def test_means_are_the_weights_of_the_model():
    model = network()
    variational = sb.MeanField().over(model)
    assert not {id(p) for p in variational.parameters()} & {id(p) for p in model.parameters()}
    assert variational().mean["6.weight"] is model[6].weight


def test_hyperparameters_and_frozen_tensors_have_no_posterior():
    model = sb.OrbitAverage(network(), sb.affine2d("rotation"), 2)
    model.net[6].weight.requires_grad_(False)
    names = set(sb.MatrixNormal().over(model)().mean)
    assert not any("orbit" in name for name in names)
    assert "net.6.weight" not in names
    assert "net.6.bias" in names


def test_a_full_covariance_is_for_small_layers():
    with pytest.raises(ValueError, match=r"at most limit=10 weights; 0.weight, 0.bias has 40"):
        sb.posterior.FullCovariance(limit=10).over(network())


@pytest.mark.parametrize("settings", [{"biases": "none"}, {"std": 0.0}])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="must be"):
        sb.MeanField(**settings)


def test_a_row_without_gradient_is_refused():
    model = nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(ValueError, match=r"row 0 of the embedding '0' has none, because of its padding_idx"):
        sb.MeanField().over(model)
    model[0].weight.requires_grad_(False)
    assert set(sb.MeanField().over(model)().mean) == {"2.weight", "2.bias"}
