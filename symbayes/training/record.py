"""What training says of itself: plain numbers and words, written to files and read back.

Everything here is a frozen dataclass that JSON can hold (`storage.to_json`). Files of earlier versions lack some of the fields;
those have defaults.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symbayes.data.folders import Contents, read_folder, write_folder
from symbayes.data.storage import MOST_JSON, dump_json, error_words, from_json, parse_json
from symbayes.evidence.evidence import evidence_html
from symbayes.invariance.extents import ExtentSummary
from symbayes.invariance.orbit_average import Image
from symbayes.posterior.predict import Calibration
from symbayes.training.symmetries import PathRow

#: The version of what is saved, and those that are read: the first had no seal, by which files are known to belong together.
FORMAT, _UNSEALED = 2, 1
#: The files of a result; the last two are not those of its records.
SUMMARY, HISTORY, WEIGHTS, POSTERIOR = FILES = "result.json", "history.jsonl", "weights.safetensors", "posterior.safetensors"


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

    def terms(self) -> dict[str, float]:
        """What it is the sum of, by name, and it."""
        return {
            "log-likelihood of the data": self.log_likelihood,
            "log-prior of the weights": self.log_prior,
            "log-volume of the posterior": self.log_volume,
            "log evidence": self.total,
        }

    def _repr_html_(self) -> str:
        return evidence_html(self.terms(), self.standard_error, self.estimator)


@dataclass(frozen=True)
class Decision:
    """What was tried in training, and whether it was kept, by the evidence."""

    what: str
    #: log p(D) up to a constant, as all that is tried in a training is compared by: from some of the data; None if not finite.
    log_evidence: float | None
    kept: bool


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
    #: Mean metrics on data that were watched, at the weights after the epoch; nothing is decided by them.
    validation: dict[str, float] = field(default_factory=dict)
    #: What was decided after the epoch, if anything was.
    decision: Decision | None = None


@dataclass(frozen=True)
class ModelSummary:
    """What a model is, in words, and how to build it again, where that is known."""

    recipe: dict[str, Any] | None
    description: str
    #: Of an `nn.Sequential` of torch's own layers (`describe_layers`).
    layers: dict[str, Any] | None = None


@dataclass(frozen=True)
class LikelihoodSummary:
    """The name of a likelihood, and what its constructor needs."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    learns_noise: bool = True


@dataclass(frozen=True)
class HeldOut:
    """What a model is worth on data that were held out: mean metrics of its predictions, and how these were made."""

    num_data: int
    metrics: dict[str, float]
    by: str = "plug-in"
    #: What classes are called, where they have names.
    names: tuple[str, ...] = ()
    #: How many data of each class (a row) were given each class (a column); empty where there are no classes.
    confusion: tuple[tuple[int, ...], ...] = ()


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
    #: Whether training was stopped before its end.
    is_partial: bool = False
    #: log p(D) per datum of outputs that are zero, where it is known.
    floor: float | None = None
    #: What the model is worth on data that were held out.
    held_out: HeldOut | None = None


def written_records(summary: Summary, history: Sequence[Record]) -> dict[str, str]:
    """What was found and how, as files by name: result.json and history.jsonl."""
    return {HISTORY: write_history(history), SUMMARY: json.dumps(dump_json(summary, Summary, SUMMARY), indent=1)}


def write_history(history: Sequence[Record]) -> str:
    """A line for each epoch."""
    epochs = dump_json(list(history), list[Record], HISTORY)
    return "".join(json.dumps(epoch) + "\n" for epoch in epochs)


def read_history(content: bytes, name: str = HISTORY) -> tuple[Record, ...]:
    """What `write_history` gave, from a file of this name.

    Raises:
        ValueError: If it is damaged.
    """
    epochs = parse_json(content, name, lines=True)
    history: tuple[Record, ...] = from_json(epochs, tuple[Record, ...], name)
    if any("evidence" not in epoch for epoch in epochs):
        raise ValueError("epochs must have an evidence or null, and the last that of result.json")
    return history


def write_records(folder: Path, summary: Summary, history: Sequence[Record]) -> None:
    """Leave them in a folder, without weights."""
    write_folder(folder, written_records(summary, history), leaving_out=FILES)


def read_records(folder: Path) -> tuple[Summary, tuple[Record, ...]]:
    """The summary of a saved result and the records of its epochs, as they were given to `write_records`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is damaged, or of another version.
    """
    return parse_records(read_files(folder, (SUMMARY, HISTORY), most=MOST_JSON), folder)


def read_files(folder: Path, needed: Sequence[str], optional: Sequence[str] = (), most: int = 2**40) -> Contents:
    """Files of a result that belong together.

    Raises:
        FileNotFoundError: Naming the first that is missing.
        ValueError: If one is damaged, or of another result.
    """
    try:
        return read_folder(folder, needed, optional, most)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} must hold {error.args[0]}, as Result.save writes it; it does not.") from error
    except ValueError as error:
        raise damaged(folder, error) from error


def parse_records(contents: Contents, folder: Path) -> tuple[Summary, tuple[Record, ...]]:
    """Summary and records, from the files of a folder; as `read_records`."""
    try:
        saved = parse_json(contents.files[SUMMARY], SUMMARY)
        form = saved.get("format") if isinstance(saved, dict) else None
        if form == FORMAT and not contents.is_sealed:
            raise ValueError("it has no seal.json, by which its files are known to belong together")
        if form in (FORMAT, _UNSEALED):
            summary: Summary = from_json(saved, Summary, SUMMARY)
            history = read_history(contents.files[HISTORY])
            _check_records(summary, history)
            return summary, history
    except ValueError as error:
        raise damaged(folder, error) from error
    raise ValueError(
        f"The result in {folder} has format {form}; this version reads formats {_UNSEALED} and {FORMAT}. Read it by the "
        "version of symbayes that saved it, or train again."
    )


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
