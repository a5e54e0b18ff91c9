"""What training says of itself: plain numbers, ready for a file, a bar or a plot."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EvidenceRecord:
    """The terms of the evidence after a hyper-step, and what was learned."""

    log_likelihood: float
    log_prior: float
    log_volume: float
    total: float
    estimator: str
    #: δ and γ by weight tensor.
    precision: dict[str, float]
    effective: dict[str, float]
    #: σ of a Gaussian likelihood; empty for others.
    noise: list[float]


@dataclass(frozen=True)
class Record:
    """One epoch."""

    epoch: int
    epochs: int
    seconds: float
    learning_rate: float
    #: Mean over the epoch of −log p(y | x) per datum, at the weights of each step.
    loss: float
    #: How far the model is invariant, by generator, in degrees, pixels and percent; empty where it has no extents. Those of the
    #: evidence, if there was a hyper-step, which then moves them.
    extents: dict[str, float] = field(default_factory=dict)
    #: Of the hyper-step that followed the epoch, if there was one.
    evidence: EvidenceRecord | None = None
