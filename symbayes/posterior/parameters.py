"""What is learned of a spread: free numbers, and the spread that they give."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.posterior.spread import DiagonalSpread, FullSpread, MatrixSpread, Spread

#: Blocks, d_out and d_in of a weight.
Matrix = tuple[int, int, int]


class SpreadParameters(nn.Module, ABC):
    """What is learned of one spread."""

    @abstractmethod
    def forward(self) -> Spread:
        """The spread as it is now."""

    def __call__(self) -> Spread:
        spread: Spread = super().__call__()
        return spread


class DiagonalParameters(SpreadParameters):
    """A log-deviation for each number."""

    def __init__(self, deviation: Float[Tensor, " p"]) -> None:
        super().__init__()
        self.log_deviation = nn.Parameter(deviation.log())

    def forward(self) -> DiagonalSpread:
        return DiagonalSpread(self.log_deviation.exp())


class OuterParameters(SpreadParameters):
    """A log-deviation for each row and each column of a matrix: the deviation of an entry is the product of the two."""

    def __init__(self, deviation: Float[Tensor, " p"], matrix: Matrix) -> None:
        super().__init__()
        logs = deviation.log().unflatten(0, matrix)
        self.log_left = nn.Parameter(logs.mean(2) / 2)
        self.log_right = nn.Parameter(logs.mean(1) - self.log_left.detach().mean(1, keepdim=True))

    def forward(self) -> DiagonalSpread:
        return DiagonalSpread((self.log_left[:, :, None] + self.log_right[:, None, :]).exp().flatten())


class LowerParameters(nn.Module):
    """A lower triangular matrix for each block, L = (I + N) diag(d): N strictly below the diagonal, so that it has no scale."""

    def __init__(self, deviation: Float[Tensor, "block d"]) -> None:
        super().__init__()
        self.log_diagonal = nn.Parameter(deviation.log())
        self.below = nn.Parameter(deviation.new_zeros(*deviation.shape, deviation.shape[1]))

    def forward(self) -> Float[Tensor, "block d d"]:
        unit = self.below.tril(-1) + torch.eye(self.below.shape[1], dtype=self.below.dtype, device=self.below.device)
        return unit * self.log_diagonal.exp()[:, None, :]

    def __call__(self) -> Tensor:
        lower: Tensor = super().__call__()
        return lower


class MatrixParameters(SpreadParameters):
    """Two Cholesky factors for every block."""

    def __init__(self, deviation: Float[Tensor, " p"], matrix: Matrix) -> None:
        super().__init__()
        logs = deviation.log().unflatten(0, matrix)
        left = logs.mean(2) / 2
        self.left = LowerParameters(left.exp())
        self.right = LowerParameters((logs.mean(1) - left.mean(1, keepdim=True)).exp())

    def forward(self) -> MatrixSpread:
        return MatrixSpread(self.left(), self.right())


class FullParameters(SpreadParameters):
    """One Cholesky factor."""

    def __init__(self, deviation: Float[Tensor, " p"]) -> None:
        super().__init__()
        self.lower = LowerParameters(deviation[None])

    def forward(self) -> FullSpread:
        return FullSpread(self.lower()[0])
