"""What training maximises, as frozen settings: the evidence by Laplace's method, or the posterior under a fixed prior."""

from dataclasses import dataclass, field
from typing import Any

from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Rule


@dataclass(frozen=True)
class Objective:
    """What training maximises."""


@dataclass(frozen=True)
class ByCurvature(Objective):
    """An objective whose evidence is estimated by Laplace's method.

    Args:
        rule: The curvature rule while training. Sampled columns are cheap when there are many classes.
        final_rule: The rule for the evidence of the result; the same when None.
        running: Steps from one training batch whose curvature is collected in passing to the next, as a running mean that all
            hyper-steps but the last use; 0 for a pass over all data for each of them.
        memory: Batches that count in that mean.
        turned: Weights are optimised in the eigenvectors of the curvature, found again after every so many epochs: nearly a
            natural gradient, with the factors that are there anyway; 0 for not at all.
    """

    rule: Rule = field(default_factory=lambda: Kfac(MonteCarloFisher()))
    final_rule: Rule | None = None
    running: int = 0
    memory: int = 20
    turned: int = 0

    def __post_init__(self) -> None:
        if self.running < 0 or self.memory < 1 or self.turned < 0:
            raise ValueError(
                f"running and turned must be 0 or more and memory at least 1; got {self.running}, {self.turned}, {self.memory}."
            )
        if self.turned and not self.running:
            raise ValueError("Coordinates are turned by the running curvature (turned), so it must be collected: running=10.")
        if self.running and not isinstance(self.rule, Kfac):
            raise ValueError(f"The curvature in passing (running) is by Kfac; got {self.rule}. Use running=0.")


@dataclass(frozen=True)
class Map(ByCurvature):
    """The posterior density of the weights, with prior and extents as they are; the evidence is estimated at the end."""


@dataclass(frozen=True)
class Augerino(ByCurvature):
    """The training loss, in weights and extents alike, less a reward for large extents (Benton et al. 2020); the prior is kept.

    Without the reward this is maximum likelihood (or MAP), under which extents collapse: the training loss never gains by a
    function that can change less.

    Args:
        rule: As in `ByCurvature`.
        final_rule: As in `ByCurvature`.
        running, memory, turned: As in `ByCurvature`.
        strength: Of the reward, strength · ‖η‖, against the loss per datum.
        extent_rate: Learning rate of extents, for Adam.
    """

    strength: float = 0.01
    extent_rate: float = 5e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength < 0 or not self.extent_rate > 0:
            raise ValueError(
                f"strength must not be negative and extent_rate be positive; got {self.strength} and {self.extent_rate}."
            )


@dataclass(frozen=True)
class Laplace(ByCurvature):
    """The evidence: weights by gradient under the prior, precisions and noise by MacKay's fixed point, extents by gradient.

    Extents of invariance, and whatever else the model has of hyperparameters, follow the gradient of the evidence through the
    curvature, collected batch by batch (`Curvature.surrogates`).

    Args:
        rule: As in `ByCurvature`.
        final_rule: As in `ByCurvature`.
        running, memory, turned: As in `ByCurvature`.
        burn_in: Share of the epochs before the first hyper-step.
        cool_down: Share of the epochs, at the end, in which precisions and noise are held and the weights come to rest.
        frequency: Epochs from one hyper-step to the next.
        damping: Share of the way to the fixed point, in log δ, that each update goes.
        hyper_steps: Updates for one estimate of the curvature.
        extent_rate: Learning rate of extents and other hyperparameters, for Adam; it falls to zero along a cosine.
        extent_steps: Steps of Adam for one estimate of the curvature, each on other data.
        extent_share: Share of the data, drawn at random, that all those steps together use.
        keep_best: Whether the weights and precisions of highest evidence are restored at the end, rather than those of the
            last epoch. Weights that are still moving are at no mode, and their evidence is not to be trusted; so not usually.
    """

    burn_in: float = 0.1
    cool_down: float = 0.5
    frequency: int = 2
    damping: float = 0.3
    hyper_steps: int = 1
    extent_rate: float = 0.2
    extent_steps: int = 1
    extent_share: float = 0.25
    keep_best: bool = False

    @classmethod
    def amortised(cls, **changes: Any) -> "Laplace":
        """The evidence nearly at the cost of training: curvature in passing, which turns coordinates, too.

        ELLA's tables are made so, with `Schedule(learning_rate=6e-3, warm_up=0.1)`; 2e-3 where fully connected tensors have
        thousands of features, which are not turned. For models without hyperparameters of their own.

        Args:
            **changes: Of these settings.
        """
        usual: dict[str, Any] = {"running": 10, "turned": 2, "frequency": 1, "damping": 0.5, "burn_in": 0.1, "cool_down": 0.1}
        return cls(**{**usual, **changes})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.burn_in < 1 and 0 <= self.cool_down < 1 and self.burn_in + self.cool_down < 1):
            raise ValueError(
                "burn_in and cool_down must be shares of the epochs, at least 0 and together below 1; "
                f"got {self.burn_in} and {self.cool_down}."
            )
        if self.keep_best and self.running:
            raise ValueError(
                "keep_best compares evidences from passes over all the data; those in passing (running) are of weights that "
                "have moved on. Use running=0, or keep_best=False."
            )
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie above 0 and be at most 1 (undamped); got {self.damping}.")
        if self.frequency < 1 or self.hyper_steps < 1 or self.extent_steps < 1:
            raise ValueError(
                "frequency, hyper_steps and extent_steps must be at least 1; "
                f"got {self.frequency}, {self.hyper_steps} and {self.extent_steps}."
            )
        if not self.extent_rate > 0 or not 0 < self.extent_share <= 1:
            raise ValueError(
                "extent_rate must be positive, and extent_share above 0 and at most 1; "
                f"got {self.extent_rate} and {self.extent_share}."
            )

    def moves_at(self, epoch: int, epochs: int) -> bool:
        """Whether a hyper-step follows an epoch, counted from 1."""
        first = max(1, round(self.burn_in * epochs))
        last = max(first, epochs - round(self.cool_down * epochs))
        return first <= epoch <= last and (epoch - first) % self.frequency == 0
