"""Group convolutions against their definition and the exact curvature, and pooling over turns."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.groups.grids import flips, p4, p4m
from symbayes.groups.permutation import cyclic
from symbayes.layers.conv import ConvPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool, SeparableGroupPath
from symbayes.layers.orbit import OrbitPath


def test_a_group_convolution_is_its_definition(generator):
    """Σ_c Σ_h Σ_s θ(c', c, g⁻¹h, g⁻¹s) x(c, h, t + s), one number at a time, with matrices acting on offsets."""
    group, size = p4m(), 3
    path = GroupConvPath(1, 2, group, bias=False).double()
    inputs = torch.randn(1, 8, size, size, generator=generator, dtype=torch.float64)
    outputs = path(inputs).view(2, 8, size, size)
    matrices = torch.tensor(group.matrices)
    for out, g, ty, tx in product(range(2), range(8), range(size), range(size)):
        total = torch.zeros((), dtype=torch.float64)
        for h, dy, dx in product(range(8), (-1, 0, 1), (-1, 0, 1)):
            inverse = matrices[g].T  # of a signed permutation
            turn = next(k for k in range(8) if torch.equal(matrices[k], inverse @ matrices[h]))
            u, v = (inverse @ torch.tensor([dy, dx])).tolist()
            total = total + path.weight[out, 0, turn, u + 1, v + 1] * inputs[0, h, (ty + dy) % size, (tx + dx) % size]
        assert_close(outputs[out, g, ty, tx], total)


def test_lifting_and_pooling_see_a_plain_filter_in_all_turns(generator):
    path = GroupConvPath(2, 3, p4(), lifting=True, bias=False).double()
    plain = ConvPath(2, 3, bias=False).double()
    inputs = torch.randn(2, 2, 5, 5, generator=generator, dtype=torch.float64)
    responses = []
    for k in range(4):
        with torch.no_grad():
            plain.weight.copy_(path.weight[:, :, 0].rot90(k, (2, 3)))
        responses.append(plain(inputs))
    assert_close(GroupPool(4, "max")(path(inputs)), torch.stack(responses).amax(0))
    assert_close(GroupPool(4, "mean")(path(inputs)), torch.stack(responses).mean(0))


@pytest.mark.parametrize("by", ["max", "mean"])
def test_pooled_maps_turn_as_plain_ones(by, generator):
    group, pool = p4(), GroupPool(4, by)
    features = torch.randn(2, 8, 3, 3, generator=generator)
    for element in group.elements((3, 3)):
        assert_close(pool(group.act_regular(element, features)), group.act(element, pool(features)))


@pytest.mark.parametrize("depthwise", [False, True])
def test_a_separable_path_is_a_group_convolution_of_products(depthwise, generator):
    path = SeparableGroupPath(2, 3, p4(), depthwise=depthwise, bias=False, generator=generator).double()
    full = GroupConvPath(2, 3, p4(), bias=False).double()
    space = path.space.weight[:, 0, 0]  # [c, y, x]
    mix = path.mix.weight[..., 0, 0]  # [c', c, k], or one k where turns have a step of their own
    turns = mix if path.turns is None else mix * path.turns.weight[:, 0, :, 0, 0]
    # The filter in space acts in the frame of the turn k that is mixed in, so θ(c', c, k, u) = turns(k) space(k⁻¹ u).
    in_frame = torch.stack([p4().turn(k, space[:, None])[:, 0] for k in range(4)], 1)  # [c, k, y, x]
    with torch.no_grad():
        full.weight.copy_(turns[..., None, None] * in_frame)
    inputs = torch.randn(2, 8, 4, 4, generator=generator, dtype=torch.float64)
    assert_close(path(inputs), full(inputs))


@pytest.mark.parametrize("build", [lambda: GroupConvPath(1, 2, p4(), lifting=True), lambda: OrbitPath(2, 3, cyclic(4))])
def test_layers_survive_an_empty_state_and_another_default_device(build, generator):
    original = build()
    with torch.device("meta"):
        layer = build()
    layer.to_empty(device="cpu").load_state_dict(original.state_dict())
    inputs = torch.randn(2, 1, 4, 4, generator=generator) if isinstance(original, GroupConvPath) else torch.randn(2, 2, 4)
    assert_close(layer(inputs), original(inputs))


def test_initial_group_paths_keep_the_variance_through_a_relu(generator):
    inputs = torch.randn(200, 4 * 4, 6, 6, generator=generator).relu()
    for path in (
        GroupConvPath(4, 40, p4(), generator=generator),
        GroupConvPath(4, 40, p4(), mixing="pointwise", generator=generator),
        SeparableGroupPath(4, 40, p4(), generator=generator),
        SeparableGroupPath(4, 40, p4(), depthwise=True, generator=generator),
    ):
        ratio = path(inputs).square().mean() / (2 * inputs.square().mean())
        assert 0.5 < ratio < 2


def test_expanding_over_turns_and_space_is_far_closer_to_the_exact_curvature_than_reducing():
    torch.manual_seed(0)
    model = nn.Sequential(
        GroupConvPath(1, 3, p4(), lifting=True), nn.ReLU(), GroupConvPath(3, 3, p4()), nn.ReLU(), GroupPool(4),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(3, 3),
    ).double()  # fmt: skip
    data = as_source((torch.randn(40, 1, 4, 4, dtype=torch.float64), torch.randint(0, 3, (40,))), torch.device("cpu"))
    rules = {"exact": sb.curvature.Ggn(joint=False), "expand": sb.Kfac(), "reduce": sb.Kfac(sharing="reduce")}
    found = {name: rule.curvature(model, data, sb.Categorical()).blocks for name, rule in rules.items()}
    for weight, lost in {"0.weight": 0.1, "2.weight": 0.4}.items():
        trace = {name: float(blocks[weight].trace()) for name, blocks in found.items()}
        assert trace["expand"] == pytest.approx(trace["exact"], rel=0.15)
        assert trace["reduce"] < lost * trace["exact"]


def test_kfac_of_a_group_convolution_is_exact_where_it_must_be(generator):
    """One datum and one cell, whose turns are averaged: then all positions that share the weight see and get the same."""
    path = GroupConvPath(2, 2, flips(), 1, lifting=True, bias=False).double()
    model = nn.Sequential(path, GroupPool(2, "mean"), nn.Flatten())
    data = (torch.randn(1, 2, 1, 1, generator=generator, dtype=torch.float64), torch.tensor([0]))
    found = sb.laplace_evidence(model, data, sb.Categorical(), sb.TensorwisePrior(model), rule=sb.Kfac(sharing="reduce"))
    exact = sb.laplace_evidence(model, data, sb.Categorical(), sb.TensorwisePrior(model), rule=sb.curvature.Ggn())
    assert_close(found.total, exact.total)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GroupConvPath(1, 1, p4(), 2), "kernel_size must be odd, so that a filter has a centre to turn about; got 2"),
        (lambda: GroupConvPath(3, 4, p4(), channel_groups=2), "channel_groups must divide the channels, got 3 -> 4 in 2"),
        (lambda: GroupConvPath(1, 1, p4(), mixing="some"), "mixing must be 'full' or 'pointwise', got 'some'"),
        (lambda: GroupConvPath(2, 1, p4())(torch.zeros(1, 2, 3, 3)), r"expects inputs \[n, 8, and 2 grid axes\], got \(1, 2"),
        (lambda: GroupConvPath(1, 1, p4(), lifting=True)(torch.zeros(1, 1, 4, 6)), r"equally long; got \(4, 6\)"),
        (lambda: GroupPool(4, "sum"), "the 'max' or the 'mean' over turns, got 'sum'"),
        (lambda: GroupPool(4)(torch.zeros(1, 6, 2, 2)), "a channel for each of 4 turns, so a multiple of them; got 6"),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
