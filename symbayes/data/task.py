"""A task: training and test data, their shape, and how many classes there are."""

from dataclasses import dataclass

from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, repr=False)
class Task:
    """Inputs [n, c, *grid] and targets for training and test."""

    name: str
    train: Pair
    test: Pair
    classes: int

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Of one input: channels and grid."""
        return tuple(self.train[0].shape[1:])

    def __repr__(self) -> str:
        return (
            f"{self.name}: {len(self.train[0])} training and {len(self.test[0])} test inputs of shape {self.in_shape}, "
            f"{self.classes} classes"
        )
