"""What learned quadratics span. They are known only as far as that: any combination of conserved quantities is one, too."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.observables import Quadratics


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
