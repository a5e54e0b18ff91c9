"""What was discovered with an energy: quantities, rollouts, saving."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.data.folders import seal, write_folder
from symbayes.data.storage import dump_json, to_json
from symbayes.dynamics.discovery import POINTS, SHOWN, Discovery
from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.observables import Quadratics, conserved_quadratics
from symbayes.dynamics.phase import ImplicitMidpoint, Integrator, States, gradient, relative_bracket, velocity
from symbayes.dynamics.quantity import Quantity, Span, judged, parallelness, read_observables, read_quadratics, span_of
from symbayes.dynamics.search import Search
from symbayes.dynamics.summary import (
    DISCOVERY,
    FORMAT,
    BoundSummary,
    DiscoveryRecord,
    DiscoverySummary,
    EnergySummary,
    Portrait,
    QuantitySummary,
    Rollout,
    ScalingSummary,
    Truth,
    gain_words,
)
from symbayes.dynamics.systems import System
from symbayes.dynamics.trajectories import Scaling, Trajectories, motion
from symbayes.posterior.functional import outputs_under
from symbayes.posterior.posterior import Weights, dump_posterior
from symbayes.training.record import POSTERIOR
from symbayes.training.result import Result


class Motion(nn.Module):
    """J ∇H of a network."""

    def __init__(self, model: HamiltonianNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: States) -> States:
        return self.model.motion()(states)


class Energy(nn.Module):
    """H of a network."""

    def __init__(self, model: HamiltonianNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: States) -> Float[Tensor, "n 1"]:
        return self.model.energy()(states)[:, None]


#: Where in the folder of a discovery the result of training is.
RUN = "run"
#: Draws of weights for predictions, and how often the network is evaluated at once, under all draws and transformations.
_DRAWS, _AT_ONCE = 32, 2**16
#: Steps of the learned motion in pictures, each of which takes many passes through the network.
_FARTHEST = 200
#: How far from the data what is conserved is looked for in a known energy, in units of size one.
_ASIDE = 0.1
_ROLLOUT = ImplicitMidpoint(2)


@dataclass(frozen=True, repr=False)
class EnergyDiscovery(Discovery):
    """A learned energy with its symmetries; states, times and energies are in the units of the data.

    Args:
        result: Of training, in units in which states are of size one.
        units: Those units.
        search: How it was sought.
        learned_from: The trajectories of training.
        held_out: Other trajectories, on which conserved quantities are checked.
        system: What made the trajectories, where that is known: what was learned is then compared with the truth.
        history: The bound and the strengths of observables over epochs.
        seconds: That its training took.
        followed: Along which quantities are followed: those held out, or all of a single one of which the end was.
        gain: By how much the bound of learned observables is higher than that of a plain energy, for a pair of states, in nats.
            Where it is below zero, the plain energy is what was discovered. None where they were not compared.
        is_partial: Whether it was stopped before its end: training, or that of the plain energy to compare with.
    """

    result: Result
    units: Scaling
    search: Search
    learned_from: Trajectories
    held_out: Trajectories
    system: System | None
    history: tuple[DiscoveryRecord, ...]
    seconds: float
    followed: Trajectories
    gain: float | None = None
    is_partial: bool = False

    def __repr__(self) -> str:
        return f"EnergyDiscovery({', '.join(self.learned_from.names)}: {len(self.quantities)} quantities, {self.result!r})"

    @property
    def model(self) -> HamiltonianNetwork:
        """The network, in units in which states are of size one."""
        return cast(HamiltonianNetwork, self.result.model)

    @cached_property
    def span(self) -> Span | None:
        """What the observables span, where they are quadratics."""
        observables = self.model.observables
        return span_of(observables, self.search.threshold) if isinstance(observables, Quadratics) else None

    @cached_property
    def quantities(self) -> list[Quantity]:
        """The quantities that were found; each says whether it is confirmed."""
        observables = self.model.observables
        if observables is None:
            return []
        if self.span is not None:
            found = read_quadratics(self.span, self.units, self.learned_from, self.held_out, self.followed)
        else:
            data = (self.learned_from, self.held_out)
            found = read_observables(observables, self.units, *data, self.search.threshold, self.followed)
        return judged(found, self.held_out)

    @property
    def evidence(self) -> dict[str, float]:
        """Terms of the bound for a pair of states, in nats: nll + kl = negative_elbo."""
        found, pairs = self.result.evidence, self.result.num_data
        nll, kl = -found.log_likelihood / pairs + self.units.log_volume, -(found.log_prior + found.log_volume) / pairs
        return {"nll": nll, "kl": kl, "negative_elbo": nll + kl}

    def predict(self, states: States, *, by: str = "sampled") -> States:
        """Where states are one step later: on average over draws of weights ("sampled"), or at their mean ("plug-in").

        Raises:
            ValueError: If there is no such way.
        """
        if by not in ("sampled", "plug-in"):
            raise ValueError(f"by must be 'sampled' or 'plug-in', got {by!r}.")
        return self._under_draws(self.model, states, by == "sampled").mean(0) * self.units.scale

    def evaluate(self, trajectories: Trajectories) -> dict[str, float]:
        """Mean squared errors a step ahead, over states and coordinates, by both ways; noise of targets is left out."""
        before, after = trajectories.states[:, :-1].flatten(0, 1), trajectories.states[:, 1:].flatten(0, 1)
        ways = ("sampled", "plug-in")
        return {by: float((self.predict(before, by=by) - after.double()).square().mean()) for by in ways}

    def energy(self, states: States) -> Float[Tensor, " n"]:
        """The learned Hamiltonian, on average over draws of weights; known up to a constant."""
        return self._under_draws(Energy(self.model), states, True).mean(0)[:, 0] * self.units.energy

    def velocities(self, states: States) -> Float[Tensor, "draws n m"]:
        """J ∇H at every state, under draws of weights."""
        return self._under_draws(Motion(self.model), states, True) * (self.units.scale / self.units.time)

    def rollout(self, states: States, steps: int, integrator: Integrator | None = None) -> Float[Tensor, "n times m"]:
        """Motion from states on, under the mean energy.

        Args:
            states: To begin with.
            steps: As long as those of the data.
            integrator: Symplectic when None, so that energy does not drift: the implicit midpoint rule.
        """
        rule = integrator if integrator is not None else _ROLLOUT
        path = [states.double()]
        for _ in range(steps):
            path.append(rule(lambda x: self.velocities(x).mean(0), path[-1], self.learned_from.step))
        return torch.stack(path, 1)

    def save(self, folder: str | Path) -> DiscoverySummary:
        """Write the network, its posterior and what was found to a folder, without pickle; what `summary` gives.

        Files are discovery.json (all figures) and those of `Result.save` in run/; an earlier discovery is replaced as a whole.
        The command `symbayes report` makes a page of them.
        """
        folder = Path(folder)
        try:
            found = self.summary()
            figures = dump_json(found, DiscoverySummary, DISCOVERY)
            run = seal(self.result.files() | {POSTERIOR: dump_posterior(self.result.posterior)})
        except Exception:  # whatever becomes of the figures, the network is kept
            self.result.save(folder / RUN)
            raise
        settings = asdict(self.search) | {"integrator": str(self.search.integrator)}
        figures |= {"format": FORMAT, "search": to_json(settings)}
        files: dict[str, bytes | str] = {f"{RUN}/{name}": content for name, content in run.items()}
        write_folder(folder, files | {DISCOVERY: json.dumps(figures, indent=1)})
        return found

    def summary(self) -> DiscoverySummary:
        """All figures, as plain numbers: what is saved, and what pages and tables are made of."""
        span, search, held, noise = self.span, self.search, self.held_out, self.result.likelihood.noise()
        return DiscoverySummary(
            title=self.title,
            held_out=len(held),
            followed=self._followed,
            names=tuple(held.names),
            step=held.step,
            units=ScalingSummary(tuple(self.units.scale.tolist()), self.units.time),
            pairs=self.result.num_data,
            trajectories=len(self.learned_from),
            model=EnergySummary(
                kind=self._kind,
                quantities=0 if self.model.observables is None else self.model.observables.count,
                width=search.width,
                hidden=search.hidden,
                integrator=_words(search.integrator),
                measure=search.measure,
                samples=search.samples,
                updates=search.updates_in(len(self.history), self.result.num_data),
                seconds=self.seconds,
            ),
            evidence=BoundSummary(**self.evidence, estimator=self.result.evidence.estimator),
            noise=tuple((noise.detach().cpu().double() * self.units.scale).tolist()),
            learned_noise=self.result.likelihood.learns_noise,
            singular_values=() if span is None else tuple(span.strengths.tolist()),
            threshold=search.threshold,
            count=len(self.quantities),
            truth=self.compared(),
            generators=() if span is None else _tuples(span.directions.generators()[:12].tolist()),
            quantities=tuple(self._describe(quantity) for quantity in self.quantities),
            times=tuple((held.step * torch.arange(held.states.shape[1])).tolist()),
            portraits=self._portraits(),
            rollout=self._long_rollout(),
            history=self.history,
            errors={"held out": {**self.evaluate(held)}},
            is_partial=self.is_partial,
            gain=self.gain,
        )

    @property
    def _kind(self) -> Literal["quadratic", "neural", "fixed", "none"]:
        if self.model.observables is None:
            return "none"
        if self.span is None:
            return "neural"
        return "quadratic" if cast(Quadratics, self.model.observables).halves.requires_grad else "fixed"

    def compared(self) -> Truth | None:
        """How many quadratics the true energy conserves, and how much of what was learned lies among them; None if unknown."""
        if self.system is None or self.span is None:
            return None
        system, scale, size = self.system, self.units.scale, self.span.directions.size
        generator = torch.Generator().manual_seed(0)
        states = self.learned_from.states.double().flatten(0, 1) / scale
        states = states[torch.randint(len(states), (2 * size * (size + 3),), generator=generator)]
        # Near the data, but in general position: on a single orbit more is constant than what is conserved.
        states = states + _ASIDE * torch.randn(states.shape, generator=generator, dtype=states.dtype)
        truth = conserved_quadratics(lambda inside: system.hamiltonian(inside * scale), states)
        return Truth(truth.count, tuple(parallelness(self.span.directions, truth).tolist()))

    def bracket(self, quantity: Quantity) -> float | None:
        """How fast the true motion changes a quantity, relative to its slope and to the speed of motion; None if unknown."""
        if self.system is None:
            return None
        return self._relative(gradient(quantity, self._points), velocity(self.system.hamiltonian, self._points))

    def _relative(self, gradients: States, velocities: States) -> float:
        """Their relative bracket in units of size one: in others, large coordinates would hide the rest."""
        return relative_bracket(gradients * self.units.scale, velocities / self.units.scale)

    @cached_property
    def _points(self) -> States:
        """Some states of trajectories that were held out."""
        states = self.held_out.states.double().flatten(0, 1)
        return states[:: max(1, len(states) // POINTS)]

    @cached_property
    def _moved(self) -> Float[Tensor, "draws n m"]:
        """Velocities there."""
        return self.velocities(self._points)

    def _describe(self, quantity: Quantity) -> QuantitySummary:
        gradients = gradient(quantity, self._points)
        rates = [self._relative(gradients, moved) for moved in self._moved]
        std, mean = torch.std_mean(torch.tensor(rates))
        return QuantitySummary(
            formula=quantity.formula,
            confirmed=quantity.confirmed,
            too_short=quantity.too_short,
            strength=quantity.strength,
            variation=quantity.variation,
            error=quantity.error,
            drift=quantity.drift,
            reference=quantity.reference,
            terms=quantity.terms,
            rate=float(mean),
            rate_error=float(std),
            bracket=self.bracket(quantity),
            verdict=quantity.verdict,
            series=tuple(tuple(quantity(path).tolist()) for path in self.held_out.states[:SHOWN]),
        )

    def _portraits(self) -> tuple[Portrait, ...]:
        """Data and model in the plane of each position and its momentum, from the same first states, within reason."""
        states, degrees = self.held_out.states[:SHOWN, : _FARTHEST + 1].double(), self.held_out.degrees
        moved = self.rollout(states[:, 0], states.shape[1] - 1)
        return tuple(
            Portrait(
                (self.held_out.names[i], self.held_out.names[degrees + i]),
                _tuples(states[:, :, [i, degrees + i]].tolist()),
                _tuples(moved[:, :, [i, degrees + i]].tolist()),
            )
            for i in range(min(degrees, 6))
        )

    def _long_rollout(self) -> Rollout:
        """Ten times as long as trajectories that were held out, and 200 steps at most."""
        start, system, step = self.held_out.states[:SHOWN, 0].double(), self.system, self.held_out.step
        count = min(10 * (self.held_out.states.shape[1] - 1), _FARTHEST)
        moved = self.rollout(start, count)
        points, shape = moved.flatten(0, 1), moved.shape[:2]
        energies = self.energy(points).unflatten(0, shape)
        spread = self.energy(self.held_out.states.double().flatten(0, 1)).std()
        true_energy = error = None
        if system is not None:
            truth = motion(system, start, count, step)
            true_energy = system.hamiltonian(points).unflatten(0, shape).tolist()
            error = (moved - truth).square().mean((0, 2)).sqrt().tolist()
        return Rollout(
            times=tuple((step * torch.arange(count + 1)).tolist()),
            energy=_tuples(energies.tolist()),
            true_energy=None if true_energy is None else _tuples(true_energy),
            error=None if error is None else tuple(error),
            drift=float((energies[:, -1] - energies[:, 0]).abs().mean() / spread),
            integrator=_words(_ROLLOUT),
        )

    def __str__(self) -> str:
        title, *quantities = super().__str__().split("\n")
        partial = ["  partial: training was stopped before its end"] if self.is_partial else []
        worth = [f"  {words}"] if (words := gain_words(self.gain)) else []
        return "\n".join([title, *worth, *partial, *quantities])

    @cached_property
    def _drawn(self) -> Weights:
        return self.result.posterior.sample(_DRAWS, generator=torch.Generator().manual_seed(0), antithetic=True)

    @torch.no_grad()
    def _under_draws(self, module: nn.Module, states: States, sampled: bool) -> Float[Tensor, "draws n c"]:
        """What a module made of the model gives under draws of weights, or at their mean; in its own units."""
        like = next(self.model.parameters())
        prefix = "" if module is self.model else "model."
        inside = (states.double() / self.units.scale).to(like)
        outputs = []
        copies = (_DRAWS if sampled else 1) * (self.model.final_samples if self.model.observables is not None else 1)
        for part in inside.split(max(1, _AT_ONCE // copies)):
            if sampled:
                weights = {f"{prefix}{name}": value for name, value in self._drawn.items()}
                outputs.append(outputs_under(module, weights, part))
            else:
                outputs.append(module(part)[None])
        return torch.cat(outputs, 1).double().cpu()


def _words(integrator: Integrator) -> str:
    return f"{type(integrator).__name__}({integrator.steps})"


def _tuples(values: Sequence[Any]) -> tuple[Any, ...]:
    """Lists in lists as tuples in tuples."""
    return tuple(_tuples(value) if isinstance(value, list) else value for value in values)
