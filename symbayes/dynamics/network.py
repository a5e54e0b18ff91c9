"""A Hamiltonian network: an energy that is learned, invariant as far as observables generate symmetries, and where it leads."""

from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.dynamics.integrators import Integrator, Midpoint
from symbayes.dynamics.measure import check_measure, even_amounts, random_amounts
from symbayes.dynamics.observables import Observables
from symbayes.dynamics.phase import Observable, States, velocity


class HamiltonianNetwork(nn.Module):
    """Where states are a time step later, under H(x) = mean over τ of F(Φ^τ(x)), with Φ^τ the flow of Σ_i τ_i C_i.

    An energy that is averaged over the flow of an observable changes little along it, and then the observable is conserved, by
    Noether's theorem. The larger an observable, the further the average goes, and the less there is to fit the data with: which
    the evidence rewards where the data allow it (van der Ouderaa, van der Wilk and de Haan 2024). Without observables, or where
    they are zero, it is the plain Hamiltonian network of F.

    All steps of a pass see the same transformations, so that motion is Hamiltonian in every pass. While it trains, they are
    drawn anew for every pass; in evaluation they are a fixed set.

    Args:
        net: F, from states [n, m] to [n, 1].
        step: The time from a state to the next.
        observables: Whose flows the energy is averaged over; None for the plain network.
        integrator: From velocities to states.
        measure: Of τ: "uniform", "ball" or "gaussian".
        samples: Transformations in a pass; the cost grows with them.
        seed: For the draws.
    """

    def __init__(
        self,
        net: nn.Module,
        step: float,
        observables: Observables | None = None,
        *,
        integrator: Integrator | None = None,
        measure: str = "ball",
        samples: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.net, self.observables, self.step = net, observables, step
        self.integrator = integrator if integrator is not None else Midpoint(2)
        self.measure, self.samples, self.seed = measure, samples, seed
        self._passes = 0
        check_measure(measure)

    def energy(self) -> Observable:
        """H, with the transformations of one pass."""
        observables = self.observables
        if observables is None:
            return lambda states: cast(Tensor, self.net(states))[:, 0]
        moved = observables.transformations(self._amounts(observables))

        def averaged(states: States) -> Float[Tensor, " n"]:
            values: Tensor = self.net(moved(states).flatten(0, 1))
            return values.unflatten(0, (len(states), -1)).mean((1, 2))

        return averaged

    def forward(self, states: States) -> States:
        energy = self.energy()
        return self.integrator(lambda x: velocity(energy, x), states, self.step)

    def _amounts(self, observables: Observables) -> Tensor:
        like = next(observables.parameters())
        if not self.training:
            return even_amounts(self.measure, self.samples, observables.count).to(like)
        self._passes += 1
        rng = np.random.default_rng((self.seed, self._passes))
        return random_amounts(self.measure, self.samples, observables.count, rng).to(like)

    def __call__(self, states: States) -> States:
        return cast(Tensor, super().__call__(states))


def perceptron(size: int, width: int = 50, hidden: int = 2, *, generator: Generator | None = None) -> nn.Sequential:
    """F as a multilayer perceptron with ELUs; the last layer has no bias, because an energy has no zero.

    Args:
        size: Numbers of a state.
        width: Of hidden layers.
        hidden: How many there are.
        generator: For initial weights.
    """
    layers: list[nn.Module] = []
    for index in range(hidden):
        layers += [nn.Linear(size if index == 0 else width, width), nn.ELU()]
    layers += [nn.Linear(width, 1, bias=False)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
            if layer.bias is not None:
                nn.init.uniform_(layer.bias, -1, 1, generator=generator)
    return nn.Sequential(*layers)
