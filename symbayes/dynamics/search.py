"""How conserved quantities are sought: settings, and the model that they say."""

from dataclasses import dataclass, field, replace

import torch
from torch import Generator

from symbayes.dynamics.constant import held_variations, least_varying
from symbayes.dynamics.network import ACTIVATIONS, HamiltonianNetwork, Perceptron, amount_std
from symbayes.dynamics.observables import NeuralObservables, Observables, Quadratics
from symbayes.dynamics.phase import Integrator, Midpoint
from symbayes.dynamics.trajectories import Scaling, Trajectories
from symbayes.posterior.families import MatrixNormal
from symbayes.training.elbo import Elbo
from symbayes.training.trainer import Schedule

#: What varies by less along trajectories that were left out, relative to other quadratics, begins in full.
_CONSTANT = 1 / 3
#: The usual share of updates that a plain energy has first, and of how many batches there must be data for it.
_FIRST, _BATCHES = 0.3, 4


@dataclass(frozen=True)
class Search:
    """Settings.

    Args:
        quantities: How many observables there are to begin with: more than are conserved, since those that are not vanish. None
            for twice the square of the degrees of freedom, and at most 16; of neural ones, for one.
        start: The size of the first observables, in units in which states are of size one. Quadratics begin with those that
            vary least along trajectories: this large where they vary, and up to so large that amounts have a standard deviation
            of π where they do not.
        width: Of the hidden layers of the energy.
        hidden: How many there are.
        activation: Of their units: "softplus", or "elu".
        integrator: From one state to the next.
        measure: How far to go along observables: "uniform", "ball" or "gaussian".
        samples: Transformations that the energy is averaged over in a step.
        final_samples: And at the end, as a fixed set.
        updates: Steps of training, in all.
        first: Share of them with which a plain energy is learned, that all else begins with: symmetries of an energy that does
            not fit yet may be of another. None for 0.3 where quadratics are learned from four batches of pairs of states or
            more, and otherwise for none: from fewer a plain energy fits noise, too, and that is not unlearned.
        batch_size: Pairs of states in a step.
        learning_rate: Of the energy, at the start.
        rate: Of observables.
        annealing: Share of the updates over which the divergence comes in and observables rest; see `Elbo`. None for 0.1, and
            for 0.02 where observables are neural: those vanish where weights fit without them.
        draws: Of weights in a step.
        threshold: Observables that are weaker than this, in units in which states are of size one, do not count.
        against_plain: Whether a plain energy is learned beside learned observables, and taken where its bound is higher.
    """

    quantities: int | None = None
    start: float = 0.2
    width: int = 50
    hidden: int = 2
    activation: str = "softplus"
    integrator: Integrator = field(default_factory=lambda: Midpoint(2))
    measure: str = "ball"
    samples: int = 16
    final_samples: int = 32
    updates: int = 1500
    first: float | None = None
    batch_size: int = 100
    learning_rate: float = 5e-3
    rate: float = 0.01
    annealing: float | None = None
    draws: int = 2
    threshold: float = 0.05
    against_plain: bool = True

    def __post_init__(self) -> None:
        counts = ("quantities", "width", "hidden", "samples", "final_samples", "updates", "batch_size", "draws")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}.")
        if self.first is not None and not 0 <= self.first < 1:
            raise ValueError(f"first must be a share of the updates, from 0 up to less than 1; got {self.first:g}.")
        for name in ("start", "threshold"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name):g}.")

    def model(self, seen: Trajectories, units: Scaling, symmetry: str | Quadratics, seed: int) -> HamiltonianNetwork:
        """The network to be trained on trajectories, which are in the units given.

        Raises:
            ValueError: If there is no such symmetry.
        """
        generator = torch.Generator().manual_seed(seed)
        net = Perceptron(2 * seen.degrees, self.width, self.hidden, activation=self.activation, generator=generator)
        return HamiltonianNetwork(
            net,
            seen.step,
            self._observables(seen, units, symmetry, generator),
            integrator=self.integrator,
            measure=self.measure,
            samples=self.samples,
            final_samples=self.final_samples,
            seed=seed,
        )

    def objective(self, symmetry: str | Quadratics) -> Elbo:
        """The bound, under matrix-normal posteriors of weights; biases are deterministic, and precisions in closed form."""
        return Elbo(
            MatrixNormal(biases="deterministic"),
            samples=self.draws,
            local=False,  # every state meets the weights many times
            annealing=self.annealing if self.annealing is not None else 0.02 if symmetry == "neural" else 0.1,
            spread_rate=1.0,
            extent_rate=self.rate,
        )

    def parts(self, symmetry: str | Quadratics, pairs: int) -> "tuple[Search | None, Search]":
        """Settings of a plain energy to begin with, at the usual rates, or None where there is none; and of what goes on."""
        usual = _FIRST if symmetry == "quadratic" and pairs >= _BATCHES * self.batch_size else 0.0
        count = round(self.updates * (usual if self.first is None else self.first))
        if not count:
            return None, self
        plain = replace(self, updates=count, learning_rate=Search.learning_rate, annealing=Search.annealing)
        return plain, replace(self, updates=self.updates - count)

    def schedule(self, pairs: int) -> Schedule:
        """As many epochs as make up the updates."""
        return Schedule(max(1, round(self.updates / self.updates_in(1, pairs))), self.batch_size, self.learning_rate, 0.0)

    def updates_in(self, epochs: int, pairs: int) -> int:
        """How many updates so many passes over the data are."""
        return epochs * -(-pairs // self.batch_size)

    def _observables(
        self, seen: Trajectories, units: Scaling, symmetry: str | Quadratics, generator: Generator
    ) -> Observables | None:
        degrees, size = seen.degrees, 2 * seen.degrees
        if isinstance(symmetry, Quadratics):
            if symmetry.size != size:
                raise ValueError(f"Quadratics must be of states of {size} numbers, as the data are; got {symmetry.size}.")
            return units.taken_in(symmetry).float()
        match symmetry:
            case "quadratic":
                count = self.quantities if self.quantities is not None else min(2 * degrees**2, 16)
                return self._quadratics(seen, count, generator)
            case "neural":
                return NeuralObservables(self.quantities or 1, size, 16, std=self.start / 4, generator=generator)
            case "none":
                return None
            case _:
                raise ValueError(f"symmetry must be 'quadratic', 'neural', 'none' or fixed Quadratics; got {symmetry!r}.")

    def _quadratics(self, seen: Trajectories, count: int, generator: Generator) -> Quadratics:
        """What varies least along trajectories, the further the less it does; random, where there is no more than one.

        Symmetry that begins small comes late: the energy fits without it by then, and evidence gains little. Symmetry that does
        not hold is lost soon, whatever it begins with. So what is constant begins in full, and the rest as `start` says.
        """
        size = 2 * seen.degrees
        first = Quadratics.random(count, size, self.start / size, generator=generator)
        if len(seen) > 1:
            constant, small, full = least_varying(seen, count), 2**0.5 * self.start, 1 / amount_std(self.measure, count)
            variations = held_variations(seen, count).clamp(min=1e-9)
            sizes = (full * (_CONSTANT / variations).square()).clamp(max=full).clamp(min=small)
            for begin, value in ((first.halves, constant.halves), (first.linear, constant.linear)):
                begin.data[: len(value)] = sizes.view(-1, *(1,) * (value.ndim - 1)) * value
        return first
