"""One number for a whole map: to scale it, or to shift it (Fixup, Zhang et al. 2019)."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.layers.path import RowForm


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
