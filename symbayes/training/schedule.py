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
        learning_rate: Of Adam; it falls to zero along a cosine.
        warm_up: Share of the epochs, the first ones, in which it rises from little, so that it may be higher.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 3e-3
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise ValueError(
                f"epochs and batch_size must be at least 1 and learning_rate positive; got {self.epochs}, {self.batch_size} "
                f"and {self.learning_rate}."
            )
        if not 0 <= self.warm_up < 1:
            raise ValueError(f"warm_up must be a share of the epochs, at least 0 and below 1; got {self.warm_up}.")

    def rate_share(self, epoch: int) -> float:
        """The share of every learning rate that there is in an epoch, counted from 1."""
        risen = min(1.0, epoch / (1 + self.warm_up * self.epochs))
        return risen * (1 + cos(pi * (epoch - 1) / self.epochs)) / 2
