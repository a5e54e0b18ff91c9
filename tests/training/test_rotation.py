"""Coordinates of weights: at right angles, there and back, and what variances become in them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.blocks import DenseBlock, DiagonalBlock, Factor, KroneckerBlock
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical
from symbayes.training import optimiser as module
from symbayes.training.optimiser import Rotation, rotation

CPU = torch.device("cpu")


def factor(blocks, size, generator, diagonal=False):
    root = torch.randn(blocks, size, size, generator=generator, dtype=torch.float64)
    moment = root @ root.mT
    return Factor(moment.diagonal(dim1=1, dim2=2) if diagonal else moment, diagonal, "test")


BLOCKS = {
    "one block": lambda g: KroneckerBlock(factor(1, 3, g), factor(1, 4, g)),
    "several": lambda g: KroneckerBlock(factor(2, 3, g), factor(2, 4, g)),
    "pooled": lambda g: KroneckerBlock(factor(1, 3, g), factor(2, 4, g)),
    "transposed": lambda g: KroneckerBlock(factor(1, 3, g), factor(1, 4, g), transposed=True),
    "embedding": lambda g: KroneckerBlock(factor(1, 3, g), factor(1, 4, g, diagonal=True), transposed=True),
    "bias": lambda g: DenseBlock(factor(1, 5, g)),
}


def matrix_of(turn, size):
    """The map of flattened tensors, column by column."""
    return torch.stack([turn(unit).flatten() for unit in torch.eye(size, dtype=torch.float64)], 1)


@pytest.mark.parametrize("name", BLOCKS)
def test_it_is_orthogonal_and_makes_the_curvature_diagonal(name, generator):
    block = BLOCKS[name](generator)
    H = block.dense()
    found = rotation(block, len(H))
    R = matrix_of(found.into, len(H))
    assert_close(R @ R.T, torch.eye(len(H), dtype=torch.float64))
    assert_close(matrix_of(found.back, len(H)), R.T)
    turned = R @ H @ R.T
    assert_close(turned, torch.diag(turned.diagonal()), rtol=0, atol=1e-10 * float(turned.abs().max()))


def test_it_keeps_the_shape_of_weights_of_any_kind(generator):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).double()
    inputs = torch.randn(8, 2, 4, 4, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        curvature = Kfac().curvature(model, TensorSource(inputs, torch.arange(8) % 4, CPU), Categorical())
    for name, weight in model.named_parameters():
        found, H = rotation(curvature.blocks[name], weight.numel()), curvature.blocks[name].dense()
        assert found.into(weight).shape == weight.shape
        assert_close(found.back(found.into(weight)), weight)
        R = matrix_of(lambda v, turn=found.into, like=weight: turn(v.view_as(like)), weight.numel())
        turned = R @ H @ R.T
        assert_close(turned, torch.diag(turned.diagonal()), rtol=0, atol=1e-10 * float(turned.abs().max()))


def test_large_sides_and_what_has_no_factors_are_left_alone(generator, monkeypatch):
    block = KroneckerBlock(factor(1, 3, generator), factor(1, 4, generator))
    monkeypatch.setattr(module, "LARGEST", 3)
    found = rotation(block, 12)
    assert found.right is None
    assert_close(found.left[0].T @ block.G.matrices[0] @ found.left[0], torch.diag(block.G.eigenvalues[0]))
    monkeypatch.setattr(module, "LARGEST", 2)
    assert rotation(block, 12) is None
    assert rotation(DiagonalBlock(torch.ones(4)), 4) is None


@pytest.mark.parametrize("old", ["none", "full", "left", "right"])
@pytest.mark.parametrize("new", ["full", "left", "right"])
def test_variances_are_those_of_independent_numbers_in_the_old_coordinates(old, new, generator):
    def made(kind):
        sides = [torch.linalg.qr(torch.randn(2, n, n, generator=generator, dtype=torch.float64)).Q for n in (3, 4)]
        return Rotation((2, 3, 4), sides[0] if kind != "right" else None, sides[1] if kind != "left" else None)

    first, second = None if old == "none" else made(old), made(new)
    variances = torch.rand(24, generator=generator, dtype=torch.float64)
    R = matrix_of(second.into, 24)
    if first is not None:
        R = R @ matrix_of(first.back, 24)
    wanted = (R @ torch.diag(variances) @ R.T).diagonal()
    assert_close(second.variances(first, variances), wanted)


def test_it_becomes_another_where_its_matrices_lie(generator):
    one, other = (rotation(BLOCKS["several"](generator), 24) for _ in range(2))
    place = one.left.data_ptr(), one.right.data_ptr()
    one.copy_(other)
    weight = torch.randn(24, generator=generator, dtype=torch.float64)
    assert_close(one.into(weight), other.into(weight), rtol=0, atol=0)
    assert (one.left.data_ptr(), one.right.data_ptr()) == place
