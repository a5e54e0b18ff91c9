"""Libraries of terms: functions of states whose sums may be conserved."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, permutations
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.phase import Observable, States

#: Terms of a library at most, and the degree of its polynomials.
_MOST, _DEGREE = 90, 4
#: Logarithms and inverses are of what is this far from zero at least, relative to its size.
_AWAY = 0.02
#: Of groups of coordinates that may have a length: how many coordinates a state has at most for all groups to be tried.
_FEW = 4
#: Inverse powers beside the first and the second, as of forces between molecules.
_HIGH = {6: "⁶", 12: "¹²"}
#: Exponentials are of what is no larger: otherwise they are those of a few states.
_LARGE = 12.0

#: Paid for a function that is no coordinate, where a coordinate costs a half.
_COST = 2.5

#: A coordinate, or the difference of two.
_Row = tuple[int, ...]
_POWERS = {2: "²", 3: "³", 4: "⁴"}


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
    cost: float = 0.5


@dataclass(frozen=True)
class Library:
    """Terms, each a product of atoms.

    Args:
        name: Of the kind.
        atoms: Of which terms are made.
        terms: Of each, the places of its atoms, as often as they are factors.
    """

    name: str
    atoms: tuple[Atom, ...]
    terms: tuple[tuple[int, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the terms, such as "q²" or "p1 p2 cos(θ1 − θ2)"."""
        return tuple(self._words(term) for term in self.terms)

    @property
    def costs(self) -> tuple[float, ...]:
        """Of the terms: the sum of those of their factors, so that one is paid for a product of two coordinates."""
        return tuple(sum(self.atoms[place].cost for place in term) for term in self.terms)

    def __call__(self, states: States) -> Float[Tensor, "n p"]:
        """The value of every term at every state."""
        atoms = [atom.value(states) for atom in self.atoms]
        columns = []
        for term in self.terms:
            value = atoms[term[0]]
            for place in term[1:]:
                value = value * atoms[place]
            columns.append(value)
        return torch.stack(columns, 1)

    def slopes(self, states: States) -> Float[Tensor, "n p m"]:
        """The gradient of every term at every state."""
        along = []
        for direction in torch.eye(states.shape[1], dtype=states.dtype):
            along.append(torch.func.jvp(self, (states,), (direction.expand_as(states),))[1])
        return torch.stack(along, 2)

    def part(self, chosen: Sequence[int]) -> "Library":
        """Some of the terms."""
        return Library(self.name, self.atoms, tuple(self.terms[place] for place in chosen))

    def _words(self, term: tuple[int, ...]) -> str:
        counts = dict.fromkeys(term, 0)
        for place in term:
            counts[place] += 1
        return " ".join(_power(self.atoms[place].name, count) for place, count in counts.items())


def libraries(names: Sequence[str], states: States, kinds: Sequence[str] | None = None) -> list[Library]:
    """Those that states allow, the simplest first.

    Args:
        names: Of coordinates.
        states: That will be seen: logarithms and inverses are of coordinates that do not come near zero.
        kinds: Which of `KINDS`; all when None.

    Raises:
        ValueError: If there is no such kind.
    """
    kinds = tuple(KINDS) if kinds is None else kinds
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"Libraries must be among {', '.join(KINDS)}; got {', '.join(map(repr, unknown))}.")
    found = [KINDS[kind](tuple(names), states) for kind in kinds]
    return [library for library in found if library is not None]


def linear(names: tuple[str, ...], states: States) -> Library:
    """Coordinates."""
    return Library("linear", _coordinates(names), tuple(_products(range(len(names)), 1)))


def quadratic(names: tuple[str, ...], states: States) -> Library:
    """Products of two coordinates, and coordinates."""
    return Library("quadratic", _coordinates(names), tuple(_products(range(len(names)), 2)))


def polynomial(names: tuple[str, ...], states: States) -> Library | None:
    """Of the highest degree up to four that has not too many terms."""
    degree = _degree(len(names), _DEGREE, _MOST)
    return Library("polynomial", _coordinates(names), tuple(_products(range(len(names)), degree))) if degree > 2 else None


