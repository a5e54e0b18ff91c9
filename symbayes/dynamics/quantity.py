"""Conserved quantities out of learned observables: formulas, constancy, fits."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from symbayes.dynamics.constant import by_variation, smoothed
from symbayes.dynamics.denoising import denoised
from symbayes.dynamics.library import libraries
from symbayes.dynamics.observables import (
    Observables,
    Quadratics,
    coefficients,
    monomial_names,
    monomials,
    pairs,
    with_coefficients,
)
from symbayes.dynamics.phase import Observable, States
from symbayes.dynamics.terms import Sum, along_slopes
from symbayes.dynamics.trajectories import Scaling, Trajectories
from symbayes.dynamics.verdict import ENOUGH, Verdict, controlled, judge_either_way


@dataclass(frozen=True)
class Span:
    """The singular value decomposition of the generators of quadratics, in the metric of their entries.

    Args:
        strengths: Singular values, the largest first: how far the energy is averaged along each direction, in units of π.
        directions: Quadratics whose generators are of norm one and orthogonal to each other.
        threshold: What is weaker does not count.
    """

    strengths: Float[Tensor, " k"]
    directions: Quadratics
    threshold: float

    @property
    def count(self) -> int:
        """Of directions that are not negligible."""
        return int((self.strengths > self.threshold).sum())

    def kept(self) -> Quadratics:
        """The directions that are not negligible."""
        return Quadratics(self.directions.halves[: self.count], self.directions.linear[: self.count], learned=False)

    def strength(self, rows: Float[Tensor, "k p"]) -> Float[Tensor, " k"]:
        """How far the energy is averaged along other directions, given by unit rows of generators."""
        inside = rows @ generator_rows(self.directions).T
        return (inside * self.strengths).norm(dim=1)


def span_of(quadratics: Quadratics, threshold: float) -> Span:
    """What quadratics span, and how strongly; in double precision."""
    size = quadratics.size
    rows = generator_rows(quadratics)
    _, strengths, directions = torch.linalg.svd(rows, full_matrices=False)
    matrices, linear = directions[:, : size * size].unflatten(1, (size, size)), directions[:, size * size :]
    return Span(strengths, Quadratics(matrices / 2, linear, learned=False), threshold)


def parallelness(quadratics: Quadratics, truth: Quadratics) -> Float[Tensor, " k"]:
    """How much of each lies in the span of the truth, from 0 to 1."""
    rows = generator_rows(quadratics)
    if not truth.count:
        return rows.new_zeros(len(rows))
    _, sizes, basis = torch.linalg.svd(generator_rows(truth), full_matrices=False)
    inside = rows @ basis[sizes > 1e-10 * sizes[0]].T
    return inside.norm(dim=1) / rows.norm(dim=1)


def generator_rows(quadratics: Quadratics) -> Float[Tensor, "k p"]:
    """A and b of each as one row: the entries of its generator, but for their order, their signs and zeros."""
    matrices, linear = quadratics.matrices.detach(), quadratics.linear.detach()
    return torch.cat([matrices.flatten(1), linear], 1).double().cpu()


def echelon(rows: Float[Tensor, "k c"]) -> tuple[Float[Tensor, "k c"], list[int]]:
    """Rows of the same span, each with a one where all others have a zero, and the columns of those ones.

    By Gauss and Jordan, with the largest entry as the next pivot: so rows are short where the span has short ones.
    """
    rows, pivots = rows.clone(), dict[int, int]()
    while left := [row for row in range(len(rows)) if row not in pivots]:
        place, column = divmod(int(rows[left].abs().argmax()), rows.shape[1])
        chosen = left[place]
        rows[chosen] /= rows[chosen, column].clone()
        others = [row for row in range(len(rows)) if row != chosen]
        rows[others] -= rows[others, column, None] * rows[chosen]
        pivots[chosen] = column
    order = sorted(pivots, key=pivots.__getitem__)
    return rows[order], [pivots[row] for row in order]


#: Terms whose share in a quantity is smaller are left out of its formula.
_SHOWN = 0.05
#: What drifts more, relative to others, is not confirmed; where others vary less over the time there is, nothing is.
CONFIRMED, TOO_SHORT = 1 / 8, 0.1
#: In place of zero, to divide by.
_LEAST = 1e-300
#: Terms of a formula that are written out.
_LONGEST = 18


@dataclass(frozen=True)
class Term:
    """One monomial of a quantity.

    Args:
        monomial: In words, such as "q²".
        learned: Its coefficient.
        fitted: The coefficient with which the quantity is most constant on trajectories that were held out, by least squares;
            None where those do not determine it.
        error: The standard error of the fit.
    """

    monomial: str
    learned: float
    fitted: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Quantity:
    """What was found, and whether motion leaves it as it is.

    Whether motion does change it can only be seen where there was time for it. Over a time T, a quadratic Σ c_i φ_i /
    |φ_i| whose c_i are random signs varies by r of the size of its terms, r² = mean_i var_t(φ_i) / |φ_i|², since
    products of different signs vanish on average. So r is how far a quantity moves in T that nothing holds. It grows
    from zero in proportion to T, and comes to rest where a trajectory has gone all its way: at 0.8 for oscillators and
    three bodies, at 0.45 for a free particle, of whose monomials some never move. Only monomials of the degrees of
    freedom that the quantity is of count, since others may be faster. A quantity that varies by v is confirmed if v ≤ r
    / 8: over a long time by a tenth of its terms, over a short one by less, in proportion, so that none is confirmed
    because little time passed. Where r itself is a tenth at most, T is too short to tell.

    Args:
        formula: With the terms that matter.
        terms: Of the formula; none where it has no terms.
        strength: How far the energy is averaged along its flow, in units of π.
        variation: How much it changes along trajectories that were held out, relative to the size of its terms; where there are
            none, relative to how much it differs between states that were learned from.
        error: The standard error of the variation, over trajectories; None where there is only one.
        observable: Its value at every state.
        time: T, over which it was followed.
        reference: r, how much a quadratic of random coefficients varies in that time.
        drift: v / r: how much it varies itself, relative to that.
        verdict: How sure it is that it is conserved, by a test; None where there is none.
        follows: Whether it is a function of quantities before it.
    """

    formula: str
    terms: tuple[Term, ...]
    strength: float | None
    variation: float
    error: float | None
    observable: Observable
    time: float
    reference: float
    drift: float
    verdict: Verdict | None = None
    follows: bool = False

    @property
    def confirmed(self) -> bool:
        """Whether trajectories that were held out agree that it is conserved, over a time in which others would not be."""
        if self.verdict is not None and not self.verdict.is_sure:
            return False
        return not self.too_short and self.drift <= CONFIRMED

    @property
    def too_short(self) -> bool:
        """Whether the time was too short to tell."""
        return self.reference <= TOO_SHORT

    def __str__(self) -> str:
        if self.strength is None and self.verdict is not None:
            return f"{self.formula}: {self.verdict}"
        error = "" if self.error is None else f" ± {float(f'{100 * self.error:.1g}'):g}"
        doubt = f": too short to tell (T = {self.time:.3g})" if self.too_short else ": not confirmed"
        sure = f", {self.verdict.sureness()} sure" if self.verdict is not None and self.confirmed else ""
        return f"{self.formula}, varies by {100 * self.variation:.2g}{error} %{sure if self.confirmed else doubt}"

    def __call__(self, states: States) -> Float[Tensor, " n"]:
        """Its value at every state."""
        return self.observable(states.double())


def read_quadratics(
    span: Span, units: Scaling, learned_from: Trajectories, held_out: Trajectories, followed: Trajectories | None = None
) -> list[Quantity]:
    """As many quantities as the span counts, in coordinates of the data: short ones that span the same.

    What is nearly constant where it was learned from is told apart from the rest of the span first, so that one direction that
    is not conserved does not spoil the formulas of all others.

    Args:
        span: Of what was learned.
        units: That it was learned in.
        learned_from: The trajectories of training.
        held_out: On which variations are measured, and coefficients fitted.
        followed: The longest trajectories there are, over which drift is measured; those held out when None.
    """
    if not span.count:
        return []
    parts = _parted(coefficients(span.kept()).detach(), units.entered(learned_from))
    return [quantity for part in parts for quantity in _short(part, span, units, held_out, followed or held_out)]


def _parted(rows: Float[Tensor, "k c"], learned_from: Trajectories) -> list[Float[Tensor, "_ c"]]:
    """Coefficients that span the same: of what is constant along trajectories, and of the rest; all are in the same units."""
    if len(learned_from) < 2:
        return [rows]
    values = _along(monomials, smoothed(learned_from))
    _, rows = by_variation(rows, values)
    variations = torch.tensor([constancy(values @ row, _size(row, values))[0] for row in rows])
    constant = variations <= 2 * CONFIRMED * typical(values, values.square().mean((0, 1)))  # those in doubt among them
    return [part for part in (rows[constant], rows[~constant]) if len(part)]


def _short(
    part: Float[Tensor, "k c"], span: Span, units: Scaling, held_out: Trajectories, followed: Trajectories
) -> list[Quantity]:
    """Short quantities that span the same as some coefficients, which are in the units of a span."""
    rows, pivots = echelon(part)
    inside = with_coefficients(rows, span.directions.size)
    strengths = span.strength(functional.normalize(generator_rows(inside), dim=1))
    outside = coefficients(units.left(inside))
    outside = outside / outside[range(len(pivots)), pivots][:, None]
    fits = fitted(outside, pivots, held_out)
    names = monomial_names(held_out.names)
    values, long = _along(monomials, held_out), _along(monomials, followed)
    found = []
    for index, row in enumerate(outside):
        # What a term contributes, in units in which states are of size one.
        shown = (rows[index].abs() >= _SHOWN * rows[index].abs().max()).nonzero()[:, 0].tolist()
        sign = row[shown[0]].sign()  # formulas begin with what is positive
        row = sign * row
        terms = []
        for place in shown:
            fit = (None, None) if fits is None else (float(sign * fits[0][index, place]), float(fits[1][index, place]))
            terms.append(Term(names[place], float(row[place]), *fit))
        variation, error = constancy(values @ row, _size(row, values))
        reference = typical(long, long.square().mean((0, 1)), _alike(shown, held_out.degrees))
        drift = constancy(long @ row, _size(row, long))[0] / max(reference, _LEAST)
        strength, observable = float(strengths[index]), partial(_quadratic, row)
        time = followed.duration
        found.append(Quantity(formula(terms), tuple(terms), strength, variation, error, observable, time, reference, drift))
    return found


def read_observables(
    observables: Observables,
    units: Scaling,
    learned_from: Trajectories,
    held_out: Trajectories,
    threshold: float,
    followed: Trajectories | None = None,
) -> list[Quantity]:
    """Those whose flows are not negligible, of any form; how fast they move states of size one is their strength.

    Each is said to be a function of a short sum of terms, where there is one whose slopes are along its own.
    """
    states = held_out.states.double().flatten(0, 1)
    inside, sources = states / units.scale, libraries(held_out.names, states)
    exact = deepcopy(observables).cpu().double()
    slopes = torch.func.vmap(torch.func.jacrev(lambda x: exact(x[None])[0]))(inside).detach()
    strengths = slopes.square().sum(-1).mean(0).sqrt().tolist()
    long = _along(monomials, followed or held_out)
    reference = typical(long, long.flatten(0, 1).var(0))
    found = []
    for index, strength in enumerate(strengths):
        observable = partial(_of_any_form, exact, units, index)
        size = float(_along(observable, learned_from).std())
        variation, error = constancy(_along(observable, held_out), size)
        if strength > threshold:
            read = along_slopes(slopes[:, index] / units.scale, states, sources)
            words = "network" if read is None else f"function of {_sum_words(read, states)}"
            name, time = f"C{index + 1}, a {words}", (followed or held_out).duration
            drift = constancy(_along(observable, followed or held_out), size)[0] / max(reference, _LEAST)
            found.append(Quantity(name, (), strength, variation, error, observable, time, reference, drift))
    return found


def judged(quantities: Sequence[Quantity], held_out: Trajectories) -> list[Quantity]:
    """The same with verdicts, where trajectories that were held out are enough for any.

    What is tested is that a quantity varies by an eighth of what others do at most.
    """
    if len(held_out) < ENOUGH or not quantities:
        return list(quantities)
    seen = denoised(held_out)
    verdicts = controlled([judge_either_way(quantity, held_out, seen, inf) for quantity in quantities])
    return [replace(quantity, verdict=verdict) for quantity, verdict in zip(quantities, verdicts, strict=True)]


def _quadratic(row: Float[Tensor, " c"], states: States) -> Float[Tensor, " n"]:
    return monomials(states) @ row


def _of_any_form(observables: Observables, units: Scaling, index: int, states: States) -> Float[Tensor, " n"]:
    return units.action * observables(states / units.scale)[:, index]


def _sum_words(found: Sum, states: States) -> str:
    learned = (found.coefficients / found.unit(states)).tolist()
    return formula([Term(*term) for term in zip(found.library.names, learned, strict=True)])


def formula(terms: Sequence[Term]) -> str:
    """Such as "q² + 0.98 p²"; of many terms, the first."""
    words = ""
    for term in terms[:_LONGEST]:
        sign = "−" if term.learned < 0 else "+"
        amount = abs(term.learned)
        size = f"{amount:.2g}" if amount < 0.095 else f"{amount:.2f}" if amount < 999.995 else f"{amount:.3g}"
        factor = "" if size == "1.00" else f"{size} "
        words += f" {sign} {factor}{term.monomial}" if words else f"{'−' if sign == '−' else ''}{factor}{term.monomial}"
    return words if len(terms) <= _LONGEST else f"{words} + … ({len(terms) - _LONGEST} more)"


def constancy(values: Float[Tensor, "trajectories times"], size: float) -> tuple[float, float | None]:
    """The deviation of a quantity along trajectories, relative to a size, and its standard error over them, if several."""
    variances = values.var(1, correction=0) / size**2
    variation = float(variances.mean().sqrt())
    if len(values) < 2:
        return variation, None
    if variation == 0:
        return variation, 0.0
    return variation, float(variances.std() / len(variances) ** 0.5 / (2 * variation))


def typical(
    values: Float[Tensor, "trajectories times c"], squares: Float[Tensor, " c"], chosen: Bool[Tensor, " c"] | None = None
) -> float:
    """How far a quadratic of random coefficients varies along trajectories, relative to the size of its terms (`Quantity`).

    Args:
        values: Of monomials.
        squares: Of their sizes; those of size zero do not count.
        chosen: Which of them count; all when None.
    """
    counts = squares > 0 if chosen is None else chosen & (squares > 0)
    return float((values.var(1, correction=0).mean(0) / squares)[counts].mean().sqrt())


def _alike(places: Sequence[int], degrees: int) -> Bool[Tensor, " c"]:
    """Which monomials are of the same degrees of freedom as some."""
    rows, columns = pairs(2 * degrees)
    alone = torch.arange(2 * degrees)
    degree = torch.stack([torch.cat([rows, alone]), torch.cat([columns, alone])]) % degrees
    return torch.isin(degree, degree[:, list(places)]).all(0)


def _size(row: Float[Tensor, " c"], values: Float[Tensor, "trajectories times c"]) -> float:
    """Of the terms of a quantity."""
    return float((row.square() * values.square().mean((0, 1))).sum().sqrt())


def fitted(
    rows: Float[Tensor, "k c"], pivots: Sequence[int], trajectories: Trajectories
) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]] | None:
    """The coefficients with which quantities are most constant, given those of their pivots, and their standard errors.

    A quantity φ_pivot + Σ c_j φ_j is constant along a trajectory if changes of φ_pivot are those of −Σ c_j φ_j: a linear
    regression. None where the data do not determine it: there are too few, or more is conserved than was found.
    """
    values = _along(monomials, trajectories)
    changes = (values - values.mean(1, keepdim=True)).flatten(0, 1)
    sizes = changes.square().mean(0).sqrt().clamp(min=1e-300)
    free = [place for place in range(rows.shape[1]) if place not in pivots]
    X, Y = changes[:, free] / sizes[free], -changes[:, list(pivots)]
    left = values.shape[0] * (values.shape[1] - 1) - len(free)
    if left < 1 or not free or float(torch.linalg.cond(X)) > 1e7:
        return None
    solved = torch.linalg.lstsq(X, Y).solution
    variances = (Y - X @ solved).square().sum(0) / left
    spread = torch.linalg.inv(X.T @ X).diagonal().clamp(min=0)
    found, errors = rows.new_zeros(rows.shape), rows.new_zeros(rows.shape)
    found[range(len(pivots)), list(pivots)] = 1.0
    found[:, free] = (solved / sizes[free, None]).T
    errors[:, free] = (spread[:, None] * variances).sqrt().T / sizes[free]
    return found, errors


@torch.no_grad()
def _along(function: Callable[[States], Tensor], trajectories: Trajectories) -> Tensor:
    """Values of a function at all states, [trajectories, times, ...]."""
    states = trajectories.states.double()
    return function(states.flatten(0, 1)).unflatten(0, states.shape[:2])
