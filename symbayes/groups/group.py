"""What a symmetry is: a group, and how its elements act on features [n, c, *grid]."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor


class Group(ABC):
    """A finite group of transformations of feature maps.

    An element is a tuple of integers. The contract: `act(e, x) = x` for the identity e, and
    `act(product(a, b), x) = act(a, act(b, x))`.
    """

    #: One word for tables and reports.
    name: str

    @abstractmethod
    def elements(self, grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Every element, as it acts on a grid of this size."""

    @abstractmethod
    def identity(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """The element that changes nothing."""

    @abstractmethod
    def product(self, first: tuple[int, ...], second: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
        """The element that acts as `second`, then as `first`."""

    @abstractmethod
    def act(self, element: tuple[int, ...], features: Tensor) -> Tensor:
        """The transformed features; the first two axes, data and channels, stay in place."""

    def extends(self, other: "Group | None") -> bool:
        """Whether this is more symmetry than another: surely more than none at all."""
        return other is None