def trigonometric(names: tuple[str, ...], states: States) -> Library:
    """Sines and cosines of coordinates, of twice these and of differences of two; also times others, if not too many."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    alone: list[_Row] = [(place,) for place in range(size)]
    apart: list[_Row] = list(combinations(range(size), 2)) if size > 2 else []
    products = 2 * len(apart or alone) * comb(max(size - 2, 1) + 1, 2)
    multiplied = len(terms) + 2 * len(alone + apart) + products <= _MOST
    angles = alone + apart if len(terms) + 2 * len(alone + apart) <= _MOST else alone
    for row in angles:
        for word, function in (("cos", torch.cos), ("sin", torch.sin)):
            name = " − ".join(names[place] for place in row)
            atoms.append(Atom(f"{word}({name})", partial(_of_angle, function, row, 1), _COST))
            new = len(atoms) - 1
            terms.append((new,))
            if multiplied and row in (apart or alone):
                others = [place for place in range(size) if place not in row]
                terms += [(*pair, new) for pair in combinations_with_replacement(others, 2)]
    for row in alone if len(terms) + 2 * len(alone) <= _MOST else []:
        for word, function in (("cos", torch.cos), ("sin", torch.sin)):
            atoms.append(Atom(f"{word}(2 {names[row[0]]})", partial(_of_angle, function, row, 2), _COST))
            terms.append((len(atoms) - 1,))
    return Library("trigonometric", tuple(atoms), tuple(terms))


def logarithmic(names: tuple[str, ...], states: States) -> Library | None:
    """Logarithms and inverses of coordinates that keep their sign, these also times squares of others, if not too many."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    signed = [place for place in range(size) if _is_away(states[:, place])]
    for place in signed:
        atoms.append(
            Atom(f"log({names[place]})" if states[0, place] > 0 else f"log(−{names[place]})", partial(_log, place), _COST)
        )
        terms.append((len(atoms) - 1,))
    inverses = len(signed) * (3 * size - 1)
    for place in signed if len(terms) + inverses <= _MOST else []:
        atoms.append(Atom(f"{names[place]}⁻¹", partial(_inverse, place, 1), _COST))
        new = len(atoms) - 1
        others = [other for other in range(size) if other != place]
        terms += [(new,), (new, new), *((other, new) for other in others)]
        terms += [(other, other, *inverse) for other in others for inverse in ((new,), (new, new))]
    for place in signed if len(terms) + len(_HIGH) * len(signed) <= _MOST else []:
        for power, raised in _HIGH.items():
            atoms.append(Atom(f"{names[place]}⁻{raised}", partial(_inverse, place, power), _COST))
            terms.append((len(atoms) - 1,))
    return Library("logarithmic", tuple(atoms), tuple(terms)) if signed else None


