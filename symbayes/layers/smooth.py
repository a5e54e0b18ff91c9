"""Paths with smooth weights: given at anchors, and in between by a radial basis.

The weights are the values u at anchors, and w = u Ψ takes their place (`RadialBasis`): so curvature sees inputs projected by Ψ,
or gradients projected by it, and Kronecker factors come out as Ψ A Ψᵀ and Ψ G Ψᵀ. A learned lengthscale ω has a row form of its
own: the tangent of the output. Learned locations of anchors are free parameters, whose curvature costs a backward pass through
the basis for every datum: right for filters, slow for grids of many cells.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.groups.grids import SpaceGroup
from symbayes.layers.basis import RadialBasis
from symbayes.layers.conv import ConvPath, PaddingMode
from symbayes.layers.factored import BlockPath, FactoredPath, block_product, initial_stds
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.path import RowForm, Shaped, TangentRows


class SparseConvPath(ConvPath, Shaped):
    """y(c', t) = Σ_c Σ_k (u(c', c) Ψ)(k) x(c, t + k) + b(c'): a convolution with smooth filters.

    Args:
        in_channels: Channels c of the input.
        out_channels: Channels c' of the output.
        kernel_size: Of the filter, one size for each dimension of the grid; one to three of them.
        anchors: Of a filter: a number, or a share of its cells; 0.5 gives 4 of 9, 0.8 gives 7.
        learn_lengthscale: Whether ω is learned.
        learn_locations: Whether the locations of anchors are, which all channels share.
        stride: As in `ConvPath`, and so are the following.
        padding: Cells added on every side.
        padding_mode: What is added.
        groups: Of channels that do not see each other.
        bias: Whether to add b.
        scale: Standard deviation of dense weights relative to Kaiming's for a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = (3, 3),
        *,
        anchors: int | float | None = 0.5,
        learn_lengthscale: bool = False,
        learn_locations: bool = False,
        stride: int = 1,
        padding: Sequence[int] | None = None,
        padding_mode: PaddingMode = "circular",
        groups: int = 1,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, padding_mode=padding_mode, groups=groups,
            bias=bias, scale=scale, generator=generator,
        )  # fmt: skip
        self.basis = RadialBasis(
            self.kernel_size, anchors, learn_lengthscale=learn_lengthscale, learn_locations=learn_locations
        )
        dense = self.weight.detach().flatten(2)
        self.weight = nn.Parameter(dense[..., : len(self.basis.locations)] / self.basis.std())

    def filters(self) -> Tensor:
        return (self.weight @ self.basis.matrix()).unflatten(2, self.kernel_size)

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        patches = super().input_rows(inputs).unflatten(3, (-1, prod(self.kernel_size)))
        return (patches @ self.basis.matrix().detach().T).flatten(3)

    def shape_rows(self) -> dict[str, RowForm]:
        return {"basis.omega": TangentRows(self._tangent)}

    def _tangent(self, inputs: Tensor) -> Tensor:
        return self._convolve(inputs, (self.weight.detach() @ self.basis.slope()).unflatten(2, self.kernel_size), None)


class SparseGroupConvPath(GroupConvPath, Shaped):
    """y(c', g, t) = Σ_c Σ_h Σ_s (u(c', c) Ψ)(g⁻¹h, g⁻¹s) x(c, h, t + s) + b(c'): a group convolution with smooth filters.

    They are smooth over cells, and over the turns that they compare.

    Args:
        in_channels: Channels c of the input, as in `GroupConvPath`.
        out_channels: Channels c' of the output.
        group: Whose turns and flips share the filter.
        kernel_size: Of the filter, odd, the same along every axis.
        anchors: Of a filter: a number, or a share of its turns and cells; 0.5 gives 18 of 4 × 9.
        learn_lengthscale: Whether ω is learned.
        learn_locations: Whether the locations of anchors are, which all channels share.
        options: All others of `GroupConvPath`, where `scale` is that of dense weights.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        group: SpaceGroup,
        kernel_size: int = 3,
        *,
        anchors: int | float | None = 0.5,
        learn_lengthscale: bool = False,
        learn_locations: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, group, kernel_size, **options)
        dense = self.weight.detach()
        turns = group.matrices if dense.shape[2] > 1 else ()
        self.basis = RadialBasis(
            self.kernel_size, anchors, learn_lengthscale=learn_lengthscale, learn_locations=learn_locations, turns=turns
        )
        self.weight = nn.Parameter(dense.flatten(2)[..., : len(self.basis.locations)] / self.basis.std())

    def _theta(self) -> Float[Tensor, "c_out c_in cell"]:
        return self.weight @ self.basis.matrix()

    def dense_weight(self) -> Tensor:
        """The filters u Ψ, as those of a `GroupConvPath`."""
        return self._theta().unflatten(2, (-1, *self.kernel_size))

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        basis = self.basis.matrix().detach()
        return (super().input_rows(inputs).unflatten(3, (-1, basis.shape[1])) @ basis.T).flatten(3)

    @property
    def arrangements(self) -> None:
        return None  # what is seen through Ψ is another thing for every turn

    def distinct_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        return self.input_rows(inputs)

    def shape_rows(self) -> dict[str, RowForm]:
        return {"basis.omega": TangentRows(self._tangent)}

    def _tangent(self, inputs: Tensor) -> Tensor:
        return self._convolve(inputs, self.weight.detach() @ self.basis.slope(), None)


class ProjectedPath(BlockPath, Shaped):
    """y[n, block] = u[block] Ψ x[n, block] + b: blocks that see a grid through a basis.

    Args:
        blocks: Number of blocks side by side.
        basis: On the cells of an input block.
        d_out: Features of an output block.
        bias: Whether to add b, one value for each output feature, shared over blocks.
        std: Standard deviation of the initial dense weights.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        blocks: int,
        basis: RadialBasis,
        d_out: int,
        *,
        bias: bool = True,
        std: float,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(blocks, len(basis.locations), d_out, bias=bias, std=std, generator=generator)
        self.basis = basis
        with torch.no_grad():
            self.weight.div_(basis.std())

    def forward(self, inputs: Float[Tensor, "n block cell"]) -> Float[Tensor, "n block d_out"]:
        return self._map(inputs, self.weight, self.basis.matrix(), self.bias)

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n 1 block d_in"]:
        return (inputs @ self.basis.matrix().detach().T)[:, None]

    def dense_weight(self) -> Float[Tensor, "block d_out cell"]:
        return self.weight @ self.basis.matrix()

    def shape_rows(self) -> dict[str, RowForm]:
        return {"basis.omega": TangentRows(lambda inputs: self._map(inputs, self.weight.detach(), self.basis.slope(), None))}

    def _map(self, inputs: Tensor, weight: Tensor, basis: Float[Tensor, "anchor cell"], bias: Tensor | None) -> Tensor:
        if weights_first(len(inputs), basis, weight.shape[1]):
            return block_product(weight @ basis, inputs, bias)
        return block_product(weight, inputs @ basis.T, bias)


