"""Numbers as products on a GPU read them: rounded to the nearest, and only where that is so."""

import pytest
import torch
from torch.testing import assert_close

from symbayes import precision
from symbayes.curvature import blocks
from symbayes.curvature.blocks import SecondMoment
from symbayes.layers import conv
from symbayes.layers.conv import ConvPath
from symbayes.precision import multiply, nearest_tf32, rounded, tensor_cores
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
    monkeypatch.setattr(precision, "_in_tf32", lambda: True)
    for features in (4, 1000):
        assert rounded(numbers, features) is numbers
    moment = SecondMoment()
    moment.add(numbers)
    flat = numbers.flatten(0, 2)
    assert_close(moment.sum[0], flat.T @ flat)


@on_a_card
def test_a_card_rounds_as_a_cpu_does_in_one_kernel(generator):
    assert precision._compiled(torch.device("cuda", 0)) is not None
    bits = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator).to(torch.int32)
    numbers = bits.view(torch.float32)
    assert_close(nearest_tf32(numbers.cuda()).cpu(), nearest_tf32(numbers), rtol=0, atol=0, equal_nan=True)


def halved(rows, features, layout=torch.preserve_format):
    return rows.to(torch.bfloat16, memory_format=layout)


def test_rows_in_half_of_single_precision_are_added_up_in_single(generator, monkeypatch):
    """As on a GPU, where torch multiplies them so: no moment loses digits to those before it, and maps need no other order."""
    monkeypatch.setattr(blocks, "rounded", halved)
    maps = 1 + torch.rand(6_000, 80, 3, 4, generator=generator)
    moment = SecondMoment()
    for some in maps.split(500):
        moment.add(some.flatten(2).transpose(1, 2)[:, :, None])
    rows = maps.permute(0, 2, 3, 1).flatten(0, 2).double()
    assert moment.sum.dtype == torch.float32
    assert_close(moment.sum[0].double(), rows.T @ rows, rtol=5e-5, atol=0)  # 4.5 standard deviations
    bare = torch.zeros(80, 80, dtype=torch.bfloat16)
    for some in rows.bfloat16().split(6_000):
        bare += some.T @ some
    assert ((bare.double() - rows.T @ rows).abs() / (rows.T @ rows)).max() > 1e-3


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_patches_of_halved_maps_have_moments_in_single_precision(mode, generator, monkeypatch):
    path, maps = ConvPath(24, 3, padding_mode=mode), 1 + torch.rand(400, 24, 6, 6, generator=generator)
    exact, count = path.row_moment(maps.double(), 2**20)
    whole, _ = path.row_moment(maps, 2**16)
    monkeypatch.setattr(conv, "rounded", halved)
    found, seen = path.row_moment(maps, 2**16)
    assert seen == count
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, rtol=1e-4, atol=0)
    assert (found.double() - exact).abs().max() > 10 * (whole.double() - exact).abs().max()  # they were halved


def test_products_of_what_is_not_halved_are_those_of_torch(generator):
    left, right = (torch.randn(3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    assert_close(multiply(left, right), left @ right, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(7, 5, 2, 3), (7, 1, 2, 3), (7, 5, 4, 5), (3, 70, 9, 9)])
def test_moments_of_maps_are_those_of_their_rows(shape, generator):
    maps = torch.randn(shape, generator=generator, dtype=torch.float64)
    moment = SecondMoment()
    for some in (maps[:2], maps[2:]):
        moment.add(some.flatten(2).transpose(1, 2)[:, :, None])
    rows = maps.permute(0, 2, 3, 1).flatten(0, 2)
    assert_close(moment.sum[0], rows.T @ rows)


@on_a_card
def test_a_card_has_many_features_in_half_of_single_precision(generator):
    rows = torch.randn(5, 7, generator=generator).cuda()
    device = rows.device
    with tensor_cores(device):
        assert rounded(rows, 63).dtype == torch.float32
        assert rounded(rows, 64).dtype == torch.bfloat16
        assert rounded(rows.double(), 64).dtype == torch.float64
        assert rounded(rows.clone().requires_grad_(), 64).dtype == torch.float32
    assert rounded(rows, 64) is rows
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # of a user
    try:
        with tensor_cores(device):
            assert rounded(rows, 64).dtype == torch.float32
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


@on_a_card
@pytest.mark.parametrize("size", [10, 80, 300])
def test_moments_on_a_card_are_as_precise_as_stated(size, generator):
    rows = 1 + torch.rand(20_000, 4, 1, size, generator=generator)
    flat = rows.flatten(0, 2).double()
    exact = flat.T @ flat
    found = {}
    for chosen in ("none", "ieee"):
        torch.backends.cuda.matmul.fp32_precision = chosen
        try:
            with tensor_cores(torch.device("cuda")):
                assert (rounded(rows.cuda(), size).cpu() == rows).all() == (chosen == "ieee")
            moment = SecondMoment()
            moment.add(rows.cuda())
        finally:
            torch.backends.cuda.matmul.fp32_precision = "none"
        found[chosen] = moment.sum[0].cpu().double()
    assert_close(found["none"], exact, rtol=1e-5 if size < 64 else 5e-5, atol=0)
    assert_close(found["ieee"], exact, rtol=2e-6, atol=0)
