"""What was discovered: quantities, and how sure it is that they are conserved."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.data.folders import write_folder
from symbayes.data.storage import dump_json
from symbayes.dynamics.denoising import Denoised
from symbayes.dynamics.phase import gradient, relative_bracket, velocity
from symbayes.dynamics.quantity import Quantity, Term, formula
from symbayes.dynamics.summary import (
    DISCOVERY,
    FORMAT,
    DiscoverySummary,
    EnergySummary,
    Followed,
    QuantitySummary,
    followed_words,
    headline,
)
from symbayes.dynamics.systems import System
from symbayes.dynamics.terms import Sum, refitted
from symbayes.dynamics.trajectories import Trajectories
from symbayes.dynamics.verdict import Verdict

#: Trajectories in pictures, and states at which brackets are taken.
SHOWN, POINTS = 4, 200


class Discovery(ABC):
    """Quantities that were sought in some trajectories and judged on others.

    Contract: `quantities` are all that were judged, and each says whether it is confirmed; `summary` has all figures.
    """

    learned_from: Trajectories
    held_out: Trajectories
    system: System | None
    seconds: float
    #: Along which quantities are followed: those held out, or all of a single one of which the end was.
    followed: Trajectories

    @property
    @abstractmethod
    def quantities(self) -> Sequence[Quantity]:
        """All that were found; each says whether it is confirmed."""

    @abstractmethod
    def summary(self) -> DiscoverySummary:
        """All figures, as plain numbers: what is saved, and what pages and tables are made of."""

    @abstractmethod
    def save(self, folder: str | Path) -> DiscoverySummary:
        """Write what was found to a folder, without pickle; what `summary` gives. `symbayes report` makes a page of it."""

    @property
    def conserved(self) -> list[Quantity]:
        """Those that are confirmed."""
        return [quantity for quantity in self.quantities if quantity.confirmed]

    @property
    def title(self) -> str:
        """Of what."""
        return self.system.name if self.system is not None else "trajectories"

    @property
    def _followed(self) -> Followed:
        return Followed(self.followed.duration, self.followed is not self.held_out)

    def __str__(self) -> str:
        title = headline(self.title, self.quantities, followed_words(len(self.held_out), self._followed))
        return "\n".join([title, *(f"  {quantity}" for quantity in self.quantities)])


@dataclass(frozen=True, repr=False)
class TermsDiscovery(Discovery):
    """Sums of terms that are constant along trajectories, whatever moves these.

    Args:
        learned_from: The trajectories of training, without their noise.
        held_out: Other trajectories, without theirs.
        found: Every sum that was judged, whether it follows from those before it, and its verdict.
        noise: The std of what was seen, for each coordinate.
        judged_on: The trajectories that were held out, and the noise that is left in them.
        libraries: By name, those in which terms were sought.
        unwrapped: Names of angles that were unwrapped.
        system: What made the trajectories, where that is known: a truth to compare with.
        seconds: That it took.
        known_noise: Whether the noise was given.
        name: Of what trajectories are of; empty where nobody said.
    """

    learned_from: Trajectories
    held_out: Trajectories
    found: tuple[tuple[Sum, bool, Verdict], ...]
    noise: Float[Tensor, " m"]
    judged_on: Denoised
    libraries: tuple[str, ...]
    unwrapped: tuple[str, ...]
    system: System | None
    seconds: float
    known_noise: bool
    name: str = ""

    def __repr__(self) -> str:
        return f"TermsDiscovery({', '.join(self.held_out.names)}: {len(self.conserved)} of {len(self.found)} conserved)"

    @property
    def followed(self) -> Trajectories:  # type: ignore[override]
        return self.held_out

    @property
    def title(self) -> str:
        return self.name or super().title

    @cached_property
    def quantities(self) -> list[Quantity]:
        """All that were judged, those that are conserved first."""
        read = [self._read(*each) for each in self.found]
        return sorted(read, key=lambda quantity: not quantity.confirmed)

    def bracket(self, quantity: Quantity) -> float | None:
        """How fast the true motion changes a quantity, relative to its slope and to the speed of motion; None if unknown."""
        if self.system is None:
            return None
        states = self.held_out.states.flatten(0, 1)
        scale = states.std(0)
        points = states[:: max(1, len(states) // POINTS)]
        return relative_bracket(gradient(quantity, points) * scale, velocity(self.system.hamiltonian, points) / scale)

    def summary(self) -> DiscoverySummary:
        """All figures, as plain numbers: what is saved, and what pages and tables are made of."""
        held, states = self.held_out, self.learned_from.states
        return DiscoverySummary(
            title=self.title,
            held_out=len(held),
            followed=self._followed,
            names=tuple(held.names),
            step=held.step,
            pairs=states.shape[0] * (states.shape[1] - 1),
            trajectories=len(states),
            model=EnergySummary(
                kind="terms",
                quantities=len(self.found),
                width=None,
                hidden=None,
                integrator="",
                measure=None,
                samples=None,
                updates=0,
                seconds=self.seconds,
            ),
            evidence=None,
            noise=tuple(self.noise.tolist()),
            learned_noise=not self.known_noise,
            singular_values=(),
            threshold=None,
            count=len(self.conserved),
            truth=None,
            generators=(),
            quantities=tuple(self._describe(quantity) for quantity in self.quantities),
            times=tuple((held.step * torch.arange(held.states.shape[1])).tolist()),
            portraits=(),
            rollout=None,
            history=(),
            errors={},
            libraries=self.libraries,
            unwrapped=self.unwrapped,
        )

    def save(self, folder: str | Path) -> DiscoverySummary:
        """Write what was found to a folder, as discovery.json; what `summary` gives. `symbayes report` makes a page of it."""
        found = self.summary()
        figures = dump_json(found, DiscoverySummary, DISCOVERY) | {"format": FORMAT}
        write_folder(Path(folder), {DISCOVERY: json.dumps(figures, indent=1)})
        return found

    def _read(self, found: Sum, follows: bool, verdict: Verdict) -> Quantity:
        """A sum as a formula, whose first large term has the coefficient one."""
        unit = found.unit(self.learned_from.states.flatten(0, 1))
        fitted, errors = (each / unit for each in refitted(found, self.judged_on))
        learned = found.coefficients / unit
        terms = tuple(
            Term(name, *numbers)
            for name, *numbers in zip(
                found.library.names, learned.tolist(), fitted.tolist(), errors.abs().tolist(), strict=True
            )
        )
        scaled = Sum(found.library, learned, found.score, found.left)
        return Quantity(
            formula(terms),
            terms,
            None,
            verdict.variation,
            None,
            scaled,
            self.held_out.duration,
            verdict.usual,
            0.0 if verdict.is_sure else verdict.variation / max(verdict.usual, 1e-300),
            verdict,
            follows,
        )

    def _describe(self, quantity: Quantity) -> QuantitySummary:
        return QuantitySummary(
            formula=quantity.formula,
            confirmed=quantity.confirmed,
            too_short=quantity.too_short,
            strength=None,
            variation=quantity.variation,
            error=None,
            terms=quantity.terms,
            rate=None,
            rate_error=None,
            bracket=self.bracket(quantity),
            series=tuple(self._series(quantity, which) for which in range(min(SHOWN, len(self.held_out)))),
            verdict=quantity.verdict,
            follows=quantity.follows,
        )

    def _series(self, quantity: Quantity, which: int) -> tuple[float, ...]:
        """Along a trajectory, at even times."""
        values = quantity(self.held_out.states[which]).numpy()
        times = (self.held_out.times[which] - self.held_out.times[which, 0]).numpy()
        even = self.held_out.step * np.arange(len(times))
        return tuple(np.interp(even, times, values).tolist())
