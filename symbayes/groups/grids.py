"""Symmetries of a grid: cyclic translations, and these with turns and flips.

A turn or flip of a grid in d dimensions is a signed permutation of its axes: a d × d matrix with a single ±1 in every row
and column. A point group is a set of them that is closed under products, given by generators; with the cyclic translations
it makes a space group, such as p4 (quarter turns) and p4m (quarter turns and mirrors) in the plane.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import atan2, pi, prod

import torch
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


Matrix = tuple[tuple[int, ...], ...]


class SpaceGroup(Group):
    """Cyclic translations, and the turns and flips that some generators make.

    An element (k, *shift) turns by the k-th matrix about the centre of the grid, then shifts. Two space groups are equal
    when their point groups are.

    Args:
        generators: Of the point group: signed permutation matrices, all of the same size.
        name: A word for tables; "p4", for example.

    Raises:
        ValueError: If a generator is no signed permutation matrix.
    """

    def __init__(self, generators: Sequence[Sequence[Sequence[int]]], name: str) -> None:
        self.name = name
        steps = [tuple(tuple(int(entry) for entry in row) for row in generator) for generator in generators]
        if not steps:
            raise ValueError("A space group needs a generator; for translations alone there is Translation.")
        self.dims = len(steps[0])
        if self.dims > 3:
            raise ValueError(f"Grids have 1, 2 or 3 dimensions, got a generator of {self.dims}.")
        for matrix in steps:
            _check(matrix, self.dims)
        found = [identity_matrix(self.dims)]
        for matrix in found:  # grows while it is read
            found.extend(new for step in steps if (new := multiply(step, matrix)) not in found)
        self.matrices: tuple[Matrix, ...] = tuple(sorted(found, key=_place))

    @property
    def order(self) -> int:
        """The number of turns and flips, the identity among them."""
        return len(self.matrices)

    @cached_property
    def table(self) -> list[list[int]]:
        """`table[j][k]` is the number of the product of the j-th and the k-th matrix."""
        number = {matrix: index for index, matrix in enumerate(self.matrices)}
        return [[number[multiply(a, b)] for b in self.matrices] for a in self.matrices]

    @cached_property
    def inverse(self) -> list[int]:
        """The number of the inverse of every matrix."""
        return [row.index(0) for row in self.table]

    def elements(self, grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        self.check_grid(grid)
        return product(range(self.order), *(range(size) for size in grid))

    def identity(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return (0,) * (1 + len(grid))

    def product(self, first: tuple[int, ...], second: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
        turned = [sum(m * t for m, t in zip(row, second[1:], strict=True)) for row in self.matrices[first[0]]]
        shift = ((a + b) % size for a, b, size in zip(first[1:], turned, grid, strict=True))
        return (self.table[first[0]][second[0]], *shift)

    def act(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        return self.turn(element[0], features).roll(element[1:], dims=tuple(range(2, features.ndim)))

    def act_regular(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        """On maps [n, c · order, *grid] with a channel for every matrix: (g x)(k, t) = x(g⁻¹ k, g⁻¹ t)."""
        source = torch.tensor(self.table[self.inverse[element[0]]], device=features.device)
        fibres = features.unflatten(1, (-1, self.order)).index_select(2, source)
        return self.act(element, fibres.flatten(1, 2))

    def turn(self, number: int, features: Tensor) -> Tensor:
        """Maps [n, c, *grid] turned by one of the matrices about their centre."""
        self.check_grid(tuple(features.shape[2:]))
        return turn_by(self.matrices[number], features)

    def turned_cells(self, kernel_size: tuple[int, ...]) -> list[list[int]]:
        """Where every cell of a filter goes under every matrix, counted in row-major order."""
        cells = torch.arange(prod(kernel_size), device="cpu").view(1, 1, *kernel_size)
        # Turning the numbers themselves tells which cell came to a place; the inverse matrix, where it goes.
        return [self.turn(self.inverse[k], cells).flatten().tolist() for k in range(self.order)]

    def extends(self, other: Group | None) -> bool:
        if isinstance(other, SpaceGroup):
            return set(other.matrices) < set(self.matrices)
        return other is None or isinstance(other, Translation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpaceGroup) and set(self.matrices) == set(other.matrices)

    def __hash__(self) -> int:
        return hash(frozenset(self.matrices))

    def check_grid(self, grid: tuple[int, ...]) -> None:
        """Refuse a grid that the matrices do not map to itself.

        Raises:
            ValueError: If it has another number of axes, or axes that are turned into each other differ in length.
        """
        if len(grid) != self.dims:
            raise ValueError(
                f"{self.name} acts on grids of {self.dims} dimensions, got a grid {grid}. p4 and p4m are for images, cube is "
                "for volumes, flips(dims) for any."
            )
        for matrix in self.matrices:
            for size, row in zip(grid, matrix, strict=True):
                other = next(length for length, entry in zip(grid, row, strict=True) if entry)
                if size != other:
                    raise ValueError(f"{self.name} turns axes into each other, so they must be equally long; got {grid}.")


def p4() -> SpaceGroup:
    """Translations and quarter turns of the plane."""
    return SpaceGroup([((0, -1), (1, 0))], "p4")


def p4m() -> SpaceGroup:
    """Translations, quarter turns and mirrors of the plane."""
    return SpaceGroup([((0, -1), (1, 0)), ((1, 0), (0, -1))], "p4m")


def flips(dims: int = 2, axes: Sequence[int] = (-1,)) -> SpaceGroup:
    """Translations, and mirrors along some axes: the last (left and right) unless others are named."""
    chosen = [range(dims)[axis] for axis in axes]
    mirrors = [[[(-1 if i == axis else 1) * int(i == j) for j in range(dims)] for i in range(dims)] for axis in chosen]
    return SpaceGroup(mirrors, "flips" if chosen == [dims - 1] else f"flips of axes {', '.join(map(str, chosen))}")


def cube() -> SpaceGroup:
    """Translations of three-dimensional space, and the 24 turns of a cube."""
    return SpaceGroup([((0, -1, 0), (1, 0, 0), (0, 0, 1)), ((1, 0, 0), (0, 0, -1), (0, 1, 0))], "cube turns")


def _check(matrix: Matrix, dims: int) -> None:
    rows = [sorted(map(abs, row)) for row in (*matrix, *zip(*matrix, strict=True))] if _is_square(matrix, dims) else []
    if not rows or any(row != [0] * (dims - 1) + [1] for row in rows):
        raise ValueError(
            f"A generator must be a {dims} × {dims} matrix with a single 1 or -1 in every row and column, got {matrix}."
        )


def _place(matrix: Matrix) -> tuple[bool, bool, float, Matrix]:
    """An order that does not depend on generators, since the number of a turn is the place of its channel.

    The identity comes first; turns of the plane go by their angle, before mirrors.
    """
    moves = any(matrix[i][i] != 1 for i in range(len(matrix)))
    if len(matrix) != 2:
        return moves, False, 0.0, matrix
    (a, b), (c, d) = matrix
    return moves, a * d - b * c < 0, atan2(c, a) % (2 * pi), matrix


def _is_square(matrix: Matrix, dims: int) -> bool:
    return len(matrix) == dims and all(len(row) == dims for row in matrix)


def turn_by(matrix: Matrix, features: Tensor) -> Tensor:
    """Maps [n, c, *grid] turned by a signed permutation of the axes of the grid, about its centre."""
    axes = [next(j for j, entry in enumerate(row) if entry) for row in matrix]
    turned = features.permute(0, 1, *(2 + axis for axis in axes))
    return turned.flip([2 + i for i, row in enumerate(matrix) if sum(row) < 0])


def identity_matrix(dims: int) -> Matrix:
    """That leaves a grid as it is."""
    return tuple(tuple(int(i == j) for j in range(dims)) for i in range(dims))


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """The matrix of b, followed by a."""
    return tuple(tuple(sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)) for row in a)
