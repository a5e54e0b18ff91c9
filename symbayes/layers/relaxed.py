"""A layer that is a sum of paths of different symmetry, and which of its positions it keeps.

Taking every second cell of a map depends on where the grid of kept cells lies, so a plain stride breaks the symmetry under
translation. Choosing one of the possible grids, the polyphase components, from the datum itself restores it exactly (Chaman
and Dokmanić 2021). The usual choice is the component of largest norm, layer by layer. But components of a natural map are
nearly equally strong, so that choice is close to random, and a network has to cope with every combination of them. Here all
grids go through one cell, the *centre* of the energy of the network's input: data of similar content are sampled alike, and
where the content is can still be read from the coarse maps (docs/research/dynamics.md has figures).
"""

from collections.abc import Mapping, Sequence
from math import pi
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symbayes.layers.path import LinearMap


def centre(features: Float[Tensor, "n c *grid"]) -> Int[Tensor, "n d"]:
    """The cell at the centre of energy of each datum: the phase of the first Fourier harmonic, which moves with the content.

    It turns and flips with the content, too, unless the content is its own mirror image about the middle between two cells:
    then neither can be preferred, and the next is taken. A datum without a first harmonic along an axis, such as a constant
    one, has no centre there; its cell is then arbitrary.
    """
    energy = features.detach().square().sum(1)
    cells = []
    for axis, size in enumerate(features.shape[2:], start=1):
        others = tuple(other for other in range(1, energy.ndim) if other != axis)
        profile = energy.sum(others) if others else energy  # [n, size]
        angles = torch.arange(size, device=energy.device, dtype=energy.dtype) * (2 * pi / size)
        angle = torch.atan2(profile @ angles.sin(), profile @ angles.cos())
        cells.append(_round(angle * (size / (2 * pi)), profile))
    return torch.stack(cells, 1)


def _round(position: Float[Tensor, " n"], profile: Float[Tensor, "n size"]) -> Int[Tensor, " n"]:
    """The nearest cell; half-way between two, the one on whose side there is more energy near by."""
    size = profile.shape[1]
    below = position.floor().long()
    away = torch.arange(max(1, size // 2), device=profile.device)
    sides = [profile.gather(1, (start[:, None] + step * away) % size) for start, step in ((below + 1, 1), (below, -1))]
    lean = ((sides[0] - sides[1]) / (1 + away)).sum(1)
    # Within the error of floating point of both comparisons, the next: that moves with the content as it shifts.
    up = lean > -1e-5 * profile.sum(1)
    half_way = (position - below - 0.5).abs() < 1e-4
    return torch.where(half_way, below + up, (position + 0.5).floor().long()) % size


def divides(stride: int, grid: Sequence[int]) -> bool:
    """Whether a stride splits a grid into components of equal size; axes of a single cell are left as they are."""
    return all(size % stride == 0 or size == 1 for size in grid)


def align(features: Float[Tensor, "n c *grid"], cell: Int[Tensor, "n d"], stride: int) -> Float[Tensor, "n c *grid"]:
    """Every datum shifted cyclically by less than a stride, so that its cell is one of those a stride keeps.

    Raises:
        ValueError: If an axis of the grid is not a multiple of the stride: its polyphase components would differ in size.
    """
    grid = features.shape[2:]
    if not divides(stride, grid):
        raise ValueError(
            f"Equivariant subsampling by {stride} needs map sizes that are multiples of {stride}, got {tuple(grid)}. "
            "Resize the input, or use equivariant_stride=False."
        )
    # Where every cell comes from, counted over the whole grid: one gather is several times faster than one for each axis.
    source = cell.new_zeros(len(features), 1)
    for axis, size in enumerate(grid):
        phase = cell[:, axis, None] % min(stride, size)  # an axis of a single cell has nothing to shift
        index = (torch.arange(size, device=features.device) + phase) % size  # [n, size]
        source = (source[:, :, None] * size + index[:, None]).flatten(1)
    return features.flatten(2).gather(2, source[:, None].expand(-1, features.shape[1], -1)).view_as(features)


class RelaxedLayer(nn.Module):
    """y = Σ_path path(x).

    A path that keeps a symmetry and one that breaks it are added; the prior precision of each, learned from the
    evidence, says how much of either is used (ELLA, eq. 4). In the limit of infinite precision a path is switched off.

    Args:
        paths: By name. Their outputs must have the same shape.
        stride: Of the paths that have a symmetry.
        equivariant_stride: Whether the grid of cells that a stride keeps is anchored to the content of each datum, so that
            paths with a symmetry keep all of it (`subsample`), and their sum the symmetry that they share. Paths without one
            see the map where it is.
    """

    def __init__(self, paths: Mapping[str, nn.Module], *, stride: int = 1, equivariant_stride: bool = True) -> None:
        super().__init__()
        if not paths:
            raise ValueError("A RelaxedLayer needs at least one path, got none.")
        symmetric = {name: path for name, path in paths.items() if isinstance(path, LinearMap) and path.group is not None}
        for name, path in symmetric.items():
            if path.stride != stride:
                raise ValueError(
                    f"The stride of a RelaxedLayer must be that of its paths, got {stride}; {name!r} has {path.stride}."
                )
        self.paths = nn.ModuleDict(paths)
        self.stride, self.equivariant_stride = stride, equivariant_stride and stride > 1
        self._symmetric = set(symmetric)

    def forward(self, inputs: Tensor, cell: Int[Tensor, "n d"] | None = None) -> Tensor:
        """The sum of all paths.

        Args:
            inputs: Features [n, c, *grid].
            cell: Through which the kept grid goes, for each datum; the centre of the inputs when None.
        """
        aligned = inputs
        if self.equivariant_stride and self._symmetric:
            aligned = align(inputs, centre(inputs) if cell is None else cell, self.stride)
        outputs: Tensor | None = None
        for name, path in self.paths.items():
            term = cast(Tensor, path(aligned if name in self._symmetric else inputs))
            if outputs is not None and term.shape != outputs.shape:
                raise ValueError(
                    f"The paths of a RelaxedLayer must agree in the shape of their output; path {name!r} gives "
                    f"{tuple(term.shape[1:])} where those before it give {tuple(outputs.shape[1:])}."
                )
            outputs = term if outputs is None else outputs + term
        return cast(Tensor, outputs)

    def __call__(self, inputs: Tensor, cell: Tensor | None = None) -> Tensor:
        return cast(Tensor, super().__call__(inputs, cell))
