"""Sums of terms that are constant along trajectories and differ between them.

Of f = Σ c_i φ_i let W be the variance along trajectories, N what noise adds to it, and V the variance over all states. A
conserved quantity has W = N, however motion came about. All three are quadratic in c, so the c of smallest (W − N) / V is an
eigenvector. It has all terms of the library; those that matter least are left out one by one, and of all sums on the way
an information criterion chooses, as BIC does: how constant a sum is, against a cost for each of its terms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.denoising import Denoised
from symbayes.dynamics.library import KINDS, Library, quadratic
from symbayes.dynamics.moments import HOPELESS, SAME, ByTrajectory, Moments
from symbayes.dynamics.phase import States
from symbayes.dynamics.shapes import SHAPES

#: How many observations a trajectory counts as, where terms are weighed, and what a term costs, in their logarithm.
_INDEPENDENT, _PENALTY = 5, 3.0
#: Of the square of a slope: what others leave of it if it is a function of them; at least, for what varies, and at most.
_DEPENDENT, _MORE, _MOST = 1e-3, 2.0, 0.03
#: What is the same for all states varies by this at most, beside what noise makes it vary by, as often as this.
_FIXED, _BY_NOISE = 1e-9, 2.0
#: How many states slopes are compared at, and how many sums are looked at, most of them functions of others.
_POINTS, _TRIES = 500, 40
#: Of the square of a slope, where a sum is to say what a network has learned: what may be across it at most; what is not told
#: apart, since the network is not exact; and how many trajectories its states count as, since it errs at all alike.
_ACROSS, _INEXACT, _ALIKE = 0.02, 2e-3, 4
#: Of so many terms one is left out at once, where there are many.
_AT_ONCE = 24
#: How often a sum is improved, by how many terms of either kind, and by how much at least.
_ROUNDS, _NEAREST, _BETTER = 5, 3, 0.1
#: Of the largest term of a sum, what one has at least by which all others are divided.
_UNIT = 0.2


@dataclass(frozen=True)
class Terms:
    """Settings of a search for sums of terms.

    Args:
        libraries: Which of `KINDS` and `SHAPES` terms are from; all when None.
        longest: How many terms a sum has at most.
        most: How many sums are judged at most.
    """

    libraries: tuple[str, ...] | None = None
    longest: int = 12
    most: int = 12

    def __post_init__(self) -> None:
        known = (*KINDS, *SHAPES)
        if unknown := [kind for kind in self.libraries or () if kind not in known]:
            raise ValueError(f"Libraries must be among {', '.join(known)}; got {', '.join(map(repr, unknown))}.")
        for name in ("longest", "most"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True, eq=False)
class Sum:
    """Σ c_i φ_i.

    Args:
        library: Of the terms that it has.
        coefficients: One for each.
        score: The information criterion, lower for better sums; comparable between sums of the same data.
        left: (W − N) / V + what is not known of N, in the data it was found in.
    """

    library: Library
    coefficients: Float[Tensor, " s"]
    score: float
    left: float

    def __call__(self, states: States) -> Float[Tensor, " n"]:
        """Its value at every state."""
        return self.library(states) @ self.coefficients

    def unit(self, states: States) -> Float[Tensor, ""]:
        """The coefficient of its first large term, by which a formula divides all others."""
        sizes = (self.library(states) * self.coefficients).std(0)
        return self.coefficients[int((sizes >= _UNIT * sizes.max()).nonzero()[0])]

    def slopes(self, states: States) -> States:
        """Its gradient at every state."""
        return torch.einsum("nsm,s->nm", self.library.slopes(states), self.coefficients)


def shortened(
    library: Library, moments: Moments, allowed: Sequence[int], longest: int, resolution: float | None = None
) -> Sum | None:
    """The sum of the best score among those on the way from all allowed terms to a single one.

    Args:
        library: Of terms.
        moments: Of them.
        allowed: The places of terms that it may have.
        longest: How many it has at most.
        resolution: Of (W − N) / V, the same for all libraries that are compared; None for that of this one.
    """
    resolution = moments.resolution if resolution is None else resolution
    places, best = list(allowed), (np.inf, np.inf, list[int](), np.zeros(0))
    costs = library.costs
    while places:
        sums = moments.of_terms(places)
        cost = sum(costs[place] for place in places)
        if len(places) <= longest:
            score = _score(sums.left + resolution, cost, moments.trajectories)
            if score < best[0]:
                best = (score, sums.left, list(places), sums.most_constant)
        without = [
            _score(each + resolution, cost - costs[place], moments.trajectories)
            for place, each in zip(places, sums.without().tolist(), strict=True)
        ]
        order = np.lexsort([np.abs(sums.most_constant), np.round(without, 6)])  # by coefficients where all are equally good
        # Of many terms several at once, but fewer than there are sums that are alike: each may need one of those.
        alike = int((sums.ratios <= resolution).sum())
        gone = min(len(places) // _AT_ONCE, alike - 1 if alike > 1 else len(places)) if len(places) > 2 * longest else 1
        gone = max(gone, 1)
        places = [places[place] for place in sorted(order[gone:])]
    score, left, chosen, coefficients = best
    if not chosen:
        return None
    unit = np.sqrt(np.diagonal(moments.total)[chosen]) * moments.size[chosen]
    return Sum(library.part(chosen), torch.from_numpy(coefficients / unit), score, left)


def improved(
    found: Sum,
    library: Library,
    moments: Moments,
    allowed: Sequence[int],
    longest: int,
    resolution: float,
    is_new: Callable[[Sum], bool],
) -> Sum:
    """A sum of a better score, if there is one near: with a term more from which others may be left out again.

    On its way down a sum may lose a term that a shorter one has. With that term there are two that are constant, or one that
    is more so.

    Args:
        found: A sum of terms of the library.
        library: Of terms.
        moments: Of them.
        allowed: The places of terms that it may have.
        longest: How many it has at most.
        resolution: As in `shortened`.
        is_new: Whether a sum may take its place.
    """
    for _ in range(_ROUNDS):
        places = [library.terms.index(term) for term in found.library.terms]
        others = [place for place in allowed if place not in places]
        ratios = [[*moments.of_terms([*places, place]).ratios, np.inf][:2] for place in others]
        order = np.argsort(np.array(ratios).reshape(-1, 2), axis=0)[:_NEAREST]
        near = [shortened(library, moments, [*places, others[k]], longest, resolution) for k in sorted(set(order.flat))]
        better = [one for one in near if one is not None and one.score < found.score - _BETTER and is_new(one)]
        if not better:
            break
        found = min(better, key=lambda one: one.score)
    return found


def refitted(found: Sum, seen: Denoised) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
    """The coefficients with which the same terms are most constant on other trajectories, and their standard errors.

    Errors are by leaving out one trajectory after the other. Both are scaled so that the sum is as near as can be to what was
    found; of one term alone there is nothing to fit.
    """
    states, count = seen.trajectories.states, len(seen.trajectories)
    by = ByTrajectory.of(found.library, seen)
    places = range(len(found.library.terms))
    size = found.library(states.flatten(0, 1)).std(0)

    def solved(moments: Moments) -> Tensor:
        unit = np.sqrt(np.diagonal(moments.total).clip(1e-300)) * moments.size
        coefficients = torch.from_numpy(moments.of_terms(places).most_constant / unit)
        of_terms, wanted = coefficients * size, found.coefficients * size
        return coefficients * (of_terms @ wanted) / (of_terms @ of_terms)

    without = torch.stack([solved(by.moments(k)) for k in range(count)])
    return solved(by.moments()), ((count - 1) * without.var(0, correction=0)).sqrt()


def pivot(found: Sum, seen: Denoised) -> int:
    """The place of the term of a sum that varies most."""
    values = found.library(seen.trajectories.states.flatten(0, 1)) * found.coefficients
    return int(values.var(0).argmax())


class Independent:
    """Quantities that hold, as far as others may be functions of them: by their slopes at some states.

    So may be quadratics that are the same for all states, such as the length of a rod: noise moves states off what they keep
    to, and sums that differ nowhere else would pass for different ones.

    Args:
        seen: Trajectories.
    """

    def __init__(self, seen: Denoised) -> None:
        states = seen.trajectories.states.flatten(0, 1)
        self.points = states[:: max(1, len(states) // _POINTS)]
        scale = states.std(0)
        centred = (states - states.mean(0)) / scale.clamp(min=1e-150)
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
        # Coordinates that are sums of others do not move by themselves.
        self._directions = scale[:, None] * vectors[:, values > SAME * values[-1]]
        self._same = list[States]()
        for each in fixed(seen):
            slopes, all_of_it = self._slopes(each), each.slopes(self.points) * scale
            moves = slopes.norm() > _MOST * all_of_it.norm()
            if moves and outside(slopes, self._same) > _MOST and len(self._same) < slopes.shape[1] - 2:
                self._same.append(slopes)
        self._held = list[States]()
        self._spanning = list[States]()

    def is_new(self, found: Sum) -> bool:
        """Whether it is no function of one or two that hold.

        With as many that are independent as a state has numbers, less one, every other that is conserved is a function of
        all of them, and what is not cannot be conserved.
        """
        slopes, least = self._slopes(found), min(_DEPENDENT + _MORE * found.left, _MOST)
        pairs = [[one, two] for k, one in enumerate(self._held) for two in self._held[:k]]
        groups = [[], *([one] for one in self._held), *pairs]
        if any(outside(slopes, [*self._same, *group]) < least for group in groups):
            return False
        free = slopes.shape[1] - len(self._same) - 1
        return len(self._spanning) < free or outside(slopes, [*self._same, *self._spanning]) < least

    def follows(self, found: Sum) -> bool:
        """Whether it is a function of all that hold."""
        slopes = self._slopes(found)
        span = [*self._same, *self._spanning]
        return bool(self._spanning) and outside(slopes, span) < min(_DEPENDENT + _MORE * found.left, _MOST)

    def settled(self, library: Library) -> list[bool]:
        """Of every term whether it is conserved by itself, as a function of one that holds: no other sum has need of it."""
        slopes = torch.einsum("npm,md->pnd", library.slopes(self.points), self._directions)
        least = slopes.square().sum((1, 2))
        limits = _DEPENDENT * least
        for held in self._held:
            unit = _directed(held)
            across = slopes - (slopes * unit).sum(2, keepdim=True) * unit
            least = torch.minimum(least, across.square().sum((1, 2)))
        return (least < limits).tolist()

    def add(self, found: Sum) -> None:
        """One more that holds."""
        slopes = self._slopes(found)
        self._spanning += [] if self.follows(found) else [slopes]
        self._held.append(slopes)

    def _slopes(self, found: Sum) -> Float[Tensor, "n d"]:
        return found.slopes(self.points) @ self._directions


def fixed(seen: Denoised) -> list[Sum]:
    """Quadratics that are the same for all states, up to noise, those first that are so most."""
    names = seen.trajectories.names
    library = quadratic(names, seen.trajectories.states.flatten(0, 1))
    moments = Moments.of(library, seen)
    places = moments.clear()
    if not places:
        return []
    at = np.ix_(places, places)
    unit = np.sqrt(np.diagonal(moments.total)[places])
    total, noise = (each[at] / unit / unit[:, None] for each in (moments.total, moments.noise / seen.share))
    whitened = np.linalg.inv(np.linalg.cholesky(_FIXED * np.eye(len(places)) + noise))
    ratios, vectors = np.linalg.eigh(whitened @ total @ whitened.T)
    part, coefficients = library.part(places), (vectors.T @ whitened) / unit / moments.size[places]
    count = int((ratios <= _BY_NOISE).sum())
    return [Sum(part, torch.from_numpy(coefficients[k]), 0.0, float(ratios[k])) for k in range(count)]


def outside(slopes: States, others: Sequence[States]) -> float:
    """What share of the square of a gradient others do not span, on average over states."""
    rest, basis = slopes, list[Tensor]()
    for other in others:
        for unit in basis:
            other = other - (other * unit).sum(1, keepdim=True) * unit
        basis.append(other / other.norm(dim=1, keepdim=True).clamp(min=1e-12 * float(other.norm())))
        rest = rest - (rest * basis[-1]).sum(1, keepdim=True) * basis[-1]
    return float(rest.square().sum() / slopes.square().sum())


def along_slopes(slopes: States, states: States, libraries: Sequence[Library], longest: int = 4) -> Sum | None:
    """The short sum whose slopes are along those given, so that either is a function of the other; None if there is none.

    Sums are found as those are that are most constant, with what of their slopes is across those given in place of what varies
    along trajectories. States where a sum is steep would decide alone: so it is sought again with all states weighed as if it
    were equally steep everywhere, and by that sums of several libraries are compared.

    Args:
        slopes: Of an observable, at every state.
        states: In data, and in the units of the slopes.
        libraries: In which to look.
        longest: How many terms it has at most.
    """
    some = slice(None, None, max(1, len(states) // _POINTS))
    states, scale = states[some], states.std(0)
    given = _directed(slopes[some] * scale)
    best, least = None, np.inf
    for library in libraries:
        each = library.slopes(states) * scale
        found, weights = None, torch.ones(len(states), 1, 1, dtype=states.dtype)
        for _ in range(2):
            moments = _across(weights * each, given)
            found = shortened(library, moments, moments.clear(), longest)
            if found is None:
                break
            steep = (found.slopes(states) * scale).norm(dim=1)
            weights = 1 / steep.clamp(min=1e-3 * float(steep.square().mean().sqrt()))[:, None, None]
        if found is None:
            continue
        left = outside(_directed(found.slopes(states) * scale), [given])
        score = _score(left + _INEXACT, sum(found.library.costs), _ALIKE)
        if left < _ACROSS and score < least:
            best, least = Sum(found.library, found.coefficients, score, left), score
    return best


def _directed(slopes: States) -> States:
    return slopes / slopes.norm(dim=1, keepdim=True).clamp(min=1e-150)


def _across(slopes: Float[Tensor, "n p m"], given: States) -> Moments:
    """Of the slopes of terms, what is across directions given, beside all of it."""
    size = slopes.square().sum(2).mean(0).sqrt().clamp(min=1e-150)
    slopes = slopes / size[:, None]
    across = slopes - torch.einsum("npm,nm->np", slopes, given)[..., None] * given[:, None]
    total, outside = (torch.einsum("npm,nqm->pq", part, part).numpy() / len(given) for part in (slopes, across))
    return Moments(outside + _INEXACT * total, np.zeros_like(total), total, size.numpy(), _ALIKE)


def _score(left: float, cost: float, trajectories: int) -> float:
    """The information criterion."""
    observations = _INDEPENDENT * trajectories
    return float(observations * np.log(left) + _PENALTY * cost * np.log(observations))


#: A term, by its factors, whatever library has it: places of coordinates, and names of functions.
_Key = tuple[int | str, ...]


def _keys(library: Library, coordinates: int) -> list[_Key]:
    return [tuple(place if place < coordinates else library.atoms[place].name for place in term) for term in library.terms]


def candidates(
    libraries: Sequence[Library], seen: Denoised, holds: Callable[[Sum], bool], terms: Terms
) -> list[tuple[Sum, bool]]:
    """Sums that may be conserved, in the order in which they were judged, and whether each follows from those before it.

    That of the best score comes first, of all libraries; of equal ones, that of the simplest. It is judged before the
    next is sought: what is a function of one or two that hold is passed over, or of all in a library that gave none of them,
    and the library of one that does not hold is closed, as is any other that offers the same terms. After each, the term of it
    that varies most is left out of what libraries that have all of its terms are asked for next, and so are terms that are
    conserved by themselves. What varies more than any tolerance is passed over, unless there is nothing else: so that it can
    be said how far it is from conserved.

    Args:
        libraries: In which to look.
        seen: Trajectories to learn from.
        holds: Whether a sum holds on other trajectories.
        terms: Settings.
    """
    moments = [Moments.of(library, seen) for library in libraries]
    allowed = [each.clear() for each in moments]
    resolution = float(np.median([each.resolution for each in moments]))

    def best_of(place: int) -> Sum | None:
        return shortened(libraries[place], moments[place], allowed[place], terms.longest, resolution)

    waiting = [best_of(place) for place in range(len(libraries))]
    found, known, fruitful, refused = list[tuple[Sum, bool]](), Independent(seen), set[int](), set[frozenset[_Key]]()
    coordinates = len(seen.trajectories.names)
    keys = [_keys(library, coordinates) for library in libraries]
    for _ in range(_TRIES):
        at = min(range(len(waiting)), key=lambda place: np.inf if (of := waiting[place]) is None else round(of.score, 3))
        best = waiting[at]
        if best is None or len(found) == terms.most or (best.left > HOPELESS and found):
            break
        its_keys = _keys(best.library, coordinates)
        if frozenset(its_keys) in refused:
            waiting[at] = None
            continue
        if known.is_new(best) and (at in fruitful or not known.follows(best)):
            best = improved(best, libraries[at], moments[at], allowed[at], terms.longest, resolution, known.is_new)
            its_keys = _keys(best.library, coordinates)
            if frozenset(its_keys) in refused:
                waiting[at] = None
                continue
            found.append((best, known.follows(best)))
            if not holds(best):
                waiting[at] = None
                refused.add(frozenset(its_keys))
                continue
            known.add(best)
            fruitful.add(at)
        most = its_keys[pivot(best, seen)]
        for place, library in enumerate(libraries):
            open_to = {keys[place][term]: term for term in allowed[place]}
            gone = {open_to[most]} if set(its_keys) <= set(open_to) else set()
            gone |= {term for term, settled in enumerate(known.settled(library)) if settled}
            left = [term for term in allowed[place] if term not in gone]
            changed, allowed[place] = len(left) < len(allowed[place]), left
            if changed and waiting[place] is not None:
                waiting[place] = best_of(place)
    return found
