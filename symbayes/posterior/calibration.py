"""Whether predictions are as sure as they should be: confidence against accuracy, or intervals against how often they hold."""

from dataclasses import dataclass
from textwrap import fill
from typing import Literal

from torch import Tensor

from symbayes.posterior.predict import Prediction
from symbayes.scores import ConfidenceRow, CoverageRow
from symbayes.text import text_table

#: Letters in a line of words.
_WIDTH = 110


@dataclass(frozen=True)
class Calibration:
    """How well a prediction knows what it does not know; prints as a table.

    Args:
        of: "classes", also for labels, or "values".
        by: How it was predicted, in words.
        num_data: Of the test.
        rows: Bins of confidence that are not empty, or levels of intervals.
        nll: Mean of −log p(y) per datum, outputs together.
        accuracy: As `CalibrationScores` has it, and what follows.
    """

    of: Literal["classes", "values"]
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

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and the cells of every row."""
        if self.of == "values":
            return ("level", "coverage"), [row.cells() for row in self.rows]
        return ("confidence", "of", "mean confidence", "accuracy"), [row.cells() for row in self.rows]

    def __str__(self) -> str:
        return f"{fill(self.words(), _WIDTH, break_on_hyphens=False)}\n{text_table(*self.table())}"


def calibration(prediction: Prediction, targets: Tensor, bins: int = 10) -> Calibration:
    """How far a prediction can be trusted, on data with known targets.

    Args:
        prediction: Of classes, labels or values. Every label is a prediction of its own, of confidence p or 1 − p; as are the
            values of several outputs.
        targets: As the likelihood has them.
        bins: Of confidence, equally wide, for classes and labels.

    Raises:
        ValueError: If there are no bins, targets do not fit, or the likelihood has no calibration.
    """
    if bins < 1:
        raise ValueError(f"There must be at least one bin of confidence, got {bins}.")
    prediction.likelihood.check_calibration()
    targets = targets.to(prediction.mean.device)
    nll = -float(prediction.log_prob(targets).double().mean())
    found = prediction.likelihood.calibrate(prediction.mean, prediction.std, targets, bins)
    return Calibration(
        found.of, prediction.by, len(prediction), found.rows, nll, found.accuracy, found.ece, found.brier, found.rmse
    )
