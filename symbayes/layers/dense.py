"""FC: one weight from every input feature to every output feature; no symmetry at all."""

from math import prod, sqrt

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from symbayes.layers.path import Path


class DensePath(Path):
    """y = W vec(x) + b, viewed as [n, *out_shape].

    Args:
        in_shape: Of one input, without the data axis, such as (3, 32, 32).
        out_shape: Of one output.
        bias: Whether to add b, one value for each output feature.
        scale: Standard deviation of W relative to a map that keeps the variance of its input after a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        *,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        self.positions = prod(out_shape[1:])
        d_in, d_out = prod(in_shape), prod(out_shape)
        bound = scale * sqrt(6 / d_in)  # U(±bound) has variance 2 / d_in
        self.weight = nn.Parameter(torch.empty(d_out, d_in).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1:] != self.in_shape:
            raise ValueError(f"DensePath expects inputs of shape (n, {_sizes(self.in_shape)}), got {tuple(inputs.shape)}.")
        return functional.linear(inputs.flatten(1), self.weight, self.bias).unflatten(1, self.out_shape)

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n 1 1 d_in"]:
        return inputs.flatten(1)[:, None, None]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n 1 1 d_out"]:
        return outputs.flatten(1)[:, None, None]

    def meets_once(self, inputs: Tensor) -> bool:
        return True

    def weight_rows(self) -> Float[Tensor, "1 d_out d_in"]:
        return self.weight[None]

    def bias_rows(self) -> Float[Tensor, "1 d_out"] | None:
        return None if self.bias is None else self.bias[None]

    def extra_repr(self) -> str:
        return f"{_sizes(self.in_shape)} -> {_sizes(self.out_shape)}"


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
