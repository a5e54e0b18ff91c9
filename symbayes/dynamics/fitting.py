"""Numbers inside of terms, such as a in exp(a q), k in cos(k q), ε in 1/√(x² + y² + ε²): those with which most is constant.

At the right number, one sum more is constant than at others. How much a library has that is constant is told by all
(W − N) / V together, those that count as constant at all; so laws that need no such number, and are constant at all of them,
do not hide it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from symbayes.dynamics.denoising import Denoised
from symbayes.dynamics.library import Library
from symbayes.dynamics.moments import Moments
from symbayes.dynamics.shapes import SHAPES, Shape, shapes
from symbayes.dynamics.trajectories import Trajectories

#: Numbers that are tried before the best is sought between them, of how many states, and how many of a trajectory at least.
_GRID, _STATES, _SEVERAL = 16, 1_500, 5
#: By how much more is constant, in logarithms, where a number is worth its place, or worth being sought between those that are
#: tried; and which difference is none.
_WORTH, _PROMISING, _ALIKE = 2.0, 0.3, 0.06
#: Within which a number is found, relative to it; with how many digits it is taken at most, and with fewer if leaving out
#: so many times as much makes no difference, either.
_EXACT, _DIGITS, _SURELY = 1e-7, 5, 3


def shaped(names: Sequence[str], seen: Denoised, kinds: Sequence[str] | None = None) -> list[Library]:
    """Of every kind of shape, the library with the number that makes most constant, where it is worth something.

    Args:
        names: Of coordinates.
        seen: Trajectories to learn from.
        kinds: Which of `SHAPES`; all when None.
    """
    few = _some(seen)
    known = shapes(names, seen.trajectories.states.flatten(0, 1), kinds)
    best: dict[str, tuple[float, Library]] = {}
    for shape in known:
        found = _fitted(shape, few)
        if found is not None and found[0] < best.get(shape.kind, (0.0,))[0]:
            best[shape.kind] = found
    return [best[kind][1] for kind in SHAPES if kind in best]


def _fitted(shape: Shape, seen: Denoised) -> tuple[float, Library] | None:
    """How much is constant, less than without such terms, and the library; None where that is next to nothing."""
    from scipy.optimize import minimize_scalar  # slow to import

    def left(value: float) -> float:
        found = Moments.of(shape.library(value), seen)
        return found.inconstancy() if np.isfinite(found.total).all() and np.isfinite(found.noise).all() else np.inf

    grid = np.geomspace(*shape.span, _GRID)
    tried = np.array([left(value) for value in grid])
    if not np.isfinite(tried).any():
        return None
    at, others = int(np.argmin(tried)), float(np.median(tried[np.isfinite(tried)]))
    if tried[at] > others - _PROMISING:
        return None
    low, high = (np.log(grid[min(max(place, 0), _GRID - 1)]) for place in (at - 1, at + 1))
    found = minimize_scalar(
        lambda log: left(float(np.exp(log))), bounds=(low, high), method="bounded", options={"xatol": _EXACT}
    )
    value, least = float(np.exp(found.x)), float(found.fun)
    if least > others - _WORTH:
        return None
    for digits in range(1, _DIGITS):
        short = float(f"{value:.{digits}g}")
        if max(left(value + times * (short - value)) for times in (1, _SURELY)) < least + _ALIKE:
            return least - others, shape.library(short)
    return least - others, shape.library(float(f"{value:.{_DIGITS}g}"))


def _some(seen: Denoised) -> Denoised:
    """Some of the states of all trajectories, at even times, several of each."""
    count, times = seen.trajectories.states.shape[:2]
    every = slice(None, None, max(1, min(count * times // _STATES, times // _SEVERAL)))
    states = seen.trajectories.states[:, every]
    return replace(seen, trajectories=Trajectories(states, 1.0, seen.trajectories.names), left=seen.left[:, every])
