"""ELLA's Table 1 on embedded digits: which digit, and which digit in which quadrant, by FC, CONV and F-FC+CONV.

A convolutional network cannot see where a digit is, a fully connected one has to learn every place anew; the relaxed network
learns per layer which of the two it should be. Every cell of the table is one training run, on its own, in a process.
"""

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import Manager, get_context
from typing import Any

import torch

from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.data.load import load
from symbayes.data.source import as_source
from symbayes.evidence.objective import Laplace, Map, Objective
from symbayes.likelihoods import Categorical
from symbayes.models import allconv
from symbayes.priors import TensorwisePrior
from symbayes.training.loop import Schedule, train
from symbayes.training.problem import Problem
from symbayes.training.record import Record
from symbayes.training.result import Result

TASKS = {"digit": "placed-digits", "digit and quadrant": "quadrant-digits"}
MODELS = {"FC": ("dense",), "CONV": ("conv",), "F-FC+CONV": ("factored", "conv")}
OBJECTIVES = ("MAP", "evidence")
#: Relative cost of a run, to order them and to say how long the rest will take.
_COST = {"FC": 1.3, "CONV": 1.0, "F-FC+CONV": 2.6, "MAP": 1.0, "evidence": 2.0}


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    epochs: int = 50
    width: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Cell:
    """One run: a task, a model, and how its prior is treated."""

    task: str
    model: str
    objective: str

    @property
    def cost(self) -> float:
        return _COST[self.model] * _COST[self.objective]

    def __str__(self) -> str:
        return f"{self.model} by {self.objective} on {self.task}"


@dataclass(frozen=True)
class Outcome:
    """What a cell gave: test metrics, and the summary and history of its result."""

    cell: Cell
    accuracy: float
    nll: float
    summary: dict[str, Any]
    history: list[dict[str, Any]]

    @property
    def log_evidence(self) -> float:
        """Per training datum."""
        return float(self.summary["evidence"]["total"] / self.summary["num_data"])


#: Called with the share of all work that is done, and what was just being trained.
Progress = Callable[[float, str], None]


def cells() -> list[Cell]:
    """All cells of the table, row by row."""
    return [Cell(task, model, objective) for task in TASKS for objective in OBJECTIVES for model in MODELS]


def run_cell(cell: Cell, settings: Settings, each_epoch: Callable[[Record], None] | None = None) -> Outcome:
    """Train one cell and evaluate it. The evidence at the end is by KFAC with the exact Fisher, for all cells alike."""
    task = load(TASKS[cell.task])
    generator = torch.Generator().manual_seed(settings.seed)
    model = allconv(task, MODELS[cell.model], settings.width, generator=generator)
    problem = Problem(model, as_source(task.train, torch.device("cpu")), Categorical(), TensorwisePrior(model))
    rule, final = Kfac(MonteCarloFisher()), Kfac()
    objective: Objective = Laplace(rule, final) if cell.objective == "evidence" else Map(rule, final)
    history = []
    schedule = Schedule(settings.epochs, batch_size=100)
    for record in train(problem, objective, schedule, generator=generator):
        history.append(record)
        if each_epoch:
            each_epoch(record)
    result = Result(model, problem.likelihood, problem.prior, tuple(history), problem.data.size)
    metrics = result.evaluate(task.test)
    return Outcome(cell, metrics["accuracy"], metrics["nll"], result.summary(), [asdict(record) for record in history])


def run_all(settings: Settings, progress: Progress, workers: int | None = None) -> list[Outcome]:
    """All cells, the costly ones first, in as many processes as there are cores; outcomes in the order of the table."""
    todo = sorted(cells(), key=lambda cell: -cell.cost)
    workers = workers or min(len(todo), os.cpu_count() or 1)
    total = sum(cell.cost for cell in todo)
    done: dict[Cell, float] = dict.fromkeys(todo, 0.0)
    with Manager() as manager, ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        news = manager.Queue()
        futures: dict[Cell, Future[Outcome]] = {cell: pool.submit(_work, cell, settings, news) for cell in todo}
        while not all(future.done() for future in futures.values()):
            try:
                cell, share = news.get(timeout=0.5)
            except queue.Empty:
                cell = None
            if cell is not None:
                done[cell] = share
                progress(sum(cell.cost * share for cell, share in done.items()) / total, str(cell))
            for future in futures.values():
                if future.done() and future.exception():
                    pool.shutdown(cancel_futures=True, wait=False)
                    future.result()
        progress(1.0, "done")
        return [futures[cell].result() for cell in cells()]


def _work(cell: Cell, settings: Settings, news: Any) -> Outcome:
    """A cell in a process of its own, on one core."""
    torch.set_num_threads(1)
    return run_cell(cell, settings, lambda record: news.put((cell, record.epoch / (record.epochs + 1))))


def table(outcomes: list[Outcome]) -> dict[str, Any]:
    """The outcomes as the table of the paper: a row for each task, a column for each model and objective."""
    columns = [(objective, model) for objective in OBJECTIVES for model in MODELS]
    by_cell = {outcome.cell: outcome for outcome in outcomes}
    rows = []
    for task in TASKS:
        chosen = [by_cell[Cell(task, model, objective)] for objective, model in columns]
        best = max(outcome.accuracy for outcome in chosen)
        rows.append(
            {
                "task": task,
                "cells": [
                    {
                        "accuracy": outcome.accuracy,
                        "nll": outcome.nll,
                        "log_evidence": outcome.log_evidence,
                        "best": outcome.accuracy == best,
                    }
                    for outcome in chosen
                ],
            }
        )
    estimator = outcomes[0].summary["evidence"]["estimator"]
    return {
        "columns": [f"{model}, {objective}" for objective, model in columns],
        "rows": rows,
        "note": f"Log evidence per training image by {estimator}, for every model at the weights and precisions kept.",
    }


def learned(outcomes: list[Outcome]) -> list[Outcome]:
    """The runs whose symmetry was learned."""
    return [outcome for outcome in outcomes if outcome.cell.model == "F-FC+CONV" and outcome.cell.objective == "evidence"]


def runs(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The outcomes as the page wants them."""
    chosen = learned(outcomes)
    return [
        {**asdict(outcome.cell), "learned": outcome in chosen, "summary": outcome.summary, "history": outcome.history}
        for outcome in outcomes
    ]
