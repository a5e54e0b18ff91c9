"""GCONV: one filter for all positions, and for all turns and flips of a group; the symmetry is a space group.

Features carry a channel for every turn of the group, [n, c · order, *grid], in one common frame: shifting the input shifts
all of them alike, turning it turns the maps and permutes the turns. So an ordinary convolution or a fully connected map can
act on the same features and be added, and a layer can be relaxed from a space group to translations to nothing.
"""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from symbayes.groups.grids import SpaceGroup
from symbayes.groups.group import Group
from symbayes.layers.conv import CONVOLUTIONS, ConvPath, pad, patch_rows
from symbayes.layers.path import LinearMap, Path, Tables


class GroupConvPath(Path):
    """y(c', g, t) = Σ_c Σ_h Σ_s θ(c', c, g⁻¹h, g⁻¹s) x(c, h, t + s) + b(c').

    g and h are turns of the group, s are cells of the filter. A lifting layer sees plain maps, without h. With `mixing`
    "pointwise" only h = g is seen, so that turns are not compared with each other.

    Args:
        in_channels: Channels c of the input, each of which has all turns unless the layer lifts.
        out_channels: Channels c' of the output, each of which has all turns.
        group: Whose turns and flips share the filter.
        kernel_size: Of the filter, odd, the same along every axis.
        lifting: Whether the input are plain maps [n, c, *grid].
        mixing: Over the turns of the input: "full", or "pointwise" for none.
        stride: Between kept positions, the same along every axis.
        channel_groups: Channels are split into this many groups that do not see each other.
        bias: Whether to add b, one value for each output channel.
        scale: Standard deviation of θ relative to Kaiming's for a ReLU.
        generator: For the initial weights; the global one when None.
    """

    convolves = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        group: SpaceGroup,
        kernel_size: int = 3,
        *,
        lifting: bool = False,
        mixing: str = "full",
        stride: int = 1,
        channel_groups: int = 1,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that a filter has a centre to turn about; got {kernel_size}.")
        if in_channels % channel_groups or out_channels % channel_groups:
            raise ValueError(
                f"channel_groups must divide the channels, got {in_channels} -> {out_channels} in {channel_groups} groups."
            )
        if mixing not in ("full", "pointwise"):
            raise ValueError(f"mixing must be 'full' or 'pointwise', got {mixing!r}.")
        self.in_channels, self.out_channels, self.channel_groups = in_channels, out_channels, channel_groups
        self.kernel_size, self.stride = (kernel_size,) * group.dims, stride
        self.lifting, self.mixing = lifting, mixing
        self._group = group
        self._tables = Tables({"source": _source(group, self.kernel_size, lifting, mixing)})
        turns = 1 if lifting or mixing == "pointwise" else group.order
        fan_in = in_channels // channel_groups * turns * prod(self.kernel_size)
        bound = scale * sqrt(6 / fan_in)
        weight = torch.empty(out_channels, in_channels // channel_groups, turns, *self.kernel_size)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    @property
    def source(self) -> Int[Tensor, "order cells"]:
        """[g, (k, u)]: the turn and cell of the input, (g k, g u), that turn k and cell u of θ meet in the output of turn g."""
        return self._tables.on(self.weight.device)["source"]

    def forward(self, inputs: Tensor) -> Tensor:
        return self._convolve(inputs, self._theta(), self.bias)

    def filters(self) -> Tensor:
        """θ turned by every element: the filters [c' · order, c · order, *kernel] of the plain convolution that this is."""
        return self._turned(self._theta())

    def _theta(self) -> Float[Tensor, "c_out c_in cell"]:
        return self.weight.flatten(2)

    def _convolve(self, inputs: Tensor, theta: Float[Tensor, "c_out c_in cell"], bias: Tensor | None) -> Tensor:
        """By a filter that is given, over turns and cells."""
        convolve = CONVOLUTIONS[len(self.kernel_size)]
        shared = None if bias is None else bias.repeat_interleave(self._group.order)
        return convolve(self._pad(inputs), self._turned(theta), shared, stride=self.stride, groups=self.channel_groups)

    def _turned(self, theta: Float[Tensor, "c_out c_in cell"]) -> Tensor:
        filters = theta.new_zeros(self._group.order, *theta.shape[:2], self._cells)
        index = self.source[:, None, None, :].expand(-1, *theta.shape)
        filters = filters.scatter(3, index, theta.expand(self._group.order, -1, -1, -1))
        return filters.transpose(0, 1).flatten(0, 1).unflatten(2, (-1, *self.kernel_size)).flatten(1, 2)

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        """What the filter of every turn sees: channels, turns and cells, in its own order."""
        by_turn = GroupConvPath.distinct_rows(self, inputs)[..., self._turned_cells]  # [n, t, block, g, (c, k, u)]
        return by_turn.permute(0, 3, 1, 2, 4).flatten(1, 2)

    @property
    def arrangements(self) -> Int[Tensor, "order d_in"] | None:
        return self._turned_cells

    @property
    def _turned_cells(self) -> Int[Tensor, "order d_in"]:
        channels = torch.arange(self.weight.shape[1], device=self.source.device)[:, None] * self._cells
        return (channels + self.source[:, None]).flatten(1)

    @property
    def _cells(self) -> int:
        """The number of turns and cells of a channel that an output sees."""
        return (1 if self.lifting else self._group.order) * prod(self.kernel_size)

    def distinct_rows(self, inputs: Tensor) -> Float[Tensor, "n t block d"]:
        stride = (self.stride,) * len(self.kernel_size)
        return patch_rows(self._pad(inputs), self.kernel_size, stride, self.channel_groups)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        by_turn = outputs.flatten(2).unflatten(1, (self.channel_groups, -1, self._group.order))
        return by_turn.permute(0, 3, 4, 1, 2).flatten(1, 2)

    def weight_rows(self) -> Float[Tensor, "block d_out d_in"]:
        return self.weight.flatten(1).unflatten(0, (self.channel_groups, -1))

    def bias_rows(self) -> Float[Tensor, "block d_out"] | None:
        return None if self.bias is None else self.bias.unflatten(0, (self.channel_groups, -1))

    @property
    def group(self) -> SpaceGroup:
        return self._group

    def act_on_inputs(self, element: tuple[int, ...], inputs: Tensor) -> Tensor:
        return self._group.act(element, inputs) if self.lifting else self._group.act_regular(element, inputs)

    def act_on_outputs(self, element: tuple[int, ...], outputs: Tensor) -> Tensor:
        return self._group.act_regular(element, outputs)

    def _pad(self, inputs: Tensor) -> Tensor:
        channels = self.in_channels * (1 if self.lifting else self._group.order)
        if inputs.ndim != 2 + self._group.dims or inputs.shape[1] != channels:
            raise ValueError(
                f"GroupConvPath expects inputs [n, {channels}, and {self._group.dims} grid axes], got {tuple(inputs.shape)}."
            )
        self._group.check_grid(tuple(inputs.shape[2:]))
        return pad(inputs, [size // 2 for size in self.kernel_size], "circular")

    def extra_repr(self) -> str:
        kind = "lifting" if self.lifting else self.mixing
        return f"{self.in_channels} -> {self.out_channels}, {self._group.name}, {kind}, kernel_size={self.kernel_size}"


class SymmetricConvPath(ConvPath):
    """y(c', t) = Σ_c Σ_k θ(c', c, orbit(k)) x(c, t + k) + b(c'): a convolution whose filters look the same after every turn.

    It sees and gives plain maps, which turn with each other; `GroupConvPath` compares turns, for which it has channels.

    Args:
        in_channels: Channels c of the input.
        out_channels: Channels c' of the output.
        group: Whose turns and flips filters are invariant under.
        kernel_size: Of the filter, odd, the same along every axis.
        options: As in `ConvPath`.
    """

    def __init__(self, in_channels: int, out_channels: int, group: SpaceGroup, kernel_size: int = 3, **options: Any) -> None:
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that a filter has a centre to turn about; got {kernel_size}.")
        super().__init__(in_channels, out_channels, (kernel_size,) * group.dims, **options)
        self._group = group
        turned = group.turned_cells(self.kernel_size)
        first = [min(cells[cell] for cells in turned) for cell in range(prod(self.kernel_size))]
        number = {cell: index for index, cell in enumerate(sorted(set(first)))}
        self._tables = Tables({"orbit": [number[cell] for cell in first]})
        self.weight = nn.Parameter(self.weight.detach().flatten(2)[..., : len(number)].clone())

    def filters(self) -> Tensor:
        return self.weight[..., self._orbit].unflatten(2, self.kernel_size)

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        patches = super().input_rows(inputs).unflatten(3, (-1, prod(self.kernel_size)))
        sums = patches.new_zeros(*patches.shape[:4], self.weight.shape[2])
        return sums.index_add(4, self._orbit, patches).flatten(3)

    @property
    def group(self) -> Group | None:
        """Exact where the map wraps around and keeps its size."""
        return self._group if super().group is not None and self.stride == 1 else None

    @property
    def inner_group(self) -> SpaceGroup:
        return self._group

    @property
    def _orbit(self) -> Int[Tensor, " cells"]:
        return self._tables.on(self.weight.device)["orbit"]


class SeparableGroupPath(LinearMap):
    """A group convolution in two steps: every channel is filtered in space, then channels and turns are mixed.

    With `depthwise` there are three: every channel in space, every channel over turns, then channels alone.

    Args:
        in_channels: Channels of the input, each of which has all turns unless the layer lifts.
        out_channels: Channels of the output.
        group: Whose turns and flips share the filters.
        kernel_size: Of the filter in space.
        lifting: Whether the input are plain maps [n, c, *grid].
        depthwise: Whether turns and channels are mixed in separate steps.
        stride: Between kept positions.
        bias: Whether every step has one, with a value for each channel.
        scale: Standard deviation of the output relative to a map that keeps the variance of its input after a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        group: SpaceGroup,
        kernel_size: int = 3,
        *,
        lifting: bool = False,
        depthwise: bool = False,
        stride: int = 1,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self._group, self.stride = group, stride
        # Steps without a ReLU behind them keep the variance as it is.
        self.space = GroupConvPath(
            in_channels, in_channels, group, kernel_size, lifting=lifting, mixing="pointwise", stride=stride,
            channel_groups=in_channels, bias=bias, scale=sqrt(0.5), generator=generator,
        )  # fmt: skip
        self.turns = (
            GroupConvPath(
                in_channels, in_channels, group, 1, channel_groups=in_channels, bias=bias, scale=sqrt(0.5), generator=generator
            )
            if depthwise
            else None
        )
        mixing: str = "pointwise" if depthwise else "full"
        self.mix = GroupConvPath(
            in_channels, out_channels, group, 1, mixing=mixing, bias=bias, scale=scale, generator=generator
        )

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.space(inputs)
        return self.mix(features if self.turns is None else self.turns(features))

    @property
    def group(self) -> SpaceGroup:
        return self._group

    def act_on_inputs(self, element: tuple[int, ...], inputs: Tensor) -> Tensor:
        return self.space.act_on_inputs(element, inputs)

    def act_on_outputs(self, element: tuple[int, ...], outputs: Tensor) -> Tensor:
        return self.mix.act_on_outputs(element, outputs)


class GroupPool(nn.Module):
    """The largest or the mean value over turns: [n, c · order, *grid] to [n, c, *grid], which turn as plain maps do.

    Args:
        order: The number of turns of the group.
        by: "max" or "mean".
    """

    def __init__(self, order: int, by: str = "max") -> None:
        super().__init__()
        if by not in ("max", "mean"):
            raise ValueError(f"GroupPool takes the 'max' or the 'mean' over turns, got {by!r}.")
        self.order, self.by = order, by

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1] % self.order:
            raise ValueError(
                f"GroupPool expects a channel for each of {self.order} turns, so a multiple of them; got {inputs.shape[1]}."
            )
        fibres = inputs.unflatten(1, (-1, self.order))
        return fibres.amax(2) if self.by == "max" else fibres.mean(2)

    def extra_repr(self) -> str:
        return f"{self.by} over {self.order}"


def _source(group: SpaceGroup, kernel_size: Sequence[int], lifting: bool, mixing: str) -> list[list[int]]:
    """(g k, g u), counted over turns and cells of the input, for every g and every turn k and cell u of the filter."""
    size = prod(kernel_size)
    cells = group.turned_cells(tuple(kernel_size))
    rows = []
    for g in range(group.order):
        turns = [0] if lifting else [g] if mixing == "pointwise" else group.table[g]
        rows.append([turn * size + cell for turn in turns for cell in cells[g]])
    return rows
