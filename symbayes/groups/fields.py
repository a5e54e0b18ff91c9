"""Local deformations: smooth fields by which the content of images is displaced, a little and everywhere differently."""

from dataclasses import dataclass
from itertools import product
from math import pi, sqrt
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.groups.lie import Generator, Images, constant, padding_named, pixels


@dataclass(frozen=True)
class Wave(Generator):
    """A field along one axis: a product of two cosines, of so many half waves from edge to edge.

    Args:
        axis: 0 for displacements along x, 1 along y.
        halves: Half waves along x and along y.
        size: At its crest.
    """

    axis: int = 0
    halves: tuple[int, int] = (0, 0)
    size: float = 1.0


@dataclass(frozen=True)
class Deformations(Images):
    """Fields Σ_i c_i φ_i(u), by which every pixel u of images [n, c, h, w] is read beside itself; bilinear between pixels.

    No group: two deformations after each other are nearly, but not quite, another one. Averages and extents need none.
    """

    def places(self, coefficients: Float[Tensor, "*batch k"], shape: tuple[int, int]) -> Float[Tensor, "*batch h w 2"]:
        """Where every pixel of T x is read in x: x and y, from −1 at one edge to 1 at the other."""
        h, w = shape
        grid = pixels((w, h), coefficients)
        fields = torch.stack([_field(wave, grid) for wave in self.waves])
        halves = constant([max(h, w) / w, max(h, w) / h], coefficients)  # of the larger side, in those of each
        return grid + torch.einsum("...k,khwa->...hwa", coefficients, fields) * halves

    @property
    def waves(self) -> tuple[Wave, ...]:
        """The generators, which are all waves."""
        return cast(tuple[Wave, ...], self.generators)

    def elements(self, coefficients: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch d d"]:
        raise TypeError("A deformation is no matrix: ask where pixels are read (places), or for what it does (transform).")


def deformations(bands: int = 2, *, padding: str = "border") -> Deformations:
    """Local deformations of images, by bands: of one half wave from edge to edge, of two, and so on.

    Each band has an extent of its own, so that both how far content is displaced and over which length are learned. A band of
    extent η displaces by as much as shifts of up to η do, by root mean squares, in pixels.

    Args:
        bands: How many, from the longest waves on.
        padding: As in `affine2d`.

    Raises:
        ValueError: If there is no band, or no such padding.
    """
    if bands < 1:
        raise ValueError(f"Deformations need at least one band, got {bands}.")
    return Deformations(tuple(wave for band in range(1, bands + 1) for wave in _band(band)), padding_named(padding))


def _band(band: int) -> list[Wave]:
    """All products of cosines of which the shorter wave is the band's, along x and along y."""
    halves = [(i, j) for i, j in product(range(band + 1), repeat=2) if max(i, j) == band]
    power = sum(0.5 ** ((i > 0) + (j > 0)) for i, j in halves)  # of all of them, at size one
    name = f"deformation_{band}"
    return [
        Wave(f"{name}_{'xy'[axis]}{i}{j}", (), "px", bound=0.5, shares=name, axis=axis, halves=(i, j), size=1 / sqrt(power))
        for axis in range(2)
        for i, j in halves
    ]


def _field(wave: Wave, grid: Float[Tensor, "h w 2"]) -> Float[Tensor, "h w 2"]:
    along_x, along_y = (torch.cos(pi * halves * (grid[..., axis] + 1) / 2) for axis, halves in enumerate(wave.halves))
    height = wave.size * along_x * along_y
    return torch.stack([height if axis == wave.axis else torch.zeros_like(height) for axis in range(2)], -1)
