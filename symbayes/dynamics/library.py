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

#: Terms of a library at most, and the degree of its polynomials, in two coordinates and in more.
_MOST, _HIGHEST, _DEGREE = 90, 6, 4
#: Logarithms and inverses are of what is this far from zero at least, relative to its size.
_AWAY = 0.02
#: Of groups of coordinates that may have a length: how many coordinates a state has at most for all groups to be tried.
_FEW = 4
#: Inverse powers beside the first and the second, as of forces between molecules.
_HIGH = {6: "⁶", 12: "¹²"}
#: Exponentials are of what is no larger: otherwise they are those of a few states.
_LARGE = 12.0

#: Paid for a coordinate, for a function that is none, and for one with a number that was sought.
_EACH, _COST, _SHAPED = 0.5, 2.5, 3.5

#: Functions of an angle.
_WAVES = (("cos", torch.cos), ("sin", torch.sin))

#: A coordinate, or the difference of two.
_Row = tuple[int, ...]
_POWERS = {2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶"}


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
    cost: float = _EACH


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
        """Of the terms: the sum of those of their factors; a power costs no more than one of a coordinate."""
        return tuple(
            sum(self.atoms[place].cost for place in set(term)) + _EACH * (len(term) - len(set(term))) for term in self.terms
        )

    def __call__(self, states: States) -> Float[Tensor, "n p"]:
        """The value of every term at every state."""
        atoms = {place: self.atoms[place].value(states) for place in self._used}
        columns = []
        for term in self.terms:
            value = atoms[term[0]]
            for place in term[1:]:
                value = value * atoms[place]
            columns.append(value)
        return torch.stack(columns, 1)

    def slopes(self, states: States) -> Float[Tensor, "n p m"]:
        """The gradient of every term at every state."""
        atoms = {place: _with_slope(self.atoms[place], states) for place in self._used}
        found = states.new_empty(len(states), len(self.terms), states.shape[1])
        for column, term in enumerate(self.terms):
            value, slope = atoms[term[0]]
            for place in term[1:]:
                other, its_slope = atoms[place]
                value, slope = value * other, other[:, None] * slope + value[:, None] * its_slope
            found[:, column] = slope
        return found

    @property
    def _used(self) -> list[int]:
        return sorted({place for term in self.terms for place in term})

    def part(self, chosen: Sequence[int]) -> "Library":
        """Some of the terms."""
        return Library(self.name, self.atoms, tuple(self.terms[place] for place in chosen))

    def _words(self, term: tuple[int, ...]) -> str:
        counts = dict.fromkeys(term, 0)
        for place in term:
            counts[place] += 1
        return " ".join(_power(self.atoms[place].name, count) for place, count in counts.items())


def _with_slope(atom: Atom, states: States) -> tuple[Float[Tensor, " n"], States]:
    at = states.detach().requires_grad_()
    value = atom.value(at)
    # Of its sum, since it is of one state at a time.
    return value.detach(), torch.autograd.grad(value.sum(), at)[0]


def libraries(names: Sequence[str], states: States, kinds: Sequence[str] | None = None) -> list[Library]:
    """Those that states allow, the simplest first.

    Args:
        names: Of coordinates.
        states: That will be seen: logarithms and inverses are of coordinates that do not come near zero.
        kinds: Which of `KINDS`; all when None. Those of `SHAPES` are passed over.

    Raises:
        ValueError: If there is no such kind.
    """
    kinds = tuple(KINDS) if kinds is None else kinds
    if unknown := [kind for kind in kinds if kind not in {**KINDS, **SHAPES}]:
        known = ", ".join({**KINDS, **SHAPES})
        raise ValueError(f"Libraries must be among {known}; got {', '.join(map(repr, unknown))}.")
    found = [KINDS[kind](tuple(names), states) for kind in kinds if kind in KINDS]
    return [library for library in found if library is not None]


def linear(names: tuple[str, ...], states: States) -> Library:
    """Coordinates."""
    return Library("linear", _coordinates(names), tuple(_products(range(len(names)), 1)))


def quadratic(names: tuple[str, ...], states: States) -> Library:
    """Products of two coordinates, and coordinates."""
    return Library("quadratic", _coordinates(names), tuple(_products(range(len(names)), 2)))


def polynomial(names: tuple[str, ...], states: States) -> Library | None:
    """Of the highest degree up to four that has not too many terms, in two coordinates up to six."""
    degree = _degree(len(names), _HIGHEST if len(names) <= 2 else _DEGREE, _MOST)
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
        for word, function in _WAVES:
            name = _difference(names, row)
            atoms.append(Atom(f"{word}({name})", partial(_of_angle, function, row, 1.0), _COST))
            new = len(atoms) - 1
            terms.append((new,))
            if multiplied and row in (apart or alone):
                others = [place for place in range(size) if place not in row]
                terms += [(*pair, new) for pair in combinations_with_replacement(others, 2)]
    for row in alone if len(terms) + 2 * len(alone) <= _MOST else []:
        for word, function in _WAVES:
            atoms.append(Atom(f"{word}(2 {names[row[0]]})", partial(_of_angle, function, row, 2.0), _COST))
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


def between(names: tuple[str, ...], states: States) -> Library | None:
    """Logarithms and inverse powers of differences of coordinates that keep their sign, as of bodies on a line."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    pairs = [pair for pair in combinations(range(size), 2) if _is_away(_row(pair, states))]
    powers = [power for power in (1, 2, *_HIGH) if len(terms) + (1 + power) * len(pairs) <= _MOST]
    if size < 4 or not pairs or not powers:
        return None
    for row in pairs:
        # The larger one first.
        row = row if float(_row(row, states[:1])) > 0 else row[::-1]
        inside = f"({_difference(names, row)})"
        atoms.append(Atom(f"log{inside}", partial(_log_difference, row), _COST))
        terms.append((len(atoms) - 1,))
        for power in powers:
            word = f"{inside}⁻{_HIGH.get(power) or '¹²'[power - 1]}"
            atoms.append(Atom(word, partial(_inverse_difference, row, power), _COST))
            terms.append((len(atoms) - 1,))
    return Library("between", tuple(atoms), tuple(terms))


def chain(names: tuple[str, ...], states: States) -> Library | None:
    """Cubes and fourth powers of differences within the first half of coordinates, as of springs that are not linear."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    pairs = list(combinations(range(size // 2), 2))
    if size % 2 or size < 4 or len(terms) + 2 * len(pairs) > _MOST:
        return None
    for row in pairs:
        atoms.append(Atom(f"({_difference(names, row)})", partial(_row, row), 1.0))
        terms += [(len(atoms) - 1,) * power for power in (3, 4)]
    return Library("chain", tuple(atoms), tuple(terms))


def central(names: tuple[str, ...], states: States) -> Library | None:
    """Cubic polynomials, and the distance of the first three of six coordinates, its inverse and directions, as in space."""
    half = (0, 1, 2)
    if len(names) != 2 * len(half) or not _is_away(_length(tuple((place,) for place in half), states)):
        return None
    group, atoms = tuple((place,) for place in half), list(_coordinates(names))
    terms = list(_products(range(len(names)), 3))
    inverse = len(atoms)
    atoms += _of_lengths(names, group)
    terms += [(inverse,), (inverse + 1,), *((place, inverse) for place in half)]
    return Library("central", tuple(atoms), tuple(terms))


def polar(names: tuple[str, ...], states: States) -> Library | None:
    """As motion has them in polar and spherical coordinates: p²/r², p²/sin² θ, r cos θ and the like."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    lengths = [place for place in range(size) if _is_away(states[:, place])]
    angles = [place for place in range(size) if _is_away(states[:, place].sin())]
    if size < 3 or not (lengths or angles):
        return None

    def add(*atom: Atom) -> list[int]:
        atoms.extend(atom)
        return list(range(len(atoms) - len(atom), len(atoms)))

    waves = {}
    for place, name in enumerate(names):
        waves[place] = add(*(Atom(f"{word}({name})", partial(_of_angle, of, (place,), 1.0), _COST) for word, of in _WAVES))
        terms += [(new,) for new in waves[place]]
    for place, word, value in [
        *((place, names[place], partial(_inverse, place, 1)) for place in lengths),
        *((place, f"sin({names[place]})", partial(_inverse_sine, place)) for place in angles),
    ]:
        (new,) = add(Atom(f"{word}⁻¹", value, _COST))
        others = [other for other in range(size) if other != place]
        more = [(new, new), *((other, other, new, new) for other in others)]
        if place in lengths and word == names[place]:
            more += [(new,), *((place, wave) for other in others for wave in waves[other])]
        terms += more if len(terms) + len(more) <= _MOST else []
    return Library("polar", tuple(atoms), tuple(terms))


def angular(names: tuple[str, ...], states: States) -> Library | None:
    """Sines and cosines times products of other coordinates, as of bodies that are joined; of three or four coordinates."""
    size, atoms = len(names), list(_coordinates(names))
    if size not in (3, 4):
        return None
    terms = list(_products(range(size), 2))
    for place, name in enumerate(names):
        others = [other for other in range(size) if other != place]
        for word, of in _WAVES:
            atoms.append(Atom(f"{word}({name})", partial(_of_angle, of, (place,), 1.0), _COST))
            new = len(atoms) - 1
            terms += [(new,), *((*product, new) for product in _products(others, 2))]
    return Library("angular", tuple(atoms), tuple(terms))


def exponential(names: tuple[str, ...], states: States) -> Library | None:
    """Exponentials of coordinates and of twice these, of either sign, or of differences of two, where these are no larger."""
    size, atoms = len(names), list(_coordinates(names))
    terms = list(_products(range(size), 2))
    rows: list[_Row] = [(place,) for place in range(size)] if size <= 2 else list(permutations(range(size), 2))
    rows = [row for row in rows if float(_row(row, states).abs().max()) <= _LARGE]
    if not rows or len(terms) + len(rows) > _MOST:
        return None
    for row in rows:
        for times in (-1.0, 1.0, -2.0, 2.0) if len(row) == 1 else (1.0,):
            atoms.append(Atom(f"exp({_times(times, names, row)})", partial(_exponential, row, times), _COST))
            terms.append((len(atoms) - 1,))
    return Library("exponential", tuple(atoms), tuple(terms))


def radial(names: tuple[str, ...], states: States) -> Library | None:
    """Distances, inverses of these and of their squares, logarithms and directions, and cubic polynomials, if not too many."""
    size, atoms = len(names), list(_coordinates(names))
    groups = [group for group in _groups(size) if _is_away(_length(group, states))]
    if not groups:
        return None
    flat = [_is_plane(group) for group in groups]  # a logarithm is the potential of a line or of a vortex
    degree = _degree(size, 3, _MOST - sum(3 + len(group) for group in groups) - sum(flat))
    terms = list(_products(range(size), max(degree, 2)))
    for group, is_flat in zip(groups, flat, strict=True):
        inverse, length = len(atoms), len(atoms) + 1
        atoms += _of_lengths(names, group)
        terms += [(inverse,), (inverse, inverse), (length,), *((*row, inverse) for row in group if len(row) == 1)]
        if is_flat:
            atoms.append(Atom(f"log({_length_name(names, group)})", partial(_log_length, group), _of(group)))
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
    "chain": chain,
    "between": between,
    "radial": radial,
    "central": central,
    "polar": polar,
    "angular": angular,
}


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
    rows: tuple[tuple[_Row, ...], ...]
    size: float

    @property
    def span(self) -> tuple[float, float]:
        """The least and the largest number that make a difference where coordinates are of this size."""
        low, high, of_length = SHAPES[self.kind]
        return (low * self.size, high * self.size) if of_length else (low / self.size, high / self.size)

    def library(self, value: float) -> Library:
        """With its number."""
        atoms = list(_coordinates(self.names))
        terms = list(_products(range(len(self.names)), 2))
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
    alone: list[tuple[tuple[_Row, ...], ...]] = [(((place,),),) for place in range(size)]
    together = [tuple(((place,),) for place in half), tuple((pair,) for pair in combinations(half, 2))] if half else []
    lengths: list[tuple[tuple[_Row, ...], ...]] = [(group,) for group in _groups(size)]
    found = []
    for kind in SHAPES if kinds is None else [kind for kind in SHAPES if kind in kinds]:
        for rows in alone + (lengths if kind == "softened" else together):
            moved = [_row(row, states) for group in rows for row in group]
            spread = float(torch.stack(moved).var(1).mean().sqrt())
            if spread > 0 and comb(size + 2, 2) + 4 * len(rows) <= _MOST:
                found.append(Shape(kind, tuple(names), rows, spread))
    return found


#: Kinds of shapes: the least and the largest number, times the size of coordinates if it is a length, or divided by it.
SHAPES: dict[str, tuple[float, float, bool]] = {
    "waves": (0.3, 10.0, False),
    "rates": (0.2, 4.0, False),
    "softened": (0.1, 3.0, True),
}


def _of_wave(names: Sequence[str], group: tuple[_Row, ...], value: float) -> list[Atom]:
    inside = _times(value, names, group[0])
    return [Atom(f"{word}({inside})", partial(_of_angle, of, group[0], value), _SHAPED) for word, of in _WAVES]


def _of_rate(names: Sequence[str], group: tuple[_Row, ...], value: float) -> list[Atom]:
    rates = [sign * times * value for times in (1, 2) for sign in (-1, 1)]
    return [Atom(f"exp({_times(rate, names, group[0])})", partial(_exponential, group[0], rate), _SHAPED) for rate in rates]


def _of_length(names: Sequence[str], group: tuple[_Row, ...], value: float) -> list[Atom]:
    name = f"√({' + '.join(_row_name(names, row) for row in group)} + {value**2:.5g})"
    return [
        Atom(name, partial(_soft_length, group, value), _of(group, _SHAPED)),
        Atom(f"{name}⁻¹", partial(_inverse_soft_length, group, value), _of(group, _SHAPED)),
    ]


_BUILDERS = {"waves": _of_wave, "rates": _of_rate, "softened": _of_length}


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


def _difference(names: Sequence[str], row: _Row) -> str:
    return " − ".join(names[place] for place in row)


def _times(number: float, names: Sequence[str], row: _Row) -> str:
    """In words, without a one."""
    size, inside = f"{abs(number):.5g} ", _difference(names, row)
    factor = ("−" if number < 0 else "") + ("" if size == "1 " else size)
    return f"{factor}({inside})" if factor and len(row) > 1 else f"{factor}{inside}"


def _of_lengths(names: Sequence[str], group: tuple[_Row, ...]) -> list[Atom]:
    name = _length_name(names, group)
    cost = _of(group)
    return [Atom(f"{name}⁻¹", partial(_inverse_length, group), cost), Atom(name, partial(_length, group), cost)]


def _of(group: tuple[_Row, ...], cost: float = _COST) -> float:
    """Of a function of several coordinates."""
    return cost + _EACH * (len(group) - 1)


def _length_name(names: Sequence[str], group: tuple[_Row, ...]) -> str:
    return f"√({' + '.join(_row_name(names, row) for row in group)})"


def _row_name(names: Sequence[str], row: _Row) -> str:
    return f"{names[row[0]]}²" if len(row) == 1 else f"({names[row[0]]} − {names[row[1]]})²"


def _length(group: tuple[_Row, ...], states: States) -> Float[Tensor, " n"]:
    return torch.stack([_row(row, states) for row in group]).square().sum(0).sqrt()


def _inverse_length(group: tuple[_Row, ...], states: States) -> Float[Tensor, " n"]:
    return 1 / _length(group, states)


def _log_length(group: tuple[_Row, ...], states: States) -> Float[Tensor, " n"]:
    return _length(group, states).log()


def _soft_length(group: tuple[_Row, ...], core: float, states: States) -> Float[Tensor, " n"]:
    return (_length(group, states).square() + core**2).sqrt()


def _inverse_soft_length(group: tuple[_Row, ...], core: float, states: States) -> Float[Tensor, " n"]:
    return 1 / _soft_length(group, core, states)


def _of_angle(function: Callable[[Tensor], Tensor], row: _Row, times: float, states: States) -> Float[Tensor, " n"]:
    return function(times * _row(row, states))


def _exponential(row: _Row, times: float, states: States) -> Float[Tensor, " n"]:
    return (times * _row(row, states)).exp()


def _log(place: int, states: States) -> Float[Tensor, " n"]:
    return states[:, place].abs().log()


def _inverse(place: int, power: int, states: States) -> Float[Tensor, " n"]:
    return states[:, place] ** -power


def _inverse_sine(place: int, states: States) -> Float[Tensor, " n"]:
    return 1 / states[:, place].sin()


def _log_difference(row: _Row, states: States) -> Float[Tensor, " n"]:
    return _row(row, states).abs().log()


def _inverse_difference(row: _Row, power: int, states: States) -> Float[Tensor, " n"]:
    return _row(row, states) ** -power


def _is_away(values: Float[Tensor, " n"]) -> bool:
    """Whether values keep away from zero, on one side of it."""
    least, most = float(values.min()), float(values.max())
    return least * most > 0 and min(abs(least), abs(most)) > _AWAY * float(values.square().mean().sqrt())


def _power(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name[:-2]}⁻{_POWERS[count]}" if name.endswith("⁻¹") else f"{name}{_POWERS[count]}"
