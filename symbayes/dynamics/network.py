"""A Hamiltonian network: an energy that is learned, invariant as far as observables generate symmetries, and where it leads."""

from typing import cast

import numpy as np
from torch import Tensor, nn

from symbayes.dynamics.integrators import Integrator, Midpoint, Velocity
from symbayes.dynamics.measure import check_measure, even_amounts, random_amounts
from symbayes.dynamics.observables import AffineMaps, Observables, Transformations
from symbayes.dynamics.perceptron import Perceptron
from symbayes.dynamics.phase import Observable, States, rotated, velocity


class HamiltonianNetwork(nn.Module):
    """Where states are a time step later, under H(x) = mean over τ of F(Φ^τ(x)), with Φ^τ the flow of Σ_i τ_i C_i.

    An energy that is averaged over the flow of an observable changes little along it, and then the observable is conserved, by
    Noether's theorem. The larger an observable, the further the average goes, and the less there is to fit the data with: which
    the evidence rewards where the data allow it (van der Ouderaa, van der Wilk and de Haan 2024). Without observables, or where
    they are zero, it is the plain Hamiltonian network of F.

    All steps of a pass see the same transformations, so that motion is Hamiltonian in every pass. While it trains, they are
    drawn anew for every pass; in evaluation they are a fixed set, spread evenly.

    Args:
        net: F, from states [n, m] to [n, 1].
        step: The time from a state to the next.
        observables: Whose flows the energy is averaged over; None for the plain network.
        integrator: From velocities to states.
        measure: Of τ: "uniform", "ball" or "gaussian".
        samples: Transformations in a pass; the cost grows with them.
        final_samples: In the fixed set; as many as in training when None.
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
        final_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.net, self.observables, self.step = net, observables, step
        self.integrator = integrator if integrator is not None else Midpoint(2)
        self.measure, self.samples, self.seed = measure, samples, seed
        self.final_samples = final_samples if final_samples is not None else samples
        self._passes = 0
        check_measure(measure)

    def energy(self) -> Observable:
        """H, with the transformations of one pass."""
        return self._energy(self._transformations())

    def forward(self, states: States) -> States:
        return self.integrator(self.motion(), states, self.step)

    def motion(self) -> Velocity:
        """J ∇H, with the transformations of one pass."""
        maps, net = self._transformations(), self.net
        # Written out, a gradient costs two sweeps through the network, and torch differentiates it only once more.
        if isinstance(net, Perceptron) and maps is None:
            return lambda states: rotated(net.gradient(states))
        if isinstance(net, Perceptron) and isinstance(maps, AffineMaps):
            return lambda states: rotated(maps.pulled(net.gradient(maps(states).flatten(0, 1)).unflatten(0, (len(states), -1))))
        energy = self._energy(maps)
        return lambda states: velocity(energy, states)

    def _energy(self, maps: Transformations | None) -> Observable:
        if maps is None:
            return lambda states: cast(Tensor, self.net(states))[:, 0]
        return lambda states: cast(Tensor, self.net(maps(states).flatten(0, 1))).unflatten(0, (len(states), -1)).mean((1, 2))

    def _transformations(self) -> Transformations | None:
        """Of a pass: drawn anew, or the fixed set."""
        observables = self.observables
        if observables is None:
            return None
        if self.training:
            self._passes += 1
            rng = np.random.default_rng((self.seed, self._passes))
            amounts = random_amounts(self.measure, self.samples, observables.count, rng)
        else:
            amounts = even_amounts(self.measure, self.final_samples, observables.count)
        return observables.transformations(amounts.to(next(observables.parameters())))

    def __call__(self, states: States) -> States:
        return cast(Tensor, super().__call__(states))
