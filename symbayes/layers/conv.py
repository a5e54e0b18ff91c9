"""CONV: one filter for all positions, in 1, 2 or 3 dimensions; the symmetry is translation."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from symbayes.groups.grids import Translation
from symbayes.groups.group import Group
from symbayes.layers.patches import patch_moment, pays
from symbayes.layers.path import LinearMap, Path
from symbayes.precision import rounded

PaddingMode = Literal["circular", "zeros", "reflect", "replicate"]
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


class ConvPath(Path):
    """y(c', t) = Σ_c Σ_k θ(c', c, k) x(c, t + k) + b(c').

    With circular padding the map is exactly equivariant under cyclic translation; with a stride, under translation by multiples
    of it. `RelaxedLayer` aligns what a strided path sees, so that a layer is equivariant under all of them.

    Args:
        in_channels: Channels c of the input.
        out_channels: Channels c' of the output.
        kernel_size: Of the filter, one size for each dimension of the grid, one to three of them; a number is for two alike.
        stride: Between kept positions, the same along every axis.
        padding: Cells added on every side; None keeps the size of the map at stride 1 (odd filters).
        padding_mode: What is added.
        groups: Channels are split into this many groups that do not see each other.
        bias: Whether to add b, one value for each output channel.
        scale: Standard deviation of θ relative to Kaiming's for a ReLU.
        generator: For the initial weights; the global one when None.
    """

    convolves = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = (3, 3),
        *,
        stride: int = 1,
        padding: Sequence[int] | None = None,
        padding_mode: PaddingMode = "circular",
        groups: int = 1,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(kernel) not in CONVOLUTIONS:
            raise ValueError(f"kernel_size must have 1, 2 or 3 entries, got {kernel}.")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups must divide the channels, got {in_channels} -> {out_channels} in {groups} groups.")
        if padding is None and any(size % 2 == 0 for size in kernel):
            raise ValueError(f"kernel_size must be odd unless padding is given, got {kernel}.")
        self.kernel_size, self.stride, self.groups = kernel, stride, groups
        self.padding = tuple(size // 2 for size in kernel) if padding is None else tuple(padding)
        self.padding_mode = padding_mode
        bound = scale * sqrt(6 / (in_channels // groups * prod(kernel)))
        weight = torch.empty(out_channels, in_channels // groups, *kernel)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        return self._convolve(inputs, self.filters(), self.bias)

    def filters(self) -> Tensor:
        """Of the convolution, [c', c, *kernel]."""
        return self.weight

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        return patch_rows(self._pad(inputs), self.kernel_size, (self.stride,) * len(self.kernel_size), self.groups)

    def row_moment(self, inputs: Tensor, budget: int) -> tuple[Float[Tensor, "1 d_in d_in"], int] | None:
        if type(self).input_rows is not ConvPath.input_rows:  # rows of another kind
            return None
        ones = (1,) * len(self.kernel_size)
        strides = (self.stride,) * len(self.kernel_size)
        return moment_of_patches(inputs, self.kernel_size, strides, self.padding, ones, self.groups, self.padding_mode, budget)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return channel_rows(outputs, self.groups)

    def weight_rows(self) -> Float[Tensor, "block d_out d_in"]:
        return self.weight.flatten(1).unflatten(0, (self.groups, -1))

    def bias_rows(self) -> Float[Tensor, "block d_out"] | None:
        return None if self.bias is None else self.bias.unflatten(0, (self.groups, -1))

    @property
    def group(self) -> Group | None:
        """Exact where the map wraps around, and would keep its size without a stride."""
        kept = all(2 * size == kernel - 1 for size, kernel in zip(self.padding, self.kernel_size, strict=True))
        return Translation() if self.padding_mode == "circular" and kept else None

    @property
    def inner_group(self) -> Group:
        return Translation()

    def _convolve(self, inputs: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
        convolve = CONVOLUTIONS[len(self.kernel_size)]
        return convolve(self._pad(inputs), filters, bias, stride=self.stride, groups=self.groups)

    def _pad(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != 2 + len(self.kernel_size) or inputs.shape[1] != self.weight.shape[1] * self.groups:
            raise ValueError(
                f"{type(self).__name__} expects inputs [n, {self.weight.shape[1] * self.groups}, "
                f"and {len(self.kernel_size)} grid axes], got {tuple(inputs.shape)}."
            )
        return pad(inputs, self.padding, self.padding_mode)

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape[0], self.weight.shape[1] * self.groups
        return f"{in_channels} -> {out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, {self.padding_mode}"


class LayerPath(LinearMap):
    """A convolution of torch as a path, with whatever settings it has; or a linear layer, over the features of whole maps.

    Args:
        module: nn.Conv1d, nn.Conv2d, nn.Conv3d or nn.Linear.
        out_shape: Of the outputs of a linear layer, without the data axis.
    """

    def __init__(self, module: nn.Module, out_shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.module = module
        self.out_shape = None if out_shape is None else tuple(out_shape)
        self.positions = None if out_shape is None else prod(out_shape[1:])

    def forward(self, inputs: Tensor) -> Tensor:
        if self.out_shape is None:
            return cast(Tensor, self.module(inputs))
        return cast(Tensor, self.module(inputs.flatten(1))).unflatten(1, self.out_shape)

    @property
    def group(self) -> Group | None:
        """Exact where the map wraps around and keeps its size; a stride keeps translation by its multiples only."""
        if self.out_shape is not None:
            return None
        conv = cast(nn.Conv1d | nn.Conv2d | nn.Conv3d, self.module)
        padding = added_cells(conv)
        wraps = conv.padding_mode == "circular" or not any(padding)
        return Translation() if wraps and padding == _reach(conv) and set(conv.stride) == {1} else None

    @property
    def inner_group(self) -> Group | None:
        return Translation() if self.out_shape is None else None


def added_cells(conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """What a convolution of torch adds to each axis, on both sides together."""
    if isinstance(conv.padding, str):
        return _reach(conv) if conv.padding == "same" else [0] * len(conv.kernel_size)
    return [2 * size for size in conv.padding]


def _reach(conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """What would keep the size of its map."""
    return [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]


def pad(features: Tensor, padding: Sequence[int], mode: str) -> Tensor:
    """The map with cells added on both sides of every axis of its grid."""
    if not any(padding):
        return features
    grid = features.shape[2:]
    if mode == "circular":
        # torch wraps around once at most; a map smaller than its padding wraps more often.
        for axis, (size, length) in enumerate(zip(padding, grid, strict=True), start=2):
            if size > length:
                features = features.index_select(axis, torch.arange(-size, length + size, device=features.device) % length)
        once = tuple(0 if size > length else size for size, length in zip(padding, grid, strict=True))
        wrapped: Tensor = _Wrap.apply(features, once)  # type: ignore[no-untyped-call]
        return wrapped
    return functional.pad(features, _both_sides(padding), mode="constant" if mode == "zeros" else mode)


class _Wrap(torch.autograd.Function):
    """Circular padding; the backward pass of torch's own costs as much as that of the convolution behind it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, padding: tuple[int, ...]) -> Tensor:
        return functional.pad(features, _both_sides(padding), mode="circular")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, tuple[int, ...]], output: Tensor) -> None:
        ctx.padding = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        for axis, size in enumerate(ctx.padding, start=2):
            if size:
                left, inner, right = torch.split(gradient, [size, gradient.shape[axis] - 2 * size, size], axis)
                gradient = inner.clone(memory_format=torch.contiguous_format)
                gradient.narrow(axis, 0, size).add_(right)
                gradient.narrow(axis, gradient.shape[axis] - size, size).add_(left)
        return gradient, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _Wrap.forward(tangent, ctx.padding)


def _both_sides(padding: Sequence[int]) -> list[int]:
    """As torch wants it: both sides of the last axis first."""
    return [size for size in reversed(padding) for _ in range(2)]


def patch_rows(
    padded: Float[Tensor, "n c *grid"],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    groups: int,
    dilation: Sequence[int] | None = None,
) -> Float[Tensor, "n s groups d_in"]:
    """The patch of a padded map under the filter at every output position, as one row for each group."""
    dims, channels = len(kernel_size), padded.shape[1]
    windows = padded.transpose(0, 1)
    for axis, (size, step, gap) in enumerate(zip(kernel_size, stride, dilation or [1] * dims, strict=True)):
        windows = windows.unfold(2 + axis, (size - 1) * gap + 1, step)[..., ::gap]
    # [c, n, *positions, *kernel] is copied in the order [c, *kernel, n, *positions]: along the grid, so at full speed.
    order = [0, *range(2 + dims, 2 + 2 * dims), *range(1, 2 + dims)]
    rows = windows.permute(order).reshape(groups, channels // groups * prod(kernel_size), len(padded), -1)
    return rows.permute(2, 3, 0, 1)


def moment_of_patches(
    inputs: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
    mode: str,
    budget: int,
) -> tuple[Float[Tensor, "1 d_in d_in"], int] | None:
    """Σ r rᵀ of patches without forming them, and how many there are, of 3 × 3 filters that keep the size of the map."""
    ones = {*stride, *dilation, groups, *((1,) if padding == "same" else padding)}
    if tuple(kernel_size) != (3, 3) or ones != {1} or mode not in ("zeros", "circular") or not pays(inputs):
        return None
    inputs = rounded(inputs, inputs.shape[1])
    found = patch_moment(inputs, wraps=mode == "circular", budget=budget)
    return found[None], len(inputs) * prod(inputs.shape[2:])


def channel_rows(outputs: Float[Tensor, "n c *grid"], groups: int) -> Float[Tensor, "n s groups d_out"]:
    """The channels at every position, as one row for each group."""
    return outputs.flatten(2).transpose(1, 2).unflatten(2, (groups, -1))
