"""H of one tensor by its eigenvalues: blocks, and sums of r rᵀ.

Under a prior precision δ that is one number for the tensor, everything the evidence needs follows from the eigenvalues λ:

    log|I + H/δ| = Σ log(1 + λ/δ)          effective parameters γ = Σ λ / (λ + δ)

Where H is negligible against δ, as for a path that is switched off, two terms of a series are as exact as rounding. They need
no eigenvalues:

    log|I + H/δ| ≈ tr H / δ − tr H² / 2δ²      γ ≈ tr H / δ − tr H² / δ²
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.errors import NotFiniteError
from symbayes.precision import multiply, rounded, tensor_cores

#: Eigenvalues, and eigenvectors where they are asked for.
Solution = tuple[Float[Tensor, "block d"], Float[Tensor, "block d d"] | None]


def eigendecompose(
    matrices: Float[Tensor, "block d d"], name: str, *, vectors: bool, dtype: torch.dtype | None = None
) -> Solution:
    """Eigenvalues, not below zero, and eigenvectors as columns if so; in double precision where single precision fails.

    It does on dead units, and on a GPU where one eigenvalue is nearly all of the trace; where double precision fails there,
    it is done on the CPU. A matrix of zeros, of a path that is switched off, has the unit vectors.

    Args:
        matrices: To be decomposed.
        name: Of the tensor whose curvature they are, for messages.
        vectors: Whether eigenvectors are found, too.
        dtype: In which to begin; that of the matrices when None, which is that of the answer in any case.

    Raises:
        NotFiniteError: If they cannot be decomposed.
    """
    # At unit scale: the squares of what a path that is nearly off gets back are too small for single precision.
    size = matrices.shape[1]
    mean = matrices.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    is_zero = mean <= 1e6 * torch.finfo(matrices.dtype).tiny
    scale = torch.where(is_zero, 1.0, mean)
    unit = torch.where(is_zero, torch.eye(size, dtype=matrices.dtype, device=matrices.device), matrices / scale)
    reason = ""
    cpu = torch.device("cpu")
    ways = ((dtype or matrices.dtype, matrices.device), (torch.float64, matrices.device), (torch.float64, cpu))
    for attempted, device in dict.fromkeys(ways):
        attempt = unit.to(device, attempted)
        try:
            if vectors:
                values, found = torch.linalg.eigh(attempt)
            else:
                values, found = torch.linalg.eigvalsh(attempt), None
        except torch.cuda.OutOfMemoryError:  # a RuntimeError as well, which says what it is
            raise
        except RuntimeError as error:  # torch.linalg.LinAlgError
            first_line = str(error).strip().partition("\n")[0]
            reason = f"the solver says {first_line!r}"
            continue
        reason = "the solver gives eigenvectors that are not at right angles"
        if not values.isfinite().all():
            reason = "the solver gives eigenvalues that are not finite"
        elif found is None or _is_orthogonal(found):
            values = torch.where(is_zero[..., 0], 0.0, values.clamp(min=0).to(matrices) * scale[..., 0])
            return values, None if found is None else upright(found).to(matrices)
    raise NotFiniteError(
        f"The curvature of {name!r} could not be decomposed: its entries reach {matrices.abs().max().item():.3g}, and "
        f"{reason}. Check that the loss is finite and the weights have not diverged; a smaller learning rate helps."
    )


def cholesky(matrix: Float[Tensor, "p p"]) -> Float[Tensor, "p p"]:
    """The lower factor of a matrix that is positive, unless numbers are too far apart.

    Raises:
        NotFiniteError: If they are.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    try:
        wrong = bool(failed) or not bool(factor.isfinite().all())
    except RuntimeError:  # under vmap there are no values to compare
        return factor
    if wrong:
        raise NotFiniteError(
            f"Curvature and prior precisions must be on scales that double precision can add up; entries reach "
            f"{matrix.abs().max().item():.3g}. Scale inputs to about size one, and check precisions and weights."
        )
    return factor


