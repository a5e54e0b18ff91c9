"""From a velocity to where states are after a while, in equal steps that can be differentiated."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from symbayes.dynamics.phase import States

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
