"""The paper's network: exact parameter counts, and how it is laid out on other inputs."""

from itertools import pairwise
from math import prod

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.grids import Translation
from symbayes.models import GROUPS, allconv, build_allconv


@pytest.mark.parametrize(
    ("paths", "filter_anchors", "count"),
    [
        (("dense",), 0.5, 133_635_690),
        (("conv",), 0.5, 338_770),
        (("dense", "conv"), 0.5, 133_865_010),
        (("factored",), 0.5, 1_542_625),
        (("factored", "conv"), 0.5, 1_771_945),
        (("sparse",), 0.5, 831_820),
        (("sparse_conv",), 0.5, 211_620),
        (("sparse_conv",), 0.8, 287_910),
        (("sparse", "sparse_conv"), 0.5, 933_990),
        (("sparse", "sparse_conv"), 0.8, 1_010_280),
        # The first layer sees plain maps, so its filter has no turns: 3 · 9 · 3 · 10 fewer than the paper's 1,025,380.
        (("gconv",), 0.5, 1_024_570),
        (("gconv_pointwise",), 0.5, 338_770),
        (("gconv_separable",), 0.5, 214_550),
        (("gconv_depthwise",), 0.5, 139_725),
    ],
)
def test_parameter_counts_are_those_of_the_paper(paths, filter_anchors, count):
    with torch.device("meta"):
        model = build_allconv((3, 32, 32), 10, paths, 10, filter_anchors=filter_anchors)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


CHANNELS = (1, 2, 2, 4, 4, 8, 8, 16)


