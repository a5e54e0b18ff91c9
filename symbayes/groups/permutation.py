"""Finite groups of permutations: from generators, by name, from a multiplication table, and of a graph.

A group is given by how its generators permute the points of inputs and of outputs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import index

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from symbayes.groups.group import Group
from symbayes.groups.orbits import Points, count_pair_orbits, merged

#: `elements` lists no more than this many.
MOST_ELEMENTS = 100_000
#: Nodes; the search is simple, and can be slow for large graphs that look alike everywhere.
MOST_NODES = 100


class Permutations(Group):
    """The group that some permutations generate, each with its action on the inputs and on the outputs of a map.

    A permutation p moves point i to point p[i], so (g x)[p[i]] = x[i]; the points are the cells of a grid, flattened. An
    element is a tuple: its permutation of the inputs, then that of the outputs. Nothing but `elements` lists the group.

    Args:
        inputs: How each generator, by name, permutes the inputs.
        outputs: How each permutes the outputs; as the inputs when None.
        relations: Words in the generators that must act as the identity ("rrrr"), or two that must act alike ("rf=fr"); what
            stands last acts first. Names of more than one letter are set apart by blanks.
        name: One or two words for tables and reports.

    Raises:
        ValueError: If something is no permutation, sizes differ, or a relation fails.
    """

    def __init__(
        self,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, Sequence[int]] | None = None,
        *,
        relations: Sequence[str] = (),
        name: str = "group",
    ) -> None:
        if not inputs:
            raise ValueError("A group needs at least one generator, got none. The group of one element has the identity.")
        if outputs is not None and set(outputs) != set(inputs):
            raise ValueError(
                f"Every generator must act on inputs and on outputs; got {_list(inputs)} for inputs and {_list(outputs)} "
                "for outputs."
            )
        self.name = name
        self.names = tuple(inputs)
        self.inputs = _check_permutations(inputs, "inputs")
        self.outputs = self.inputs if outputs is None else _check_permutations({key: outputs[key] for key in inputs}, "outputs")
        self.relations = tuple(relations)
        for relation in self.relations:
            self._check_relation(relation)

    @property
    def num_inputs(self) -> int:
        """Points of an input."""
        return self.inputs.shape[1]

    @property
    def num_outputs(self) -> int:
        """Points of an output."""
        return self.outputs.shape[1]

    def pooled(self) -> "Permutations":
        """The same group for a map to a single point, which nothing moves: an invariant map."""
        return Permutations(self._name(self.inputs), dict.fromkeys(self.names, (0,)), relations=self.relations, name=self.name)

    def onto(self, other: "Permutations") -> "Permutations":
        """A map from the inputs here to those of another action of the same generators, such as from points to pairs.

        Raises:
            ValueError: If a relation stated of one of the two does not hold for the other.
        """
        relations = tuple(dict.fromkeys((*self.relations, *other.relations)))
        return Permutations(self._name(self.inputs), other._name(other.inputs), relations=relations, name=self.name)

    def extends(self, other: Group | None) -> bool:
        if not isinstance(other, Permutations):
            return other is None
        return _ties_more(self, other)

    def elements(self, grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Every element, found by multiplying with generators.

        Raises:
            ValueError: If there are more than MOST_ELEMENTS.
        """
        found = {self.identity(grid)}
        frontier = list(found)
        yield from frontier
        generators = [tuple(map(int, np.concatenate(pair))) for pair in zip(self.inputs, self.outputs, strict=True)]
        while frontier:
            reached = {self.product(generator, element, grid) for element in frontier for generator in generators} - found
            if len(found) + len(reached) > MOST_ELEMENTS:
                raise ValueError(
                    f"The group has more than {MOST_ELEMENTS:,} elements, too many to list. Layers and their orbits need only "
                    "its generators; to test a symmetry, test each generator."
                )
            found |= reached
            frontier = sorted(reached)
            yield from frontier

    def identity(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        if prod(grid) != self.num_inputs:
            raise ValueError(f"The group permutes {self.num_inputs} inputs, got a grid {grid} of {prod(grid)} points.")
        return (*range(self.num_inputs), *range(self.num_outputs))

    def product(self, first: tuple[int, ...], second: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
        size = self.num_inputs
        return (*(first[point] for point in second[:size]), *(first[size + point] for point in second[size:]))

    def act(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        return _permute(element[: self.num_inputs], features, "inputs")

    def act_on_outputs(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        """The transformed features, where they are outputs."""
        return _permute(element[self.num_inputs :], features, "outputs")

    def _name(self, permutations: Points) -> dict[str, Sequence[int]]:
        return {name: row.tolist() for name, row in zip(self.names, permutations, strict=True)}

    def _check_relation(self, relation: str) -> None:
        sides = [side.strip() for side in relation.split("=")]
        words = [[side] if side in self.names else side.split() if " " in side else list(side) for side in sides]
        words = words if len(words) > 1 else [*words, []]
        if len(words) > 2 or any(letter not in self.names for word in words for letter in word):
            raise ValueError(
                f"A relation must be a word in the generators {_list(self.names)}, or two with '=' between; got {relation!r}."
            )
        for permutations, what in ((self.inputs, "input"), (self.outputs, "output")):
            left, right = (self._word(word, permutations) for word in words)
            for point in np.flatnonzero(left != right)[:1]:
                wanted = f"as {' '.join(words[1])}" if words[1] else "as the identity"
                instead = f" rather than to {right[point]}" if words[1] else ""
                raise ValueError(
                    f"{' '.join(words[0])} must act {wanted}, but moves {what} {point} to {left[point]}{instead}. Correct the "
                    "permutations of these generators, or the relation."
                )

    def _word(self, word: list[str], permutations: Points) -> Points:
        points = np.arange(permutations.shape[1])
        for letter in reversed(word):
            points = permutations[self.names.index(letter)][points]
        return points


@lru_cache(maxsize=256)
def _ties_more(group: Permutations, other: Permutations) -> bool:
    """Whether maps with the symmetry of one group all have that of another on the same points, and not the other way round.

    They do if the two groups together tie no more pairs than the first alone; no element is listed for it.
    """
    if (group.num_inputs, group.num_outputs) != (other.num_inputs, other.num_outputs):
        return False
    together = count_pair_orbits(np.concatenate([group.inputs, other.inputs]), np.concatenate([group.outputs, other.outputs]))
    alone = count_pair_orbits(group.inputs, group.outputs)
    return together == alone < count_pair_orbits(other.inputs, other.outputs)


def symmetric(size: int) -> Permutations:
    """All permutations of some things: the symmetry of a set. There are size! of them, from two generators."""
    _check_size(size, "A set")
    points = np.arange(size)
    swap = points.copy()
    swap[:2] = swap[:2][::-1]
    return Permutations({"s": swap.tolist(), "c": np.roll(points, -1).tolist()}, name="permutation")


def cyclic(size: int) -> Permutations:
    """Cyclic shifts of a sequence."""
    _check_size(size, "A cycle")
    return Permutations({"r": np.roll(np.arange(size), -1).tolist()}, name="cyclic shift")


def dihedral(size: int) -> Permutations:
    """Rotations and reflections of the corners of a polygon; from three corners on there are 2 · size of them."""
    _check_size(size, "A polygon")
    points = np.arange(size)
    generators = {"r": np.roll(points, -1).tolist(), "f": (-points % size).tolist()}
    return Permutations(generators, relations=("r" * size, "ff", "rfrf"), name="dihedral")


def board(side: int) -> Permutations:
    """The 8 rotations and reflections of a square board of side × side cells."""
    _check_size(side, "A board")
    cells = np.arange(side * side).reshape(side, side)
    generators = {"r": np.rot90(cells).ravel().tolist(), "f": np.fliplr(cells).ravel().tolist()}
    return Permutations(generators, relations=("rrrr", "ff", "rfrf"), name="board symmetry")


def pairs(group: Permutations) -> Permutations:
    """The group as it permutes ordered pairs (i, j) ↦ (g i, g j) of its inputs, such as the entries of an adjacency matrix."""
    size = group.num_inputs
    return _acting(group, (group.inputs[:, :, None] * size + group.inputs[:, None, :]).reshape(-1, size * size))


def copies(group: Permutations, count: int) -> Permutations:
    """The group as it permutes several copies of its inputs, each in the same way."""
    _check_size(count, "A sequence of copies")
    shifts = group.num_inputs * np.arange(count)
    return _acting(group, (group.inputs[:, None, :] + shifts[:, None]).reshape(len(group.inputs), -1))


def _acting(group: Permutations, permutations: Points) -> Permutations:
    if not np.array_equal(group.inputs, group.outputs):
        raise ValueError(
            "The group must act on outputs as it does on inputs, or the action on outputs would be lost; use `onto` afterwards."
        )
    named = {key: permutation.tolist() for key, permutation in zip(group.names, permutations, strict=True)}
    return Permutations(named, relations=group.relations, name=group.name)


def _check_size(size: int, what: str) -> None:
    if size < 1:
        raise ValueError(f"{what} must have at least one element, got {size}.")


def from_table(
    table: Sequence[Sequence[int]],
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]] | None = None,
    *,
    name: str = "group",
) -> Permutations:
    """The group of a whole multiplication table, with a permutation for each of its elements 0, 1, 2, …

    Args:
        table: `table[g][h]` is g h, the element that acts as h, then as g.
        inputs: How each element permutes the inputs.
        outputs: How each permutes the outputs; as the inputs when None.
        name: One or two words for tables and reports.

    Raises:
        ValueError: If the table is not that of a group, or the permutations do not multiply as it says.
    """
    T = _checked_table(table)
    actions = {"inputs": inputs} if outputs is None else {"inputs": inputs, "outputs": outputs}
    for what, action in actions.items():
        if len(action) != len(T):
            raise ValueError(f"There must be a permutation of the {what} for each of {len(T)} elements, got {len(action)}.")
        P = _check_permutations({str(element): permutation for element, permutation in enumerate(action)}, what)
        for g, row in enumerate(T):
            for h, point in np.argwhere(P[g][P] != P[row])[:1]:
                raise ValueError(
                    f"Element {g} times element {h} is element {row[h]}, but it does not act so: one after the other they move "
                    f"{what[:-1]} {point} to {P[g][P[h]][point]}, and element {row[h]} moves it to {P[row[h]][point]}."
                )
    chosen = [str(element) for element in _generating(T)]
    named = {what: {key: action[int(key)] for key in chosen} for what, action in actions.items()}
    return Permutations(named["inputs"], named.get("outputs"), name=name)


def automorphisms(adjacency: ArrayLike) -> Permutations:
    """The permutations p of the nodes of a graph with A[p[i], p[j]] = A[i, j].

    Nodes are fixed one by one until none can move. From the last to the first, it is asked where a fixed node can go while
    those before it stay, unless what was found already says so (the chain of stabilisers of Sims 1970).

    Args:
        adjacency: A, square, with whole numbers. It may be directed, and have weights; numbers on the diagonal mark the nodes.

    Raises:
        ValueError: If A is not square, has other numbers, or has more than MOST_NODES rows.
    """
    A = np.asarray(adjacency)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        raise ValueError(f"An adjacency matrix must be square with at least one node, got shape {A.shape}.")
    if not (np.issubdtype(A.dtype, np.integer) or A.dtype == bool):
        raise ValueError(f"An adjacency matrix must have whole numbers, got {A.dtype}. Number the kinds of edges.")
    if len(A) > MOST_NODES:
        raise ValueError(
            f"Automorphisms are searched in graphs of at most {MOST_NODES} nodes, got {len(A)}. Find generators by other "
            "means, and give them to Permutations."
        )
    A = A.astype(np.int64)
    colours = _refine(A, np.zeros((2, len(A)), dtype=np.int64))[0]
    fixed: list[tuple[int, Points]] = []
    while (node := _first_movable(colours)) is not None:
        fixed.append((node, colours))
        colours = _refine(A, np.stack([_mark(colours, node)] * 2))[0]
    generators: list[Points] = []
    for node, colours in reversed(fixed):
        nowhere: list[int] = []
        for goal in np.flatnonzero(colours == colours[node]).tolist():
            orbit = merged(np.arange(len(A)), np.array(generators).reshape(-1, len(A)).astype(np.int64))
            if orbit[goal] in orbit[[node, *nowhere]]:
                continue
            found = _match(A, np.stack([_mark(colours, node), _mark(colours, goal)]))
            if found is None:
                nowhere.append(goal)
            else:
                generators.append(found)
    named = {f"g{index}": generator.tolist() for index, generator in enumerate(generators or [np.arange(len(A))])}
    return Permutations(named, name="graph symmetry")


def _match(A: Points, colours: Points) -> Points | None:
    """A permutation that takes A to A and the first colours to the second; None if there is none. Colours are [2, n]."""
    left, right = colours = _refine(A, colours)
    from_, to = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    if (left[from_] != right[to]).any():
        return None
    permutation = np.empty(len(A), dtype=np.int64)
    permutation[from_] = to
    if (A[np.ix_(permutation, permutation)] == A).all():
        return permutation
    node = _first_movable(left)
    if node is None:
        return None
    for goal in np.flatnonzero(right == left[node]):
        found = _match(A, np.stack([_mark(left, node), _mark(right, int(goal))]))
        if found is not None:
            return found
    return None


def _refine(A: Points, colours: Points) -> Points:
    """Both colourings, refined alike until nodes of a colour have the same number of edges of each kind to each colour."""
    kinds = np.unique(np.stack([A, A.T], axis=2).reshape(-1, 2), axis=0, return_inverse=True)[1].reshape(A.shape)
    own = np.eye(len(A), dtype=np.int64) * (kinds.max() + 1)  # a loop is no edge to another node
    while True:
        count = colours.max() + 1
        around = np.sort((kinds + own) * count + colours[:, None, :], axis=2)
        rows = np.concatenate([colours[:, :, None], around], axis=2).reshape(-1, len(A) + 1)
        finer = np.unique(rows, axis=0, return_inverse=True)[1].reshape(colours.shape)
        if len(np.unique(finer)) == len(np.unique(colours)):
            return finer
        colours = finer


def _mark(colours: Points, node: int) -> Points:
    """The colours with one node in a colour of its own."""
    marked = colours.copy()
    marked[node] = len(colours) * 2
    return marked


def _first_movable(colours: Points) -> int | None:
    """The first node that shares its colour."""
    shared = np.bincount(colours)[colours] > 1
    return int(np.argmax(shared)) if shared.any() else None


def _checked_table(table: Sequence[Sequence[int]]) -> Points:
    """The table as an array, once it is that of a group."""
    size = len(table)
    if not size or any(len(row) != size for row in table):
        raise ValueError(f"A multiplication table must have a row and a column for each element, got {size} rows.")
    T = np.array(table)
    if not np.issubdtype(T.dtype, np.integer) or T.min() < 0 or T.max() >= size:
        raise ValueError(
            f"A group is closed: every product must be one of the elements 0 … {size - 1}, got a table with others."
        )
    elements = np.arange(size)
    identities = np.flatnonzero((elements == T).all(1) & (elements == T.T).all(1))
    if not len(identities):
        raise ValueError("A group has an identity: some element e must have e g = g e = g for every g; the table has none.")
    for g in np.flatnonzero((identities[0] != T).all(1))[:1]:
        raise ValueError(f"Every element of a group has an inverse; element {g} has none in this table.")
    for g in range(size):
        for h, k in np.argwhere(T[T[g]] != T[g][T])[:1]:
            raise ValueError(f"The product of a group is associative, but ({g} {h}) {k} is not {g} ({h} {k}) in this table.")
    return T.astype(np.int64)


def _generating(T: Points) -> list[int]:
    """Elements that generate all others; the identity alone where there are none."""
    chosen: list[int] = []
    reached = {int(np.flatnonzero((np.arange(len(T)) == T).all(1))[0])}
    for element in range(len(T)):
        if element not in reached:
            chosen.append(element)
            frontier = reached | {element}
            while frontier:
                reached |= frontier
                frontier = {int(T[g, h]) for g in chosen for h in frontier} - reached
    return chosen or list(reached)


def _check_permutations(permutations: Mapping[str, Sequence[int]], what: str) -> Points:
    """The permutations as rows of one array."""
    sizes = {len(permutation) for permutation in permutations.values()}
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError(f"All generators must permute the same {what}, at least one; got sizes {sorted(sizes)}.")
    size = sizes.pop()
    for name, permutation in permutations.items():
        counts = Counter(map(index, permutation))
        for missing in (point for point in range(size) if not counts[point]):
            surplus = next(point for point, count in counts.items() if count > 1 or point not in range(size))
            why = "is there twice" if surplus in range(size) else "is none of them"
            raise ValueError(
                f"Generator {name!r} must be a permutation of the {what} 0 … {size - 1}, but {missing} is missing and "
                f"{surplus} {why}."
            )
    return np.array([[index(point) for point in permutation] for permutation in permutations.values()], dtype=np.int64)


def _permute(permutation: tuple[int, ...], features: Tensor, what: str) -> Tensor:
    """(g x)[p[i]] = x[i]."""
    points = features.flatten(2)
    if points.shape[2] != len(permutation):
        raise ValueError(f"The group permutes {len(permutation)} {what}, got features {tuple(features.shape)}.")
    source = torch.tensor(permutation, device=features.device).argsort()
    return points.index_select(2, source).view_as(features)


def _list(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(map(repr, names))
