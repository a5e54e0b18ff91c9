"""FC: a weight from every input feature to every output feature, no symmetry at all; and its opposite, one number for a map."""

from math import prod, sqrt
from typing import cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from symbayes.layers.path import Path, RowForm


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


class _Scalar(nn.Module, RowForm):
    """A map over rows of a single number, with a position for each entry of its input."""

    structure = "diagonal"

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 1"]:
        return inputs.reshape(len(inputs), -1, 1, 1)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 1"]:
        return outputs.reshape(len(outputs), -1, 1, 1)

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))


class Scale(_Scalar):
    """y = θ x, with θ = 1 to begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


class Shift(_Scalar):
    """y = x + b, with b = 0 to begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.bias
