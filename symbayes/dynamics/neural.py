"""Observables of any form: a small perceptron, whose flows are integrated in steps."""

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional

from symbayes.dynamics.integrators import Integrator, RungeKutta
from symbayes.dynamics.observables import Amounts, Observables
from symbayes.dynamics.phase import States, rotated
from symbayes.layers.structure import Hyperparameter


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
        deviation: How large they are at first: their gradients are about this long where states are about one.
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
        deviation: float = 0.05,
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
        self.outer = normal(count, width, deviation * width**-0.5)
        self.linear = normal(count, size, deviation)

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
