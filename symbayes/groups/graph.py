"""The symmetries of a graph: generators of the group of its automorphisms, by colour refinement and search."""

import numpy as np
from numpy.typing import ArrayLike

from symbayes.groups.orbits import merged
from symbayes.groups.permutation import Permutations, Points

#: Nodes; the search is simple, and can be slow for large graphs that look alike everywhere.
MOST_NODES = 100


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
    colours = _refined(A, np.zeros((2, len(A)), dtype=np.int64))[0]
    fixed: list[tuple[int, Points]] = []
    while (node := _first_movable(colours)) is not None:
        fixed.append((node, colours))
        colours = _refined(A, np.stack([_marked(colours, node)] * 2))[0]
    generators: list[Points] = []
    for node, colours in reversed(fixed):
        nowhere: list[int] = []
        for goal in np.flatnonzero(colours == colours[node]).tolist():
            orbit = merged(np.arange(len(A)), np.array(generators).reshape(-1, len(A)).astype(np.int64))
            if orbit[goal] in orbit[[node, *nowhere]]:
                continue
            found = _matched(A, np.stack([_marked(colours, node), _marked(colours, goal)]))
            if found is None:
                nowhere.append(goal)
            else:
                generators.append(found)
    named = {f"g{index}": generator.tolist() for index, generator in enumerate(generators or [np.arange(len(A))])}
    return Permutations(named, name="graph symmetry")


def _matched(A: Points, colours: Points) -> Points | None:
    """A permutation that takes A to A and the first colours to the second; None if there is none. Colours are [2, n]."""
    left, right = colours = _refined(A, colours)
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
        found = _matched(A, np.stack([_marked(left, node), _marked(right, int(goal))]))
        if found is not None:
            return found
    return None


def _refined(A: Points, colours: Points) -> Points:
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


def _marked(colours: Points, node: int) -> Points:
    """The colours with one node in a colour of its own."""
    marked = colours.copy()
    marked[node] = len(colours) * 2
    return marked


def _first_movable(colours: Points) -> int | None:
    """The first node that shares its colour."""
    shared = np.bincount(colours)[colours] > 1
    return int(np.argmax(shared)) if shared.any() else None
