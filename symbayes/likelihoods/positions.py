"""Outputs at many positions of a datum: a class for every pixel or token, with a likelihood of its own at each.

Positions are independent given the outputs, so log-probabilities add up and the Fisher information has a block for each. A
network that gives [n, c, *grid] stands in `AtPositions`, and what it gives comes as [n, positions · c], as all outputs do.
"""

from collections.abc import Mapping
from copy import copy
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from symbayes.likelihoods.likelihood import (
    Columns,
    Likelihood,
    ManyOutputs,
    ManyValues,
    Outputs,
    Setting,
    is_registered,
    random_signs,
    register,
    registered,
)
from symbayes.scores import CalibrationScores

#: Numbers in exact columns that are made at once, at most: a gigabyte.
_MOST = 2**28
#: Before settings of the likelihood at a position.
_PREFIX = "of_"


class AtPositions(nn.Module):
    """A network whose outputs [n, c, *grid], or [n, *grid, c], are given as [n, positions · c], one position after the other.

    Args:
        network: That gives them.
        channels_last: Whether the last axis is that of channels, as where positions are tokens.
    """

    def __init__(self, network: nn.Module, *, channels_last: bool = False) -> None:
        super().__init__()
        self.network, self.channels_last = network, channels_last

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(inputs)
        if outputs.ndim < 3:
            raise ValueError(
                "A network at positions must give [n, c, *grid], or [n, *grid, c] with channels_last; got "
                f"{tuple(outputs.shape)}."
            )
        return (outputs if self.channels_last else outputs.movedim(1, -1)).flatten(1)


