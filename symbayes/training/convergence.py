"""Whether training has come to its end, judged by its records; and whether two evidences can be told apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, log

import torch

from symbayes.curvature.evaluate import evaluating
from symbayes.data.source import TensorSource
from symbayes.text import number, percent
from symbayes.training.record import EvidenceRecord, Record
from symbayes.training.trainer import Problem

#: The loss still falls where in the last tenth of the epochs it fell by more than this, in nats per datum and of itself.
_FALLS, _OF_ITSELF = 0.02, 0.05
#: Precisions still move where the last hyper-step changed them by more than this, on average over effective parameters.
_MOVES = 0.1
#: Evidences differ where they differ by more than so many standard errors.
_ERRORS = 2.0


@dataclass(frozen=True)
class Convergence:
    """Whether training has converged: true where nothing speaks against it; prints what does."""

    #: What speaks against it, a clause each.
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return f"Training has not converged: {'; '.join(self.reasons)}." if self.reasons else "Training has converged."


def judge(history: Sequence[Record], num_data: int, *, is_partial: bool = False, floor: float | None = None) -> Convergence:
    """Whether training has converged, as far as its records tell.

    Args:
        history: Of training, from its first epoch.
        num_data: In training.
        is_partial: Whether it was stopped.
        floor: log p(D) per datum of outputs that are zero, where that is known: what any network should exceed.
    """
    last = history[-1]
    stopped = f"it was stopped after {last.epoch} of {last.epochs} epochs" if is_partial else ""
    return Convergence(tuple(filter(None, [stopped, _falling(history), _moving(history), _below(history, num_data, floor)])))


def _falling(history: Sequence[Record]) -> str:
    """Whether weights still move, by what their loss says. A search tries other networks on the way: the best one counts."""
    recent = max(1, len(history) // 10)
    if len(history) == 1:
        return "weights are still moving (there was a single epoch)"
    before, now = min(record.loss for record in history[:-recent]), history[-1].loss
    if before - now <= max(_FALLS, _OF_ITSELF * abs(now)):
        return ""
    epochs = "the last epoch" if recent == 1 else f"the last {recent} epochs"
    return f"weights are still moving (in {epochs} the loss fell from {before:.3g} to {now:.3g} per datum)"


def _moving(history: Sequence[Record]) -> str:
    """Whether precisions still moved when they were last updated; what a search changes in the end does not count."""
    known = [record.evidence for record in history if record.evidence is not None]
    steps = [one for one in known[:-1] if one.estimator == known[0].estimator]
    if len(steps) < 2:  # none, under a fixed prior
        return "precisions may still be moving (they were updated once)" if steps else ""
    before, after = steps[-2:]
    total = sum(after.effective.values())
    change = sum(g * abs(log(after.precision[name] / before.precision[name])) for name, g in after.effective.items())
    if total <= 0 or change / total <= _MOVES:
        return ""
    return f"precisions are still moving (the last hyper-step changed them by {percent(change / total)} on average)"


def _below(history: Sequence[Record], num_data: int, floor: float | None) -> str:
    """Whether learning by the evidence ended below no network at all; training under a fixed prior does not aim at it."""
    evidence, hyper_steps = history[-1].evidence, sum(record.evidence is not None for record in history)
    if floor is None or evidence is None or hyper_steps < 2 or evidence.total >= num_data * floor:
        return ""
    return (
        f"the log evidence, {number(evidence.total / num_data, 3)} per datum, is below that of outputs that are zero, "
        f"{number(floor, 3)}"
    )


@torch.no_grad()
def floor_of(problem: Problem) -> float | None:
    """log p(D) per datum of outputs that are zero; None where targets are no classes, or not in memory."""
    if not problem.likelihood.has_classes or not isinstance(problem.data, TensorSource):
        return None
    inputs, targets = problem.data.inputs, problem.data.targets
    with evaluating(problem.model):
        outputs = problem.model(inputs[:2])
    nothing = outputs.new_zeros(len(targets), *outputs.shape[1:])
    return float(problem.likelihood.log_prob(nothing, targets).sum()) / len(targets)


@dataclass(frozen=True)
class Difference:
    """How much higher the log evidence of one result is than that of another, and whether that can be told."""

    #: In nats, for all the data together.
    value: float
    #: Of the value, by the standard errors of both; None where one of them is not known.
    standard_error: float | None
    #: Why the two cannot be told apart; empty where they can.
    doubt: str = ""

    def __bool__(self) -> bool:
        return not self.doubt

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {number(self.standard_error, 1)}"
        return f"{number(self.value, 1)}{error} nats" + (f": {self.doubt}" if self.doubt else "")


def difference(first: EvidenceRecord, second: EvidenceRecord) -> Difference:
    """log p(D) of the first less that of the second, with what speaks against a conclusion."""
    value, errors = first.total - second.total, (first.standard_error, second.standard_error)
    spread = None if errors[0] is None or errors[1] is None else hypot(errors[0], errors[1])
    slack = (first.slack or 0.0) + (second.slack or 0.0)
    doubt = ""
    if not same_estimator(first, second):
        doubt = f"evidences by two estimators are not to be compared ({first.estimator}; {second.estimator})"
    elif abs(value) <= (bound := _ERRORS * (spread or 0.0) + slack):
        doubt = f"the error of the estimator, up to {number(bound, 1)}, is larger than the difference"
    return Difference(value, spread, doubt)


def same_estimator(first: EvidenceRecord, second: EvidenceRecord) -> bool:
    """Whether two evidences are by one kind of estimator, whatever its settings."""
    kinds = [one.estimator.partition("(")[0].strip() for one in (first, second)]
    return kinds[0] == kinds[1]


def below_map(by_evidence: EvidenceRecord, by_map: EvidenceRecord) -> bool:
    """Whether learning by the evidence ended with less of it than training under a fixed prior, by more than errors."""
    found = difference(by_evidence, by_map)
    return bool(found) and found.value < 0
