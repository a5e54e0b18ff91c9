"""Quadratics that vary least along trajectories: with which learning begins, how far, and in which order a span is read."""

from dataclasses import replace
from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from symbayes.dynamics.denoising import denoised
from symbayes.dynamics.observables import Quadratics, monomials, with_coefficients
from symbayes.dynamics.trajectories import Trajectories

#: Of the spread of each monomial, in place of zero where some are the same.
_RIDGE = 1e-9
#: A monomial that spreads by less of its size is at rest, and is no start.
_REST = 1e-7
#: Shares of the trajectories that are left out in turn, and how many there must be: a single one cannot tell.
_FOLDS, _FEWEST = 5, 3


def least_varying(seen: Trajectories, count: int) -> Quadratics:
    """The quadratics that vary least along trajectories, the most constant first, each orthogonal to those before it.

    Those of C(x) = cᵀ φ(x) are sought whose variance along trajectories, cᵀ W c, is least beside that over all states, cᵀ T c:
    the first of the generalised eigenvectors of W and T. Then Gram and Schmidt, in the metric of generators. Noise in what was
    seen is smoothed away before.

    Args:
        seen: Two trajectories or more, in the units that quadratics are to be in: a single one cannot tell.
        count: How many; as many as there are monomials that are not the same everywhere at most.
    """
    values = _values(seen)
    rows = by_variation(_moving(values), values)[1][:count]
    size = seen.states.shape[2]
    matrices = with_coefficients(rows, size)
    generators = torch.cat([matrices.matrices.flatten(1), matrices.linear], 1)
    basis = torch.linalg.qr(generators.T).Q.T
    return Quadratics(basis[:, : size * size].unflatten(1, (size, size)) / 2, basis[:, size * size :], learned=False)


def held_variations(seen: Trajectories, count: int) -> Float[Tensor, " k"]:
    """By how much each of the least varying quadratics varies where nothing was chosen by; one is what monomials vary by.

    Where trajectories are few, some of many quadratics are nearly constant along them by chance. So a fifth of the trajectories
    is left out in turn: the least varying are those of the others, and vary along these, relative to their spread over all.
    Infinity where that is not known.

    Args:
        seen: As in `least_varying`.
        count: How many.
    """
    values = _values(seen)
    every = _moving(values)
    found = torch.full((min(count, len(every)),), inf, dtype=torch.float64)
    if len(values) < _FEWEST:
        return found
    of_folds, folds = torch.zeros_like(found), min(_FOLDS, len(values))
    for fold in range(folds):
        left = torch.arange(len(values)) % folds == fold
        rows = by_variation(_moving(values[~left]), values[~left])[1][: len(found)]
        along = torch.ones_like(found)  # of those that nothing moved in
        along[: len(rows)] = _share_along(values @ rows.T, left)
        of_folds += along / folds
    usual = _share_along(values @ every.T, torch.ones(len(values), dtype=torch.bool)).mean()
    return (of_folds / usual).sqrt().nan_to_num(nan=inf, posinf=inf)


def _share_along(values: Float[Tensor, "trajectories times c"], of: Bool[Tensor, " trajectories"]) -> Float[Tensor, " c"]:
    """The variance along some trajectories, relative to that over all states."""
    return values[of].var(1, correction=0).mean(0) / values.flatten(0, 1).var(0, correction=0).clamp(min=1e-300)


def _values(seen: Trajectories) -> Float[Tensor, "trajectories times c"]:
    """Of monomials, without noise."""
    states = smoothed(seen).states
    return monomials(states.flatten(0, 1)).unflatten(0, states.shape[:2])


def _moving(values: Float[Tensor, "trajectories times c"]) -> Float[Tensor, "_ c"]:
    """A row for each monomial that is not the same everywhere."""
    flat = values.flatten(0, 1)
    return torch.eye(values.shape[2], dtype=torch.float64)[flat.std(0) > _REST * flat.square().mean(0).sqrt()]


def by_variation(
    rows: Float[Tensor, "k c"], values: Float[Tensor, "trajectories times c"]
) -> tuple[Float[Tensor, " k"], Float[Tensor, "k c"]]:
    """What spans the same as some coefficients, and by how much of its spread each varies along trajectories; the least first.

    Args:
        rows: Coefficients.
        values: Of monomials.
    """
    from scipy.linalg import eigh  # slow to import

    every = values.flatten(0, 1)
    sizes = every.std(0).clamp(min=1e-300)
    along, spread = ((x / sizes).flatten(0, -2) for x in (values - values.mean(1, keepdim=True), every - every.mean(0)))
    scaled = rows * sizes
    scaled = scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1e-300)
    inside = [scaled @ (part.T @ part / len(part)) @ scaled.T for part in (along, spread)]
    inside[1] = inside[1] + _RIDGE * torch.eye(len(rows), dtype=rows.dtype)
    variances, vectors = (torch.from_numpy(found) for found in eigh(inside[0].numpy(), inside[1].numpy()))
    return variances.clamp(min=0).sqrt(), vectors.T @ scaled / sizes


def smoothed(seen: Trajectories) -> Trajectories:
    """What was seen of motion, less its noise: targets where there are any, and otherwise states."""
    states = seen.states if seen.targets is None else seen.targets
    return denoised(replace(seen, states=states, targets=None)).trajectories