@register
class PerPosition(Likelihood):
    """A likelihood at each of many positions: outputs are [n, positions · c], targets [n, *positions, v].

    A target has as many values v as the likelihood has for c outputs: c, unless it says otherwise. Targets are [n, *positions]
    where they are class numbers, or v is 1. A field of values with normal noise needs none of this: flatten outputs and
    targets, and use `Gaussian()`.

    Args:
        of: At a position, such as `Categorical()`.
        outputs: Of a position: c.
        ignore: A number that stands for no target: such positions count for nothing.
        settings: Of the likelihood at a position where `of` is its name, as `settings` gives them.
    """

    has_positions = True

    def __init__(self, of: Likelihood | str, outputs: int, *, ignore: int | None = None, **settings: Setting) -> None:
        super().__init__()
        if outputs < 1:
            raise ValueError(f"outputs must be at least 1, those of a position; got {outputs}.")
        given = {name.removeprefix(_PREFIX): value for name, value in settings.items()}
        self.of = registered(of)(**given) if isinstance(of, str) else of
        if self.of.is_normal or self.of.learns_noise:
            raise ValueError(
                f"A likelihood at positions must have no noise; {type(self.of).__name__} has. Flatten outputs and targets, and "
                "use it by itself."
            )
        self.outputs, self.ignore = outputs, ignore
        #: Of the target of a position: as many as means.
        self.values = self.of.moments(torch.zeros(1, outputs))[0].shape[1]
        self._seen: Bool[Tensor, "n position"] | None = None

    @property
    def bears_rounding(self) -> bool:
        return self.of.bears_rounding

    def at(self, targets: Tensor) -> "PerPosition":
        if self.ignore is None:
            return self
        other = copy(self)
        other._seen = self._split(targets)[1]
        return other

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        wanted, seen = self._targets(targets)
        return self._by_datum(self.of.log_prob(self._flat(outputs), wanted), seen).sum(1)

    def fisher_columns(self, outputs: Outputs) -> Columns:
        columns = self._blocks(self.of.fisher_columns(self._flat(outputs)), len(outputs))
        k, v, n, positions, c = columns.shape
        if k * v * n * positions**2 * c > _MOST:
            raise ValueError(
                f"Exact columns of {n} data at {positions} positions have {k * v * n * positions**2 * c:.1g} numbers. Sample "
                "them: Kfac(MonteCarloFisher()); or use a smaller batch_size."
            )
        apart = torch.diag_embed(columns.movedim(3, -1))  # [k, v, n, c, position, column]
        return apart.permute(0, 1, 5, 2, 4, 3).flatten(4).flatten(1, 2)

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        found = self.of.sampled_columns(self._flat(outputs), samples, generator=generator)
        columns = self._blocks(found, len(outputs))
        # Of either sign at every position, so that positions are independent on average.
        return (columns * random_signs((*columns.shape[:4], 1), outputs, generator)).flatten(3)

    def product(self, outputs: Outputs, vectors: Outputs) -> Outputs:
        found = self.of.product(self._flat(outputs), self._flat(vectors))
        return self._blocks(found[None, None], len(outputs))[0, 0].flatten(1)

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        wanted, seen = self._targets(targets)
        return self._by_datum(self.of.score(self._flat(outputs), wanted), seen).flatten(1)

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        return self.of.sample(self._flat(outputs), generator=generator).reshape(len(outputs), -1)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        if len(outputs) != len(targets):
            raise ValueError(f"There must be a target for each of the {len(outputs)} data, got {len(targets)}.")
        if outputs.shape[1] % self.outputs:
            raise ValueError(
                f"Outputs must be {self.outputs} at each position, [n, positions · {self.outputs}]; got {tuple(outputs.shape)}."
            )
        positions = outputs.shape[1] // self.outputs
        v = 1 if self.of.has_classes and not targets.is_floating_point() else self.values
        if prod(targets.shape[1:]) != positions * v or (v > 1 and targets.ndim > 2 and targets.shape[-1] != v):
            raise ValueError(
                f"Targets must be {'[n, *positions]' if v == 1 else f'[n, *positions, {v}]'}, with {positions} positions as "
                f"the outputs have, and channels last; got {tuple(targets.shape)}."
            )
        wanted, seen = self._targets(targets)
        flat = seen.flatten()
        if flat.all():
            self.of.check(self._flat(outputs), wanted)
        elif flat.any():
            self.of.check(self._flat(outputs)[flat], wanted[flat])

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """Relative to the mean number of targets of a datum, so that the mean over data is that over all targets."""
        wanted, seen = self._targets(targets)
        found = self.of.metrics(self._flat(outputs), wanted)
        share = seen.sum() / len(seen)
        return {name: self._by_datum(value, seen).sum(1) / share for name, value in found.items()}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyValues, ManyValues]:
        mean, variance = self.of.moments(outputs.unflatten(-1, (-1, self.outputs)))
        return mean.flatten(-2), variance.flatten(-2)

    def link(self, mean: ManyValues) -> ManyOutputs:
        return self.of.link(mean.unflatten(-1, (-1, self.values))).flatten(-2)

    def scales(self) -> Float[Tensor, " k"]:
        return self.of.scales()

    def settings(self) -> Mapping[str, Setting]:
        if not is_registered(self.of):
            raise ValueError(f"A likelihood is saved by the name of what it is of; {type(self.of).__name__} is not registered.")
        own: dict[str, Setting] = {"of": type(self.of).__name__, "outputs": self.outputs, "ignore": self.ignore}
        return {**own, **{f"{_PREFIX}{name}": value for name, value in self.of.settings().items()}}

    def interval(self, mean: Outputs, std: Outputs, level: float) -> tuple[Outputs, Outputs]:
        low, high = self.of.interval(self._flat_values(mean), self._flat_values(std), level)
        return low.reshape(mean.shape), high.reshape(mean.shape)

    def classes(self, mean: Outputs) -> Int[Tensor, "n position"]:
        return self.of.classes(self._flat_values(mean)).unflatten(0, (len(mean), -1))

    def check_calibration(self) -> None:
        self.of.check_calibration()

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        wanted, seen = self._targets(targets)
        flat = seen.flatten()
        return self.of.calibrate(self._flat_values(mean)[flat], self._flat_values(std)[flat], wanted[flat], bins)

    def extra_repr(self) -> str:
        return f"outputs={self.outputs}, ignore={self.ignore}"

    def _flat(self, outputs: Outputs) -> Float[Tensor, "m k"]:
        """Positions as data."""
        return outputs.unflatten(1, (-1, self.outputs)).flatten(0, 1)

    def _flat_values(self, values: Float[Tensor, "n _"]) -> Float[Tensor, "m v"]:
        return values.unflatten(1, (-1, self.values)).flatten(0, 1)

    def _split(self, targets: Tensor) -> tuple[Tensor, Bool[Tensor, "n position"]]:
        """Targets as [n, position] where they are class numbers, else [n, position, v], and which of them there are."""
        is_class = self.of.has_classes and not targets.is_floating_point()
        split = targets.reshape(len(targets), -1, *(() if is_class else (self.values,)))
        if self.ignore is None:
            return split, torch.ones(split.shape[:2], dtype=torch.bool, device=targets.device)
        known = (split if split.is_floating_point() else split.long()) != self.ignore
        return split, known if is_class else known.all(-1)

    def _targets(self, targets: Tensor) -> tuple[Tensor, Bool[Tensor, "n position"]]:
        """Targets of positions as data, and which there are; any will do in place of those that are ignored."""
        split, seen = self._split(targets)
        wanted = split.flatten(0, 1)
        return torch.where(seen.view(-1, *(1 for _ in wanted.shape[1:])), wanted, 0), seen

    def _by_datum(self, values: Tensor, seen: Bool[Tensor, "n position"]) -> Tensor:
        """What was found at positions as data, with zeros where there is no target."""
        found = values.unflatten(0, seen.shape)
        return torch.where(seen.view(*seen.shape, *(1 for _ in found.shape[2:])), found, 0)

    def _blocks(self, columns: Float[Tensor, "k v m c"], count: int) -> Float[Tensor, "k v n position c"]:
        found = columns.unflatten(2, (count, -1))
        return found if self._seen is None else found * self._seen[:, :, None]
