"""F-FC, forward and backward, against its arithmetic alone: plain products of contiguous matrices."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

from benchmarks.networks import BLOCKS
from benchmarks.timing import Timing, interleaved
from symbayes.layers.factored import FactoredPath


def measure_factored(batch_size: int, repeats: int) -> dict[str, dict[str, Timing]]:
    """By block of the paper's network: the path in units of its products, and the products one by one for each channel."""
    found = {}
    for c_in, c_out, size, stride in BLOCKS:
        in_shape, out_shape = (c_in, size, size), (c_out, size // stride, size // stride)
        generator = torch.Generator().manual_seed(0)
        cases: dict[str, Callable[[], object]] = {
            "products": partial(_run, _merged(in_shape, out_shape, batch_size)),
            "products by channel": partial(_run, _by_channel(in_shape, out_shape, batch_size)),
            "path": _path(in_shape, out_shape, batch_size, generator),
        }
        found[f"{_times(in_shape)} -> {_times(out_shape)}"] = interleaved(cases, "products", repeats)
    return found


def _path(in_shape: tuple[int, ...], out_shape: tuple[int, ...], n: int, generator: Generator) -> Callable[[], object]:
    path = FactoredPath(in_shape, out_shape, generator=generator)
    inputs = torch.randn(n, *in_shape, generator=generator).requires_grad_()
    gradient = torch.randn(n, *out_shape, generator=generator)
    return lambda: torch.autograd.grad(path(inputs), [inputs, *path.parameters()], gradient)


def _products(n: int, d_in: int, d_out: int) -> list[tuple[Tensor, Tensor]]:
    """The three products of a linear map: outputs, gradient of inputs, gradient of weights."""
    shapes = ((n, d_in, d_out), (n, d_out, d_in), (d_out, n, d_in))
    return [(torch.randn(rows, inner), torch.randn(inner, columns)) for rows, inner, columns in shapes]


def _merged(in_shape: tuple[int, ...], out_shape: tuple[int, ...], n: int) -> list[tuple[Tensor, Tensor]]:
    """As many multiply-adds as both factors need, each as one large product with channels beside data."""
    (c_in, s_in), (c_out, s_out) = _flat(in_shape), _flat(out_shape)
    return _products(n * c_in, s_in, c_out) + _products(n * c_out, c_in, s_out)


def _by_channel(in_shape: tuple[int, ...], out_shape: tuple[int, ...], n: int) -> list[tuple[Tensor, Tensor]]:
    """The same products as they are: the weights of every channel apart."""
    (c_in, s_in), (c_out, s_out) = _flat(in_shape), _flat(out_shape)
    gather = [pair for _ in range(c_in) for pair in _products(n, s_in, c_out)]
    return gather + [pair for _ in range(c_out) for pair in _products(n, c_in, s_out)]


def _run(products: list[tuple[Tensor, Tensor]]) -> None:
    for left, right in products:
        torch.mm(left, right)


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], shape[1] * shape[2]


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
