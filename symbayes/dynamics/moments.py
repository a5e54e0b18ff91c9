"""How constant terms and their sums are: variances along trajectories, of noise, and over all states.

All three are quadratic in the coefficients of a sum, so matrices W, N and V hold them for all sums of a library at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from symbayes.dynamics.denoising import Denoised
from symbayes.dynamics.library import Library

Matrix = Float64[np.ndarray, "p p"]
Numbers = Float64[np.ndarray, " p"]

#: Of the variance of a sum: where more of it is along trajectories, it exceeds all tolerances, and need not be tested.
HOPELESS = 0.0225
#: Eigenvalues of V, relative to the largest, below which terms are the same; and what of a term is along these where it is.
SAME, _SHARED = 1e-11, 1e-3
#: What of the noise is not subtracted, since it cannot be known better than this, and what is left of it at least.
_UNSURE, _LITTLE = 0.5, 0.05
#: Added to (W − N) / V: below it all are equally constant.
_LEAST = 1e-9
#: A term of which noise is a larger share is left out.
_NOISY = 0.1
#: How often an interval with a root is halved.
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Moments:
    """W, N and V of the terms of a library, each divided by its size."""

    along: Matrix
    noise: Matrix
    total: Matrix
    size: Numbers
    trajectories: int

    @classmethod
    def of(cls, library: Library, seen: Denoised) -> "Moments":
        """From states, to first order in what is left of their noise."""
        return ByTrajectory.of(library, seen).moments()

    @property
    def resolution(self) -> float:
        """Of (W − N) / V: sums that are more constant than this cannot be told apart."""
        return _LEAST + _UNSURE * float(np.median(np.diagonal(self.noise) / np.diagonal(self.total).clip(1e-300)))

    def clear(self) -> list[int]:
        """The terms that are neither the same for all states nor mostly noise."""
        noise, total = np.diagonal(self.noise), np.diagonal(self.total)
        return [int(place) for place in np.flatnonzero((total > SAME) & (noise <= _NOISY * total))]

    def of_terms(self, places: Sequence[int]) -> "Sums":
        """All sums of some terms."""
        at = np.ix_(places, places)
        W, N, V = self.along[at], self.noise[at], self.total[at]
        unit = np.sqrt(np.diagonal(V).clip(1e-300))
        W, N, V = (each / unit / unit[:, None] for each in (W, N, V))
        values, vectors = np.linalg.eigh(V)
        kept = values >= SAME * values[-1].clip(1e-300)
        kept[-1] = True  # where all terms are the same up to rounding, none is
        basis = vectors[:, kept] / np.sqrt(values[kept].clip(1e-300))
        ratios, turned = np.linalg.eigh(basis.T @ (W - (1 - _UNSURE) * N) @ basis)
        sums = basis @ turned
        chosen = sums[:, 0]
        along, noise, total = (float(chosen @ each @ chosen) for each in (W, N, V))
        left = max(along - (1 - _UNSURE) * noise, _LITTLE * noise, 0.0) / total
        return Sums(ratios.clip(0), sums, left, (vectors[:, ~kept] ** 2).sum(1) > _SHARED)

    def inconstancy(self) -> float:
        """How little is constant: all (W − N) / V that are small, in logarithms, less what counts as small."""
        places = self.clear()
        ratios = self.of_terms(places).ratios if places else np.zeros(0)
        return float(np.log((ratios + self.resolution) / HOPELESS).clip(max=0).sum())


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of some terms that are independent of each other, those first that are most constant.

    Args:
        ratios: (W − N) / V of each, with the share of N that is not known.
        all: Their coefficients, one column for each, of terms whose V is one.
        left: The first ratio; of the noise some is always left.
        spare: Which terms are sums of the others.
    """

    ratios: Float64[np.ndarray, " k"]
    all: Float64[np.ndarray, "p k"]
    left: float
    spare: Bool[np.ndarray, " p"]

    @property
    def most_constant(self) -> Numbers:
        """The coefficients of the first."""
        return self.all[:, 0]

    def without(self) -> Numbers:
        """For each term, the smallest ratio of sums that do not have it.

        Sums are Σ a_i u_i, with ratios λ_i. One without term j has Σ a_i u_ij = 0, so its ratio is the root μ of
        Σ u_ij² / (λ_i − μ) between the two smallest λ. Nothing is lost with a term that is a sum of the others.
        """
        if len(self.ratios) < 2:
            return np.where(self.spare, self.ratios[0], np.inf)
        squares = self.all**2
        low, high = np.full(len(self.all), self.ratios[0]), np.full(len(self.all), self.ratios[1])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                above = (squares / (self.ratios - middle[:, None])).sum(1) > 0
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.where(self.spare, self.ratios[0], high)


@dataclass(frozen=True, eq=False)
class ByTrajectory:
    """The same for each trajectory: means of terms and of their products, beside W and N."""

    along: Float[Tensor, "k p p"]
    noise: Float[Tensor, "k p p"]
    products: Float[Tensor, "k p p"]
    means: Float[Tensor, "k p"]
    size: Float[Tensor, " p"]

    @classmethod
    def of(cls, library: Library, seen: Denoised) -> "ByTrajectory":
        """From states, to first order in what is left of their noise."""
        states = seen.trajectories.states
        flat, (count, times) = states.flatten(0, 1), states.shape[:2]
        values = library(flat)
        size = values.square().mean(0).sqrt().clamp(min=1e-150)
        values = values / size
        weighted = library.slopes(flat) / size[:, None] * (seen.share * seen.left.flatten(0, 1)).sqrt()[:, None]
        # Where noise is larger than all that a term varies by, its slope says nothing about it.
        weighted = weighted * (values.std(0) / weighted.norm(dim=2).clamp(min=1e-150)).clamp(max=1)[..., None]
        centre = values.mean(0)  # about which products do not cancel
        by, noise = (values - centre).unflatten(0, (count, times)), weighted.unflatten(0, (count, times))
        along = by - by.mean(1, keepdim=True)
        return cls(
            torch.einsum("ktp,ktq->kpq", along, along) / times,
            torch.einsum("ktpm,ktqm->kpq", noise, noise) / times,
            torch.einsum("ktp,ktq->kpq", by, by) / times,
            by.mean(1),
            size,
        )

    def moments(self, without: int | None = None) -> Moments:
        """Of all trajectories, or of all but one."""
        kept = [k for k in range(len(self.means)) if k != without]
        mean = self.means[kept].mean(0)
        total = self.products[kept].mean(0) - mean[:, None] * mean
        W, N = self.along[kept].mean(0), self.noise[kept].mean(0)
        return Moments(W.numpy(), N.numpy(), total.numpy(), self.size.numpy(), len(kept))
