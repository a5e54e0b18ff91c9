"""Quadratic observables by their coefficients, and those that are known: of a Hamiltonian, and of groups of motions.

Coefficients are of the monomials x_i x_j with i ≤ j, in the order of the rows of a triangle, and then of x_i: C(x) = cᵀ φ(x).
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.phase import Observable, States, velocity

Coefficients = Float[Tensor, "k c"]


def pairs(size: int) -> tuple[Tensor, Tensor]:
    """i and j of the monomials x_i x_j."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns


def monomials(states: States) -> Float[Tensor, "n c"]:
    """φ of every state."""
    rows, columns = pairs(states.shape[-1])
    return torch.cat([states[:, rows] * states[:, columns], states], -1)


def monomial_names(names: Sequence[str]) -> list[str]:
    """Such as "q²", "q p" and "q"."""
    rows, columns = pairs(len(names))
    squares = [f"{names[i]}²" if i == j else f"{names[i]} {names[j]}" for i, j in zip(rows, columns, strict=True)]
    return [*squares, *names]


def coefficients(quadratics: Quadratics) -> Coefficients:
    """c of each."""
    rows, columns = pairs(quadratics.size)
    halved = torch.where(rows == columns, 0.5, 1.0).to(quadratics.linear)
    return torch.cat([quadratics.matrices[:, rows, columns] * halved, quadratics.linear], -1)


def with_coefficients(values: Coefficients, size: int) -> Quadratics:
    """Fixed quadratics of these coefficients."""
    rows, columns = pairs(size)
    halves = values.new_zeros(len(values), size, size)
    halves[:, rows, columns] = values[:, : len(rows)]
    return Quadratics(halves, values[:, len(rows) :], learned=False)


def conserved_quadratics(hamiltonian: Observable, states: States, tolerance: float = 1e-8) -> Quadratics:
    """All quadratics that a known energy conserves: those whose bracket with it vanishes at all states.

    Args:
        hamiltonian: The energy.
        states: More than there are monomials, in general position, in double precision.
        tolerance: The largest bracket that counts as none, relative to the largest of any quadratic.
    """
    moved = velocity(hamiltonian, states)
    rates = torch.func.jvp(monomials, (states,), (moved,))[1].detach()
    if len(states) < rates.shape[1]:
        raise ValueError(f"There must be at least as many states as monomials, {rates.shape[1]}; got {len(states)}.")
    _, sizes, directions = torch.linalg.svd(rates, full_matrices=False)
    return with_coefficients(directions[sizes < tolerance * sizes[0]], states.shape[-1])


def unitary(n: int) -> Quadratics:
    """U(n), of n equal oscillators: (q_i² + p_i²)/2, q_i p_j − q_j p_i and q_i q_j + p_i p_j. SO(2) where n is 1."""
    halves = [_half(2 * n, {(i, i): 0.5, (n + i, n + i): 0.5}) for i in range(n)]
    for i, j in combinations(range(n), 2):
        halves += [_half(2 * n, {(i, n + j): 1.0, (j, n + i): -1.0}), _half(2 * n, {(i, j): 1.0, (n + i, n + j): 1.0})]
    return Quadratics(torch.stack(halves), torch.zeros(n * n, 2 * n), learned=False)


def euclidean(bodies: int, dimensions: int) -> Quadratics:
    """SE(2) or SE(3), of bodies in a plane or in space: total momenta, which shift all, and angular momenta, which turn all."""
    n, size = bodies * dimensions, 2 * bodies * dimensions
    shifts = torch.zeros(dimensions, size)
    for axis in range(dimensions):
        shifts[axis, n + axis :: dimensions] = 1
    first = range(0, n, dimensions)  # coordinate of each body
    turns = [
        _half(size, {(i + a, n + i + b): 1.0 for i in first} | {(i + b, n + i + a): -1.0 for i in first})
        for a, b in combinations(range(dimensions), 2)
    ]
    halves = torch.cat([torch.zeros(dimensions, size, size), torch.stack(turns)])
    return Quadratics(halves, torch.cat([shifts, torch.zeros(len(turns), size)]), learned=False)


def _half(size: int, entries: dict[tuple[int, int], float]) -> Float[Tensor, "m m"]:
    found = torch.zeros(size, size)
    for place, value in entries.items():
        found[place] = value
    return found
