"""Curvature of networks on sequences and volumes: exact where it must be, and the order of its estimates."""

from math import prod

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.data.source import TensorSource
from symbayes.groups.grids import cube, flips
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from tests.oracles import dense_ggn, joined, softmax_hessian

CPU = torch.device("cpu")
GRIDS = {1: (8,), 3: (4, 2, 4)}
POOLS = {1: nn.AdaptiveAvgPool1d, 3: nn.AdaptiveAvgPool3d}


def relaxed_network(dims):
    """Two strided layers, over all kinds of paths for translation."""
    grid = GRIDS[dims]
    half, kernel = tuple(size // 2 for size in grid), (3,) * dims
    first = {
        "factored": FactoredPath((1, *grid), (2, *half)),
        "sparse": SparseFactoredPath((1, *grid), (2, *half)),
        "conv": ConvPath(1, 2, kernel, stride=2),
    }
    second = {
        "dense": DensePath((2, *half), (2, *(size // 2 or 1 for size in half))),
        "sparse_conv": SparseConvPath(2, 2, kernel, anchors=2, stride=2),
    }
    layers = [RelaxedLayer(first, stride=2), nn.Tanh(), RelaxedLayer(second, stride=2), nn.Tanh(), nn.Flatten()]
    cells = prod(size // 2 or 1 for size in half)
    return nn.Sequential(*layers, nn.Linear(2 * cells, 3)).double()


def turning_network(dims):
    group = flips(1) if dims == 1 else cube()
    layers = [GroupConvPath(1, 1, group, lifting=True), nn.Tanh(), GroupConvPath(1, 1, group, 1), nn.Tanh()]
    return nn.Sequential(*layers, GroupPool(group.order, "mean"), POOLS[dims](1), nn.Flatten(), nn.Linear(1, 3)).double()


def data_on(grid, size, generator):
    inputs = torch.randn(size, 1, *grid, generator=generator, dtype=torch.float64)
    return TensorSource(inputs, torch.arange(size) % 3, CPU)


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("network", [relaxed_network, turning_network])
def test_the_full_ggn_is_that_of_jacobians_and_estimates_come_in_their_order(dims, network, generator):
    model, grid = network(dims), GRIDS[dims] if network is relaxed_network else (2,) * dims
    data = data_on(grid, 12, generator)
    wanted = dense_ggn(model, data.inputs, softmax_hessian)
    names = [name for name, _ in model.named_parameters()]
    delta = torch.tensor(0.5, dtype=torch.float64)
    precisions = dict.fromkeys(names, delta)
    found = {rule: rule.curvature(model, data, Categorical()) for rule in (Ggn(), Ggn(joint=False), Ekfac(), Kfac())}
    full, exact, ekfac, kfac = (found[rule].log_det(precisions) for rule in found)
    H = joined(wanted, names)
    assert_close(full, torch.logdet(torch.eye(len(H), dtype=H.dtype) + H / delta))
    # A determinant is at most the product of those of its blocks (Fischer), and of its diagonal in any basis (Hadamard).
    assert full <= exact <= ekfac
    assert 0.5 * exact < kfac < 3 * exact
    traces = [found[rule].trace() for rule in list(found)[1:]]
    for name in names:
        assert_close(traces[0][name], wanted[name, name].trace())
        assert_close(traces[1][name], traces[0][name])
        if name.endswith("bias"):
            assert_close(traces[2][name], traces[0][name])
    assert 0.5 < sum(traces[2].values()) / sum(traces[0].values()) < 2


@pytest.mark.parametrize("dims", [1, 3])
def test_kfac_is_exact_for_one_datum_that_a_filter_sees_at_one_position(dims, generator):
    grid = GRIDS[dims]
    path = ConvPath(1, 4, grid, padding=(0,) * dims)
    model = nn.Sequential(path, nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)).double()
    data = data_on(grid, 1, generator)
    wanted = dense_ggn(model, data.inputs, softmax_hessian)
    for name, block in Kfac().curvature(model, data, Categorical()).blocks.items():
        assert_close(block.dense(), wanted[name, name])


@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("kind", [ConvPath, SparseConvPath])
def test_reduce_is_exact_for_filters_whose_outputs_are_averaged(dims, kind, generator):
    grid = GRIDS[dims]
    layer = RelaxedLayer({"only": kind(1, 2, (3,) * dims, stride=2)}, stride=2)
    model = nn.Sequential(layer, POOLS[dims](1), nn.Flatten()).double()
    inputs = torch.randn(6, 1, *grid, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.zeros(6, 2, dtype=torch.float64), CPU)
    likelihood = Gaussian().double().requires_grad_(False)
    wanted = dense_ggn(model, inputs, lambda outputs: torch.eye(2, dtype=outputs.dtype))
    for name, block in Kfac(sharing="reduce").curvature(model, data, likelihood).blocks.items():
        assert_close(block.dense(), wanted[name, name])
