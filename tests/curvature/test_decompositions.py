"""Factors decomposed together: as one by one, at any scale; and what is said where that fails."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.curvature.blocks import DenseBlock, Factor, decompose
from symbayes.errors import NotFiniteError


def factor(count, size, generator, scale=1.0):
    root = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    return Factor(scale * root @ root.mT, False, "weight")


def test_factors_of_one_size_are_decomposed_as_one_by_one(generator):
    factors = [factor(2, 5, generator), factor(1, 5, generator, 1e-30), factor(1, 3, generator)]
    decompose([DenseBlock(one) for one in factors], vectors_up_to=4)
    for one in factors:
        assert_close(one.eigenvalues, torch.linalg.eigvalsh(one.matrices), rtol=1e-8, atol=0.0)
    assert "eigenvectors" not in vars(factors[0])
    vectors, values = vars(factors[2])["eigenvectors"], factors[2].eigenvalues
    assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, factors[2].matrices)


def test_a_matrix_of_zeros_has_the_unit_vectors():
    nothing = Factor(torch.zeros(1, 3, 3), False, "weight")
    decompose([DenseBlock(nothing)], vectors_up_to=3)
    assert_close(nothing.eigenvalues, torch.zeros(1, 3))
    assert_close(nothing.eigenvectors, torch.eye(3)[None])


def test_what_is_no_number_is_said_with_its_name():
    with pytest.raises(
        NotFiniteError, match=r"The curvature of 'block1.weight' could not be decomposed: its entries reach nan"
    ):
        decompose([DenseBlock(Factor(torch.full((1, 3, 3), torch.nan), False, "block1.weight"))])


def test_a_want_of_memory_is_not_taken_for_a_bad_matrix(monkeypatch, generator):
    def full(matrices):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.linalg, "eigvalsh", full)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        decompose([DenseBlock(factor(1, 3, generator))])
