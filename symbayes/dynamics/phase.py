"""Phase space: flows, Poisson brackets, and integrators that respect them.

Every observable O generates a flow dx/dτ = J ∇O(x) with J = [[0, I], [−I, 0]]; that of the Hamiltonian is motion in time. The
Poisson bracket {O, H} = ∇Oᵀ J ∇H is the rate at which O changes in time, and minus the rate at which H changes along the flow
of O. So O is conserved where H is invariant under its flow: Noether's theorem.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: n states of M = 2 · degrees of freedom numbers each, positions first.
States = Float[Tensor, "n m"]
#: A function of states.
Observable = Callable[[States], Float[Tensor, " n"]]


def gradient(observable: Observable, states: States) -> States:
    """∇O at every state; differentiable in everything O depends on."""
    found: Tensor = torch.func.grad(lambda x: observable(x).sum())(states)
    return found


def rotated(gradients: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
    """J g: from the gradient of an observable to the velocity of states under its flow."""
    of_positions, of_momenta = gradients.chunk(2, -1)
    return torch.cat([of_momenta, -of_positions], -1)


def velocity(observable: Observable, states: States) -> States:
    """J ∇O(x)."""
    return rotated(gradient(observable, states))


def poisson(first: Observable, second: Observable, states: States) -> Float[Tensor, " n"]:
    """{first, second} = ∇firstᵀ J ∇second: how fast the first changes where the second is the energy."""
    return (gradient(first, states) * velocity(second, states)).sum(-1)


def relative_bracket(gradients: States, velocities: States) -> float:
    """How fast an observable changes in time, relative to its slope and to the speed of motion; both at the same states."""
    gradients, velocities = gradients.detach(), velocities.detach()
    rates = (gradients * velocities).sum(-1).square().mean().sqrt()
    return float(rates / (gradients.square().sum(-1).mean() * velocities.square().sum(-1).mean()).sqrt())


Velocity = Callable[[States], States]


@dataclass(frozen=True)
class Integrator(ABC):
    """A rule for one step.

    Args:
        steps: Equal steps into which a time is divided.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"An integrator must take at least one step, got {self.steps}.")

    @abstractmethod
    def step(self, velocity: Velocity, states: States, time: float) -> States:
        """One step."""

    def __call__(self, velocity: Velocity, states: States, time: float) -> States:
        """Where states are after this time."""
        for _ in range(self.steps):
            states = self.step(velocity, states, time / self.steps)
        return states


@dataclass(frozen=True)
class Euler(Integrator):
    """x + h v(x): first order, as in Noether's razor; energy grows."""

    def step(self, velocity: Velocity, states: States, time: float) -> States:
        return states + time * velocity(states)


@dataclass(frozen=True)
class Midpoint(Integrator):
    """x + h v(x + h v(x) / 2): second order, two velocities a step."""

    def step(self, velocity: Velocity, states: States, time: float) -> States:
        return states + time * velocity(states + time / 2 * velocity(states))


@dataclass(frozen=True)
class RungeKutta(Integrator):
    """The classical rule of fourth order, four velocities a step."""

    def step(self, velocity: Velocity, states: States, time: float) -> States:
        first = velocity(states)
        second = velocity(states + time / 2 * first)
        third = velocity(states + time / 2 * second)
        fourth = velocity(states + time * third)
        return states + time / 6 * (first + 2 * second + 2 * third + fourth)


@dataclass(frozen=True)
class ImplicitMidpoint(Integrator):
    """y = x + h v((x + y) / 2): second order and symplectic for every Hamiltonian, so energy does not drift.

    Solved by repetition from an explicit step, which converges where h times the slope of v is below two.

    Args:
        steps: As in `Integrator`.
        repetitions: Of the fixed point, a velocity each.
    """

    repetitions: int = 8

    def step(self, velocity: Velocity, states: States, time: float) -> States:
        ends = states + time * velocity(states)
        for _ in range(self.repetitions):
            ends = states + time * velocity((states + ends) / 2)
        return ends


@dataclass(frozen=True)
class Leapfrog(Integrator):
    """Half a kick, a drift, half a kick: second order, symplectic where H(q, p) = T(p) + V(q), and so for most of mechanics."""

    def step(self, velocity: Velocity, states: States, time: float) -> States:
        states = states + time / 2 * _momenta(velocity(states))
        states = states + time * _positions(velocity(states))
        return states + time / 2 * _momenta(velocity(states))


def _positions(velocities: States) -> States:
    """Of positions only."""
    half = velocities.shape[-1] // 2
    return torch.cat([velocities[:, :half], torch.zeros_like(velocities[:, half:])], -1)


def _momenta(velocities: States) -> States:
    """Of momenta only."""
    half = velocities.shape[-1] // 2
    return torch.cat([torch.zeros_like(velocities[:, :half]), velocities[:, half:]], -1)


#: By the name that the command line knows.
INTEGRATORS: dict[str, type[Integrator]] = {
    "euler": Euler,
    "midpoint": Midpoint,
    "runge-kutta": RungeKutta,
    "implicit-midpoint": ImplicitMidpoint,
    "leapfrog": Leapfrog,
}