def exponential(names: tuple[str, ...], states: States) -> Library | None:
    """Exponentials of coordinates and of twice these, of either sign, or of differences of two, where these are no larger."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    rows: list[_Row] = [(place,) for place in range(size)] if size <= 2 else list(permutations(range(size), 2))
    rows = [row for row in rows if float(_row(row, states).abs().max()) <= _LARGE]
    if not rows or len(terms) + len(rows) > _MOST:
        return None
    for row in rows:
        for times in (-1, 1, -2, 2) if len(row) == 1 else (1,):
            inside = " − ".join(names[place] for place in row)
            inside = {-2: f"−2 {inside}", -1: f"−{inside}", 1: inside, 2: f"2 {inside}"}[times]
            atoms.append(Atom(f"exp({inside})", partial(_exponential, row, times), _COST))
            terms.append((len(atoms) - 1,))
    return Library("exponential", tuple(atoms), tuple(terms))


def radial(names: tuple[str, ...], states: States) -> Library | None:
    """Distances, their inverses, logarithms and directions, and polynomials of third degree, if those are not too many."""
    size, atoms = len(names), list(_coordinates(names))
    groups = [group for group in _groups(size) if _is_away(_length(group, states))]
    if not groups:
        return None
    flat = [_is_plane(group) for group in groups]  # a logarithm is the potential of a line or of a vortex
    degree = _degree(size, 3, _MOST - sum(2 + len(group) for group in groups) - sum(flat))
    terms = list(_products(range(size), max(degree, 2)))
    for group, is_flat in zip(groups, flat, strict=True):
        name = f"√({' + '.join(_row_name(names, row) for row in group)})"
        atoms += [Atom(f"{name}⁻¹", partial(_inverse_length, group), _COST), Atom(name, partial(_length, group), _COST)]
        inverse, length = len(atoms) - 2, len(atoms) - 1
        terms += [(inverse,), (length,), *((*row, inverse) for row in group if len(row) == 1)]
        if is_flat:
            atoms.append(Atom(f"log({name})", partial(_log_length, group), _COST))
            terms.append((len(atoms) - 1,))
    return Library("radial", tuple(atoms), tuple(terms))


#: Kinds of libraries, the simplest first.
KINDS: dict[str, Callable[[tuple[str, ...], States], Library | None]] = {
    "linear": linear,
    "quadratic": quadratic,
    "logarithmic": logarithmic,
    "exponential": exponential,
    "trigonometric": trigonometric,
    "polynomial": polynomial,
    "radial": radial,
}


def _coordinates(names: Sequence[str]) -> tuple[Atom, ...]:
    return tuple(Atom(name, partial(_row, (place,))) for place, name in enumerate(names))


def _products(places: Sequence[int], degree: int) -> Iterator[tuple[int, ...]]:
    for k in range(1, degree + 1):
        yield from combinations_with_replacement(places, k)


def _degree(size: int, highest: int, most: int) -> int:
    """Up to which there are not too many products."""
    return max((k for k in range(1, highest + 1) if comb(size + k, k) - 1 <= most), default=1)


def _groups(size: int) -> list[tuple[_Row, ...]]:
    """Coordinates that may have a length together: of few, all; of many, halves, and differences between bodies."""
    if size <= _FEW:
        return [tuple((place,) for place in group) for k in (2, 3) for group in combinations(range(size), k)]
    half, groups = size // 2, list[tuple[_Row, ...]]()
    if size % 2 == 0 and half <= 3:
        ways = [range(half), range(half, size), range(0, size, 2), range(1, size, 2)]
        groups += [tuple((place,) for place in way) for way in ways]
        groups += [(pair, (half + pair[0], half + pair[1])) for pair in combinations(range(half), 2)]
    for dimensions in (2, 3):
        if size % (2 * dimensions) == 0 and size > 2 * dimensions:
            bodies = [range(first, first + dimensions) for first in range(0, half, dimensions)]
            groups += [tuple(zip(one, other, strict=True)) for one, other in combinations(bodies, 2)]
    return groups


def _is_plane(group: tuple[_Row, ...]) -> bool:
    """Whether it is that of two neighbours, such as x and y, or of the differences between two bodies in a plane."""
    (first, *_), *others = group
    return len(others) == 1 and (len(others[0]) == 2 or (first % 2 == 0 and others[0][0] == first + 1))


def _row(row: _Row, states: States) -> Float[Tensor, " n"]:
    return states[:, row[0]] if len(row) == 1 else states[:, row[0]] - states[:, row[1]]


def _row_name(names: Sequence[str], row: _Row) -> str:
    return f"{names[row[0]]}²" if len(row) == 1 else f"({names[row[0]]} − {names[row[1]]})²"


def _length(group: tuple[_Row, ...], states: States) -> Float[Tensor, " n"]:
    return torch.stack([_row(row, states) for row in group]).square().sum(0).sqrt()


def _inverse_length(group: tuple[_Row, ...], states: States) -> Float[Tensor, " n"]:
    return 1 / _length(group, states)


def _log_length(group: tuple[_Row, ...], states: States) -> Float[Tensor, " n"]:
    return _length(group, states).log()


def _of_angle(function: Callable[[Tensor], Tensor], row: _Row, times: int, states: States) -> Float[Tensor, " n"]:
    return function(times * _row(row, states))


def _exponential(row: _Row, times: int, states: States) -> Float[Tensor, " n"]:
    return (times * _row(row, states)).exp()


def _log(place: int, states: States) -> Float[Tensor, " n"]:
    return states[:, place].abs().log()


def _inverse(place: int, power: int, states: States) -> Float[Tensor, " n"]:
    return states[:, place] ** -power


def _is_away(values: Float[Tensor, " n"]) -> bool:
    """Whether values keep away from zero, on one side of it."""
    least, most = float(values.min()), float(values.max())
    return least * most > 0 and min(abs(least), abs(most)) > _AWAY * float(values.square().mean().sqrt())


def _power(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name[:-2]}⁻{_POWERS[count]}" if name.endswith("⁻¹") else f"{name}{_POWERS[count]}"
