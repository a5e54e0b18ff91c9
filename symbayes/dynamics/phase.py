"""Mechanics in phase space: x = (q, p), how an observable moves states, and when it is conserved.

Every observable O generates a flow dx/dτ = J ∇O(x) with J = [[0, I], [−I, 0]]; that of the Hamiltonian is motion in time. The
Poisson bracket {O, H} = ∇Oᵀ J ∇H is the rate at which O changes in time, and minus the rate at which H changes along the flow
of O. So O is conserved where H is invariant under its flow: Noether's theorem.
"""

from collections.abc import Callable

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