class ExpandedPath(BlockPath, Shaped):
    """y[n, block] = Ψᵀ u[block] x[n, block]: blocks that give a grid through a basis.

    Outputs are Ψᵀ times the rows of outputs, so the rows of a gradient are Ψ times it.

    Args:
        blocks: Number of blocks side by side.
        d_in: Features of an input block.
        basis: On the cells of an output block.
        std: Standard deviation of the initial dense weights.
        generator: For the initial weights; the global one when None.
    """

    def __init__(self, blocks: int, d_in: int, basis: RadialBasis, *, std: float, generator: Generator | None = None) -> None:
        super().__init__(blocks, d_in, len(basis.locations), bias=False, std=std, generator=generator)
        self.basis = basis
        with torch.no_grad():
            self.weight.div_(basis.std())

    def forward(self, inputs: Float[Tensor, "n block d_in"]) -> Float[Tensor, "n block cell"]:
        return self._map(inputs, self.weight, self.basis.matrix())

    def output_rows(self, outputs: Float[Tensor, "n block cell"]) -> Float[Tensor, "n 1 block d_out"]:
        return (outputs @ self.basis.matrix().detach().T)[:, None]

    def dense_weight(self) -> Float[Tensor, "block cell d_in"]:
        return self.basis.matrix().T @ self.weight

    def shape_rows(self) -> dict[str, RowForm]:
        return {"basis.omega": TangentRows(lambda inputs: self._map(inputs, self.weight.detach(), self.basis.slope()))}

    def _map(self, inputs: Tensor, weight: Tensor, basis: Float[Tensor, "anchor cell"]) -> Tensor:
        if weights_first(len(inputs), basis, weight.shape[2]):
            return block_product(basis.T @ weight, inputs)
        return block_product(weight, inputs) @ basis


def weights_first(data: int, basis: Float[Tensor, "anchor cell"], features: int) -> bool:
    """Whether it takes fewer operations to make weights dense, u Ψ, than to apply Ψ to the data.

    Args:
        data: Number of them.
        basis: Ψ.
        features: Of a block, on the side that is no grid.
    """
    anchors, cells = basis.shape
    return features * cells * (anchors + data) < data * anchors * (cells + features)


class SparseFactoredPath(FactoredPath):
    """y(c', s') = Σ_c (Ψᵀu₁)(c', c, s') Σ_s (u₂Ψ)(c', c, s) x(c, s): a factored map, smooth over both of its grids.

    As ω → 0 the two factors become constant over space, and the map strictly equivariant under translation.

    Args:
        in_shape: Channels and grid of one input, such as (3, 32, 32).
        out_shape: Channels and grid of one output.
        anchors: On each of the two grids: a number, or a share of its cells.
        learn_lengthscale: Whether the two ω are learned.
        learn_locations: Whether the locations of anchors are.
        bias: Whether to add one to the hidden features, a value for each output channel.
        scale: Standard deviation of the output relative to a map that keeps the variance of its input after a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        *,
        anchors: int | float | None = 0.5,
        learn_lengthscale: bool = False,
        learn_locations: bool = False,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(in_shape, out_shape, bias=bias, scale=scale, generator=generator)
        seen, given = (
            RadialBasis(shape[1:], anchors, learn_lengthscale=learn_lengthscale, learn_locations=learn_locations)
            for shape in (in_shape, out_shape)
        )
        first, second = initial_stds(in_shape, scale)
        self.gather = ProjectedPath(in_shape[0], seen, out_shape[0], bias=bias, std=first, generator=generator)
        self.scatter = ExpandedPath(out_shape[0], in_shape[0], given, std=second, generator=generator)
