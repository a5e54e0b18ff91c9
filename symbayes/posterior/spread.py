"""How far weights lie from their mean: centred normals over p numbers, θ − mean = L ε with ε ~ N(0, I).

Everything is asked of L: draws are L ε, the covariance of linear functions is that of Lᵀ times them, densities need L⁻¹.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "*batch p"]
Matrices = Float[Tensor, "*batch block d_out d_in"]


class Spread(ABC):
    """N(0, L Lᵀ) over p numbers. Its state are its fields, all of them tensors."""

    @abstractmethod
    def root(self, noise: Vectors) -> Vectors:
        """L ε."""

    @abstractmethod
    def root_transposed(self, vectors: Vectors) -> Vectors:
        """Lᵀ v: the covariance of u·θ and v·θ is (Lᵀ u)·(Lᵀ v)."""

    @abstractmethod
    def whitened(self, offsets: Vectors) -> Vectors:
        """L⁻¹ (θ − mean)."""

    @abstractmethod
    def log_det(self) -> Float[Tensor, ""]:
        """log|L Lᵀ|, in double precision: large terms cancel those of the prior."""

    @abstractmethod
    def variances(self) -> Float[Tensor, " p"]:
        """The diagonal of L Lᵀ."""


@dataclass(frozen=True)
class DiagonalSpread(Spread):
    """Every number for itself."""

    std: Float[Tensor, " p"]

    def root(self, noise: Vectors) -> Vectors:
        return noise * self.std

    def root_transposed(self, vectors: Vectors) -> Vectors:
        return vectors * self.std

    def whitened(self, offsets: Vectors) -> Vectors:
        return offsets / self.std

    def log_det(self) -> Float[Tensor, ""]:
        return 2 * self.std.log().sum(dtype=torch.float64)

    def variances(self) -> Float[Tensor, " p"]:
        return self.std.square()


@dataclass(frozen=True)
class FullSpread(Spread):
    """Any covariance, by its Cholesky factor; p² numbers."""

    lower: Float[Tensor, "p p"]

    def root(self, noise: Vectors) -> Vectors:
        return noise @ self.lower.T

    def root_transposed(self, vectors: Vectors) -> Vectors:
        return vectors @ self.lower

    def whitened(self, offsets: Vectors) -> Vectors:
        rows = offsets.reshape(-1, offsets.shape[-1])
        return torch.linalg.solve_triangular(self.lower, rows.T, upper=False).T.reshape(offsets.shape)

    def log_det(self) -> Float[Tensor, ""]:
        return 2 * self.lower.diagonal().log().sum(dtype=torch.float64)

    def variances(self) -> Float[Tensor, " p"]:
        return self.lower.square().sum(1)


@dataclass(frozen=True)
class MatrixSpread(Spread):
    """Matrix-normal, a block for each of several matrices side by side: W − mean = L_S E L_Aᵀ, so the covariance is S ⊗ A.

    Args:
        left: L_S, lower triangular.
        right: L_A, lower triangular.
    """

    left: Float[Tensor, "block d_out d_out"]
    right: Float[Tensor, "block d_in d_in"]

    def root(self, noise: Vectors) -> Vectors:
        return product(self.left, self._matrices(noise), self.right.mT).flatten(-3)

    def root_transposed(self, vectors: Vectors) -> Vectors:
        return product(self.left.mT, self._matrices(vectors), self.right).flatten(-3)

    def whitened(self, offsets: Vectors) -> Vectors:
        # All of a batch side by side, [block, d_out, batch · d_in]: torch would copy the factors for each of them.
        matrices = self._matrices(offsets).reshape(-1, *self._shape).permute(1, 2, 0, 3)
        rows = torch.linalg.solve_triangular(self.left, matrices.flatten(2), upper=False).reshape(matrices.shape)
        both = torch.linalg.solve_triangular(self.right.mT, rows.flatten(1, 2), upper=True, left=False).reshape(matrices.shape)
        return both.permute(2, 0, 1, 3).reshape(offsets.shape)

    def log_det(self) -> Float[Tensor, ""]:
        logs = [factor.diagonal(dim1=1, dim2=2).log().sum(dtype=torch.float64) for factor in (self.left, self.right)]
        return 2 * (self.right.shape[1] * logs[0] + self.left.shape[1] * logs[1])

    def variances(self) -> Float[Tensor, " p"]:
        rows, columns = (factor.square().sum(2) for factor in (self.left, self.right))
        return (rows[:, :, None] * columns[:, None, :]).flatten()

    def _matrices(self, vectors: Vectors) -> Matrices:
        return vectors.unflatten(-1, self._shape)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return len(self.left), self.left.shape[1], self.right.shape[1]


@dataclass(frozen=True)
class EigenSpread(Spread):
    """W − mean = U (D ∘ E) Vᵀ for every block, with orthogonal U and V: the inverse of a Kronecker product and a multiple of I.

    Args:
        left: U; one may serve all blocks.
        right: V; one may serve all blocks.
        std: D.
    """

    left: Float[Tensor, "some d_out d_out"]
    right: Float[Tensor, "others d_in d_in"]
    std: Float[Tensor, "block d_out d_in"]

    def root(self, noise: Vectors) -> Vectors:
        return product(self.left, self.std * self._matrices(noise), self.right.mT).flatten(-3)

    def root_transposed(self, vectors: Vectors) -> Vectors:
        return (self.std * self._rotate(vectors)).flatten(-3)

    def whitened(self, offsets: Vectors) -> Vectors:
        return (self._rotate(offsets) / self.std).flatten(-3)

    def log_det(self) -> Float[Tensor, ""]:
        return 2 * self.std.log().sum(dtype=torch.float64)

    def variances(self) -> Float[Tensor, " p"]:
        return (self.left.square() @ self.std.square() @ self.right.square().mT).flatten()

    def _rotate(self, vectors: Vectors) -> Matrices:
        return product(self.left.mT, self._matrices(vectors), self.right)

    def _matrices(self, vectors: Vectors) -> Matrices:
        return vectors.unflatten(-1, self.std.shape)


def product(left: Float[Tensor, "some d d_out"], middle: Matrices, right: Float[Tensor, "others d_in e"]) -> Tensor:
    """left @ middle @ right for every block of a batch; `@` alone would copy the outer ones for each entry of the batch."""
    blocks = middle.shape[-3]
    rows = torch.einsum("bpo,...boi->...bpi", left.expand(blocks, -1, -1), middle)
    return torch.einsum("...bpi,bij->...bpj", rows, right.expand(blocks, -1, -1))
