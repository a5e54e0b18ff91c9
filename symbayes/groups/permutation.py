"""A finite group given by how its generators permute the points of inputs and of outputs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symbayes.groups.group import Group

Points = NDArray[np.int64]

#: `elements` lists no more than this many.
MOST_ELEMENTS = 100_000


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
                f"Every generator must act on inputs and on outputs; got {_listed(inputs)} for inputs and {_listed(outputs)} "
                "for outputs."
            )
        self.name = name
        self.names = tuple(inputs)
        self.inputs = _checked(inputs, "inputs")
        self.outputs = self.inputs if outputs is None else _checked({key: outputs[key] for key in inputs}, "outputs")
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
        return Permutations(self._named(self.inputs), dict.fromkeys(self.names, (0,)), relations=self.relations, name=self.name)

    def onto(self, other: "Permutations") -> "Permutations":
        """A map from the inputs here to those of another action of the same generators, such as from points to pairs.

        Raises:
            ValueError: If a relation stated of one of the two does not hold for the other.
        """
        relations = tuple(dict.fromkeys((*self.relations, *other.relations)))
        return Permutations(self._named(self.inputs), other._named(other.inputs), relations=relations, name=self.name)

    def extends(self, other: Group | None) -> bool:
        if not isinstance(other, Permutations):
            return other is None
        from symbayes.groups.orbits import ties_more  # which needs the class defined here

        return ties_more(self, other)

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
        return _permuted(element[: self.num_inputs], features, "inputs")

    def act_on_outputs(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        """The transformed features, where they are outputs."""
        return _permuted(element[self.num_inputs :], features, "outputs")

    def _named(self, permutations: Points) -> dict[str, Sequence[int]]:
        return {name: row.tolist() for name, row in zip(self.names, permutations, strict=True)}

    def _check_relation(self, relation: str) -> None:
        sides = [side.strip() for side in relation.split("=")]
        words = [[side] if side in self.names else side.split() if " " in side else list(side) for side in sides]
        words = words if len(words) > 1 else [*words, []]
        if len(words) > 2 or any(letter not in self.names for word in words for letter in word):
            raise ValueError(
                f"A relation must be a word in the generators {_listed(self.names)}, or two with '=' between; got {relation!r}."
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


def from_table(
    table: Sequence[Sequence[int]],
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]] | None = None,
    *,
    name: str = "group",
) -> Permutations:
    """The group of a whole multiplication table, with a permutation for each of its elements 0, 1, 2, …

    Args:
        table: table[g][h] is g h, the element that acts as h, then as g.
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
        P = _checked({str(element): permutation for element, permutation in enumerate(action)}, what)
        for g, row in enumerate(T):
            for h, point in np.argwhere(P[g][P] != P[row])[:1]:
                raise ValueError(
                    f"Element {g} times element {h} is element {row[h]}, but it does not act so: one after the other they move "
                    f"{what[:-1]} {point} to {P[g][P[h]][point]}, and element {row[h]} moves it to {P[row[h]][point]}."
                )
    chosen = [str(element) for element in _generating(T)]
    named = {what: {key: action[int(key)] for key in chosen} for what, action in actions.items()}
    return Permutations(named["inputs"], named.get("outputs"), name=name)


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


def _checked(permutations: Mapping[str, Sequence[int]], what: str) -> Points:
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


def _permuted(permutation: tuple[int, ...], features: Tensor, what: str) -> Tensor:
    """(g x)[p[i]] = x[i]."""
    points = features.flatten(2)
    if points.shape[2] != len(permutation):
        raise ValueError(f"The group permutes {len(permutation)} {what}, got features {tuple(features.shape)}.")
    source = torch.tensor(permutation, device=features.device).argsort()
    return points.index_select(2, source).view_as(features)


def _listed(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(map(repr, names))
