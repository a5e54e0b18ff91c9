"""Equivariant subsampling: every datum is moved so that its strongest polyphase component comes first.

Taking every second cell of a map depends on where the grid of kept cells lies, so a plain stride breaks the symmetry
under translation. Choosing that grid from the map itself, here by energy and for each datum on its own, restores it
exactly (adaptive polyphase sampling, Chaman and Dokmanić 2021). The choice is made from the *input* of a layer, so
that all its paths agree on it, and so that a convolution is computed at the kept positions only.
"""

from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor


def strongest_phase(features: Float[Tensor, "n c *grid"], stride: int) -> Int[Tensor, "n d"]:
    """The offset, along each axis of the grid, of the polyphase component with the most energy."""
    grid = features.shape[2:]
    energy = features.detach().square().sum(1)
    for axis, size in enumerate(grid):
        energy = energy.unflatten(1 + 2 * axis, (size // stride, stride))
    energy = energy.sum(tuple(range(1, 1 + 2 * len(grid), 2))).flatten(1)  # [n, stride ** d]
    offsets = torch.tensor(list(product(range(stride), repeat=len(grid))), device=features.device)
    return offsets[energy.argmax(1)]


def align(features: Float[Tensor, "n c *grid"], stride: int) -> Float[Tensor, "n c *grid"]:
    """Every datum shifted cyclically so that its strongest phase is at the origin.

    Raises:
        ValueError: If an axis of the grid is not a multiple of the stride: its phases would differ in size.
    """
    grid = features.shape[2:]
    if any(size % stride for size in grid):
        raise ValueError(
            f"Equivariant subsampling by {stride} needs map sizes that are multiples of {stride}, got {tuple(grid)}. "
            "Resize the input, or use phase='fixed', which is not exactly equivariant."
        )
    phase = strongest_phase(features, stride)
    for axis, size in enumerate(grid):
        index = (torch.arange(size, device=features.device) + phase[:, axis, None]) % size  # [n, size]
        shape = [len(features)] + [1] * (features.ndim - 1)
        shape[2 + axis] = size
        features = torch.take_along_dim(features, index.view(shape), dim=2 + axis)
    return features
