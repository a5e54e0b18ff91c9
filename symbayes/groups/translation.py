"""Cyclic translations of a grid: the symmetry of a convolution with circular padding."""

from collections.abc import Iterator
from itertools import product

from torch import Tensor

from symbayes.groups.group import Group


class Translation(Group):
    """Shifts by whole cells, with what leaves on one side coming back on the other."""

    name = "translation"

    def elements(self, grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        return product(*(range(size) for size in grid))

    def identity(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return (0,) * len(grid)

    def product(self, first: tuple[int, ...], second: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((a + b) % size for a, b, size in zip(first, second, grid, strict=True))

    def act(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        return features.roll(element, dims=tuple(range(2, 2 + len(element))))
