"""Libraries of terms: functions of states whose sums may be conserved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, permutations
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.atoms import (
    COST,
    EACH,
    WAVES,
    Atom,
    Row,
    coordinates,
    cost_of,
    difference,
    exponential_of,
    groups_of,
    inverse_difference,
    inverse_of,
    inverse_sine,
    is_away,
    is_plane,
    length_name,
    length_of,
    lengths_of,
    log_difference,
    log_length,
    log_of,
    multiple,
    of_angle,
    products_of,
    value_of,
)
from symbayes.dynamics.phase import States

#: Terms of a library at most, and the degree of its polynomials, in two coordinates and in more.
MOST, _HIGHEST, _DEGREE = 90, 6, 4
#: Inverse powers beside the first and the second, as of forces between molecules.
_HIGH = {6: "⁶", 12: "¹²"}
#: Exponentials are of what is no larger: otherwise they are those of a few states.
_LARGE = 12.0

#: In words.
_POWERS = {2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶"}


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
            sum(self.atoms[place].cost for place in set(term)) + EACH * (len(term) - len(set(term))) for term in self.terms
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
    with torch.inference_mode(False), torch.enable_grad():  # wherever this is called
        at = states.clone().detach().requires_grad_()
        value = atom.value(at)
        # Of its sum, since it is of one state at a time.
        return value.detach(), torch.autograd.grad(value.sum(), at)[0]


def libraries(names: Sequence[str], states: States, kinds: Sequence[str] | None = None) -> list[Library]:
    """Those that states allow, the simplest first.

    Args:
        names: Of coordinates.
        states: That will be seen: logarithms and inverses are of coordinates that do not come near zero.
        kinds: Which of `KINDS`, other names are passed over; all when None.
    """
    kinds = tuple(KINDS) if kinds is None else kinds
    found = [KINDS[kind](tuple(names), states) for kind in kinds if kind in KINDS]
    return [library for library in found if library is not None]


def linear(names: tuple[str, ...], states: States) -> Library:
    """Coordinates."""
    return Library("linear", coordinates(names), tuple(products_of(range(len(names)), 1)))


def quadratic(names: tuple[str, ...], states: States) -> Library:
    """Products of two coordinates, and coordinates."""
    return Library("quadratic", coordinates(names), tuple(products_of(range(len(names)), 2)))


def polynomial(names: tuple[str, ...], states: States) -> Library | None:
    """Of the highest degree up to four that has not too many terms, in two coordinates up to six."""
    degree = _degree(len(names), _HIGHEST if len(names) <= 2 else _DEGREE, MOST)
    return Library("polynomial", coordinates(names), tuple(products_of(range(len(names)), degree))) if degree > 2 else None


def trigonometric(names: tuple[str, ...], states: States) -> Library:
    """Sines and cosines of coordinates, of twice these and of differences of two; also times others, if not too many."""
    size, atoms = len(names), list(coordinates(names))
    terms = list(products_of(range(size), 2))
    alone: list[Row] = [(place,) for place in range(size)]
    apart: list[Row] = list(combinations(range(size), 2)) if size > 2 else []
    products = 2 * len(apart or alone) * comb(max(size - 2, 1) + 1, 2)
    multiplied = len(terms) + 2 * len(alone + apart) + products <= MOST
    angles = alone + apart if len(terms) + 2 * len(alone + apart) <= MOST else alone
    for row in angles:
        for word, function in WAVES:
            name = difference(names, row)
            atoms.append(Atom(f"{word}({name})", partial(of_angle, function, row, 1.0), COST))
            new = len(atoms) - 1
            terms.append((new,))
            if multiplied and row in (apart or alone):
                others = [place for place in range(size) if place not in row]
                terms += [(*pair, new) for pair in combinations_with_replacement(others, 2)]
    for row in alone if len(terms) + 2 * len(alone) <= MOST else []:
        for word, function in WAVES:
            atoms.append(Atom(f"{word}(2 {names[row[0]]})", partial(of_angle, function, row, 2.0), COST))
            terms.append((len(atoms) - 1,))
    return Library("trigonometric", tuple(atoms), tuple(terms))


def logarithmic(names: tuple[str, ...], states: States) -> Library | None:
    """Logarithms and inverses of coordinates that keep their sign, these also times squares of others, if not too many."""
    size, atoms = len(names), list(coordinates(names))
    terms = list(products_of(range(size), 2))
    signed = [place for place in range(size) if is_away(states[:, place])]
    for place in signed:
        atoms.append(
            Atom(f"log({names[place]})" if states[0, place] > 0 else f"log(−{names[place]})", partial(log_of, place), COST)
        )
        terms.append((len(atoms) - 1,))
    inverses = len(signed) * (3 * size - 1)
    for place in signed if len(terms) + inverses <= MOST else []:
        atoms.append(Atom(f"{names[place]}⁻¹", partial(inverse_of, place, 1), COST))
        new = len(atoms) - 1
        others = [other for other in range(size) if other != place]
        terms += [(new,), (new, new), *((other, new) for other in others)]
        terms += [(other, other, *inverse) for other in others for inverse in ((new,), (new, new))]
    for place in signed if len(terms) + len(_HIGH) * len(signed) <= MOST else []:
        for power, raised in _HIGH.items():
            atoms.append(Atom(f"{names[place]}⁻{raised}", partial(inverse_of, place, power), COST))
            terms.append((len(atoms) - 1,))
    return Library("logarithmic", tuple(atoms), tuple(terms)) if signed else None


def between(names: tuple[str, ...], states: States) -> Library | None:
    """Logarithms and inverse powers of differences of coordinates that keep their sign, as of bodies on a line."""
    size, atoms = len(names), list(coordinates(names))
    terms = list(products_of(range(size), 2))
    pairs = [pair for pair in combinations(range(size), 2) if is_away(value_of(pair, states))]
    powers = [power for power in (1, 2, *_HIGH) if len(terms) + (1 + power) * len(pairs) <= MOST]
    if size < 4 or not pairs or not powers:
        return None
    for row in pairs:
        # The larger one first.
        row = row if float(value_of(row, states[:1])) > 0 else row[::-1]
        inside = f"({difference(names, row)})"
        atoms.append(Atom(f"log{inside}", partial(log_difference, row), COST))
        terms.append((len(atoms) - 1,))
        for power in powers:
            word = f"{inside}⁻{_HIGH.get(power) or '¹²'[power - 1]}"
            atoms.append(Atom(word, partial(inverse_difference, row, power), COST))
            terms.append((len(atoms) - 1,))
    return Library("between", tuple(atoms), tuple(terms))


def chain(names: tuple[str, ...], states: States) -> Library | None:
    """Cubes and fourth powers of differences within the first half of coordinates, as of springs that are not linear."""
    size, atoms = len(names), list(coordinates(names))
    terms = list(products_of(range(size), 2))
    pairs = list(combinations(range(size // 2), 2))
    if size % 2 or size < 4 or len(terms) + 2 * len(pairs) > MOST:
        return None
    for row in pairs:
        atoms.append(Atom(f"({difference(names, row)})", partial(value_of, row), 1.0))
        terms += [(len(atoms) - 1,) * power for power in (3, 4)]
    return Library("chain", tuple(atoms), tuple(terms))


def central(names: tuple[str, ...], states: States) -> Library | None:
    """Cubic polynomials, and the distance of the first three of six coordinates, its inverse and directions, as in space."""
    half = (0, 1, 2)
    if len(names) != 2 * len(half) or not is_away(length_of(tuple((place,) for place in half), states)):
        return None
    group, atoms = tuple((place,) for place in half), list(coordinates(names))
    terms = list(products_of(range(len(names)), 3))
    inverse = len(atoms)
    atoms += lengths_of(names, group)
    terms += [(inverse,), (inverse + 1,), *((place, inverse) for place in half)]
    return Library("central", tuple(atoms), tuple(terms))


def polar(names: tuple[str, ...], states: States) -> Library | None:
    """As motion has them in polar and spherical coordinates: p²/r², p²/sin² θ, r cos θ and the like."""
    size, atoms = len(names), list(coordinates(names))
    terms = list(products_of(range(size), 2))
    lengths = [place for place in range(size) if is_away(states[:, place])]
    angles = [place for place in range(size) if is_away(states[:, place].sin())]
    if size < 3 or len(terms) + 2 * size > MOST or not (lengths or angles):
        return None

    def add(*atom: Atom) -> list[int]:
        atoms.extend(atom)
        return list(range(len(atoms) - len(atom), len(atoms)))

    waves = {}
    for place, name in enumerate(names):
        waves[place] = add(*(Atom(f"{word}({name})", partial(of_angle, of, (place,), 1.0), COST) for word, of in WAVES))
        terms += [(new,) for new in waves[place]]
    for place, word, value in [
        *((place, names[place], partial(inverse_of, place, 1)) for place in lengths),
        *((place, f"sin({names[place]})", partial(inverse_sine, place)) for place in angles),
    ]:
        (new,) = add(Atom(f"{word}⁻¹", value, COST))
        others = [other for other in range(size) if other != place]
        more = [(new, new), *((other, other, new, new) for other in others)]
        if place in lengths and word == names[place]:
            more += [(new,), *((place, wave) for other in others for wave in waves[other])]
        terms += more if len(terms) + len(more) <= MOST else []
    return Library("polar", tuple(atoms), tuple(terms))


def angular(names: tuple[str, ...], states: States) -> Library | None:
    """Sines and cosines times products of other coordinates, as of bodies that are joined; of three or four coordinates."""
    size, atoms = len(names), list(coordinates(names))
    if size not in (3, 4):
        return None
    terms = list(products_of(range(size), 2))
    for place, name in enumerate(names):
        others = [other for other in range(size) if other != place]
        for word, of in WAVES:
            atoms.append(Atom(f"{word}({name})", partial(of_angle, of, (place,), 1.0), COST))
            new = len(atoms) - 1
            terms += [(new,), *((*product, new) for product in products_of(others, 2))]
    return Library("angular", tuple(atoms), tuple(terms))


def exponential(names: tuple[str, ...], states: States) -> Library | None:
    """Exponentials of coordinates and of twice these, of either sign, or of differences of two, where these are no larger."""
    size, atoms = len(names), list(coordinates(names))
    terms = list(products_of(range(size), 2))
    rows: list[Row] = [(place,) for place in range(size)] if size <= 2 else list(permutations(range(size), 2))
    rows = [row for row in rows if float(value_of(row, states).abs().max()) <= _LARGE]
    if not rows or len(terms) + len(rows) > MOST:
        return None
    for row in rows:
        for times in (-1.0, 1.0, -2.0, 2.0) if len(row) == 1 else (1.0,):
            atoms.append(Atom(f"exp({multiple(times, names, row)})", partial(exponential_of, row, times), COST))
            terms.append((len(atoms) - 1,))
    return Library("exponential", tuple(atoms), tuple(terms))


def radial(names: tuple[str, ...], states: States) -> Library | None:
    """Distances, inverses of these and of their squares, logarithms and directions, and cubic polynomials, if not too many."""
    size, atoms = len(names), list(coordinates(names))
    groups = [group for group in groups_of(size) if is_away(length_of(group, states))]
    if not groups:
        return None
    flat = [is_plane(group) for group in groups]  # a logarithm is the potential of a line or of a vortex
    degree = _degree(size, 3, MOST - sum(3 + len(group) for group in groups) - sum(flat))
    terms = list(products_of(range(size), max(degree, 2)))
    for group, is_flat in zip(groups, flat, strict=True):
        inverse, length = len(atoms), len(atoms) + 1
        atoms += lengths_of(names, group)
        terms += [(inverse,), (inverse, inverse), (length,), *((*row, inverse) for row in group if len(row) == 1)]
        if is_flat:
            atoms.append(Atom(f"log({length_name(names, group)})", partial(log_length, group), cost_of(group)))
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


def _degree(size: int, highest: int, most: int) -> int:
    """Up to which there are not too many products."""
    return max((k for k in range(1, highest + 1) if comb(size + k, k) - 1 <= most), default=1)


def _power(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name[:-2]}⁻{_POWERS[count]}" if name.endswith("⁻¹") else f"{name}{_POWERS[count]}"
