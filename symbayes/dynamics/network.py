"""The averaged energy of a system, and where it leads."""

from collections.abc import Callable
from functools import cache
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from symbayes.dynamics.observables import AffineMaps, Amounts, Observables, Transformations
from symbayes.dynamics.phase import Integrator, Midpoint, Observable, States, Velocity, rotated, velocity
from symbayes.invariance.ahead import DrawsByNumber

#: How far the measures "uniform" and "ball" go.
REACH = np.pi

Rows = Float64[np.ndarray, "s k"]
Steps = Float64[np.ndarray, " s"]


def random_amounts(measure: str, samples: int, count: int, rng: np.random.Generator) -> Amounts:
    """Amounts of s transformations along k observables, independent of each other.

    Their noise is wanted in training: where an observable is not conserved, the energy differs from draw to draw.

    Args:
        measure: "uniform" on the cube [−π, π]ᵏ; "ball", uniform in the ball of radius π; or "gaussian", N(0, (π/2)² I).
        samples: s.
        count: k.
        rng: For the draws; of numpy, because torch refuses to draw within a pass over many weights.
    """
    check_measure(measure)
    if measure == "uniform":
        return _scale(rng.uniform(-1, 1, (samples, count)))
    normal = rng.standard_normal((samples, count))
    directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return _scale(directions * _DISTANCES[measure](rng.uniform(size=samples), count)[:, None])


@cache
def even_amounts(measure: str, samples: int, count: int) -> Amounts:
    """A fixed set of amounts, spread evenly, so that an average over few is near that over all.

    They come in opposite pairs, so that averages are exact in the first order where their number is even. In the second order
    they are nearly so: directions are orthogonal in blocks, at distances that take even steps. In the cube it is each amount
    that takes even steps; which of one meets which of another is random.
    """
    check_measure(measure)
    rng = np.random.default_rng(0)
    half = -(-samples // 2)
    steps = rng.permutation((np.arange(half) + 0.5) / half)
    if measure == "uniform":
        rows = rng.permuted(np.tile(steps, (count, 1)), axis=1).T * rng.choice([-1.0, 1.0], (half, count))
    else:
        rows = _orthogonal(half, count, rng) * _DISTANCES[measure](steps, count)[:, None]
    return _scale(np.concatenate([rows, -rows])[:samples])


def check_measure(measure: str) -> None:
    """Refuse what is no measure.

    Raises:
        ValueError: Naming those there are.
    """
    if measure not in MEASURES:
        raise ValueError(f"The measure must be one of {', '.join(MEASURES)}; got {measure!r}.")


def _chi_quantiles(quantiles: Steps, count: int) -> Steps:
    """Of the length of a vector of so many standard normals."""
    from scipy.stats import chi  # slow to import

    return chi.ppf(quantiles, count)


#: The distance from zero of directions that are uniform on the sphere, from uniform quantiles; in units of the reach.
_DISTANCES: dict[str, Callable[[Steps, int], Steps]] = {
    "ball": lambda quantiles, count: quantiles ** (1 / count),
    "gaussian": lambda quantiles, count: _chi_quantiles(quantiles, count) / 2,
}
MEASURES = ("uniform", *_DISTANCES)


def amount_std(measure: str, count: int) -> float:
    """The standard deviation of each of k amounts, in units of π: in a ball, amounts are smaller the more there are."""
    check_measure(measure)
    stds: dict[str, float] = {"uniform": 3**-0.5, "ball": (count + 2) ** -0.5, "gaussian": 0.5}
    return stds[measure]


def _orthogonal(samples: int, count: int, rng: np.random.Generator) -> Rows:
    """Unit vectors, uniform on the sphere, orthogonal to each other in blocks."""
    basis, triangle = np.linalg.qr(rng.standard_normal((-(-samples // count), count, count)))
    signs = np.sign(np.diagonal(triangle, axis1=1, axis2=2))  # with which the basis is uniform
    return (basis * signs[:, None]).swapaxes(1, 2).reshape(-1, count)[:samples]


def _scale(rows: Rows) -> Amounts:
    return torch.from_numpy(REACH * rows)


#: What hidden units do, and its slope, by name.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softplus": (functional.softplus, torch.sigmoid),
    "elu": (functional.elu, lambda before: before.clamp(max=0).exp()),
}


class Perceptron(nn.Module):
    """F(x) = wᵀ softplus(… softplus(W₁ x + b₁) …), which is as smooth as motion; without a last bias, as an energy has no zero.

    Args:
        size: Numbers of a state.
        width: Of hidden layers.
        hidden: How many there are.
        activation: "softplus", or "elu", whose slope has kinks.
        generator: For initial weights.
    """

    def __init__(
        self,
        size: int,
        width: int = 50,
        hidden: int = 2,
        *,
        activation: str = "softplus",
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if size < 1 or width < 1 or hidden < 1:
            raise ValueError(f"size, width and hidden must be at least 1; got {size}, {width} and {hidden}.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {activation!r}.")
        self.activation = activation
        # Without initial values of torch's own, which would be drawn from the random state of the process.
        self.layers = nn.ModuleList(skip_init(nn.Linear, width if index else size, width) for index in range(hidden))
        self.last = skip_init(nn.Linear, width, 1, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
                if module.bias is not None:
                    nn.init.uniform_(module.bias, -1, 1, generator=generator)

    def forward(self, states: States) -> Float[Tensor, "n 1"]:
        function, _ = ACTIVATIONS[self.activation]
        for layer in self.layers:
            states = function(layer(states))
        return cast(Tensor, self.last(states))

    def gradient(self, states: States) -> States:
        """∇F at every state, as `torch.func.grad` would give it."""
        function, slope_of = ACTIVATIONS[self.activation]
        slopes: list[Tensor] = []
        for layer in self.layers:
            before = layer(states)
            states = function(before)  # not needed behind the last layer, and cheap
            slopes.append(slope_of(before))
        back: Tensor = self.last.weight
        for layer, slope in zip(reversed(self.layers), reversed(slopes), strict=True):
            back = (back * slope) @ cast(nn.Linear, layer).weight
        return back

    def __call__(self, states: States) -> Float[Tensor, "n 1"]:
        return cast(Tensor, super().__call__(states))


class HamiltonianNetwork(nn.Module, DrawsByNumber):
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
        self.passes = 0
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

    def drawn(self, number: int, count: int) -> Amounts:
        """Amounts of the pass of this number."""
        assert self.observables is not None
        return random_amounts(self.measure, self.samples, self.observables.count, np.random.default_rng((self.seed, number)))

    def _energy(self, maps: Transformations | None) -> Observable:
        if maps is None:
            return lambda states: cast(Tensor, self.net(states))[:, 0]
        return lambda states: cast(Tensor, self.net(maps(states).flatten(0, 1))).unflatten(0, (len(states), -1)).mean((1, 2))

    def _transformations(self) -> Transformations | None:
        """Of a pass: drawn anew, or the fixed set."""
        observables = self.observables
        if observables is None:
            return None
        # All data of a pass share what it draws.
        amounts = self.draw(1) if self.training else even_amounts(self.measure, self.final_samples, observables.count)
        return observables.transformations(amounts.to(next(observables.parameters())))

    def __call__(self, states: States) -> States:
        return cast(Tensor, super().__call__(states))
