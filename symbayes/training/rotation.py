"""Coordinates in which the curvature of a weight is nearly diagonal: the eigenvectors of its Kronecker factors.

Adam scales every coordinate on its own. In the coordinates Uᵀ W V, with H ≈ G ⊗ A, G = U Λ Uᵀ and A = V M Vᵀ, that is nearly a
natural gradient; and a prior of one precision looks the same in all coordinates, so its implicit step stays exact. (Adam in the
eigenbasis of a Kronecker-factored preconditioner is known from George et al. 2018 and, as SOAP, from Vyas et al. 2024.)
"""

from jaxtyping import Float
from torch import Tensor

from symbayes.curvature.blocks import Block, DenseBlock, Factor, KroneckerBlock

#: Sides of more features than this are left as they are: to turn them would cost more than the step.
LARGEST = 1000


class Rotation:
    """W ↦ Uᵀ W V for every block of a weight, and back. Its matrices may change, their memory stays.

    Args:
        shape: Of the weight as rows, (blocks, d_out, d_in).
        left: U, one for all blocks or one for each; None for the identity.
        right: V, likewise.
    """

    def __init__(self, shape: tuple[int, int, int], left: Tensor | None, right: Tensor | None) -> None:
        self.shape, self.left, self.right = shape, left, right

    def into(self, weight: Tensor) -> Tensor:
        """The new coordinates, in the shape of the weight."""
        rows = weight.reshape(self.shape)
        rows = rows if self.left is None else self.left.mT @ rows
        return (rows if self.right is None else rows @ self.right).view_as(weight)

    def back(self, coordinates: Tensor) -> Tensor:
        """The weight."""
        rows = coordinates.reshape(self.shape)
        rows = rows if self.left is None else self.left @ rows
        return (rows if self.right is None else rows @ self.right.mT).view_as(coordinates)

    def variances(self, old: "Rotation | None", variances: Tensor) -> Tensor:
        """Variances in these coordinates of what is independent in the old ones; in those of the weight itself when None."""
        sides = (self.left, self.right) if old is None else (_between(old.left, self.left), _between(old.right, self.right))
        squared = (None if side is None else side.square() for side in sides)
        return Rotation(self.shape, *squared).into(variances)

    def copy_(self, other: "Rotation") -> None:
        """Become another rotation of the same weight."""
        for own, new in ((self.left, other.left), (self.right, other.right)):
            if own is not None and new is not None:
                own.copy_(new)


def _between(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """From old coordinates to new ones, uᵀ ↦ uᵀ (Oᵀ N)."""
    if old is None or new is None:
        return new if old is None else old.mT
    return old.mT @ new


def rotation(block: Block, size: int) -> Rotation | None:
    """The rotation that makes a block of the curvature of a weight nearly diagonal; None where there is none to be had."""
    match block:
        case KroneckerBlock():
            left, right = _vectors(block.G), _vectors(block.A)
            d_out, d_in = block.G.matrices.shape[1], block.A.matrices.shape[1]
            if block.transposed:
                left, right, d_out, d_in = right, left, d_in, d_out
        case DenseBlock():
            left, right, d_out, d_in = _vectors(block.H), None, block.H.matrices.shape[1], 1
        case _:
            return None
    if left is None and right is None:
        return None
    return Rotation((size // (d_out * d_in), d_out, d_in), left, right)


def _vectors(factor: Factor) -> Float[Tensor, "block d d"] | None:
    if factor.diagonal or factor.matrices.shape[1] > LARGEST:
        return None
    return factor.eigenvectors.clone()
