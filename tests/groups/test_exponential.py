"""The exponential by a fixed number of products, against torch's own."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.lie import exponential, fixed_exponential


def generators(size, count=5):
    """Antisymmetric, so that exponentials stay of size one, with a shift as on homogeneous coordinates."""
    free = torch.randn(count, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    found = free - free.mT
    return found / torch.linalg.matrix_norm(found, 2)[:, None, None] + torch.nn.functional.pad(
        free[:, : size - 1, -1:], (size - 1, 0, 0, 1)
    )


@pytest.mark.parametrize("norm", [0.0, 1e-3, 1.0, 10.0, 27.0])
@pytest.mark.parametrize("size", [2, 3, 13])
def test_it_is_the_exponential(norm, size):
    matrices = norm * generators(size)
    exact = torch.linalg.matrix_exp(matrices)
    assert_close(fixed_exponential(matrices), exact, rtol=1e-11, atol=1e-11 * max(1, norm))
    single = fixed_exponential(matrices.float())
    assert_close(single.double(), exact, rtol=3e-5, atol=3e-5 * max(1, norm))


def test_its_gradient_is_that_of_the_exponential():
    matrices = (3 * generators(4)).requires_grad_()
    weights = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, exact = (
        torch.autograd.grad((function(matrices) * weights).sum(), matrices)[0]
        for function in (fixed_exponential, torch.linalg.matrix_exp)
    )
    assert_close(found, exact, rtol=1e-9, atol=1e-9)


def test_on_a_cpu_torch_has_it():
    matrices = generators(3)
    assert torch.equal(exponential(matrices), torch.linalg.matrix_exp(matrices))


def test_it_is_as_precise_under_autocast():
    """Half of the precision would make the identity of a scale of a tenth."""
    matrices = torch.diag_embed(torch.tensor([[0.1, 0.0], [0.3, 0.0], [0.6, -0.02]]))
    with torch.autocast("cpu", torch.bfloat16):
        found = fixed_exponential(matrices)
    assert_close(found, torch.linalg.matrix_exp(matrices), rtol=1e-6, atol=1e-6)


def test_small_amounts_survive_where_products_are_coarse(monkeypatch):
    """As on a GPU that rounds the entries of a product of matrices to ten bits."""
    coarse = lambda tensor: (tensor.view(torch.int32) & -8192).view(torch.float32)  # noqa: E731
    usual = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda one, other: usual(coarse(one.contiguous()), coarse(other.contiguous()))
    )
    for size in (3, 13):
        matrices = 0.03 * generators(size).float()
        assert_close(fixed_exponential(matrices), torch.linalg.matrix_exp(matrices), rtol=1e-4, atol=1e-4)
