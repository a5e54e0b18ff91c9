"""Modules whose passes of training draw on the CPU, each by its number, and what they take in place of that.

A pass that is captured as a CUDA graph cannot wait for the CPU. What passes will draw follows from their numbers, so it can be
drawn before, and read by them on the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor


class DrawsByNumber(ABC):
    """A module that draws once in every pass of training."""

    #: In training; with the seed, they say what is drawn next.
    passes: int = 0
    _source: Callable[[int], Tensor] | None = None

    @abstractmethod
    def drawn(self, number: int, count: int) -> Tensor:
        """What the pass of this number draws, over so many data."""

    def draw(self, count: int) -> Tensor:
        """What the next pass draws."""
        if self._source is not None:
            return self._source(count)
        self.passes += 1
        return self.drawn(self.passes, count)

    @contextmanager
    def drawing_from(self, source: Callable[[int], Tensor]) -> Iterator[None]:
        """Passes take what this gives for so many data, and are not counted."""
        self._source = source
        try:
            yield
        finally:
            del self._source
