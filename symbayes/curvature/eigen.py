"""Eigenvalues and eigenvectors of many symmetric matrices, at any scale; solvers for GPUs are not believed."""

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.errors import NotFiniteError


def decomposed(
    matrices: Float[Tensor, "block d d"], name: str, *, vectors: bool
) -> tuple[Float[Tensor, "block d"], Float[Tensor, "block d d"] | None]:
    """Eigenvalues, not below zero, and eigenvectors as columns if so; in double precision where single precision fails.

    It does on dead units. A matrix of zeros, of a path that is switched off, has the unit vectors.

    Args:
        matrices: To be decomposed.
        name: Of the tensor whose curvature they are, for messages.
        vectors: Whether eigenvectors are found, too.

    Raises:
        NotFiniteError: If they cannot be decomposed.
    """
    # At unit scale: the squares of what a path that is nearly off gets back are too small for single precision.
    size = matrices.shape[1]
    mean = matrices.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    is_zero = mean <= 1e6 * torch.finfo(matrices.dtype).tiny
    scale = torch.where(is_zero, 1.0, mean)
    unit = torch.where(is_zero, torch.eye(size, dtype=matrices.dtype, device=matrices.device), matrices / scale)
    for dtype in (matrices.dtype, torch.float64):
        attempt = unit.to(dtype)
        try:
            if vectors:
                values, found = torch.linalg.eigh(attempt)
            else:
                values, found = torch.linalg.eigvalsh(attempt), None
        except torch.cuda.OutOfMemoryError:  # a RuntimeError as well, which says what it is
            raise
        except RuntimeError:  # torch.linalg.LinAlgError
            continue
        if values.isfinite().all() and (found is None or _is_orthogonal(found)):
            values = torch.where(is_zero[..., 0], 0.0, values.clamp(min=0).to(matrices.dtype) * scale[..., 0])
            return values, None if found is None else found.to(matrices.dtype)
    raise NotFiniteError(
        f"The curvature of {name!r} could not be decomposed: its entries reach {matrices.abs().max().item():.3g}. "
        "Check that the loss is finite and the weights have not diverged; a smaller learning rate helps."
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


def _is_orthogonal(vectors: Float[Tensor, "block d d"]) -> bool:
    """Whether columns are of length one and at right angles; solvers for GPUs do not always say when they fail."""
    identity = torch.eye(vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    return bool(((vectors.mT @ vectors - identity).abs().amax() < 1e-3).item())
