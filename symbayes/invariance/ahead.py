"""Random draws of passes to come, made at once: a pass that is captured as a CUDA graph cannot wait for the CPU to draw."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Ahead:
    """What passes will draw, on their device, to be taken one after the other; always in the same memory, which graphs read."""

    def __init__(self) -> None:
        self.is_filled = False
        self._draws, self._next = torch.empty(0), torch.zeros(1, dtype=torch.long)

    def fill(self, draws: Sequence[Tensor], like: Tensor) -> None:
        """Make these the next ones; with none, nothing is drawn ahead.

        Args:
            draws: Of every pass.
            like: In whose precision and on whose device they are taken.
        """
        self.is_filled = len(draws) > 0
        if not draws:
            return
        given = torch.stack(list(draws)).to(like)
        if self._draws.shape != given.shape or self._draws.device != given.device or self._draws.dtype != given.dtype:
            self._draws, self._next = torch.empty_like(given), torch.zeros(1, dtype=torch.long, device=given.device)
        self._draws.copy_(given)
        self._next.zero_()

    def take(self) -> Tensor:
        """What the next pass draws; after the last, from the first again."""
        found = self._draws.index_select(0, self._next % len(self._draws))[0]
        self._next += 1
        return found
