"""Second moments of patches from shifts of a map, against the patches themselves."""

from math import gcd

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.adapters import row_form
from symbayes.curvature.blocks import KroneckerBlock
from symbayes.data.source import TensorSource
from symbayes.layers import patches
from symbayes.layers.conv import ConvPath
from symbayes.layers.group_conv import SymmetricConvPath
from symbayes.likelihoods.classes import Categorical

SHAPES = [(5, 2, 4, 6), (12, 3, 1, 1), (9, 2, 2, 1), (4, 3, 3, 3), (7, 4, 5, 2), (40, 20, 3, 2)]


def by_rows(form, inputs):
    rows = form.input_rows(inputs).flatten(0, 1).transpose(0, 1)  # [block, rows, d]
    return rows.mT @ rows, rows.shape[1]


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("many", [2, 100])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("shape", SHAPES)
def test_moments_of_patches_are_those_of_their_rows(shape, mode, many, pieces, generator, monkeypatch):
    monkeypatch.setattr(patches, "_MANY", many)
    monkeypatch.setattr(patches, "_pieces", lambda n, *others: gcd(n, pieces))
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    forms = [ConvPath(shape[1], 3, padding_mode=mode)]
    if mode == "zeros" or min(shape[2:]) > 1:  # torch wraps around once at most
        forms += [row_form(nn.Conv2d(shape[1], 3, 3, padding=padding, padding_mode=mode)) for padding in (1, "same")]
    for form in forms:
        wanted, count = by_rows(form, inputs)
        for budget in (1, 2**20):
            moment, seen = form.row_moment(inputs, budget)
            assert seen == count
            assert_close(moment, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("many", [2, 100])
def test_moments_can_be_differentiated(many, generator, monkeypatch):
    monkeypatch.setattr(patches, "_MANY", many)
    inputs = torch.randn(4, 2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    form = row_form(nn.Conv2d(2, 3, 3, padding=1))
    weight = torch.randn(18, 18, generator=generator, dtype=torch.float64)
    found, wanted = (torch.autograd.grad((weight * moment).sum(), inputs)[0] for moment in (
        form.row_moment(inputs, 50)[0], by_rows(form, inputs)[0]
    ))  # fmt: skip
    assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("n", "c", "lines"), [(250, 64, 32), (240, 128, 16), (7, 512, 4), (241, 64, 32), (1, 3, 1)])
def test_a_gpu_has_products_enough(n, c, lines):
    pieces = patches._pieces(n, c, lines, torch.device("cuda"))
    assert n % pieces == 0
    assert pieces == 1 or lines * pieces * (c // 64) ** 2 <= patches._PRODUCTS
    assert (pieces > 1) == (n in (250, 240))
    assert patches._pieces(n, c, lines, torch.device("cpu")) == 1


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 3, 3, 2, 1),
        nn.Conv2d(4, 3, 3, 1, 0),
        nn.Conv2d(4, 3, 5, 1, 2),
        nn.Conv2d(4, 4, 3, 1, 1, groups=2),
        nn.Conv2d(4, 3, 3, 1, 1, padding_mode="reflect"),
        nn.Conv2d(4, 3, 3, 1, 2, dilation=2),
    ],
)
def test_other_convolutions_have_their_moments_from_rows(conv):
    assert row_form(conv).row_moment(torch.randn(9, 4, 6, 6), 2**20) is None


def test_paths_whose_rows_are_no_patches_have_their_moments_from_rows(generator):
    path = SymmetricConvPath(2, 3, sb.groups.p4(), generator=generator)
    assert path.row_moment(torch.randn(9, 2, 8, 8), 2**20) is None


def test_factors_are_the_same_by_either_way(generator, monkeypatch):
    inputs = torch.randn(40, 2, 6, 6, generator=generator, dtype=torch.float64)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(108, 3)).double()
    data = TensorSource(inputs, torch.arange(40) % 3, torch.device("cpu"))
    quick = sb.Kfac(batch_size=15).curvature(model, data, Categorical()).blocks
    monkeypatch.setattr("symbayes.layers.conv.pays", lambda inputs: False)
    slow = sb.Kfac(batch_size=15).curvature(model, data, Categorical()).blocks
    for name, block in slow.items():
        if isinstance(block, KroneckerBlock):
            assert_close(quick[name].A.matrices, block.A.matrices, rtol=1e-12, atol=1e-12)
