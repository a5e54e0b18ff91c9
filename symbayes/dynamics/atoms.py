"""Functions of coordinates, of whose products terms are made."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.phase import Observable, States

#: Logarithms and inverses are of what is this far from zero at least, relative to its size.
_AWAY = 0.02
#: Of groups of coordinates that may have a length: how many coordinates a state has at most for all groups to be tried.
_FEW = 4

#: Paid for a coordinate, and for a function that is none.
EACH, COST = 0.5, 2.5

#: Functions of an angle.
WAVES = (("cos", torch.cos), ("sin", torch.sin))

#: A coordinate, or the difference of two.
Row = tuple[int, ...]


@dataclass(frozen=True)
class Atom:
    """What terms are products of: a coordinate, or a function of some.

    Args:
        name: In words.
        value: At every state.
        cost: How much is paid for it as a factor of a term.
    """

    name: str
    value: Observable
    cost: float = EACH


def products_of(places: Sequence[int], degree: int) -> Iterator[tuple[int, ...]]:
    """All up to a degree, by the places of their factors."""
    for k in range(1, degree + 1):
        yield from combinations_with_replacement(places, k)


def coordinates(names: Sequence[str]) -> tuple[Atom, ...]:
    """One for each coordinate."""
    return tuple(Atom(name, partial(value_of, (place,))) for place, name in enumerate(names))


def groups_of(size: int) -> list[tuple[Row, ...]]:
    """Coordinates that may have a length together: of few, all; of many, halves, and differences between bodies."""
    if size <= _FEW:
        return [tuple((place,) for place in group) for k in (2, 3) for group in combinations(range(size), k)]
    half, groups = size // 2, list[tuple[Row, ...]]()
    if size % 2 == 0 and half <= 3:
        ways = [range(half), range(half, size), range(0, size, 2), range(1, size, 2)]
        groups += [tuple((place,) for place in way) for way in ways]
        groups += [(pair, (half + pair[0], half + pair[1])) for pair in combinations(range(half), 2)]
    for dimensions in (2, 3):
        if size % (2 * dimensions) == 0 and size > 2 * dimensions:
            bodies = [range(first, first + dimensions) for first in range(0, half, dimensions)]
            groups += [tuple(zip(one, other, strict=True)) for one, other in combinations(bodies, 2)]
    return groups


def is_plane(group: tuple[Row, ...]) -> bool:
    """Whether it is that of two neighbours, such as x and y, or of the differences between two bodies in a plane."""
    (first, *_), *others = group
    return len(others) == 1 and (len(others[0]) == 2 or (first % 2 == 0 and others[0][0] == first + 1))


def is_away(values: Float[Tensor, " n"]) -> bool:
    """Whether values keep away from zero, on one side of it."""
    least, most = float(values.min()), float(values.max())
    return least * most > 0 and min(abs(least), abs(most)) > _AWAY * float(values.square().mean().sqrt())


def difference(names: Sequence[str], row: Row) -> str:
    """In words."""
    return " − ".join(names[place] for place in row)


def multiple(number: float, names: Sequence[str], row: Row) -> str:
    """In words, without a one."""
    size, inside = f"{abs(number):.5g} ", difference(names, row)
    factor = ("−" if number < 0 else "") + ("" if size == "1 " else size)
    return f"{factor}({inside})" if factor and len(row) > 1 else f"{factor}{inside}"


def length_name(names: Sequence[str], group: tuple[Row, ...]) -> str:
    """In words."""
    return f"√({' + '.join(row_name(names, row) for row in group)})"


def row_name(names: Sequence[str], row: Row) -> str:
    """Its square, in words."""
    return f"{names[row[0]]}²" if len(row) == 1 else f"({names[row[0]]} − {names[row[1]]})²"


def lengths_of(names: Sequence[str], group: tuple[Row, ...]) -> list[Atom]:
    """The inverse of a length, and the length."""
    name = length_name(names, group)
    cost = cost_of(group)
    return [Atom(f"{name}⁻¹", partial(inverse_length, group), cost), Atom(name, partial(length_of, group), cost)]


def cost_of(group: tuple[Row, ...], cost: float = COST) -> float:
    """Of a function of several coordinates."""
    return cost + EACH * (len(group) - 1)


def value_of(row: Row, states: States) -> Float[Tensor, " n"]:
    """The coordinate, or the difference."""
    return states[:, row[0]] if len(row) == 1 else states[:, row[0]] - states[:, row[1]]


def length_of(group: tuple[Row, ...], states: States) -> Float[Tensor, " n"]:
    """The root of the sum of squares."""
    return torch.stack([value_of(row, states) for row in group]).square().sum(0).sqrt()


def inverse_length(group: tuple[Row, ...], states: States) -> Float[Tensor, " n"]:
    """One over it."""
    return 1 / length_of(group, states)


def log_length(group: tuple[Row, ...], states: States) -> Float[Tensor, " n"]:
    """Its logarithm."""
    return length_of(group, states).log()


def of_angle(function: Callable[[Tensor], Tensor], row: Row, times: float, states: States) -> Float[Tensor, " n"]:
    """A sine or a cosine of a multiple."""
    return function(times * value_of(row, states))


def exponential_of(row: Row, times: float, states: States) -> Float[Tensor, " n"]:
    """That of a multiple."""
    return (times * value_of(row, states)).exp()


def log_of(place: int, states: States) -> Float[Tensor, " n"]:
    """The logarithm of a coordinate without its sign."""
    return states[:, place].abs().log()


def inverse_of(place: int, power: int, states: States) -> Float[Tensor, " n"]:
    """A coordinate to a negative power."""
    return states[:, place] ** -power


def inverse_sine(place: int, states: States) -> Float[Tensor, " n"]:
    """One over the sine of a coordinate."""
    return 1 / states[:, place].sin()


def log_difference(row: Row, states: States) -> Float[Tensor, " n"]:
    """The logarithm of a difference without its sign."""
    return value_of(row, states).abs().log()


def inverse_difference(row: Row, power: int, states: States) -> Float[Tensor, " n"]:
    """A difference to a negative power."""
    return value_of(row, states) ** -power
