"""How precisely a GPU multiplies: products in TF32, rows of second moments in half of single precision, sums in single.

Torch's convolutions read numbers in TF32, with ten bits after the point. Moments of rows may be coarser: errors of rounding to
the nearest cancel in sums over data. What does not cancel is a floor under eigenvalues: of rows about a they are at least some
5e-6 a² where they should be zero, so that inputs whose mean is far from zero, in units of their standard deviation, are to be
centred. On a CPU all numbers are multiplied as they are.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

#: Features from which on rows are multiplied in half of single precision: second moments are what costs then.
_MANY = 64
#: Settings of torch are those of all threads.
_SETTING = threading.RLock()


@dataclass
class _Asked:
    """For how many TF32 is on just now, in all threads."""

    count: int = 0


_ASKED = _Asked()


@contextmanager
def exact_products() -> Iterator[None]:
    """Products and convolutions on a GPU in the precision of their numbers, not in TF32, to compare what models give."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    places = (matmul, cudnn.conv) if hasattr(matmul, "fp32_precision") else ()  # type: ignore[attr-defined]
    with _SETTING, nullcontext() if places else cudnn.flags(allow_tf32=False):
        before = [place.fp32_precision for place in places]
        for place in places:
            place.fp32_precision = "ieee"
        try:
            yield
        finally:
            for place, precision in zip(places, before, strict=True):
                place.fp32_precision = precision


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Products of matrices on a GPU as precise as convolutions are by default, TF32; as they were, where a user has chosen.

    For what has noise of its own far above a mantissa of ten bits: gradients of batches, products with random vectors.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if device.type != "cuda" or not hasattr(matmul, "fp32_precision"):  # which torch has since 2.9
        yield
        return
    with _SETTING:  # and not while others work in it: hooks of a backward pass run in threads of their own
        chosen = matmul.fp32_precision != "none" or cudnn.conv.fp32_precision != "tf32"  # type: ignore[attr-defined]
        asks = _ASKED.count > 0 or not chosen
        if asks:
            _ASKED.count += 1
            if not chosen:
                matmul.allow_tf32 = True  # the older of two ways to say it, which both understand
    try:
        yield
    finally:
        with _SETTING:
            _ASKED.count -= asks
            if asks and not _ASKED.count:
                matmul.allow_tf32 = False
                matmul.fp32_precision = "none"


def rounded(rows: Tensor, features: int, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """Rows of so many features as sums over data are to be made of their products: for `multiply`.

    Where products are in TF32 they are the nearest numbers of its ten bits, since a GPU may cut off what is beyond; and where
    there are many features, those of bfloat16, with seven, which are multiplied twice as fast and take half of the memory. What
    is rounded to the nearest is right on average, so that in sums errors cancel. What is to be differentiated stays as it is,
    and so do numbers on a CPU; those of a user who has chosen a precision are read in that.

    Args:
        rows: In any order of axes.
        features: Of a row.
        layout: In memory, of numbers that are written anew in half of single precision.
    """
    if not rows.is_cuda or rows.dtype != torch.float32 or rows.requires_grad or not _in_tf32():
        return rows
    if features >= _MANY and _ASKED.count and _adds_in_single(rows.device):
        return rows.to(torch.bfloat16, memory_format=layout)
    return nearest_tf32(rows)


def multiply(left: Float[Tensor, "*batch a b"], right: Float[Tensor, "*batch b c"]) -> Float[Tensor, "*batch a c"]:
    """A product of matrices, or of several; of rows in half of single precision it is added up in single."""
    if left.dtype != torch.bfloat16:
        return left @ right
    if not left.is_cuda:
        return left.float() @ right.float()
    one, other = (each.reshape(-1, *each.shape[-2:]) for each in (left, right))
    return torch.bmm(one, other, out_dtype=torch.float32).view(*left.shape[:-1], right.shape[-1])


@cache
def _adds_in_single(device: torch.device) -> bool:
    """Whether products of bfloat16 can be had in single precision, as torch has them since 2.8."""
    try:
        multiply(*torch.ones(2, 16, 16, dtype=torch.bfloat16, device=device))
    except (TypeError, RuntimeError):
        return False
    return True


def nearest_tf32(tensor: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The nearest numbers of TF32, with a mantissa of ten bits; of two as near, that of larger size."""
    if tensor.is_cuda and tensor.nbytes < 2**31:
        at_once = _compiled(tensor.device)
        if at_once is not None:
            return at_once(tensor)
    found = tensor.view(torch.int32).add(1 << 12).bitwise_and_(-1 << 13).view(torch.float32)
    return torch.where(tensor.isnan(), tensor, found)  # whose bits may overflow


#: The same for a GPU, where each of these operations would read and write all numbers again.
_NEAREST_TF32 = """
template <typename T> T nearest_tf32(T x) {
    unsigned bits = __float_as_uint(x);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? __uint_as_float((bits + 0x1000u) & 0xffffe000u) : x;
}
"""


@cache
def _compiled(device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """Rounding in one kernel, compiled when it is first needed; None where that cannot be done."""
    try:
        kernel: Callable[[Tensor], Tensor] = torch.cuda.jiterator._create_jit_fn(_NEAREST_TF32)
        kernel(torch.zeros(1, device=device))
    except (AttributeError, RuntimeError):
        return None
    return kernel


def _in_tf32() -> bool:
    """Whether products of matrices on a GPU are in TF32 just now."""
    matmul = torch.backends.cuda.matmul
    precise = hasattr(matmul, "fp32_precision")  # which torch has since 2.9
    return matmul.fp32_precision == "tf32" if precise else matmul.allow_tf32
