"""Whether predictions are as sure as they should be: confidence against accuracy, or intervals against how often they hold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from symbayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from symbayes.posterior.predict import Prediction

if TYPE_CHECKING:
    import rich.console

#: Nominal levels of intervals.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: How far probabilities may exceed 1.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class ConfidenceRow:
    """Predictions whose confidence, the probability of what they say, lies between two bounds."""

    low: float
    high: float
    count: int
    #: Their mean confidence, and how many are right: the same if it is calibrated.
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class CoverageRow:
    """Intervals of one level, and the share of targets that lie in them: the same if it is calibrated."""

    level: float
    coverage: float


@dataclass(frozen=True)
class Calibration:
    """How well a prediction knows what it does not know; prints as a table.

    Args:
        of: "classes", also for labels, or "values".
        by: How it was predicted, in words.
        num_data: Of the test.
        rows: Bins of confidence that are not empty, or levels of intervals.
        nll: Mean of −log p(y) per datum, outputs together.
        accuracy: Share of classes or labels that are right; None for values.
        ece: Expected calibration error, the mean distance of confidence and accuracy over bins; None for values.
        brier: Mean over data of Σ (p − y)² over classes; over labels, of (p − y)². None for values.
        rmse: Root mean squared error over data and outputs; None for classes.
    """

    of: str
    by: str
    num_data: int
    rows: tuple[ConfidenceRow, ...] | tuple[CoverageRow, ...]
    nll: float
    accuracy: float | None = None
    ece: float | None = None
    brier: float | None = None
    rmse: float | None = None

    def words(self) -> str:
        """Its scores in a line."""
        scores = {"accuracy": self.accuracy, "expected calibration error": self.ece, "Brier score": self.brier}
        scores |= {"root mean squared error": self.rmse, "nll": self.nll}
        known = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if value is not None)
        return f"{known}; {self.num_data} data, {self.by}"

    def __rich__(self) -> "rich.console.Group":
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, header_style="bold")
        values = ("level", "coverage") if self.of == "values" else ("confidence", "of", "mean confidence", "accuracy")
        for heading in values:
            table.add_column(heading, justify="right")
        for row in self.rows:
            if isinstance(row, CoverageRow):
                table.add_row(f"{100 * row.level:.0f} %", f"{100 * row.coverage:.1f} %")
            else:
                bounds = f"{100 * row.low:.0f}–{100 * row.high:.0f} %"
                table.add_row(bounds, f"{row.count:,}", f"{100 * row.confidence:.1f} %", f"{100 * row.accuracy:.1f} %")
        return Group(self.words(), table)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=110, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def calibration(prediction: Prediction, targets: Tensor, bins: int = 10) -> Calibration:
    """How far a prediction can be trusted, on data with known targets.

    Args:
        prediction: Of classes, labels or values. Every label is a prediction of its own, of confidence p or 1 − p; as are the
            values of several outputs.
        targets: As the likelihood has them.
        bins: Of confidence, equally wide, for classes and labels.

    Raises:
        ValueError: If there are no bins, targets do not fit, or the likelihood is of another kind.
    """
    if bins < 1:
        raise ValueError(f"There must be at least one bin of confidence, got {bins}.")
    check_kind(prediction.likelihood)
    targets = targets.to(prediction.mean.device)
    nll = -float(prediction.log_prob(targets).double().mean())
    mean = prediction.mean.double()
    if isinstance(prediction.likelihood, Gaussian):
        inside = [(low <= targets) & (targets <= high) for low, high in map(prediction.interval, LEVELS)]
        rows = tuple(CoverageRow(level, float(held.double().mean())) for level, held in zip(LEVELS, inside, strict=True))
        rmse = float((mean - targets).square().mean().sqrt())
        return Calibration("values", prediction.by, len(prediction), rows, nll, rmse=rmse)
    if float(mean.min()) < 0 or float(mean.max()) > 1 + _ROUNDING:
        raise _unknown(prediction.likelihood, f"; its means, from {float(mean.min()):.3g} to {float(mean.max()):.3g}, are none")
    if targets.is_floating_point() and not ((targets == 0) | (targets == 1)).all():
        raise ValueError(
            "Calibration compares predictions with what was observed: class numbers, or labels of zeros and ones; got targets "
            "that are probabilities. Use those from before they were smoothed or mixed."
        )
    if isinstance(prediction.likelihood, Categorical):
        confidence, chosen = mean.max(1)
        targets = targets.argmax(1) if targets.is_floating_point() else targets
        right = chosen == targets
        brier = float((mean - one_hot(targets.long(), mean.shape[1])).square().sum(1).mean())
    else:
        confidence = torch.maximum(mean, 1 - mean).flatten()
        right = ((mean > 0.5) == (targets > 0.5)).flatten()
        brier = float((mean - targets.to(mean)).square().mean())
    found = _bins(confidence, right.double(), bins)
    ece = sum(row.count * abs(row.confidence - row.accuracy) for row in found) / len(confidence)
    accuracy = float(right.double().mean())
    return Calibration("classes", prediction.by, len(prediction), found, nll, accuracy, ece, brier)


def check_kind(likelihood: Likelihood) -> None:
    """Refuse a likelihood of which it is not known what confidence or an interval is.

    Raises:
        ValueError: Naming it.
    """
    if not isinstance(likelihood, Categorical | Bernoulli | Gaussian):
        raise _unknown(likelihood)


def _unknown(likelihood: Likelihood, why: str = "") -> ValueError:
    return ValueError(
        "Calibration is of probabilities of classes or labels (Categorical, Bernoulli) or of intervals of values (Gaussian); "
        f"this is {type(likelihood).__name__}{why}. Use prediction.metrics(targets), whose 'nll' scores any likelihood."
    )


def _bins(confidence: Tensor, right: Tensor, bins: int) -> tuple[ConfidenceRow, ...]:
    """Bins that are not empty; each holds its upper bound, except that the last holds what rounding lets exceed 1."""
    index = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    rows = []
    for number in range(bins):
        inside = index == number
        if count := int(inside.sum()):
            low, high = number / bins, (number + 1) / bins
            rows.append(ConfidenceRow(low, high, count, float(confidence[inside].mean()), float(right[inside].mean())))
    return tuple(rows)
