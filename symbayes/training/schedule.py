"""How long and how fast to train."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import cos, pi

from symbayes.posterior.posterior import Posterior
from symbayes.training.record import Record

#: Records, one for each epoch; and at the end the posterior of what was learned, to be computed when it is needed.
Training = Generator[Record, None, Callable[[], Posterior]]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Args:
        epochs: Passes over the data.
        batch_size: Data in a step.
        learning_rate: Of Adam at the start; it falls to zero along a cosine.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise ValueError(
                f"epochs and batch_size must be at least 1 and learning_rate positive; got {self.epochs}, {self.batch_size} "
                f"and {self.learning_rate}."
            )

    def falls_to(self, epoch: int) -> float:
        """The share of every learning rate that is left in an epoch, counted from 1."""
        return (1 + cos(pi * (epoch - 1) / self.epochs)) / 2
