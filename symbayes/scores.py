"""How sure predictions are, against how often they hold: what a likelihood says of its calibration."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

#: Nominal levels of intervals.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class ConfidenceRow:
    """Predictions whose confidence, the probability of what they say, lies between two bounds."""

    low: float
    high: float
    count: int
    #: Their mean confidence, and how many are right: the same if it is calibrated.
    confidence: float
    accuracy: float

    def cells(self) -> tuple[str, ...]:
        """As a row of a table, in percent."""
        bounds = f"{100 * self.low:.0f}–{100 * self.high:.0f} %"
        return bounds, f"{self.count:,}", f"{100 * self.confidence:.1f} %", f"{100 * self.accuracy:.1f} %"


@dataclass(frozen=True)
class CoverageRow:
    """Intervals of one level, and the share of targets that lie in them: the same if it is calibrated."""

    level: float
    coverage: float

    def cells(self) -> tuple[str, ...]:
        """As a row of a table, in percent."""
        return f"{100 * self.level:.0f} %", f"{100 * self.coverage:.1f} %"


@dataclass(frozen=True)
class CalibrationScores:
    """How sure predictions are, against how often they hold.

    Args:
        of: "classes", also for labels, or "values".
        rows: Bins of confidence that are not empty, or levels of intervals.
        accuracy: Share of classes or labels that are right; None for values.
        ece: Expected calibration error, the mean distance of confidence and accuracy over bins; None for values.
        brier: Mean over data of Σ (p − y)² over classes; over labels, of (p − y)². None for values.
        rmse: Root mean squared error over data and outputs; None for classes.
    """

    of: Literal["classes", "values"]
    rows: tuple[ConfidenceRow, ...] | tuple[CoverageRow, ...]
    accuracy: float | None = None
    ece: float | None = None
    brier: float | None = None
    rmse: float | None = None


def score_confidences(confidence: Float[Tensor, " m"], right: Bool[Tensor, " m"], bins: int, brier: float) -> CalibrationScores:
    """Score predictions that are right or wrong, each with its confidence.

    Bins that are empty are left out; each holds its upper bound, except that the last holds what rounding lets exceed 1.
    """
    index, held = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1), right.double()
    rows = []
    for number in range(bins):
        inside = index == number
        if count := int(inside.sum()):
            low, high = number / bins, (number + 1) / bins
            rows.append(ConfidenceRow(low, high, count, float(confidence[inside].mean()), float(held[inside].mean())))
    ece = sum(row.count * abs(row.confidence - row.accuracy) for row in rows) / len(confidence)
    return CalibrationScores("classes", tuple(rows), float(held.mean()), ece, brier)


def normal_interval(
    mean: Float[Tensor, "n c"], std: Float[Tensor, "n c"], level: float
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
    """Ends between which a normal variable lies with this probability, equally likely below and above."""
    reach = NormalDist().inv_cdf((1 + level) / 2) * std
    return mean - reach, mean + reach


def score_intervals(
    interval: Callable[[float], tuple[Tensor, Tensor]], mean: Float[Tensor, "n c"], targets: Float[Tensor, "n c"]
) -> CalibrationScores:
    """Score intervals, given as their ends by level, by how many targets they hold."""
    rows = []
    for level in LEVELS:
        low, high = interval(level)
        rows.append(CoverageRow(level, float(((low <= targets) & (targets <= high)).double().mean())))
    return CalibrationScores("values", tuple(rows), rmse=float((mean.double() - targets).square().mean().sqrt()))
