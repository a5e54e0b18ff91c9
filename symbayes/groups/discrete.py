"""Discrete generators: mirrors, quarter turns, time reversal and permutations of channels.

Each turns a datum [c, *grid] into one with the same numbers in other places: a signed permutation of the axes of its grid,
and a permutation of its channels. The powers of a generator are a cyclic group; several generators act one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from torch import Tensor

from symbayes.groups.grids import Matrix, identity_matrix, multiply, turn_by

#: Axes by name, counted from the last.
_AXES = {"x": -1, "y": -2, "z": -3}
#: Elements of all generators together: a network is called for each.
MOST_ELEMENTS = 64


@dataclass(frozen=True)
class Rearrangement:
    """Numbers of a datum [c, *grid] in other places.

    Args:
        matrix: A signed permutation of the axes of the grid.
        channels: Which channel comes to each place; empty where they stay.
    """

    matrix: Matrix
    channels: tuple[int, ...] = ()

    def act(self, inputs: Tensor) -> Tensor:
        """Every datum of a batch [n, c, *grid], rearranged.

        Raises:
            ValueError: If data are of another kind, or axes that are turned into each other differ in length.
        """
        dims = len(self.matrix)
        if inputs.ndim != dims + 2:
            kind = {1: "sequences [n, c, t]", 2: "images [n, c, h, w]", 3: "volumes [n, c, d, h, w]"}[dims]
            raise ValueError(
                f"Inputs must be {kind}, which have {dims} axes beside those of data and channels; got shape "
                f"{tuple(inputs.shape)}. Reshape them, or choose generators of {inputs.ndim - 2} axes: mirror('x', dims=...)."
            )
        if self.channels and len(self.channels) != inputs.shape[1]:
            raise ValueError(
                f"A permutation of {len(self.channels)} channels needs inputs with as many, got {inputs.shape[1]} of them. "
                "Give one number for each channel."
            )
        moved = inputs[:, list(self.channels)] if self.channels else inputs
        moved = moved if self.matrix == identity_matrix(dims) else turn_by(self.matrix, moved)
        if moved.shape != inputs.shape:
            raise ValueError(
                f"Quarter turns take axes into each other, which must be equally long; got inputs of shape "
                f"{tuple(inputs.shape)}. Crop or pad data to squares, or leave quarter turns out."
            )
        return moved

    def after(self, first: "Rearrangement") -> "Rearrangement":
        """Another first, then this one."""
        if not (self.channels and first.channels):
            return Rearrangement(multiply(self.matrix, first.matrix), self.channels or first.channels)
        channels = tuple(first.channels[channel] for channel in self.channels)
        stay = channels == tuple(range(len(channels)))
        return Rearrangement(multiply(self.matrix, first.matrix), () if stay else channels)


@dataclass(frozen=True)
class DiscreteGenerator:
    """A rearrangement of data, and its powers.

    Args:
        name: Such as "mirror_x".
        step: The rearrangement itself.
    """

    name: str
    step: Rearrangement

    def __post_init__(self) -> None:
        if self.order == 1:
            raise ValueError(f"A generator must change something; {self.name!r} leaves every datum as it is.")

    @property
    def order(self) -> int:
        """The least power that leaves data as they are."""
        return len(self.powers)

    @cached_property
    def powers(self) -> tuple[Rearrangement, ...]:
        """g⁰, g¹, …, up to the last before the identity comes back."""
        found = [Rearrangement(identity_matrix(len(self.step.matrix)))]
        while (new := self.step.after(found[-1])) != found[0]:
            found.append(new)
        return tuple(found)


def mirror(axis: str = "x", dims: int = 2) -> DiscreteGenerator:
    """A mirror along an axis of a grid: "x" is the last (left and right), "y" the one before it, "z" that before."""
    if dims not in (1, 2, 3) or axis not in list(_AXES)[:dims]:
        raise ValueError(
            f"A grid of {dims} axes has mirrors along {', '.join(list(_AXES)[:dims]) or 'none'}; got {axis!r}. Grids of data "
            "[n, c, *grid] have 1 to 3 axes: dims=2 for images, 3 for volumes."
        )
    at = range(dims)[_AXES[axis]]
    return DiscreteGenerator(f"mirror_{axis}", Rearrangement(_signed([i == at for i in range(dims)])))


def time_reversal() -> DiscreteGenerator:
    """Sequences [n, c, t] read backwards."""
    return DiscreteGenerator("time_reversal", Rearrangement(((-1,),)))


def quarter_turns(dims: int = 2) -> DiscreteGenerator:
    """Turns by 90° in the plane of the last two axes, x and y, which must be equally long."""
    if dims not in (2, 3):
        raise ValueError(f"Quarter turns are of images (dims=2) and volumes (dims=3), got dims={dims}.")
    ahead = dims - 2
    rows = [tuple(int(i == j) for j in range(dims)) for i in range(ahead)]
    return DiscreteGenerator("quarter_turns", Rearrangement((*rows, (0,) * ahead + (0, -1), (0,) * ahead + (1, 0))))


def permuted_channels(order: Sequence[int], dims: int = 2) -> DiscreteGenerator:
    """Channels in another order: `order[i]` is the channel that comes to place i; (2, 1, 0) swaps red and blue."""
    if sorted(order) != list(range(len(order))):
        raise ValueError(
            f"An order of channels must have every number from 0 to {max(0, len(order) - 1)} once, got {tuple(order)}."
        )
    stay = list(order) == sorted(order)
    return DiscreteGenerator("channels", Rearrangement(identity_matrix(dims), () if stay else tuple(order)))


@dataclass(frozen=True)
class Elements:
    """The different products of powers of generators, and how each is made.

    Args:
        rearrangements: One for each element; the identity first.
        powers: Of every generator, for all combinations of them.
        element: Which of the elements each combination is.
    """

    rearrangements: tuple[Rearrangement, ...]
    powers: tuple[tuple[int, ...], ...]
    element: tuple[int, ...]


def elements_of(generators: Sequence[DiscreteGenerator]) -> Elements:
    """Every product g₁^k₁ g₂^k₂ …, the first generator first; products that do the same are one element.

    They are a group where generators in another order make the same elements, as mirrors and quarter turns do; two permutations
    of channels may not, and the average over their products is then not invariant.

    Raises:
        ValueError: If generators are of grids with different numbers of axes, share a name, or make too many elements.
    """
    names = [generator.name for generator in generators]
    if len(set(names)) < len(names):
        raise ValueError(f"Generators must have different names, got {', '.join(names)}.")
    dims = {len(generator.step.matrix) for generator in generators}
    if len(dims) > 1:
        raise ValueError(
            f"Generators must be of grids with the same number of axes, got {', '.join(map(str, sorted(dims)))}. Give all of "
            "them the same dims=."
        )
    powers = list(product(*(range(generator.order) for generator in generators)))
    found: dict[Rearrangement, int] = {}
    element = []
    for combination in powers:
        whole: Rearrangement | None = None
        for generator, power in zip(generators, combination, strict=True):
            step = generator.powers[power]
            whole = step if whole is None else step.after(whole)
        if whole is not None:
            element.append(found.setdefault(whole, len(found)))
        if len(found) > MOST_ELEMENTS:
            raise ValueError(
                f"Generators must make at most {MOST_ELEMENTS} elements together, since a network is called for each; "
                f"{', '.join(names)} make more. Leave some out."
            )
    return Elements(tuple(found), tuple(powers) if found else (), tuple(element))


def _signed(flipped: Sequence[bool]) -> Matrix:
    return tuple(tuple((-1 if flips else 1) * int(i == j) for j in range(len(flipped))) for i, flips in enumerate(flipped))
