"""Observables: quadratics by coefficients, and any form by a network.

Coefficients are of the monomials x_i x_j with i ≤ j, in the order of the rows of a triangle, and then of x_i: C(x) = cᵀ φ(x).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from typing import cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

from symbayes.dynamics.phase import Integrator, Observable, RungeKutta, States, rotated, velocity
from symbayes.groups.lie import exponential
from symbayes.layout import Hyperparameter

#: How far to flow along each of k observables, for each of s transformations.
Amounts = Float[Tensor, "s k"]
#: Every state under s transformations.
Transformations = Callable[[States], Float[Tensor, "n s m"]]


@dataclass(frozen=True)
class AffineMaps:
    """x → P x + t, for s of them."""

    linear: Float[Tensor, "s m m"]
    shift: Float[Tensor, "s m"]

    def __call__(self, states: States) -> Float[Tensor, "n s m"]:
        return torch.addmm(self.shift.flatten(), states, self.linear.flatten(0, 1).T).unflatten(1, self.shift.shape)

    def pulled(self, gradients: Float[Tensor, "n s m"]) -> States:
        """The gradient of a mean over maps, from gradients at what they give: mean of Pᵀ g."""
        return gradients.flatten(1) @ self.linear.flatten(0, 1) / len(self.linear)


class Observables(nn.Module, ABC):
    """k functions of states; where they are learned, hyperparameters and no weights.

    Contract: a transformation keeps the sum that generates it, and is symplectic.
    """

    #: How many there are, and how many numbers a state has.
    count: int
    size: int

    @abstractmethod
    def forward(self, states: States) -> Float[Tensor, "n k"]:
        """The value of each at every state."""

    @abstractmethod
    def transformations(self, amounts: Amounts) -> Transformations:
        """s transformations: the flow of Σ_i τ_i C_i for unit time, for each row τ."""

    def __call__(self, states: States) -> Float[Tensor, "n k"]:
        return cast(Tensor, super().__call__(states))


class Quadratics(Observables):
    """C_i(x) = ½ xᵀ A_i x + b_iᵀ x, whose flows are affine: exp(G_i) on (x, 1) with G_i = [[J A_i, J b_i], [0, 0]].

    Constants generate nothing, and are left out. A is stored as W with A = W + Wᵀ.

    Args:
        halves: W of each.
        linear: b of each.
        learned: Whether they are hyperparameters; otherwise they are fixed.
    """

    def __init__(self, halves: Float[Tensor, "k m m"], linear: Float[Tensor, "k m"], *, learned: bool = True) -> None:
        super().__init__()
        if halves.shape[-1] % 2:
            raise ValueError(f"A state has as many momenta as positions, so an even count of numbers; got {halves.shape[-1]}.")
        self.count, self.size = linear.shape
        self.halves = Hyperparameter(halves.clone(), requires_grad=learned)
        self.linear = Hyperparameter(linear.clone(), requires_grad=learned)

    @classmethod
    def random(cls, count: int, size: int, std: float = 0.05, *, generator: Generator | None = None) -> "Quadratics":
        """To begin to learn from: not zero, where the gradient vanishes."""
        halves = std * torch.randn(count, size, size, generator=generator)
        return cls(halves, std * torch.randn(count, size, generator=generator))

    @property
    def matrices(self) -> Float[Tensor, "k m m"]:
        """A of each, symmetric."""
        return self.halves + self.halves.mT

    def generators(self) -> Float[Tensor, "k h h"]:
        """G of each, on homogeneous coordinates."""
        columns = torch.cat([self.matrices, self.linear[..., None]], -1)
        return torch.cat([rotated(columns.mT).mT, torch.zeros_like(columns[:, :1])], 1)

    def elements(self, amounts: Amounts) -> Float[Tensor, "s h h"]:
        """exp(Σ_i τ_i G_i)."""
        return exponential(torch.einsum("sk,kab->sab", amounts, self.generators()))

    def forward(self, states: States) -> Float[Tensor, "n k"]:
        return torch.einsum("na,kab,nb->nk", states, self.halves, states) + states @ self.linear.T

    def transformations(self, amounts: Amounts) -> AffineMaps:
        elements = self.elements(amounts)[:, :-1]
        return AffineMaps(elements[..., :-1], elements[..., -1])


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


class NeuralObservables(Observables):
    """C_i(x) = Σ_j V_ij log cosh(w_jᵀ x + b_j) + l_iᵀ x, the outputs of one perceptron with a hidden layer.

    log cosh is a smooth absolute value. Its slope, tanh, is odd, so that new observables have no direction that they push all
    states in, and it is bounded: the velocity of a flow is at most Σ_j |V_ij| |w_j| + |l_i| wherever a state is, and no flow
    runs away. With l, translations are exact, and softplus is contained: softplus(2z) = log cosh(z) + z + log 2.

    Begin to learn from small observables, which change little: at zero the gradient vanishes.

    Args:
        count: k.
        size: Numbers of a state.
        width: Hidden units, which all observables share.
        std: How large they are at first: their gradients are about this long where states are about one.
        integrator: Of flows for unit time; four steps of Runge and Kutta when None, which are off by 0.008 of the radius after
            half a turn along a circle (eight by 0.0006), and are symplectic to that accuracy.
        learned: Whether they are hyperparameters to be learned; otherwise they are fixed.
        generator: For initial values.
    """

    def __init__(
        self,
        count: int,
        size: int,
        width: int = 32,
        *,
        std: float = 0.05,
        integrator: Integrator | None = None,
        learned: bool = True,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if count < 1 or width < 1:
            raise ValueError(f"count and width must be at least 1; got {count} and {width}.")
        if size < 2 or size % 2:
            raise ValueError(f"A state has as many momenta as positions, so an even count of numbers; got {size}.")
        self.count, self.size = count, size
        self.integrator = integrator if integrator is not None else RungeKutta(4)

        def normal(rows: int, columns: int, scale: float) -> Hyperparameter:
            return Hyperparameter(scale * torch.randn(rows, columns, generator=generator), requires_grad=learned)

        self.inner = normal(width, size, size**-0.5)
        self.offset = Hyperparameter(2 * torch.rand(width, generator=generator) - 1, requires_grad=learned)
        self.outer = normal(count, width, std * width**-0.5)
        self.linear = normal(count, size, std)

    def forward(self, states: States) -> Float[Tensor, "n k"]:
        before = states @ self.inner.T + self.offset
        return (functional.softplus(2 * before) - before - log(2)) @ self.outer.T + states @ self.linear.T

    def transformations(self, amounts: Amounts) -> "Flows":
        return Flows(self.inner, self.offset, amounts @ self.outer, amounts @ self.linear, self.integrator)


@dataclass(frozen=True)
class Flows:
    """The flows for unit time of s sums Σ_j u_j log cosh(w_jᵀ x + b_j) + lᵀ x that share their hidden units.

    Args:
        inner: w of every hidden unit.
        offset: b of every hidden unit.
        outer: u of every sum.
        linear: l of every sum.
        integrator: For how many steps, and which.
    """

    inner: Float[Tensor, "h m"]
    offset: Float[Tensor, " h"]
    outer: Float[Tensor, "s h"]
    linear: Float[Tensor, "s m"]
    integrator: Integrator

    def __call__(self, states: States) -> Float[Tensor, "n s m"]:
        copies = states[:, None].expand(-1, len(self.outer), -1)
        return self.integrator(self._velocity, copies.flatten(0, 1), 1.0).view_as(copies)

    def _velocity(self, rows: Float[Tensor, "ns m"]) -> Float[Tensor, "ns m"]:
        """J ∇ of each sum at its own states."""
        slopes = torch.addmm(self.offset, rows, self.inner.T).tanh().unflatten(0, (-1, len(self.outer)))
        return rotated((slopes * self.outer) @ self.inner + self.linear).flatten(0, 1)
