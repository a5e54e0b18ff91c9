"""F-FC: a fully connected map factored over space, one outer product for each pair of channels (ELLA, eq. 5)."""

from math import prod, sqrt

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.layers.path import LinearMap, Path


class BlockPath(Path):
    """y[n, block] = W[block] x[n, block] + b: separate weights for every block, one bias for all of them.

    Args:
        blocks: Number of blocks side by side.
        d_in: Features of an input block.
        d_out: Features of an output block.
        bias: Whether to add b, one value for each output feature, shared over blocks.
        std: Standard deviation of the initial weights.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        blocks: int,
        d_in: int,
        d_out: int,
        *,
        bias: bool = True,
        std: float,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        bound = std * sqrt(3)
        self.weight = nn.Parameter(torch.empty(blocks, d_out, d_in).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    def forward(self, inputs: Float[Tensor, "n block d_in"]) -> Float[Tensor, "n block d_out"]:
        return block_product(self.weight, inputs, self.bias)

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n 1 block d_in"]:
        return inputs[:, None]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n 1 block d_out"]:
        return outputs[:, None]

    def meets_once(self, inputs: Tensor) -> bool:
        return True

    def weight_rows(self) -> Float[Tensor, "block d_out d_in"]:
        return self.weight

    def bias_rows(self) -> Float[Tensor, "block d_out"] | None:
        return None if self.bias is None else self.bias.expand(len(self.weight), -1)

    def bias_from_rows(self, rows: Float[Tensor, "*batch block d_out"]) -> Float[Tensor, "*batch d_out"]:
        return rows.sum(-2)

    def dense_weight(self) -> Float[Tensor, "block rows columns"]:
        """The matrix of every block, from what it sees to what it gives."""
        return self.weight

    def extra_repr(self) -> str:
        blocks, d_out, d_in = self.weight.shape
        return f"{blocks} blocks, {d_in} -> {d_out}"


def block_product(
    weight: Float[Tensor, "block d_out d_in"],
    inputs: Float[Tensor, "n block d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "n block d_out"]:
    """W[block] x[n, block] + b."""
    # Data are kept last in memory while outputs are small, so that the two factors pass on what neither has to copy.
    if weight.shape[1] < 2 * len(inputs):
        columns = None if bias is None else bias[:, None]
        return _add(columns, weight, inputs.permute(1, 2, 0)).permute(2, 0, 1)
    return _add(bias, inputs.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _add(bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """A product for every block, and a bias where there is one."""
    return torch.bmm(left, right) if bias is None else torch.baddbmm(bias, left, right)


class FactoredPath(LinearMap):
    """y(c', s') = Σ_c θ₁(c', c, s') Σ_s θ₂(c', c, s) x(c, s): two paths, each a batched matrix product.

    `gather` holds θ₂, a block for each input channel; `scatter` holds θ₁, a block for each output channel. The scale
    of one can be moved into the other without changing the map, so judge the two together.

    Args:
        in_shape: Channels and grid of one input, such as (3, 32, 32).
        out_shape: Channels and grid of one output.
        bias: Whether the two maps have biases: one for each output channel, and one for each output position.
        scale: Standard deviation of the output relative to a map that keeps the variance of its input after a ReLU.
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
        (c_in, *grid_in), (c_out, *grid_out) = in_shape, out_shape
        first, second = initial_stds(in_shape, scale)
        self.gather = BlockPath(c_in, prod(grid_in), c_out, bias=bias, std=first, generator=generator)
        self.scatter = BlockPath(c_out, c_in, prod(grid_out), bias=bias, std=second, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1:] != self.in_shape:
            raise ValueError(f"{type(self).__name__} expects inputs of shape (n, *{self.in_shape}), got {tuple(inputs.shape)}.")
        hidden = self.gather(inputs.flatten(2))  # [n, c, c']
        return self.scatter(hidden.transpose(1, 2)).unflatten(2, self.out_shape[1:])  # [n, c', *grid]

    def dense_weight(self) -> Float[Tensor, "d_out d_in"]:
        """The same map as one matrix on flattened features; for tests and pictures, it can be huge."""
        weight = torch.einsum("dtc,cds->dtcs", self.scatter.dense_weight(), self.gather.dense_weight())
        return weight.flatten(2).flatten(0, 1)


def initial_stds(in_shape: tuple[int, ...], scale: float) -> tuple[float, float]:
    """Initial standard deviations of θ₂ and θ₁."""
    share = sqrt(scale * sqrt(2))
    return share / sqrt(prod(in_shape[1:])), share / sqrt(in_shape[0])
