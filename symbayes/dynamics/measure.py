"""How far to flow along several observables at once."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Float64
from scipy import stats

from symbayes.dynamics.observables import Amounts

#: How far the measures "uniform" and "ball" go.
REACH = np.pi

Rows = Float64[np.ndarray, "s k"]
Steps = Float64[np.ndarray, " s"]


def random_amounts(measure: str, samples: int, count: int, rng: np.random.Generator) -> Amounts:
    """Amounts of s transformations along k observables, independent of each other.

    Their noise is wanted in training: where an observable is not conserved, the energy differs from draw to draw.

    Args:
        measure: "uniform" on the cube [−π, π]ᵏ; "ball", uniform in the ball of radius π; or "gaussian", N(0, (π/2)² I).
        samples: s.
        count: k.
        rng: For the draws; of numpy, because torch refuses to draw within a pass over many weights.
    """
    check_measure(measure)
    if measure == "uniform":
        return _scaled(rng.uniform(-1, 1, (samples, count)))
    normal = rng.standard_normal((samples, count))
    directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return _scaled(directions * _DISTANCES[measure](rng.uniform(size=samples), count)[:, None])


@cache
def even_amounts(measure: str, samples: int, count: int) -> Amounts:
    """A fixed set of amounts, spread evenly, so that an average over few is near that over all.

    They come in opposite pairs, so that averages are exact in the first order where their number is even. In the second order
    they are nearly so: directions are orthogonal in blocks, at distances that take even steps. In the cube it is each amount
    that takes even steps; which of one meets which of another is random.
    """
    check_measure(measure)
    rng = np.random.default_rng(0)
    half = -(-samples // 2)
    steps = rng.permutation((np.arange(half) + 0.5) / half)
    if measure == "uniform":
        rows = rng.permuted(np.tile(steps, (count, 1)), axis=1).T * rng.choice([-1.0, 1.0], (half, count))
    else:
        rows = _orthogonal(half, count, rng) * _DISTANCES[measure](steps, count)[:, None]
    return _scaled(np.concatenate([rows, -rows])[:samples])


def check_measure(measure: str) -> None:
    """Refuse what is no measure.

    Raises:
        ValueError: Naming those there are.
    """
    if measure not in MEASURES:
        raise ValueError(f"The measure must be one of {', '.join(MEASURES)}; got {measure!r}.")


#: The distance from zero of directions that are uniform on the sphere, from uniform quantiles; in units of the reach.
_DISTANCES: dict[str, Callable[[Steps, int], Steps]] = {
    "ball": lambda quantiles, count: quantiles ** (1 / count),
    "gaussian": lambda quantiles, count: stats.chi.ppf(quantiles, count) / 2,
}
MEASURES = ("uniform", *_DISTANCES)


def _orthogonal(samples: int, count: int, rng: np.random.Generator) -> Rows:
    """Unit vectors, uniform on the sphere, orthogonal to each other in blocks."""
    basis, triangle = np.linalg.qr(rng.standard_normal((-(-samples // count), count, count)))
    signs = np.sign(np.diagonal(triangle, axis1=1, axis2=2))  # with which the basis is uniform
    return (basis * signs[:, None]).swapaxes(1, 2).reshape(-1, count)[:samples]


def _scaled(rows: Rows) -> Amounts:
    return torch.from_numpy(REACH * rows)
