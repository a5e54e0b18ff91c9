"""Relaxed layers on sequences and volumes: the sum of their paths, and what a stride keeps of translation."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.grids import Translation, cube, flips
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.relaxed import RelaxedLayer, centre
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath

GRIDS = {1: (12,), 3: (4, 2, 6)}
#: For a group convolution, which lifts; its channels are those of all turns.
TURNING = {1: (flips(1), (12,)), 3: (cube(), (4, 4, 4))}


def symmetric_paths(dims, stride):
    kernel = (3,) * dims
    group, _ = TURNING[dims]
    return {
        "conv": ConvPath(2, group.order, kernel, stride=stride),
        "sparse_conv": SparseConvPath(2, group.order, kernel, stride=stride),
        "gconv": GroupConvPath(2, 1, group, lifting=True, stride=stride),
    }


def plain_paths(grid, channels, stride):
    shapes = (2, *grid), (channels, *(size // stride for size in grid))
    return {"dense": DensePath(*shapes), "factored": FactoredPath(*shapes), "sparse": SparseFactoredPath(*shapes)}


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_is_the_sum_of_its_paths_and_only_those_with_a_symmetry_are_aligned(dims, stride, generator):
    group, grid = TURNING[dims]
    paths = symmetric_paths(dims, stride) | plain_paths(grid, group.order, stride)
    layer = RelaxedLayer(paths, stride=stride).double()
    inputs = torch.randn(3, 2, *grid, generator=generator, dtype=torch.float64)
    outputs = layer(inputs)
    for datum, cell, found in zip(inputs, centre(inputs), outputs, strict=True):
        aligned = datum.roll([-(int(c) % stride) for c in cell], tuple(range(1, 1 + dims)))
        wanted = sum(path((aligned if path.group else datum)[None])[0] for path in paths.values())
        assert_close(found, wanted)


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["conv", "sparse_conv", "gconv"])
def test_outputs_move_with_the_content_under_all_shifts(dims, stride, kind, generator):
    grid = TURNING[dims][1] if kind == "gconv" else GRIDS[dims]
    layer = RelaxedLayer({kind: symmetric_paths(dims, stride)[kind]}, stride=stride).double()
    datum = torch.randn(1, 2, *grid, generator=generator, dtype=torch.float64)
    outputs, start = layer(datum)[0], centre(datum)[0] // stride
    moved = torch.cat([Translation().act(shift, datum) for shift in Translation().elements(grid)])
    for found, cell in zip(layer(moved), centre(moved) // stride, strict=True):
        wanted = outputs.roll((cell - start).tolist(), tuple(range(1, 1 + dims)))
        assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("name", ["dense", "factored", "sparse"])
def test_a_path_without_a_symmetry_breaks_that_of_the_layer(dims, name, generator):
    grid = GRIDS[dims]
    kept = ConvPath(2, 3, (3,) * dims, stride=2)
    layer = RelaxedLayer({"conv": kept, name: plain_paths(grid, 3, 2)[name]}, stride=2).double()
    inputs = torch.randn(2, 2, *grid, generator=generator, dtype=torch.float64)
    by, axes = (2,) * dims, tuple(range(2, 2 + dims))  # whole strides: where the content goes, the grid goes
    error = layer(inputs.roll(by, axes)) - layer(inputs).roll((1,) * dims, axes)
    assert error.abs().max() > 0.01
