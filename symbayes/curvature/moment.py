"""Second moments of rows, added up over batches."""

from jaxtyping import Float
from torch import Tensor

#: Matrices of this size or more are added up in this many strips.
_LARGE, _STRIPS = 64, 4


class SecondMoment:
    """Σ r rᵀ over all rows added, for every block; of large matrices only the strips below the diagonal are multiplied."""

    def __init__(self) -> None:
        self._total: Float[Tensor, "block d d"] | None = None

    def add(self, rows: Float[Tensor, "n s block d"]) -> None:
        """Add rows; nothing is copied when data and positions are adjacent in memory."""
        columns = rows.permute(2, 3, 0, 1).flatten(2)  # [block, d, n·s]
        if columns.requires_grad:  # what is to be differentiated is not overwritten
            moment = columns @ columns.transpose(1, 2)
            self._total = moment if self._total is None else self._total + moment
            return
        beta = 0 if self._total is None else 1
        if self._total is None:
            self._total = columns.new_empty(len(columns), columns.shape[1], columns.shape[1])
        if not _in_strips(columns):
            self._total.baddbmm_(columns, columns.transpose(1, 2), beta=beta)
            return
        for total, block in zip(self._total, columns, strict=True):
            for start, stop in _strips(len(block)):
                total[start:stop, :stop].addmm_(block[start:stop], block[:stop].T, beta=beta)

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
