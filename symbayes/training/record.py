"""What training says of itself: plain numbers, ready for a file, a bar or a plot."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from symbayes.data.storage import write_together


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


def written_records(summary: dict[str, Any], history: Sequence[Record]) -> dict[str, str]:
    """What was found and how, as files by name: result.json, history.jsonl, and report.html made of both."""
    from symbayes.report.run import run_page  # plotly is slow to import

    records = [asdict(record) for record in history]
    return {
        "history.jsonl": "".join(json.dumps(record) + "\n" for record in records),
        "result.json": json.dumps(summary, indent=1),
        "report.html": run_page(summary, records),
    }


def write_records(folder: Path, summary: dict[str, Any], history: Sequence[Record]) -> None:
    """Leave them in a folder."""
    write_together({folder / name: content for name, content in written_records(summary, history).items()})
