"""What it costs to set weights of a linear map to zero while the others make up for it, from the factors of its curvature.

Near weights W that were trained, a change D of them costs ½ tr(Dᵀ G D A): the Kronecker-factored curvature of log p(D | W) and
of the prior, with both factors damped so that their product contains the precision δ of the prior,

    (G + √δ/π I) ⊗ (A + √δ π I) = G ⊗ A + δ I + √δ (π G ⊗ I + I ⊗ A / π),      π² = mean eigenvalue of A / that of G.

For this quadratic, whose last terms make up for δ I alone not being a product with the factors, what follows is exact (Optimal
Brain Surgeon; for Kronecker factors van der Ouderaa et al. 2024). The bias is one more column of W, on which inputs are one.

    elements  ½ w² / ([G⁻¹]_rr [A⁻¹]_cc) for one;   D = −G⁻¹ Λ A⁻¹ with Λ zero but where elements go
    columns   ½ tr(W_Cᵀ G W_C ([A⁻¹]_CC)⁻¹);        D = −W_C ([A⁻¹]_CC)⁻¹ [A⁻¹]_C:
    rows      the columns of Wᵀ, with A for G
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from symbayes.curvature.blocks import cholesky
from symbayes.curvature.kfac import Kfac, KroneckerAccumulator
from symbayes.curvature.sums import Accumulator
from symbayes.layers.path import RowForm
from symbayes.layout import Site

#: Elements that are set to zero together, at most: equations that are solved at once.
TOGETHER = 1024


@dataclass(frozen=True)
class Quadratic:
    """½ tr(Dᵀ G D A) of a change D of a matrix W; both factors must be positive."""

    W: Float[Tensor, "d_out d_in"]
    G: Float[Tensor, "d_out d_out"]
    A: Float[Tensor, "d_in d_in"]

    @staticmethod
    def damped(W: Tensor, G: Tensor, A: Tensor, precision: float) -> "Quadratic":
        """In double precision, with factors that contain the precision of the prior."""
        W, G, A = W.double(), G.double(), A.double()
        means = [float(factor.diagonal().mean()) for factor in (A, G)]
        ratio = sqrt(means[0] / means[1]) if min(means) > 0 else 1.0
        return Quadratic(W, _add(G, sqrt(precision) / ratio), _add(A, sqrt(precision) * ratio))

    @cached_property
    def inverses(self) -> tuple[Float[Tensor, "d_out d_out"], Float[Tensor, "d_in d_in"]]:
        """Of both factors."""
        return _inverse(self.G), _inverse(self.A)

    def element_costs(self) -> Float[Tensor, "d_out d_in"]:
        """Of setting each element to zero, alone."""
        of_rows, of_columns = (inverse.diagonal() for inverse in self.inverses)
        return self.W.square() / of_rows[:, None] / of_columns / 2

    def column_costs(self, sets: Int[Tensor, "u k"]) -> Float[Tensor, " u"]:
        """Of setting each set of k columns to zero, alone."""
        inner = self.inverses[1][sets[:, :, None], sets[:, None, :]]
        W = self.W[:, sets].transpose(0, 1)  # [u, d_out, k]
        return torch.linalg.solve(inner, W.mT @ self.G @ W).diagonal(dim1=1, dim2=2).sum(1) / 2

    def without_columns(self, columns: Int[Tensor, " k"]) -> Float[Tensor, "d_out d_in"]:
        """W with these columns zero, and the others as they are best then."""
        inverse = self.inverses[1]
        W = self.W - self.W[:, columns] @ torch.linalg.solve(inverse[columns[:, None], columns], inverse[columns])
        W[:, columns] = 0.0
        return W

    def without(self, columns: Int[Tensor, " k"], rows: Int[Tensor, " r"]) -> "Quadratic":
        """The quadratic once columns are zero, and rows are gone: sizes stay, but neither costs anything any more.

        Of what is left, columns cost more then, since fewer can make up for them: inverting A without some columns is what
        conditions on them.
        """
        W = self.without_columns(columns) if len(columns) else self.W.clone()
        W[rows] = 0.0
        return Quadratic(W, _apart(self.G, rows), _apart(self.A, columns))

    def without_elements(self, gone: Bool[Tensor, "d_out d_in"], together: int = TOGETHER) -> Float[Tensor, "d_out d_in"]:
        """W with these elements zero, and the others as they are best then; set by set, along rows, where there are many."""
        (G_inverse, A_inverse), W = self.inverses, self.W.clone()
        if not gone.any():
            return W
        for rows, columns in zip(*(index.split(together) for index in gone.nonzero(as_tuple=True)), strict=True):
            inner = G_inverse[rows[:, None], rows] * A_inverse[columns[:, None], columns]
            some = slice(int(rows[0]), int(rows[-1]) + 1)  # of Λ, which is zero in all other rows
            Λ = torch.zeros_like(W[some])
            Λ[rows - some.start, columns] = torch.linalg.solve(inner, W[rows, columns])
            W -= G_inverse[:, some] @ (Λ @ A_inverse)
        W[gone] = 0.0
        return W


def _inverse(factor: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    return torch.cholesky_inverse(cholesky(factor))


def _apart(factor: Float[Tensor, "d d"], some: Int[Tensor, " k"]) -> Float[Tensor, "d d"]:
    """A factor of which some are independent of all else."""
    factor = factor.clone()
    factor[some], factor[:, some] = 0.0, 0.0
    factor[some, some] = 1.0
    return factor


def _add(matrix: Float[Tensor, "d d"], number: float) -> Float[Tensor, "d d"]:
    return matrix + number * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


class WithOnes(RowForm):
    """A map whose bias is one more column of its weight: input rows end with a one."""

    def __init__(self, form: RowForm) -> None:
        self.form = form

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        rows, present = self.form.input_rows(inputs), self.presence(inputs)
        return torch.cat([rows, torch.ones_like(rows[..., :1]) if present is None else present[..., None]], -1)

    def presence(self, inputs: Tensor) -> Float[Tensor, "n s block"] | None:
        return self.form.presence(inputs)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return self.form.output_rows(outputs)


@dataclass(frozen=True)
class JointKfac(Kfac):
    """KFAC of weights and biases of a map together: what weights that go gave on average, biases can make up for."""

    def accumulator(self, site: Site) -> Accumulator:
        if site.weight is None or site.form.structure != "dense":
            return super().accumulator(site)
        if site.bias is not None:
            site = replace(site, form=WithOnes(site.form), bias=None)
        return KroneckerAccumulator(site, self.sharing, self.pool_blocks)  # however large: costs are by factors
