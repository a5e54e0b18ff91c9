"""Equivariant subsampling: the grid of kept cells is anchored to the content of each datum.

Taking every second cell of a map depends on where the grid of kept cells lies, so a plain stride breaks the symmetry under
translation. Choosing one of the possible grids, the polyphase components, from the datum itself restores it exactly (Chaman
and Dokmanić 2021). The usual choice is the component of largest norm, layer by layer. But components of a natural map are
nearly equally strong, so that choice is close to random, and a network has to cope with every combination of them. Here all
grids go through one cell, the *centre* of the energy of the network's input: data of similar content are sampled alike, and
where the content is can still be read from the coarse maps (docs/research/dynamics.md has figures).
"""

from collections.abc import Sequence
from math import pi

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
        cells.append(_rounded(angle * (size / (2 * pi)), profile))
    return torch.stack(cells, 1)


def _rounded(position: Float[Tensor, " n"], profile: Float[Tensor, "n size"]) -> Int[Tensor, " n"]:
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