def upright(vectors: Float[Tensor, "block d d"]) -> Float[Tensor, "block d d"]:
    """Eigenvectors with the sign that has a positive product with a fixed vector.

    A solver gives either sign, which rounding may turn over: random vectors in an eigenbasis would then be others on another
    machine, or of other processes.
    """
    fixed = 1 + torch.arange(1, vectors.shape[1] + 1, dtype=vectors.dtype, device=vectors.device).square().sin() / 2
    products = torch.einsum("d,bde->be", fixed, vectors.detach())
    return vectors * torch.where(products < 0, -1.0, 1.0).to(vectors.dtype)[:, None]


def _is_orthogonal(vectors: Float[Tensor, "block d d"]) -> bool:
    """Whether columns are of length one and at right angles; solvers for GPUs do not always say when they fail."""
    identity = torch.eye(vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    return bool(((vectors.mT @ vectors - identity).abs().amax() < 1e-3).item())


#: On a CPU, matrices of this size or more are added up in this many strips.
_LARGE, _STRIPS = 64, 4


class SecondMoment:
    """Σ r rᵀ over all rows added, for every block; of large matrices only the strips below the diagonal are multiplied.

    On a GPU rows are rounded (`rounded`), unless a user has chosen otherwise; sums are in single precision or better.
    """

    def __init__(self) -> None:
        self._total: Float[Tensor, "block d d"] | None = None

    def add(self, rows: Float[Tensor, "n s block d"]) -> None:
        """Add rows; they are not copied where data and positions are adjacent in memory, nor in maps of few channels."""
        _, s, blocks, d = rows.shape
        if blocks == 1 and 1 < d <= min(s, _LARGE - 1) and rows.stride(1) == 1:
            with tensor_cores(rows.device):
                maps = rounded(rows, d)[:, :, 0]  # multiplied by themselves datum by datum
                self.add_moment(multiply(maps.mT, maps).sum(0)[None])
            return
        columns = rows.permute(2, 3, 0, 1)
        in_a_row = columns.stride(2) == columns.shape[3] * columns.stride(3)
        layout = torch.preserve_format if in_a_row else torch.contiguous_format  # which they would be copied to
        with tensor_cores(rows.device):
            self._add(rounded(columns, rows.shape[3], layout).flatten(2))

    def _add(self, columns: Float[Tensor, "block d _"]) -> None:
        if columns.requires_grad or columns.dtype == torch.bfloat16:  # one has a graph, sums of the other more digits
            self.add_moment(multiply(columns, columns.mT))
            return
        beta = 0 if self._total is None else 1
        if self._total is None:
            self._total = columns.new_empty(len(columns), columns.shape[1], columns.shape[1])
        if not _in_strips(columns):
            self._total.baddbmm_(columns, columns.mT, beta=beta)
            return
        for total, block in zip(self._total, columns, strict=True):
            for start, stop in _strips(len(block)):
                total[start:stop, :stop].addmm_(block[start:stop], block[:stop].T, beta=beta)

    def add_moment(self, moment: Float[Tensor, "block d d"]) -> None:
        """Add Σ r rᵀ of some rows."""
        if moment.requires_grad or self._total is None:
            self._total = moment if self._total is None else self._total + moment
        else:
            self._total += moment

    @property
    def sum(self) -> Float[Tensor, "block d d"]:
        """The whole matrices.

        Raises:
            RuntimeError: If nothing was added.
        """
        if self._total is None:
            raise RuntimeError("No batch was added.")
        if _in_strips(self._total) and not self._total.requires_grad:
            for start, stop in _strips(self._total.shape[1]):
                self._total[:, :start, start:stop] = self._total[:, start:stop, :start].transpose(1, 2)
        return self._total


def _in_strips(matrices: Float[Tensor, "block d k"]) -> bool:
    """Whether to add up strip by strip; a GPU is better off with all blocks at once."""
    return matrices.shape[1] >= _LARGE and not matrices.is_cuda


def _strips(size: int) -> list[tuple[int, int]]:
    height = -(-size // _STRIPS)
    return [(start, min(start + height, size)) for start in range(0, size, height)]


@dataclass(frozen=True)
class Factor:
    """A symmetric positive semi-definite matrix for each block; only the diagonals where it is diagonal.

    Args:
        matrices: [block, d, d], or [block, d] when diagonal.
        diagonal: Whether only diagonals are stored.
        name: Of the tensor, for messages.
    """

    matrices: Tensor
    diagonal: bool
    name: str

    @cached_property
    def eigenvalues(self) -> Float[Tensor, "block d"]:
        """Decomposed once; a bias may share the factor of its weight."""
        return self.matrices if self.diagonal else eigendecompose(self.matrices, self.name, vectors=False)[0]

    @cached_property
    def eigenvectors(self) -> Float[Tensor, "block d d"]:
        """As columns; for EKFAC, preconditioning and steps in the eigenbasis."""
        if self.diagonal:
            return torch.eye(self.matrices.shape[1], dtype=self.matrices.dtype, device=self.matrices.device).expand(
                len(self.matrices), -1, -1
            )
        return upright(torch.linalg.eigh(self.matrices.double()).eigenvectors).to(self.matrices.dtype)

    @property
    def squares(self) -> Float[Tensor, " block"]:
        """tr M² of every matrix."""
        return self.matrices.flatten(1).square().sum(1)

    def dense(self) -> Float[Tensor, "block d d"]:
        return torch.diag_embed(self.matrices) if self.diagonal else self.matrices

    def diagonals(self) -> Float[Tensor, "block d"]:
        return self.matrices if self.diagonal else self.matrices.diagonal(dim1=1, dim2=2)

    def turn(self, columns: Float[Tensor, "block d e"], back: bool) -> Float[Tensor, "block d e"]:
        """Columns into the eigenbasis, or back."""
        if self.diagonal:
            return columns
        return (self.eigenvectors if back else self.eigenvectors.mT) @ columns


class Block(ABC):
    """The curvature of one weight tensor."""

    @cached_property
    @abstractmethod
    def eigenvalues(self) -> Float[Tensor, " p"]:
        """All of them, in no particular order."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "p p"]:
        """The whole matrix, in the order of the flattened tensor; for tests."""

    @abstractmethod
    def turn(self, vector: Float[Tensor, " p"], *, back: bool = False) -> Float[Tensor, " p"]:
        """Uᵀ v: into the eigenbasis, in the order of the eigenvalues; or U v, back to the order of the flattened tensor."""

    def log_det(self, precision: Float[Tensor, ""], *, negligible: bool = False) -> Float[Tensor, ""]:
        """log|I + H/δ|; by its series where H is negligible."""
        if negligible:
            return (self.trace() - self.squares / precision / 2) / precision
        return (self.eigenvalues / precision).log1p().sum()

    def effective(self, precision: Float[Tensor, ""], *, negligible: bool = False) -> Float[Tensor, ""]:
        """γ = tr H (H + δI)⁻¹, the number of parameters that the data determine; by its series where H is negligible."""
        if negligible:
            return (self.trace() - self.squares / precision) / precision
        return (self.eigenvalues / (self.eigenvalues + precision)).sum()

    def trace(self) -> Float[Tensor, ""]:
        return self.eigenvalues.sum()

    @property
    def squares(self) -> Float[Tensor, ""]:
        """tr H²."""
        return self.eigenvalues.square().sum()

    @cached_property
    def norm(self) -> Float[Tensor, ""]:
        """‖H‖ (Frobenius), for comparisons: it has no gradient."""
        return self.squares.detach().sqrt()


@dataclass(frozen=True)
class KroneckerBlock(Block):
    """H = ⊕_block G ⊗ A over the row form [block, d_out, d_in] of a weight; one G may serve all blocks."""

    G: Factor
    A: Factor
    #: From the row form to the order of the tensor.
    transposed: bool = False

    @cached_property
    def eigenvalues(self) -> Float[Tensor, " p"]:
        return (self.G.eigenvalues[:, :, None] * self.A.eigenvalues[:, None, :]).flatten()

    def turn(self, vector: Float[Tensor, " p"], *, back: bool = False) -> Float[Tensor, " p"]:
        d_out, d_in = self.G.matrices.shape[1], self.A.matrices.shape[1]
        flip = self.transposed
        W = vector.view(-1, d_in, d_out).mT if flip and not back else vector.view(-1, d_out, d_in)
        W = self.A.turn(self.G.turn(W, back).mT, back).mT
        return (W.mT if flip and back else W).flatten()

    def dense(self) -> Float[Tensor, "p p"]:
        A, G = self.A.dense(), self.G.dense()
        G = G.expand(len(A), -1, -1)
        if self.transposed:
            A, G = G, A
        return torch.block_diag(*(torch.kron(g, a) for g, a in zip(G, A, strict=True)))

    @property
    def diagonal_entries(self) -> Float[Tensor, " p"]:
        """Of H, in the order of the flattened tensor."""
        found = self.G.diagonals()[:, :, None] * self.A.diagonals()[:, None, :]
        return (found.mT if self.transposed else found).flatten()

    def trace(self) -> Float[Tensor, ""]:
        return (self.G.diagonals().sum(-1) * self.A.diagonals().sum(-1)).sum()

    @property
    def squares(self) -> Float[Tensor, ""]:
        return (self.G.squares * self.A.squares).sum()


@dataclass(frozen=True)
class DenseBlock(Block):
    """H as it is; for biases, and for tensors small enough."""

    H: Factor

    @cached_property
    def eigenvalues(self) -> Float[Tensor, " p"]:
        return self.H.eigenvalues.flatten()

    def turn(self, vector: Float[Tensor, " p"], *, back: bool = False) -> Float[Tensor, " p"]:
        return self.H.turn(vector.view(len(self.H.matrices), -1, 1), back).flatten()

    def dense(self) -> Float[Tensor, "p p"]:
        return torch.block_diag(*self.H.dense())

    @property
    def diagonal_entries(self) -> Float[Tensor, " p"]:
        """Of H."""
        return self.H.diagonals().flatten()

    def trace(self) -> Float[Tensor, ""]:
        return self.H.diagonals().sum()

    @property
    def squares(self) -> Float[Tensor, ""]:
        return self.H.squares.sum()


@dataclass(frozen=True)
class DiagonalBlock(Block):
    """Only the diagonal of H."""

    diagonal: Float[Tensor, " p"]

    @cached_property
    def eigenvalues(self) -> Float[Tensor, " p"]:
        return self.diagonal

    def turn(self, vector: Float[Tensor, " p"], *, back: bool = False) -> Float[Tensor, " p"]:
        return vector

    def dense(self) -> Float[Tensor, "p p"]:
        return torch.diag(self.diagonal)


@dataclass(frozen=True)
class EigenBlock(Block):
    """H = U diag(λ) Uᵀ with U = U_G ⊗ U_A from a Kronecker block, and λ the exact curvature along U (EKFAC)."""

    values: Float[Tensor, "block d_out d_in"]
    basis: KroneckerBlock

    @cached_property
    def eigenvalues(self) -> Float[Tensor, " p"]:
        return self.values.flatten()

    def turn(self, vector: Float[Tensor, " p"], *, back: bool = False) -> Float[Tensor, " p"]:
        return self.basis.turn(vector, back=back)

    def dense(self) -> Float[Tensor, "p p"]:
        U_A, U_G = self.basis.A.eigenvectors, self.basis.G.eigenvectors
        U_G, values = U_G.expand(len(U_A), -1, -1), self.values
        if self.basis.transposed:
            U_A, U_G, values = U_G, U_A, values.transpose(1, 2)
        blocks = []
        for u_g, u_a, value in zip(U_G, U_A, values, strict=True):
            U = torch.kron(u_g.contiguous(), u_a.contiguous())
            blocks.append(U * value.flatten() @ U.T)
        return torch.block_diag(*blocks)
