"""Orbits of index pairs (output, input) under a group, from its generators alone.

Let O be an orbit of outputs and o one of them. The orbits of pairs over O are those of the stabiliser of o on the inputs, the
*classes* of o: with t o = o', the pairs (o', t i) for i in a class are one orbit. So classes are found for one output and
carried to the others along a tree of group elements. A class that fills most of an orbit of inputs is not even listed, as it is
what the others leave. The classes are found by merging inputs under random elements of the stabiliser, which is quick and may
stop too early, and then checked against every generator, which is exact: what fails the check is merged as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.int64]

#: Random elements that make the tree shallow, and those in a row that must change nothing before the exact check.
_SHORTCUTS, _PATIENCE = 8, 10


@dataclass(frozen=True)
class OutputOrbit:
    """An orbit of outputs, and the classes of inputs as each of its outputs sees them."""

    #: The outputs, in order: [s].
    outputs: Points
    #: What each of them sees, class by class: [s, e]. Classes are in the order of their orbits of inputs.
    seen: Points
    #: How many inputs each of these classes has, and in which orbit of inputs they are.
    sizes: tuple[int, ...]
    orbit_of: tuple[int, ...]
    #: Orbits of inputs with one more class: all that `seen` does not list of them. They come last.
    rest: tuple[int, ...]


def pair_orbits(inputs: Points, outputs: Points) -> tuple[Points, list[OutputOrbit]]:
    """The orbit of each input, numbered from 0, and the orbits of outputs with their classes.

    Args:
        inputs: How each generator permutes the inputs: [k, n].
        outputs: How each permutes the outputs: [k, m].
    """
    size = inputs.shape[1]
    # One permutation of all points: inputs first, then outputs.
    generators = np.concatenate([inputs, outputs + size], axis=1)
    points = np.arange(generators.shape[1])
    labels = merged(points, generators)
    orbit_of_input = np.unique(labels[:size], return_inverse=True)[1]
    shuffle = _random_elements(generators)
    shortcuts = np.stack([next(shuffle) for _ in range(_SHORTCUTS)])
    steps = np.concatenate([generators, shortcuts])
    inverses = np.argsort(steps, axis=1)
    starts = np.flatnonzero((labels == points) & (points >= size))
    trees = (_Tree(int(start), steps, inverses) for start in starts)
    return orbit_of_input, [_output_orbit(tree, generators, shuffle, orbit_of_input) for tree in trees]


def count_pair_orbits(inputs: Points, outputs: Points) -> int:
    """The number of orbits of pairs, from the same generators."""
    return sum(len(orbit.sizes) + len(orbit.rest) for orbit in pair_orbits(inputs, outputs)[1])


def merged(labels: Points, permutations: Points) -> Points:
    """The finest labels, at least as coarse as those given, that are the same along each permutation: [n] from [k, n].

    Every label is the smallest point that has it.
    """
    parent = labels
    while True:
        here, there = np.broadcast_to(parent, permutations.shape), parent[permutations]
        low, high = np.minimum(here, there), np.maximum(here, there)
        apart = low != high
        if not apart.any():
            return parent
        parent = parent.copy()
        np.minimum.at(parent, high[apart], low[apart])
        while (parent[parent] != parent).any():
            parent = parent[parent]


class _Tree:
    """An orbit as a tree: every point but the first is a step from one before it."""

    def __init__(self, start: int, steps: Points, inverses: Points) -> None:
        self.steps, self.inverses = steps, inverses
        self.place = np.full(steps.shape[1], -1)
        self.place[start] = 0
        members, parents, vias, self.layers = [np.array([start])], [np.zeros(1, int)], [np.zeros(1, int)], [1]
        while len(frontier := members[-1]):
            found = [np.zeros(0, int)]
            parent, via = [np.zeros(0, int)], [np.zeros(0, int)]
            for index, step in enumerate(steps):
                new = self.place[step[frontier]] < 0
                reached = step[frontier[new]]
                self.place[reached] = self.layers[-1] + sum(map(len, found)) + np.arange(len(reached))
                found.append(reached)
                parent.append(self.place[frontier[new]])
                via.append(np.full(len(reached), index))
            members.append(np.concatenate(found))
            parents.append(np.concatenate(parent))
            vias.append(np.concatenate(via))
            self.layers.append(self.layers[-1] + len(members[-1]))
        self.members, self.parents, self.vias = (np.concatenate(parts) for parts in (members, parents, vias))

    def carried(self, points: Points) -> Points:
        """Points as each member sees what the first sees: [s, e]."""
        table = np.empty((len(self.members), len(points)), dtype=np.int64)
        table[0] = points
        for first, last in zip(self.layers, self.layers[1:], strict=False):
            rows = slice(first, last)
            table[rows] = self.steps[self.vias[rows, None], table[self.parents[rows]]]
        return table

    def returned(self, element: Points) -> Points:
        """An element followed by the way back from where it takes the first member: one of the stabiliser."""
        member = self.place[element[self.members[0]]]
        while member:
            element = self.inverses[self.vias[member]][element]
            member = self.parents[member]
        return element

    def way_to(self, member: int) -> Points:
        """The element that leads to a member from the first."""
        element = np.arange(self.steps.shape[1])
        while member:
            element = element[self.steps[self.vias[member]]]
            member = self.parents[member]
        return element


def _output_orbit(tree: _Tree, generators: Points, shuffle: Iterator[Points], orbit_of_input: Points) -> OutputOrbit:
    size = len(orbit_of_input)
    labels, unchanged = np.arange(size), 0
    while unchanged < _PATIENCE:
        coarser = merged(labels, tree.returned(next(shuffle))[None, :size])
        unchanged = 0 if (coarser != labels).any() else unchanged + 1
        labels = coarser
    while True:
        listed, sizes, orbit_of, rest = _classes(labels, orbit_of_input)
        seen = tree.carried(listed)
        wrong = _first_wrong(tree, generators, seen, np.repeat(np.arange(len(sizes)), sizes) * size)
        if wrong is None:
            break
        labels = merged(labels, tree.returned(wrong)[None, :size])
    order = np.argsort(tree.members)
    return OutputOrbit(tree.members[order] - size, seen[order], sizes, orbit_of, rest)


def _classes(labels: Points, orbit_of_input: Points) -> tuple[Points, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The inputs of classes to be listed, their sizes and orbits, and the orbits whose largest class is left out."""
    smallest, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    orbit_of = orbit_of_input[smallest]
    # More than half of an orbit, and not all of a single input.
    large = (2 * sizes > np.bincount(orbit_of_input)[orbit_of]) & (sizes > 1)
    order = np.lexsort((smallest, sizes, orbit_of))
    kept = order[~large[order]]
    rank = np.full(len(smallest), -1)
    rank[kept] = np.arange(len(kept))
    listed = np.flatnonzero(~large[inverse])
    listed = listed[np.argsort(rank[inverse[listed]], kind="stable")]
    return listed, tuple(sizes[kept].tolist()), tuple(orbit_of[kept].tolist()), tuple(np.sort(orbit_of[large]).tolist())


def _first_wrong(tree: _Tree, generators: Points, seen: Points, offsets: Points) -> Points | None:
    """An element that takes the first member somewhere, but not its classes to those there; None if there is none."""
    keys = np.sort(offsets + seen, axis=1)
    for generator in generators:
        there = tree.place[generator[tree.members]]
        wrong = (np.sort(offsets + generator[seen], axis=1) != keys[there]).any(axis=1)
        if wrong.any():
            return generator[tree.way_to(int(np.argmax(wrong)))]
    return None


def _random_elements(generators: Points) -> Iterator[Points]:
    """Elements of the group, nearly at random, by product replacement (Celler et al. 1995); the same at every call."""
    random = np.random.default_rng(0)
    slots = [generators[index % len(generators)] for index in range(max(10, len(generators)))]
    element = np.arange(generators.shape[1])
    count = 0
    while True:
        left, right = random.choice(len(slots), 2, replace=False)
        factor = slots[right] if random.integers(2) else np.argsort(slots[right])
        slots[left] = slots[left][factor] if random.integers(2) else factor[slots[left]]
        element = element[slots[left]]
        count += 1
        if count > 5 * len(slots):
            yield element
