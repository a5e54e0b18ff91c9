"""Observables to be learned, and the transformations of phase space that they generate."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.dynamics.phase import States, rotated
from symbayes.layers.structure import Hyperparameter

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
    def random(cls, count: int, size: int, deviation: float = 0.05, *, generator: Generator | None = None) -> "Quadratics":
        """To begin to learn from: not zero, where the gradient vanishes."""
        halves = deviation * torch.randn(count, size, size, generator=generator)
        return cls(halves, deviation * torch.randn(count, size, generator=generator))

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
        return torch.linalg.matrix_exp(torch.einsum("sk,kab->sab", amounts, self.generators()))

    def forward(self, states: States) -> Float[Tensor, "n k"]:
        return torch.einsum("na,kab,nb->nk", states, self.halves, states) + states @ self.linear.T

    def transformations(self, amounts: Amounts) -> AffineMaps:
        elements = self.elements(amounts)[:, :-1]
        return AffineMaps(elements[..., :-1], elements[..., -1])
