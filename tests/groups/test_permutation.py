"""Groups by permutations: their orders, what they refuse and why, and the symmetries of known graphs."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.groups.permutation import (
    Permutations,
    automorphisms,
    board,
    copies,
    cyclic,
    dihedral,
    from_table,
    pairs,
    symmetric,
)

QUARTER, MIRROR = (1, 2, 3, 0), (3, 2, 1, 0)


def order(group):
    return sum(1 for _ in group.elements((group.num_inputs,)))


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        (symmetric(1), 1),
        (symmetric(2), 2),
        (symmetric(5), 120),
        (cyclic(7), 7),
        (dihedral(2), 2),
        (dihedral(6), 12),
        (board(1), 1),
        (board(4), 8),
        (pairs(symmetric(4)), 24),
        (copies(dihedral(5), 3), 10),
        (symmetric(4).pooled(), 24),
        (symmetric(4).onto(pairs(symmetric(4))), 24),
        (Permutations({"a": (0, 1, 2)}), 1),
        # A generator that moves nothing of the inputs may move the outputs.
        (Permutations({"a": (1, 0, 2), "b": (0, 1, 2)}, {"a": (0, 1), "b": (1, 0)}), 4),
    ],
)
def test_orders_are_known(group, wanted):
    assert order(group) == wanted


def test_a_permutation_moves_a_point_to_where_it_says():
    group = Permutations({"a": (2, 0, 1)}, {"a": (1, 0)})
    element = (2, 0, 1, 1, 0)
    assert_close(group.act(element, torch.tensor([[[10.0, 11, 12]]])), torch.tensor([[[11.0, 12, 10]]]))
    assert_close(group.act_on_outputs(element, torch.tensor([[[5.0, 6]]])), torch.tensor([[[6.0, 5]]]))


def test_a_board_turns_and_mirrors_its_cells():
    group, cells = board(3), torch.arange(9.0).view(1, 1, 3, 3)
    turned = [cells.rot90(quarters, (2, 3)) for quarters in range(4)]
    wanted = {tuple(turn.flatten().tolist()) for turn in turned + [turn.flip(3) for turn in turned]}
    assert {tuple(group.act(element, cells).flatten().tolist()) for element in group.elements((3, 3))} == wanted


def test_a_multiplication_table_gives_its_group():
    klein = [[g ^ h for h in range(4)] for g in range(4)]
    flips = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)]
    group = from_table(klein, flips, [(0,)] * 4)
    assert len(group.names) == 2
    assert order(group) == 4
    assert (group.num_inputs, group.num_outputs) == (4, 1)
    assert order(from_table([[0]], [(0, 1)])) == 1


def test_relations_that_hold_are_accepted():
    named = {"turn": QUARTER, "flip": MIRROR}
    group = Permutations(named, relations=("turn turn turn turn", "flip flip", "turn flip = flip turn turn turn"))
    assert order(group) == 8


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Permutations({}), "at least one generator, got none"),
        (
            lambda: Permutations({"r": (0, 0, 2)}),
            r"'r' must be a permutation of the inputs 0 … 2, but 1 is missing and 0 is there t",
        ),
        (lambda: Permutations({"r": (0, 3, 2)}), "but 1 is missing and 3 is none of them"),
        (lambda: Permutations({"r": (0, 1)}, {"r": (1, 1)}), "permutation of the outputs 0 … 1, but 0 is missing"),
        (lambda: Permutations({"r": (0, 1), "f": (0,)}), r"must permute the same inputs, at least one; got sizes \[1, 2\]"),
        (lambda: Permutations({"r": ()}), r"at least one; got sizes \[0\]"),
        (lambda: Permutations({"r": (0,)}, {"f": (0,)}), "got 'r' for inputs and 'f' for outputs"),
        (lambda: Permutations({"r": QUARTER}, relations=("rrr",)), "r r r must act as the identity, but moves input 0 to 3"),
        (
            lambda: Permutations({"r": (0, 1)}, {"r": (0, 2, 1)}, relations=("r",)),
            "r must act as the identity, but moves output 1 to 2",
        ),
        (
            lambda: Permutations({"r": QUARTER, "f": MIRROR}, relations=("rf=fr",)),
            "r f must act as f r, but moves input 0 to 0 rather than to 2",
        ),
        (
            lambda: Permutations({"r": QUARTER}, relations=("rx",)),
            "word in the generators 'r', or two with '=' between; got 'rx'",
        ),
        (lambda: Permutations({"r": QUARTER}, relations=("r=r=r",)), "or two with '=' between; got 'r=r=r'"),
        (lambda: list(symmetric(12).elements((12,))), "more than 100,000 elements, too many to list"),
        (lambda: symmetric(4).identity((2, 3)), r"permutes 4 inputs, got a grid \(2, 3\) of 6 points"),
        (lambda: symmetric(2).act((1, 0, 1, 0), torch.zeros(1, 1, 3)), r"permutes 2 inputs, got features \(1, 1, 3\)"),
        (lambda: cyclic(0), "A cycle must have at least one element, got 0"),
        (lambda: from_table([[0, 1]], [(0,)]), "a row and a column for each element, got 1 rows"),
        (lambda: from_table([[0, 1], [1, 2]], [(0,)] * 2), r"closed: every product must be one of the elements 0 … 1"),
        (lambda: from_table([[1, 0], [0, 0]], [(0,)] * 2), "A group has an identity"),
        (lambda: from_table([[0, 1], [1, 1]], [(0,)] * 2), "element 1 has none in this table"),
        (
            lambda: from_table([[0, 1, 2], [1, 0, 0], [2, 0, 0]], [(0,)] * 3),
            r"associative, but \(1 1\) 2 is not 1 \(1 2\) in this table",
        ),
        (lambda: from_table([[0, 1], [1, 0]], [(0, 1)]), "a permutation of the inputs for each of 2 elements, got 1"),
        (
            lambda: from_table([[0, 1], [1, 0]], [(0, 1, 2), (1, 2, 0)]),
            "Element 1 times element 1 is element 0, but it does not act so: one after the other they move input 0 to 2, and "
            "element 0 moves it to 0",
        ),
        (lambda: automorphisms([[0, 1]]), r"must be square with at least one node, got shape \(1, 2\)"),
        (lambda: automorphisms([[0.5]]), "must have whole numbers, got float64"),
        (lambda: automorphisms(np.zeros((101, 101), dtype=int)), "at most 100 nodes, got 101"),
    ],
)
def test_what_is_no_group_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def graph(size, edges, directed=False):
    A = np.zeros((size, size), dtype=int)
    for a, b in edges:
        A[a, b] = 1
        if not directed:
            A[b, a] = 1
    return A


PETERSEN = [(i, (i + 1) % 5) for i in range(5)] + [(i, i + 5) for i in range(5)] + [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
TRIANGLES = [(t + i, t + (i + 1) % 3) for t in (6, 9) for i in range(3)]
FRUCHT = [-5, -2, -4, 2, 5, -2, 2, 5, -2, -5, 4, 2]  # steps of its chords around a cycle of 12 (LCF notation)


@pytest.mark.parametrize(
    ("adjacency", "wanted"),
    [
        (graph(5, [(i, i + 1) for i in range(4)]), 2),
        (graph(7, [(i, (i + 1) % 7) for i in range(7)]), 14),
        (graph(7, [(i, (i + 1) % 7) for i in range(7)], directed=True), 7),
        (graph(10, PETERSEN), 120),
        (graph(7, [(i, 3 + j) for i in range(3) for j in range(4)]), 6 * 24),
        (graph(6, [(i, 3 + j) for i in range(3) for j in range(3)]), 72),
        (graph(8, [(i, i ^ bit) for i in range(8) for bit in (1, 2, 4)]), 48),
        (graph(12, [(i, (i + 1) % 12) for i in range(12)] + [(i, (i + s) % 12) for i, s in enumerate(FRUCHT)]), 1),
        # Two triangles beside a hexagon: refinement alone cannot tell their nodes apart.
        (graph(12, [(i, (i + 1) % 6) for i in range(6)] + TRIANGLES), 12 * 72),
        (np.diag([1, 1, 2]), 2),
        (np.zeros((6, 6), dtype=int), 720),
    ],
    ids=["path", "cycle", "directed cycle", "Petersen", "K34", "K33", "cube", "Frucht", "triangles", "marked nodes", "empty"],
)  # fmt: skip
def test_automorphisms_of_known_graphs(adjacency, wanted):
    group = automorphisms(adjacency)
    for permutation in group.inputs:
        assert (adjacency[np.ix_(permutation, permutation)] == adjacency).all()
    assert order(group) == wanted


def test_automorphisms_of_larger_graphs_are_found_without_listing_them():
    grid = graph(64, [(8 * i + j, 8 * i + (j + 1)) for i in range(8) for j in range(7)] +
                 [(8 * i + j, 8 * i + j + 8) for i in range(7) for j in range(8)])  # fmt: skip
    assert order(automorphisms(grid)) == 8
    assert len(automorphisms(np.ones((60, 60), dtype=int)).names) == 59


def test_a_group_extends_another_if_it_ties_more_weights():
    assert symmetric(4).extends(cyclic(4))
    assert dihedral(6).extends(cyclic(6))
    assert not cyclic(4).extends(symmetric(4))
    assert not symmetric(4).extends(symmetric(4))
    assert not symmetric(4).extends(symmetric(5))
    assert symmetric(4).extends(None)
    turns, flips = Permutations({"a": (1, 0, 3, 2)}), Permutations({"b": (2, 3, 0, 1)})
    assert not turns.extends(flips)
    assert not flips.extends(turns)
    # A group of fewer elements that ties the same pairs is as good: even permutations of four things.
    assert not symmetric(4).extends(Permutations({"a": (1, 2, 0, 3), "b": (0, 2, 3, 1)}))


def test_relations_hold_for_every_action_that_is_made_of_a_group():
    with pytest.raises(ValueError, match="r r r r must act as the identity, but moves output 0 to"):
        dihedral(4).onto(dihedral(3))
    with pytest.raises(ValueError, match="The group must act on outputs as it does on inputs"):
        pairs(symmetric(3).pooled())
    assert Permutations({"g0": (1, 0), "g1": (1, 0)}, relations=["g0=g1", "g0 g1"]).relations == ("g0=g1", "g0 g1")
