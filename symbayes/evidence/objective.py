"""What training maximises, as frozen settings: the evidence by Laplace's method, or the posterior under a fixed prior."""

from dataclasses import dataclass, field

from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Rule


@dataclass(frozen=True)
class Objective:
    """What to maximise, and how the evidence is estimated.

    Args:
        rule: The curvature rule while training. Sampled columns are cheap when there are many classes.
        final_rule: The rule for the evidence of the result; the same when None.
    """

    rule: Rule = field(default_factory=lambda: Kfac(MonteCarloFisher()))
    final_rule: Rule | None = None


@dataclass(frozen=True)
class Map(Objective):
    """The posterior density of the weights under the prior as it is; the evidence is estimated at the end only."""


@dataclass(frozen=True)
class Laplace(Objective):
    """The evidence: weights by gradient under the prior, precisions and noise by MacKay's fixed point.

    The states of a run are ranked by `rule`; with one that samples, the evidence of the best is the best of noisy estimates,
    unless `final_rule` estimates it anew.

    Args:
        rule: As in `Objective`.
        final_rule: As in `Objective`.
        burn_in: Share of the epochs before the first hyper-step.
        frequency: Epochs from one hyper-step to the next.
        damping: Share of the way to the fixed point, in log δ, that each update goes.
        hyper_steps: Updates for one estimate of the curvature.
        keep_best: Whether the weights and precisions of highest evidence are restored at the end.
    """

    burn_in: float = 0.1
    frequency: int = 2
    damping: float = 0.3
    hyper_steps: int = 1
    keep_best: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.burn_in < 1:
            raise ValueError(f"burn_in must be a share of the epochs, at least 0 and below 1; got {self.burn_in}.")
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie above 0 and be at most 1 (undamped); got {self.damping}.")
        if self.frequency < 1 or self.hyper_steps < 1:
            raise ValueError(f"frequency and hyper_steps must be at least 1; got {self.frequency} and {self.hyper_steps}.")
