"""What training says of itself: plain numbers and words, written to files and read back.

Everything here is a frozen dataclass that JSON can hold (`storage.to_json`). Files of earlier versions lack some of the fields;
those have defaults.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symbayes.data.storage import error_words, from_json, read_json, to_json, write_together
from symbayes.invariance.extents import ExtentSummary
from symbayes.invariance.orbit_average import Image
from symbayes.posterior.predict import Calibration
from symbayes.training.symmetries import PathRow

#: The version of what is saved.
FORMAT = 1


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
    #: σ of a likelihood that has one; empty for others.
    noise: list[float]
    #: Of the total, from what was drawn to estimate it; and how much higher it may be, because the estimate stopped early. None
    #: where that is not known.
    standard_error: float | None = None
    slack: float | None = None


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


@dataclass(frozen=True)
class ModelSummary:
    """What a model is, in words, and how to build it again, where that is known."""

    recipe: dict[str, Any] | None
    description: str


@dataclass(frozen=True)
class LikelihoodSummary:
    """The name of a likelihood, and what its constructor needs."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    learns_noise: bool = True


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything of a result but its weights and its history."""

    format: int
    model: ModelSummary
    likelihood: LikelihoodSummary
    prior: str
    #: Patterns of the tensors whose precisions are learned; None for all.
    learn: tuple[str, ...] | None = None
    num_data: int
    evidence: EvidenceRecord
    symmetries: tuple[PathRow, ...]
    words: tuple[str, ...]
    extents: tuple[ExtentSummary, ...] = ()
    #: Data under the transformations that the model averages over, a row for each datum, which comes first.
    orbits: tuple[tuple[Image, ...], ...] = ()
    calibration: Calibration | None = None


def written_records(summary: Summary, history: Sequence[Record]) -> dict[str, str]:
    """What was found and how, as files by name: result.json and history.jsonl."""
    return {
        "history.jsonl": "".join(json.dumps(to_json(record)) + "\n" for record in history),
        "result.json": json.dumps(to_json(summary), indent=1),
    }


def write_records(folder: Path, summary: Summary, history: Sequence[Record]) -> None:
    """Leave them in a folder."""
    write_together({folder / name: content for name, content in written_records(summary, history).items()})


def read_records(folder: Path) -> tuple[Summary, tuple[Record, ...]]:
    """The summary of a saved result and the records of its epochs, as they were given to `write_records`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is damaged, or of another version.
    """
    require_files(folder, "result.json", "history.jsonl")
    try:
        saved, epochs = read_json(folder / "result.json"), read_json(folder / "history.jsonl", lines=True)
        if isinstance(saved, dict) and saved.get("format") == FORMAT:
            summary: Summary = from_json(saved, Summary, "result.json")
            history: tuple[Record, ...] = from_json(epochs, tuple[Record, ...], "history.jsonl")
            if any("evidence" not in epoch for epoch in epochs):
                raise ValueError("epochs must have an evidence or null, and the last that of result.json")
            _check_records(summary, history)
            return summary, history
    except ValueError as error:
        raise damaged(folder, error) from error
    found = saved.get("format") if isinstance(saved, dict) else None
    raise ValueError(f"The result in {folder} has format {found}; this version reads format {FORMAT}.")


def require_files(folder: Path, *names: str) -> None:
    """Refuse a folder that lacks a file.

    Raises:
        FileNotFoundError: Naming the first.
    """
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} must hold {name}, as Result.save writes it; it does not.")


def damaged(folder: Path, error: Exception) -> ValueError:
    """What to raise where the files of a result are not what they should be."""
    return ValueError(f"The result in {folder} is damaged ({error_words(error)}). Copy it again, or train again.")


def _check_records(summary: Summary, history: Sequence[Record]) -> None:
    last = history[-1].evidence if history else None
    if summary.num_data < 1 or last is None:
        raise ValueError("there must be data, and epochs of which the last has an evidence")
    names = [found.keys() for evidence in (summary.evidence, last) for found in (evidence.precision, evidence.effective)]
    if any(found != names[0] for found in names):
        raise ValueError("epochs must have an evidence or null, and the last that of result.json")
