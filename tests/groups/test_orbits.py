"""Orbits of pairs against an oracle that lists the whole group, and against counts that are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symbayes.groups.orbits import merged, pair_orbits
from symbayes.groups.permutation import Permutations, automorphisms, board, copies, cyclic, dihedral, pairs, symmetric


def orbits_of(group):
    return pair_orbits(group.inputs, group.outputs)


def labelled_pairs(group):
    """A label for each pair (output, input), from the classes that were found."""
    orbit_of_input, orbits = orbits_of(group)
    labels = np.full((group.num_outputs, group.num_inputs), -1)
    used = 0
    for orbit in orbits:
        for index, rest in enumerate(orbit.rest):
            labels[np.ix_(orbit.outputs, np.flatnonzero(orbit_of_input == rest))] = used + len(orbit.sizes) + index
        for output, seen in zip(orbit.outputs, orbit.seen, strict=True):
            assert len(set(seen)) == len(seen)
            labels[output, seen] = used + np.repeat(np.arange(len(orbit.sizes)), orbit.sizes)
        used += len(orbit.sizes) + len(orbit.rest)
    assert (labels >= 0).all()
    return labels, used


def listed_orbits(group):
    """The smallest pair that any element of the group takes a pair to."""
    size = group.num_inputs
    smallest = np.arange(group.num_outputs * size).reshape(-1, size)
    lowest = smallest.copy()
    for element in group.elements((size,)):
        outputs, inputs = np.array(element[size:]), np.array(element[:size])
        lowest = np.minimum(lowest, smallest[np.ix_(outputs, inputs)])
    return lowest


def same_partition(first, second):
    both = set(zip(first.ravel().tolist(), second.ravel().tolist(), strict=True))
    return len(both) == len(set(first.ravel().tolist())) == len(set(second.ravel().tolist()))


#: Two swaps on the first four inputs, a cycle on the rest; outputs turn with the cycle only.
INTRANSITIVE = Permutations(
    {"a": (1, 0, 2, 3, 4, 5, 6, 7), "b": (0, 1, 3, 2, 4, 5, 6, 7), "c": (0, 1, 2, 3, 5, 6, 4, 7)},
    {"a": (0, 1, 2, 3, 4), "b": (0, 1, 2, 3, 4), "c": (1, 2, 0, 3, 4)},
)


@pytest.mark.parametrize(
    "group",
    [
        symmetric(1),
        symmetric(2),
        symmetric(6),
        symmetric(5).pooled(),
        cyclic(9),
        cyclic(6).onto(copies(cyclic(6), 2)),
        dihedral(7),
        dihedral(8),
        board(3),
        board(4),
        pairs(symmetric(4)),
        symmetric(5).onto(pairs(symmetric(5))),
        pairs(symmetric(4)).onto(symmetric(4)),
        copies(symmetric(4), 3),
        automorphisms([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]]),
        INTRANSITIVE,
        Permutations({"e": (0, 1, 2)}, {"e": (0, 1)}),
    ],
)
def test_classes_are_the_orbits_of_pairs(group):
    assert same_partition(labelled_pairs(group)[0], listed_orbits(group))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.data())
def test_classes_are_the_orbits_of_pairs_for_any_generators(inputs, outputs, count, data):
    permutations = [
        {str(k): data.draw(st.permutations(range(size))) for k in range(count)} for size in (inputs, outputs)
    ]  # fmt: skip
    group = Permutations(*permutations)
    assert same_partition(labelled_pairs(group)[0], listed_orbits(group))


def test_a_search_that_stops_too_early_is_caught_by_the_check(monkeypatch):
    monkeypatch.setattr("symbayes.groups.orbits._PATIENCE", 0)
    for group in (symmetric(7), dihedral(8), board(4), pairs(symmetric(4)), INTRANSITIVE):
        assert same_partition(labelled_pairs(group)[0], listed_orbits(group))


@pytest.mark.parametrize("side", [2, 3, 5])
def test_there_are_as_many_orbits_as_burnside_says(side):
    group = board(side)
    fixed = [sum(a == b for a, b in zip(g[: side**2], range(side**2), strict=True)) ** 2 for g in group.elements((side, side))]
    assert labelled_pairs(group)[1] == sum(fixed) / len(fixed)


def test_orbits_of_pairs_of_pairs_are_counted_by_bell_numbers():
    # Partitions of 2, 3 and 4 indices: points to points, points to pairs, pairs to pairs (Maron et al. 2019).
    points, both = symmetric(7), pairs(symmetric(7))
    assert [len(orbits_of(group)[1]) for group in (points, points.onto(both), both)] == [1, 2, 2]
    assert [labelled_pairs(group)[1] for group in (points, points.onto(both), both)] == [2, 5, 15]


def test_large_groups_need_neither_their_elements_nor_a_table_of_pairs():
    # 5000! elements, 25 million pairs: two classes, one of which is listed.
    _, (orbit,) = orbits_of(symmetric(5000))
    assert orbit.seen.shape == (5000, 1)
    assert (orbit.seen[:, 0] == orbit.outputs).all()
    assert (orbit.sizes, orbit.rest) == ((1,), (0,))
    _, (orbit,) = orbits_of(cyclic(1000))
    assert orbit.sizes == (1,) * 1000
    difference = (orbit.seen - orbit.outputs[:, None]) % 1000
    assert (difference == difference[0]).all()


def test_labels_are_merged_along_permutations():
    found = merged(np.arange(6), np.array([[1, 0, 2, 3, 4, 5], [0, 2, 1, 3, 5, 4]]))
    assert found.tolist() == [0, 0, 0, 3, 4, 4]
    for order in itertools.permutations(range(5)):
        cycle = np.empty(5, dtype=np.int64)
        cycle[list(order)] = np.roll(order, -1)
        assert merged(np.arange(5), cycle[None]).tolist() == [0] * 5