def by_block(path, dims, order):
    """Parameters of a path, from channels and cells of what goes in and what comes out, and whether it is the first."""
    cells = 3**dims
    anchors = {3: 2, 27: 14}[cells]
    return {
        "dense": lambda c, s, d, t, _: c * s * d * t + d * t,
        "factored": lambda c, s, d, t, _: c * d * (s + t) + d + t,
        "sparse": lambda c, s, d, t, _: c * d * (max(1, s // 2) + max(1, t // 2)) + d,
        "conv": lambda c, s, d, t, _: c * d * cells + d,
        "sparse_conv": lambda c, s, d, t, _: c * d * anchors + d,
        "gconv": lambda c, s, d, t, first: c * d * cells * (1 if first else order) + d,
    }[path]


@pytest.mark.parametrize("path", ["dense", "factored", "sparse", "conv", "sparse_conv", "gconv"])
@pytest.mark.parametrize(
    ("shape", "grids", "group", "order"),
    [
        ((2, 64), [64, 64, 32, 32, 16, 8, 4, 2, 1], "flips", 2),
        ((1, 8, 8, 8), [512, 512, 512, 512, 64, 64, 8, 8, 1], "cube", 24),
    ],
)
def test_parameter_counts_on_sequences_and_volumes(path, shape, grids, group, order):
    width, classes = 2, 5
    count = by_block(path, len(shape) - 1, order)
    channels = [shape[0], *(width * multiple for multiple in CHANNELS)]
    blocks = zip(pairwise(channels), pairwise(grids), strict=True)
    wanted = sum(count(c, s, d, t, k == 0) for k, ((c, d), (s, t)) in enumerate(blocks))
    wanted += 16 * width * 64 * width + 64 * width + 64 * width * classes + classes
    with torch.device("meta"):
        model = build_allconv(shape, classes, (path,), width, group=group)
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted


@pytest.mark.parametrize(
    ("shape", "strides", "maps"),
    [
        ((3, 32, 32), "1 2 1 2 1 2 2 2", "32×32 16×16 16×16 8×8 8×8 4×4 2×2 1×1"),
        ((1, 16, 16), "1 2 1 2 1 2 1 2", "16×16 8×8 8×8 4×4 4×4 2×2 2×2 1×1"),
        ((3, 64, 64), "1 2 1 2 2 2 2 2", "64×64 32×32 32×32 16×16 8×8 4×4 2×2 1×1"),
        ((2, 100), "1 2 2 2 2 2 2 2", "100 50 25 13 7 4 2 1"),
    ],
)
def test_strides_bring_every_input_down_to_one_position_and_it_says_so(shape, strides, maps):
    model = build_allconv(shape, 3, ("factored", "conv"), 1)
    assert f"strides {strides}, maps {maps}" in model.description
    assert model(torch.randn(2, *shape)).shape == (2, 3)


def test_lengthscales_of_sparse_paths_can_be_learned():
    model = build_allconv((1, 16, 16), 3, ("sparse", "sparse_conv"), 1, learn_lengthscales=True)
    omegas = [name for name, _ in model.named_parameters() if name.endswith("omega")]
    assert len(omegas) == 8 * 3 - 1  # the last map is a single cell
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 3)
    fixed = build_allconv((1, 16, 16), 3, ("sparse", "sparse_conv"), 1)
    assert not [name for name, _ in fixed.named_parameters() if name.endswith("omega")]


def test_odd_maps_are_said_not_to_be_subsampled_equivariantly():
    assert "odd size" in build_allconv((1, 28, 28), 3, ("conv",), 1).description
    assert "odd size" not in build_allconv((1, 16, 16), 3, ("conv",), 1).description


def test_paths_that_break_a_symmetry_start_small_beside_one_that_keeps_it(generator):
    model = build_allconv((1, 16, 16), 3, ("factored", "conv"), 8, generator=generator)
    inputs = torch.randn(200, 1, 16, 16, generator=generator)
    paths = model[0].paths
    with torch.no_grad():
        ratio = paths["factored"](inputs).std() / paths["conv"](inputs).std()
    assert float(ratio) == pytest.approx(0.03, rel=0.5)


@pytest.mark.parametrize("path", ["gconv", "sparse_gconv", "gconv_pointwise", "gconv_separable", "gconv_depthwise"])
@pytest.mark.parametrize(
    ("group", "shape"),
    [("p4", (1, 16, 16)), ("p4m", (2, 8, 8)), ("flips", (1, 4, 8)), ("flips", (1, 16)), ("cube", (1, 4, 4, 4))],
)
def test_a_group_network_is_exactly_invariant(path, group, shape, generator):
    model = build_allconv(shape, 3, (path,), 1, group=group, generator=generator).double()
    datum = torch.randn(1, *shape, generator=generator, dtype=torch.float64)
    acting = GROUPS[group](len(shape) - 1)
    moved = torch.cat([acting.act(element, datum) for element in list(acting.elements(shape[1:]))[3::11]])
    assert_close(model(moved), model(datum).expand(len(moved), -1))


@pytest.mark.parametrize(
    ("shape", "paths", "group"),
    [
        *[(shape, paths, "p4") for shape in [(2, 64), (1, 4, 4, 4)] for paths in [("conv",), ("sparse_conv",)]],
        ((1, 2, 8, 4), ("conv", "sparse_conv"), "p4"),
        ((2, 64), ("gconv",), "flips"),
        ((2, 64), ("conv", "gconv"), "flips"),
        ((1, 4, 4, 4), ("gconv",), "cube"),
    ],
)
def test_networks_on_sequences_and_volumes_are_exactly_invariant_under_all_shifts(shape, paths, group, generator):
    model = build_allconv(shape, 3, paths, 1, group=group, generator=generator).double()
    datum = torch.randn(1, *shape, generator=generator, dtype=torch.float64)
    moved = torch.cat([Translation().act(shift, datum) for shift in Translation().elements(shape[1:])])
    assert len(moved) == prod(shape[1:])
    assert_close(model(moved), model(datum).expand(len(moved), -1), rtol=0, atol=1e-12)


def test_paths_of_two_groups_keep_what_they_share(generator):
    model = build_allconv((1, 8, 8), 3, ("conv", "gconv"), 1, generator=generator).double()
    inputs = torch.randn(3, 1, 8, 8, generator=generator, dtype=torch.float64)
    assert_close(model(inputs.roll((3, 5), (2, 3))), model(inputs))
    assert (model(inputs.rot90(1, (2, 3))) - model(inputs)).abs().max() > 1e-3


def test_shape_and_classes_come_from_the_data():
    inputs, targets = torch.randn(5, 2, 8, 8), torch.tensor([0, 3, 1, 2, 0])
    assert allconv((inputs, targets), ("conv",), 1)(inputs).shape == (5, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ((1, 8, 8), 3, ("convolution",), 1),
            r"paths must name some of dense, .*, gconv, .*; got \('convolution',\)",
        ),
        (((1, 8, 8), 3, ("gconv",), 1, "p5"), "group must be one of p4, p4m, flips, cube; got 'p5'"),
        (((1, 8, 16), 3, ("gconv",), 1, "p4"), r"p4 turns axes into each other, .* got \(8, 16\)"),
        (((8,), 3, ("conv",), 1), r"allconv needs inputs \[n, channels, \*grid\]"),
        (((1, 300, 300), 3, ("conv",), 1), "grids of up to 256 cells a side"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_allconv(*arguments[:4], **({"group": arguments[4]} if arguments[4:] else {}))
