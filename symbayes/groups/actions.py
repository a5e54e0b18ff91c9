"""Groups of permutations by name: of sets, cycles, polygons and boards; on pairs and on copies of their points."""

import numpy as np

from symbayes.groups.permutation import Permutations, Points


def symmetric(size: int) -> Permutations:
    """All permutations of some things: the symmetry of a set. There are size! of them, from two generators."""
    _check(size, "A set")
    points = np.arange(size)
    swap = points.copy()
    swap[:2] = swap[:2][::-1]
    return Permutations({"s": swap.tolist(), "c": np.roll(points, -1).tolist()}, name="permutation")


def cyclic(size: int) -> Permutations:
    """Cyclic shifts of a sequence."""
    _check(size, "A cycle")
    return Permutations({"r": np.roll(np.arange(size), -1).tolist()}, name="cyclic shift")


def dihedral(size: int) -> Permutations:
    """Rotations and reflections of the corners of a polygon; from three corners on there are 2 · size of them."""
    _check(size, "A polygon")
    points = np.arange(size)
    generators = {"r": np.roll(points, -1).tolist(), "f": (-points % size).tolist()}
    return Permutations(generators, relations=("r" * size, "ff", "rfrf"), name="dihedral")


def board(side: int) -> Permutations:
    """The 8 rotations and reflections of a square board of side × side cells."""
    _check(side, "A board")
    cells = np.arange(side * side).reshape(side, side)
    generators = {"r": np.rot90(cells).ravel().tolist(), "f": np.fliplr(cells).ravel().tolist()}
    return Permutations(generators, relations=("rrrr", "ff", "rfrf"), name="board symmetry")


def pairs(group: Permutations) -> Permutations:
    """The group as it permutes ordered pairs (i, j) ↦ (g i, g j) of its inputs, such as the entries of an adjacency matrix."""
    size = group.num_inputs
    return _acting(group, (group.inputs[:, :, None] * size + group.inputs[:, None, :]).reshape(-1, size * size))


def copies(group: Permutations, count: int) -> Permutations:
    """The group as it permutes several copies of its inputs, each in the same way."""
    _check(count, "A sequence of copies")
    shifts = group.num_inputs * np.arange(count)
    return _acting(group, (group.inputs[:, None, :] + shifts[:, None]).reshape(len(group.inputs), -1))


def _acting(group: Permutations, permutations: Points) -> Permutations:
    if not np.array_equal(group.inputs, group.outputs):
        raise ValueError(
            "The group must act on outputs as it does on inputs, or the action on outputs would be lost; use `onto` afterwards."
        )
    named = {key: permutation.tolist() for key, permutation in zip(group.names, permutations, strict=True)}
    return Permutations(named, relations=group.relations, name=group.name)


def _check(size: int, what: str) -> None:
    if size < 1:
        raise ValueError(f"{what} must have at least one element, got {size}.")
