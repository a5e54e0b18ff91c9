"""How far transformations go: an extent for each generator of a group, learned by the evidence."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from math import copysign, isfinite

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.groups.lie import LieGroup
from symbayes.layout import Hyperparameter

#: Random tables of transformations, of which the most even is chosen.
_CANDIDATES = 64


@dataclass(frozen=True)
class ExtentSummary:
    """One extent or probability, in natural units: degrees, pixels, percent."""

    name: str
    value: float
    unit: str
    #: None where there is none.
    bound: float | None
    one_sided: bool
    learned: bool = False
    #: Whether it says how probable a discrete transformation is, rather than how far a continuous one goes.
    is_probability: bool = False


class Amounts(nn.Module, ABC):
    """How much there is of every transformation: extents of continuous ones, probabilities of discrete ones."""

    names: tuple[str, ...]
    value: Hyperparameter

    @abstractmethod
    def clamp(self) -> None:
        """Back within their bounds; for training, after a step."""

    @abstractmethod
    def described(self) -> list[ExtentSummary]:
        """Every amount in the units of people: its name, value, bound and unit, and whether it is learned."""


class Extents(Amounts):
    """Transformations exp(Σ_i ε_i η_i G_i) with ε uniform on [−1, 1] and learned extents η.

    Extents are stored with a sign. It means nothing where transformations go to both sides; of a generator that is one-sided, ε
    is uniform on [0, 1] and the sign says to which side.

    Args:
        group: Whose generators they belong to.
    """

    def __init__(self, group: LieGroup) -> None:
        super().__init__()
        if not group.generators:
            raise ValueError("A group needs at least one generator so that there is something to learn, got none.")
        self.group = group
        first = {g.extent: g for g in reversed(group.generators)}
        self.names = tuple(dict.fromkeys(g.extent for g in group.generators))
        self.value = Hyperparameter(torch.tensor([first[name].start for name in self.names]))
        self._index = [self.names.index(g.extent) for g in group.generators]
        #: Of a datum, of the data last seen; so that extents can be given in pixels.
        self.shape: tuple[int, ...] = ()
        self.clamp()

    def coefficients(self, draws: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
        """ε_i η_i."""
        return draws * self._values()

    def transform(self, draws: Float[Tensor, "n_or_1 s k"], inputs: Tensor) -> Float[Tensor, "n s ..."]:
        """Every datum under s transformations.

        Raises:
            ValueError: If inputs are not real numbers, or not of a shape that the group acts on.
        """
        if not inputs.is_floating_point():
            raise ValueError(
                f"Inputs must be real numbers to be transformed, got {inputs.dtype}. Convert them: inputs.float()."
            )
        self.shape = tuple(inputs.shape[1:])
        return self.group.transform(self.coefficients(draws.to(inputs)), inputs)

    def drawn(self, samples: int, *, count: int, seed: int, number: int, antithetic: bool) -> Float[Tensor, "n s k"]:
        """Random draws for the pass of this number: others in every pass, the same for the same seed."""
        return self.random(count, samples, seed * 1_000_003 + number, antithetic=antithetic)

    def even(self, samples: int, *, antithetic: bool = False) -> Float[Tensor, "1 s k"]:
        """Fixed draws that are spread evenly: the same steps in every generator, in orders that are nearly uncorrelated."""
        k = len(self._index)
        if not antithetic:
            return self._sign(_even_shares(samples, k)[None], False)
        # Steps on one side of the middle, a side for each generator and pair; the opposites fill the other.
        sides = torch.from_numpy(np.random.default_rng(1).choice([-1.0, 1.0], (samples // 2, k)))
        return self._sign((0.5 + sides * _even_shares(samples // 2, k) / 2)[None], True)

    def random(self, count: int, samples: int, seed: int, *, antithetic: bool = False) -> Float[Tensor, "n s k"]:
        """The even draws, each datum's moved around by amounts of its own: uniform on average, with little noise."""
        half = samples // 2 if antithetic else samples
        moves = torch.rand(count, 1, len(self._index), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self._sign((_even_shares(half, len(self._index)) + moves) % 1, antithetic)

    @torch.no_grad()
    def clamp(self) -> None:
        """Back within the bounds of the generators; for training, after a step."""
        for index, name in enumerate(self.names):
            self.value[index].clamp_(-self._bound(name), self._bound(name))

    def natural(self) -> dict[str, float]:
        """The extents in degrees, pixels and percent.

        Raises:
            RuntimeError: If one is in pixels and no image has been seen.
        """
        return {extent.name: extent.value for extent in self.described()}

    def described(self) -> list[ExtentSummary]:
        """Every extent: its name, value and bound in natural units, the unit, and whether it is one-sided and learned."""
        found: list[ExtentSummary] = []
        for name, value in zip(self.names, self.value.detach().tolist(), strict=True):
            g = next(g for g in self.group.generators if g.extent == name)
            if g.unit == "px" and not self.shape:
                raise RuntimeError(
                    f"The extent {name!r} is given in pixels, and no image has been seen that says how many there are. "
                    "Call the model on a batch first, or read extents in half sides (.value)."
                )
            side = self.group.side(torch.empty(0, *self.shape)) if self.shape else 1
            bound = copysign(self._bound(name), value) if g.one_sided else self._bound(name)
            found.append(
                ExtentSummary(
                    name,
                    g.natural(value if g.one_sided else abs(value), side),
                    g.symbol,
                    g.natural(bound, side) if isfinite(bound) else None,
                    g.one_sided,
                    self.value.requires_grad,
                )
            )
        return found

    def words(self) -> str:
        """Such as "rotation ±30 °, scale 12 %"."""
        return ", ".join(f"{e.name} {'' if e.one_sided else '±'}{e.value:.3g} {e.unit}".rstrip() for e in self.described())

    def get_extra_state(self) -> Tensor:
        """So that a model that was saved knows its pixels."""
        return torch.tensor(self.shape, dtype=torch.long)

    def set_extra_state(self, state: Tensor) -> None:
        """What `get_extra_state` gave."""
        self.shape = tuple(state.tolist())

    def _values(self) -> Float[Tensor, " k"]:
        """The extent of each generator; not by a list of places, which would have to be copied to a GPU."""
        shared = len(self._index) != len(self.names)
        return torch.stack([self.value[place] for place in self._index]) if shared else self.value

    def _bound(self, name: str) -> float:
        """Of an extent: the smallest among the generators that share it."""
        return min(g.bound for g in self.group.generators if g.extent == name)

    def _low(self) -> Float[Tensor, " k"]:
        return torch.tensor([0.0 if g.one_sided else -1.0 for g in self.group.generators], dtype=torch.float64)

    def _sign(self, shares: Float[Tensor, "n half k"], antithetic: bool) -> Float[Tensor, "n s k"]:
        """Numbers in [0, 1] as draws, with the opposite of each where that is asked for."""
        both = torch.cat([shares, 1 - shares], 1) if antithetic else shares
        return self._low() + (1 - self._low()) * both


def check_samples(samples: int, antithetic: bool) -> None:
    """Refuse numbers of transformations that make no sense.

    Raises:
        ValueError: If there are none, or pairs are asked for and one would be left over.
    """
    if samples < 1 or (antithetic and samples % 2):
        raise ValueError(f"samples must be at least 1, and even when antithetic; got {samples}.")


def all_extents(model: nn.Module) -> dict[str, float]:
    """The amounts of a whole model, in degrees, pixels and percent; with the name of their module where there are several."""
    return {extent.name: extent.value for extent in describe_extents(model)}


def describe_extents(model: nn.Module) -> list[ExtentSummary]:
    """What `Amounts.described` says, of a whole model."""
    modules = {name: module for name, module in model.named_modules() if isinstance(module, Amounts) and module.names}
    if len(modules) == 1:
        return next(iter(modules.values())).described()
    return [replace(e, name=f"{name}.{e.name}") for name, module in modules.items() for e in module.described()]


@cache
def _even_shares(count: int, k: int) -> Float[Tensor, "s k"]:
    """Points of the unit cube that take evenly spaced steps along every axis (a Latin hypercube), of small correlation."""
    # By numpy: this may run inside torch's vmap, which refuses to draw.
    rng = np.random.default_rng(0)
    steps = (np.arange(count) + 0.5) / count
    best, least = np.tile(steps, (k, 1)), np.inf
    for _ in range(_CANDIDATES if k > 1 and count > 1 else 0):
        table = np.stack([steps, *(rng.permutation(steps) for _ in range(k - 1))])
        worst = np.abs(np.corrcoef(table) - np.eye(k)).max()
        if worst < least:
            best, least = table, worst
    return torch.from_numpy(best.T.copy())
