"""What tables of runs share: a cell is one training run, an outcome what it gave, a table means over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, TypeVar

import torch
from torch import Generator, nn

from symbayes.data.source import Data, as_source
from symbayes.evidence.objective import Objective
from symbayes.likelihoods import Likelihood
from symbayes.priors import TensorwisePrior
from symbayes.training.loop import Schedule, train
from symbayes.training.problem import Problem
from symbayes.training.record import Record
from symbayes.training.result import Result

#: Called with the share of all work that is done, and what is trained next.
Progress = Callable[[float, str], None]
EachEpoch = Callable[[Record], None]


@dataclass(frozen=True)
class Cell:
    """One run: a task, a model, and a seed."""

    task: str
    model: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.model} on {self.task}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a cell gave: the summary of its result. Experiments add what they measured on test data."""

    cell: Cell
    summary: dict[str, Any]

    @property
    def log_evidence(self) -> float:
        """Per training datum."""
        return float(self.summary["evidence"]["total"] / self.summary["num_data"])

    def smallest_share(self, path: str) -> float:
        """Of a path, in the layer where it is smallest."""
        return min((float(row["share"]) for row in self.summary["symmetries"] if row["path"] == path), default=0.0)


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def trained(
    model: nn.Module,
    data: Data,
    likelihood: Likelihood,
    objective: Objective,
    schedule: Schedule,
    generator: Generator,
    each_epoch: EachEpoch | None = None,
) -> Result:
    """A model with one precision for each tensor, trained on the CPU."""
    problem = Problem(model, as_source(data, torch.device("cpu")), likelihood, TensorwisePrior(model))
    history = []
    for record in train(problem, objective, schedule, generator=generator):
        history.append(record)
        if each_epoch:
            each_epoch(record)
    return Result(model, likelihood, problem.prior, tuple(history), problem.data.size)


def run_in_turn(todo: Sequence[Cell], run: Callable[[Cell], AnyOutcome], progress: Progress | None = None) -> list[AnyOutcome]:
    """All runs, one after the other."""
    outcomes = []
    for done, cell in enumerate(todo):
        if progress:
            progress(done / len(todo), str(cell))
        outcomes.append(run(cell))
    return outcomes


def rows_of_means(outcomes: Sequence[Outcome], measures: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each task and an entry for each model, with means over seeds. The best is that of highest evidence.

    Args:
        outcomes: In the order of the table.
        measures: Names of attributes of the outcomes.
    """
    rows = []
    for task in dict.fromkeys(outcome.cell.task for outcome in outcomes):
        by_model: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.cell.task == task:
                by_model.setdefault(outcome.cell.model, []).append(outcome)
        entries = [{name: mean(getattr(run, name) for run in runs) for name in measures} for runs in by_model.values()]
        best = max(entry["log_evidence"] for entry in entries)
        rows.append({"task": task, "cells": [{**entry, "best": entry["log_evidence"] == best} for entry in entries]})
    return rows
