"""Numbers as products on a GPU read them: rounded to the nearest, and only where that is so."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.curvature import evaluate
from symbayes.curvature.blocks import SecondMoment
from symbayes.curvature.evaluate import nearest_tf32, rounded, tensor_cores
from tests.replays import on_a_card


def test_numbers_are_rounded_to_the_nearest_of_tf32(generator):
    numbers = torch.randn(1000, generator=generator) * 10.0 ** torch.randint(-30, 30, (1000,), generator=generator)
    found = nearest_tf32(numbers)
    mantissa, _ = torch.frexp(found.double())
    assert_close(mantissa * 2**11, (mantissa * 2**11).round(), rtol=0, atol=0)
    assert_close(found, numbers, rtol=2.0**-11, atol=0)
    assert_close(nearest_tf32(found), found, rtol=0, atol=0)
    step = 2.0**-10
    near = torch.tensor([1 + 0.49 * step, 1 + 0.51 * step, -1 - 0.49 * step, -1 - 0.51 * step, 0.0])
    assert_close(nearest_tf32(near), torch.tensor([1, 1 + step, -1, -1 - step, 0.0]), rtol=0, atol=0)
    special = torch.tensor([float("inf"), -float("inf")])
    assert_close(nearest_tf32(special), special)
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32)
    assert nearest_tf32(bits.view(torch.float32)).isnan().all()


def test_errors_of_rounding_cancel_in_sums(generator):
    """Cut off, moments would be too small by 5e-4; to the nearest, the error falls with the number of terms."""
    rows = 1 + torch.rand(200_000, 2, generator=generator)
    exact = rows.double().T @ rows.double()
    near = nearest_tf32(rows).double()
    assert_close(near.T @ near, exact, rtol=5e-6, atol=0)
    cut = (rows.view(torch.int32) & (-1 << 13)).view(torch.float32).double()
    assert ((exact - cut.T @ cut) / exact).min() > 3e-4


def test_on_a_cpu_numbers_stay_as_they_are(generator, monkeypatch):
    numbers = torch.randn(5, 3, 1, 4, generator=generator)
    monkeypatch.setattr(evaluate, "_in_tf32", lambda: True)
    assert rounded(numbers) is numbers
    moment = SecondMoment()
    moment.add(numbers)
    flat = numbers.flatten(0, 2)
    assert_close(moment.sum[0], flat.T @ flat)


@on_a_card
def test_a_card_rounds_as_a_cpu_does_in_one_kernel(generator):
    assert evaluate._compiled(torch.device("cuda", 0)) is not None
    bits = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator).to(torch.int32)
    numbers = bits.view(torch.float32)
    assert_close(nearest_tf32(numbers.cuda()).cpu(), nearest_tf32(numbers), rtol=0, atol=0, equal_nan=True)


@on_a_card
@pytest.mark.parametrize("size", [10, 80])
def test_moments_on_a_card_are_as_precise_as_stated(size, generator):
    rows = 1 + torch.rand(20_000, 4, 1, size, generator=generator)
    flat = rows.flatten(0, 2).double()
    exact = flat.T @ flat
    found = {}
    for chosen in ("none", "ieee"):
        torch.backends.cuda.matmul.fp32_precision = chosen
        try:
            with tensor_cores(torch.device("cuda")):
                assert (rounded(rows.cuda()).cpu() == rows).all() == (chosen == "ieee")
            moment = SecondMoment()
            moment.add(rows.cuda())
        finally:
            torch.backends.cuda.matmul.fp32_precision = "none"
        found[chosen] = moment.sum[0].cpu().double()
    assert_close(found["none"], exact, rtol=1e-5, atol=0)
    assert_close(found["ieee"], exact, rtol=2e-6, atol=0)
