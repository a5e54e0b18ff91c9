"""Libraries with a number inside of their terms, such as a in exp(a q), that nobody can know beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.atoms import (
    WAVES,
    Atom,
    Row,
    coordinates,
    cost_of,
    exponential_of,
    groups_of,
    length_of,
    multiple,
    of_angle,
    products_of,
    row_name,
    value_of,
)
from symbayes.dynamics.library import MOST, Library
from symbayes.dynamics.phase import States

#: Paid for a function with a number that was sought.
_SHAPED = 3.5


@dataclass(frozen=True)
class Shape:
    """Terms that depend on a number which no library can know beforehand, such as a in exp(a q).

    Args:
        kind: Of the library.
        names: Of coordinates.
        rows: Of which the functions are, all with the same number.
        size: The standard deviation of these.
    """

    kind: str
    names: tuple[str, ...]
    rows: tuple[tuple[Row, ...], ...]
    size: float

    @property
    def span(self) -> tuple[float, float]:
        """The least and the largest number that make a difference where coordinates are of this size."""
        low, high, of_length = SHAPES[self.kind]
        return (low * self.size, high * self.size) if of_length else (low / self.size, high / self.size)

    def library(self, value: float) -> Library:
        """With its number."""
        atoms = list(coordinates(self.names))
        terms = list(products_of(range(len(self.names)), 2))
        for group in self.rows:
            new = _BUILDERS[self.kind](self.names, group, value)
            places = range(len(atoms), len(atoms) + len(new))
            atoms += new
            terms += [(place,) for place in places]
        return Library(self.kind, tuple(atoms), tuple(terms))


def shapes(names: Sequence[str], states: States, kinds: Sequence[str] | None = None) -> list[Shape]:
    """Those that states allow: of each coordinate, of the first half of them together, of their differences, and of lengths.

    Args:
        names: Of coordinates.
        states: That will be seen.
        kinds: Which of `SHAPES`, other names are passed over; all when None.
    """
    size = len(names)
    half = range(size // 2) if size % 2 == 0 and size >= 4 else range(0)
    alone: list[tuple[tuple[Row, ...], ...]] = [(((place,),),) for place in range(size)]
    together = [tuple(((place,),) for place in half), tuple((pair,) for pair in combinations(half, 2))] if half else []
    lengths: list[tuple[tuple[Row, ...], ...]] = [(group,) for group in groups_of(size)]
    found = []
    for kind in SHAPES if kinds is None else [kind for kind in SHAPES if kind in kinds]:
        for rows in alone + (lengths if kind == "softened" else together):
            moved = [value_of(row, states) for group in rows for row in group]
            spread = float(torch.stack(moved).var(1).mean().sqrt())
            if spread > 0 and comb(size + 2, 2) + 4 * len(rows) <= MOST:
                found.append(Shape(kind, tuple(names), rows, spread))
    return found


#: Kinds of shapes: the least and the largest number, times the size of coordinates if it is a length, or divided by it.
SHAPES: dict[str, tuple[float, float, bool]] = {
    "waves": (0.3, 10.0, False),
    "rates": (0.2, 4.0, False),
    "softened": (0.1, 3.0, True),
}


def _of_wave(names: Sequence[str], group: tuple[Row, ...], value: float) -> list[Atom]:
    inside = multiple(value, names, group[0])
    return [Atom(f"{word}({inside})", partial(of_angle, of, group[0], value), _SHAPED) for word, of in WAVES]


def _of_rate(names: Sequence[str], group: tuple[Row, ...], value: float) -> list[Atom]:
    rates = [sign * times * value for times in (1, 2) for sign in (-1, 1)]
    return [Atom(f"exp({multiple(rate, names, group[0])})", partial(exponential_of, group[0], rate), _SHAPED) for rate in rates]


def _of_length(names: Sequence[str], group: tuple[Row, ...], value: float) -> list[Atom]:
    name = f"√({' + '.join(row_name(names, row) for row in group)} + {value**2:.5g})"
    return [
        Atom(name, partial(_soft_length, group, value), cost_of(group, _SHAPED)),
        Atom(f"{name}⁻¹", partial(_inverse_soft_length, group, value), cost_of(group, _SHAPED)),
    ]


_BUILDERS = {"waves": _of_wave, "rates": _of_rate, "softened": _of_length}


def _soft_length(group: tuple[Row, ...], core: float, states: States) -> Float[Tensor, " n"]:
    return (length_of(group, states).square() + core**2).sqrt()


def _inverse_soft_length(group: tuple[Row, ...], core: float, states: States) -> Float[Tensor, " n"]:
    return 1 / _soft_length(group, core, states)
