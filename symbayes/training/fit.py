"""`sb.fit`: the thin loop over training records that most users call."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, nn

from symbayes.curvature.check import trusted
from symbayes.curvature.evaluate import autocast_precision, evaluating, without_autocast
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Preconditioned
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import Data, DataSource, TensorSource, source_for
from symbayes.data.transform import Augmentation
from symbayes.errors import NotFiniteError
from symbayes.invariance.extents import all_extents
from symbayes.layout import Layout, hyperparameters, weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.priors import Prior, TensorwisePrior
from symbayes.processes import all_processes
from symbayes.sharded import refuse_sharded
from symbayes.training.by_curvature import ByCurvature, Laplace, Map
from symbayes.training.checkpoint import Checkpoint, asked_to_stop
from symbayes.training.convergence import floor_of
from symbayes.training.deterministic import deterministic_algorithms
from symbayes.training.distributed import begin_alike, refuse_drift, sharing
from symbayes.training.optimiser import Optimiser
from symbayes.training.record import Record
from symbayes.training.result import Result
from symbayes.training.scale import ScaleSearch
from symbayes.training.trainer import Objective, Part, Problem, S, Schedule, Trainer

#: Where data are few, an epoch has at least this many steps, of at least so many data.
_STEPS, _FEWEST = 16, 16
#: Inputs that a result keeps, at most.
EXAMPLES = 64
#: The full GGN is for models of up to so many weights on a CPU, by up to so many products for each random vector. On a GPU
#: it is for those of whose size so many vectors fit into half its memory.
_MOST_WEIGHTS, _PRODUCTS, _VECTORS = 20_000_000, 25, 40
#: Where features of factors, cubed, are more than this in sum, factors are decomposed after every so many epochs, or more often
#: where that would be fewer times than are enough.
_CUBES, _SELDOM, _ENOUGH = 10_000_000_000, 4, 15
#: Share of the epochs before precisions and extents move, where a model has extents or other hyperparameters. A network that
#: does not fit its data yet has more evidence the less it says, and is averaged over anything. And how many steps of extents
#: each of their hyper-steps then has.
_BURN_IN, _EXTENT_STEPS = 0.2, 2
#: Data in a forward pass over those that are watched.
_WATCHED = 500
#: What is said at Ctrl-C.
_STOPPING = "Training stops after this epoch, with a partial result and its evidence. Ctrl-C again stops at once."


@dataclass(frozen=True)
class Preset:
    """Settings that go together.

    Args:
        objective: What is maximised.
        optimiser: How weights are moved.
        schedule: How long and how fast.
    """

    objective: Objective
    optimiser: Optimiser
    schedule: Schedule

    def by_map(self) -> "Preset":
        """The same by MAP, for a comparison that is even: with the same steps, and judged by the same rule.

        Raises:
            TypeError: If the objective is not by curvature, and has no rule.
        """
        if not isinstance(self.objective, ByCurvature):
            raise TypeError(
                f"MAP is judged by the rule of an objective by curvature; {type(self.objective).__name__} has none."
            )
        return replace(self, objective=Map(self.objective.rule, self.objective.final_rule))


def preset(problem: Problem, objective: Objective | None = None, epochs: int | None = None) -> Preset:
    """How `fit` trains where nothing else is asked for, which is how ELLA's tables are made.

    Every layer begins as symmetric as its paths allow, and paths that break a symmetry move slowly at first. The ratios of
    precisions follow from hyper-steps after every epoch, with running factors, which also give Adam its eigenbasis; their
    common scale from a search by the full GGN in the last three tenths of the epochs, which first asks whether the network is
    better off without paths that break a symmetry, where they are used; what is left of these epochs finishes what was kept.
    The evidence of the result is by the full GGN, by a product for every two epochs, up to 25. Nothing of that depends on the
    task, or on which answer is hoped for.
    Steps are of fewer data than 250 where data are few, so that there are enough of them. Where factors take long to decompose,
    hyper-steps and eigenbases are found less often. Models with hyperparameters of their own, such as extents, have curvature
    by passes over all data, and hyper-steps after a fifth of the epochs.

    By KFAC alone are models of more than 20 million weights on a CPU, those of which forty copies do not fit into half the
    memory of a GPU, models with hyperparameters of their own, and data of a DataLoader or Dataset, which products would read
    many times.

    Args:
        problem: What is learned.
        objective: What is maximised, if not that.
        epochs: Passes over the data; 100 when None.

    Raises:
        TypeError: If that is no objective.
    """
    if objective is not None and not isinstance(objective, Objective):
        raise TypeError(
            "The objective must be a Laplace, Map, Augerino or Elbo, or an Objective of your own; got "
            f"{type(objective).__name__}."
        )
    usual = Schedule()
    batch_size = max(_FEWEST, min(usual.batch_size, problem.data.size // _STEPS))
    schedule = replace(usual, batch_size=batch_size, epochs=usual.epochs if epochs is None else epochs)
    every = _interval(problem, schedule.epochs)
    chosen = objective if objective is not None else _by_evidence(problem, schedule.epochs, every)
    optimiser = chosen.usual_optimiser(problem)
    if optimiser.eigenbasis:
        optimiser = replace(optimiser, eigenbasis=max(optimiser.eigenbasis, every))
    return Preset(chosen, optimiser, schedule)


def _by_evidence(problem: Problem, epochs: int, every: int) -> Laplace:
    base = Kfac(MonteCarloFisher()) if problem.likelihood.has_positions else Kfac()
    if hyperparameters(problem.model):
        return Laplace(final_rule=base, burn_in=_BURN_IN, hyper_every=every, extent_steps=_EXTENT_STEPS, symmetric_start=True)
    if not _has_room(problem.model) or not isinstance(problem.data, TensorSource):
        return Laplace(final_rule=base, hyper_every=every, symmetric_start=True)
    final = Preconditioned(base, steps=max(1, min(_PRODUCTS, epochs // 2)), probes=2, probes_of_gamma=1)
    return Laplace(final_rule=final, hyper_every=every, symmetric_start=True, search=ScaleSearch())


def _has_room(model: nn.Module) -> bool:
    """Whether there is room for the vectors that products with the full GGN are made of."""
    named = weights(model)
    device = next((weight.device for weight in named.values()), torch.device("cpu"))
    if device.type != "cuda":
        return sum(weight.numel() for weight in named.values()) <= _MOST_WEIGHTS
    memory = torch.cuda.get_device_properties(device).total_memory
    return _VECTORS * sum(weight.nbytes for weight in named.values()) <= memory / 2


def _interval(problem: Problem, epochs: int) -> int:
    """Epochs from one decomposition of all factors to the next: several where these take longer than a step or two."""
    shapes = [site.matrix for site in Layout.of(problem.model).sites.values() if site.matrix is not None]
    cubes = sum(blocks * d_out**3 + d_in**3 for blocks, d_out, d_in in shapes)
    return max(1, min(_SELDOM, epochs // _ENOUGH)) if cubes > _CUBES else 1


def fit(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | None = None,
    prior: Prior | None = None,
    objective: Objective | None = None,
    optimiser: Optimiser | None = None,
    epochs: int | None = None,
    schedule: Schedule | None = None,
    augment: Augmentation | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    deterministic: bool = False,
    callbacks: Callable[[Record], None] | Sequence[Callable[[Record], None]] = (),
    validation: Data | None = None,
) -> Result:
    """Learn weights, prior precisions, noise and extents of invariance together, from training data alone.

    The model is trained in place, on the device where it is. The same seed gives the same result on the same machine; on a GPU
    where that is asked for. Under torch.autocast, steps by `Laplace` and `Map` are in its precision; all else is in that of the
    weights. Ctrl-C ends the epoch and gives a partial result, which says that it is one; a second one stops at once. Where the
    process group of `torch.distributed` is initialised, all its processes call this alike, with all the data: every batch is
    shared out, and all get the same result.

    Args:
        model: Any module that maps a batch of inputs to outputs [n, c].
        data: A pair of tensors, arrays or frames (inputs, targets), a Dataset or a DataLoader; several inputs for a model that
            is `Packed`. Real numbers come in the precision of the weights. An IterableDataset is read once, and kept.
        likelihood: Of targets given outputs; `Categorical()` when None.
        prior: Over the weights; a precision for every tensor, starting at 1, when None.
        objective: `Laplace(...)` and `Elbo(...)` learn by the evidence, `Map(...)` keeps the prior as it is. What is None of
            this and the next three is as `preset` says.
        optimiser: How weights are moved, and whether curvature is collected on the way.
        epochs: Passes over the data; 100 when None.
        schedule: Batch size and learning rate as well, instead of `epochs`.
        augment: How training images are augmented from pass to pass, such as `FlipCrop()`; the evidence is of data as they are.
        seed: For the order of data and for rules that sample. Initial weights are the model's own.
        progress: Whether to show a bar with loss, evidence and remaining time; ten lines instead where there is no terminal.
        checkpoint: A folder in which training is kept while it goes on; not at all when None.
        checkpoint_every: Seconds from one checkpoint to the next, each after an epoch; 0 for all epochs.
        resume: Whether to go on from the checkpoint in that folder, to the same numbers as without an interruption; from the
            start if there is none. One of another problem or of other settings is refused.
        deterministic: Whether a GPU is held to algorithms that give the same numbers every time, which takes longer
            (`deterministic_algorithms`); a CPU always does, with the same number of threads.
        callbacks: One or several, called with the record of every epoch, such as `sb.loggers.TensorBoard(folder)`. Those that
            have a `close` are closed in the end.
        validation: Other data, of any kind, to be watched: every record has the metrics of the model on them, by plug-in.
            Nothing is decided by them, and the result is the same without.

    Returns:
        The trained model with its evidence, symmetries and history. Where it has not converged a warning says why, and
        `result.converged`.

    Raises:
        ValueError: If epochs are given twice, or parts do not fit together; `Problem.check` says more.
        TypeError: If callbacks cannot be called, or the model is sharded over processes.
        NotFiniteError: If numbers are not finite, or training diverges.
        BusyError: If another process trains in the folder of the checkpoint.
        RuntimeError: If algorithms are to be deterministic, and torch has none for something.
    """
    if epochs is not None and schedule is not None:
        raise ValueError(
            f"Epochs must be said once: give Schedule(epochs={epochs}, ...), or epochs={epochs} without a schedule, which has "
            f"{schedule.epochs} itself."
        )
    refuse_sharded(model)
    kept = checkpoint_of(checkpoint, checkpoint_every, resume)
    called = _callbacks(callbacks)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    likelihood = (likelihood if likelihood is not None else Categorical()).to(device)
    prior = (prior if prior is not None else TensorwisePrior(model)).to(device)
    if augment is not None and likelihood.has_positions:
        raise ValueError(
            f"augment moves inputs alone; targets at positions ({type(likelihood).__name__}) would stay where they are. "
            "Augment pairs of both in a Dataset of your own."
        )
    problem = Problem(model, source_for(model, data, augment), likelihood, prior, autocast_precision(device))
    usual = preset(problem, objective, epochs if schedule is None else schedule.epochs)
    chosen = schedule or usual.schedule
    trainer = usual.objective.trainer(problem, chosen, optimiser or usual.optimiser)
    generator = torch.Generator().manual_seed(seed)
    watched = None if validation is None else Watched(problem, source_for(model, validation))

    def call_all(record: Record) -> None:
        for callback in called if all_processes().is_first else ():
            callback(deepcopy(record))  # which may be changed

    with ExitStack() as during:
        for callback in called:
            if isinstance(callback, Closable):
                during.callback(callback.close)
        during.enter_context(deterministic_algorithms(device) if deterministic else nullcontext())
        during.enter_context(sharing(trainer, generator))
        before = trainer.check()
        if watched is not None:
            with trainer.processes.together():
                watched.check()
        result = learn_with_bar(
            trainer,
            generator=generator,
            each_epoch=call_all,
            progress=progress,
            checkpoint=kept,
            stoppable=True,
            watched=watched,
        )
    if not result.is_partial:
        refuse_diverged(result, before, chosen)
        if not result.converged:
            warnings.warn(f"{result.converged} Train for longer, and believe a result that has.", stacklevel=2)
    return result


def _callbacks(given: Callable[[Record], None] | Sequence[Callable[[Record], None]]) -> tuple[Callable[[Record], None], ...]:
    found = (given,) if callable(given) else tuple(given)
    wrong = next((one for one in found if not callable(one)), None)
    if wrong is not None:
        raise TypeError(f"Callbacks must be functions that take a record; got {type(wrong).__name__}.")
    return found


@runtime_checkable
class Closable(Protocol):
    """A callback with something to close when training ends, such as a file."""

    def close(self) -> None:
        """Called once, also where training fails."""


@dataclass(frozen=True)
class Watched:
    """Data on which a model is watched while it learns, without any effect on what it learns."""

    problem: Problem
    data: DataSource

    def check(self) -> None:
        """Refuse data that the model does not take, before time is spent.

        Raises:
            ValueError: If shapes or targets do not fit.
            NotFiniteError: If outputs, or what is said of them, are not finite.
        """
        try:
            found = self._means()
        except RuntimeError as error:
            raise ValueError(f"Validation data must be of the shape and kind of those to learn from ({error}).") from error
        wrong = next((name for name, value in found.items() if not isfinite(value)), None)
        if wrong is not None:
            raise NotFiniteError(
                f"Validation data must be finite numbers; {wrong} on them is {found[wrong]}. Leave such data out."
            )

    def metrics(self) -> dict[str, float]:
        """Mean metrics and negative log-likelihood per datum, those that are finite, by plug-in."""
        return {name: value for name, value in self._means().items() if isfinite(value)}

    @torch.no_grad()
    def _means(self) -> dict[str, float]:
        """Random numbers and modules are left as they were."""
        model, likelihood = self.problem.model, self.problem.likelihood
        device = next(model.parameters()).device
        totals: dict[str, float] = {}
        with torch.random.fork_rng([device] if device.type == "cuda" else []), evaluating(model):
            for inputs, targets in self.data.batches(_WATCHED):
                outputs = model(inputs)
                likelihood.check(outputs, targets)
                found = likelihood.metrics(outputs, targets) | {"nll": -likelihood.log_prob(outputs, targets)}
                for name, values in found.items():
                    totals[name] = totals.get(name, 0.0) + float(values.sum())
        return {name: total / self.data.size for name, total in totals.items()}


def checkpoint_of(folder: str | Path | None, every: float, resume: bool) -> Checkpoint | None:
    """Where training is kept, as it is asked for.

    Raises:
        ValueError: If it is to go on, and it is not said from where.
    """
    if folder is None and resume:
        raise ValueError("To resume, training must be kept somewhere: give checkpoint=folder, the same as before.")
    return None if folder is None else Checkpoint(Path(folder), every, resume)


def refuse_diverged(result: Result, before: float, schedule: Schedule) -> None:
    """Refuse a result that is far worse than no training: where steps are too long, weights end anywhere.

    Args:
        result: Of training.
        before: The loss per datum, as `Problem.check` gave it.
        schedule: Of training.

    Raises:
        NotFiniteError: Saying how it was and is.
    """
    size = max(1.0, abs(before))
    loss, evidence = -result.evidence.log_likelihood / result.num_data, result.log_evidence / result.num_data
    if loss > before + size or -evidence > before + 1000 * size:
        raise NotFiniteError(
            f"Training diverged: the loss per datum is {loss:.3g}, where without training it is at most {before:.3g}; the log "
            f"evidence is {evidence:.3g}. Use a smaller learning rate than {schedule.learning_rate:.3g}, or check the scale of "
            "inputs and targets."
        )


def learn_with_bar(
    trainer: Trainer[Any],
    *,
    generator: Generator,
    each_epoch: Callable[[Record], None] = lambda record: None,
    progress: bool = True,
    checkpoint: Checkpoint | None = None,
    beside: Mapping[str, Part] | None = None,
    stoppable: bool = False,
    watched: Watched | None = None,
) -> Result:
    """Train to the end, with a bar that says how far it is; or lines, in a file or a pipe. As `learn` otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    progress = progress and trainer.processes.is_first
    console = Console(stderr=True)
    has_bar = console.is_terminal or console.is_jupyter
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn(),
        console=console, disable=not (progress and has_bar), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("training", total=trainer.schedule.epochs)
        evidence = ""

        def show(record: Record) -> None:
            nonlocal evidence
            if record.evidence:
                evidence = f", log evidence {record.evidence.total / trainer.problem.data.size:.3f} per datum"
            beside = "".join(f", validation {name} {value:.4f}" for name, value in record.validation.items())
            said = f"loss {record.loss:.4f}{evidence}{beside}"
            bar.update(task, completed=record.epoch, description=said)
            if progress and not has_bar and 10 * record.epoch // record.epochs > 10 * (record.epoch - 1) // record.epochs:
                at = f"epoch {record.epoch} of {record.epochs}, {record.seconds:.0f} s"
                console.print(f"{at}: {said}", highlight=False, soft_wrap=True)
            each_epoch(record)

        return learn(
            trainer,
            generator=generator,
            each_epoch=show,
            checkpoint=checkpoint,
            beside=beside,
            stoppable=stoppable,
            watched=watched,
        )


def learn(
    trainer: Trainer[S],
    *,
    generator: Generator,
    each_epoch: Callable[[Record], None] = lambda record: None,
    checkpoint: Checkpoint | None = None,
    beside: Mapping[str, Part] | None = None,
    stoppable: bool = False,
    watched: Watched | None = None,
) -> Result:
    """Train to the end, with a call after every epoch.

    Args:
        trainer: What trains.
        generator: From which it draws.
        each_epoch: Called with every record; not again with those from before a checkpoint.
        checkpoint: Where training is kept, and whether it goes on from there.
        beside: What else is kept there, by name.
        stoppable: Whether Ctrl-C asks for a partial result, instead of ending everything.
        watched: Other data, whose metrics records are given.

    Raises:
        KeyboardInterrupt: If it is stopped, and the objective cannot tell the evidence of what there is.
    """
    problem, model = trainer.problem, trainer.problem.model
    with ExitStack() as during:
        processes, kept = trainer.processes, None
        if checkpoint is not None and processes.is_first:
            kept = during.enter_context(checkpoint.opened(trainer, generator, beside or {}))
        stops = during.enter_context(asked_to_stop(_STOPPING)) if stoppable else _never
        with without_autocast(), trusted(model):
            with processes.together():
                state, history = (trainer.init(generator), list[Record]()) if kept is None else kept.begin()
            history = begin_alike(trainer, state, history)
        while not trainer.is_done(state) and not (history and processes.any(stops())):
            with without_autocast(), trusted(model):
                history.append(trainer.epoch(state))
            refuse_drift(trainer)
            with processes.together():
                if watched is not None:
                    history[-1] = replace(history[-1], validation=watched.metrics())
                each_epoch(history[-1])
                if kept is not None:
                    kept.live.offer(history, now=len(history) == 1 or trainer.is_done(state))
                # What is done is not kept: to go through the last epochs again gives the same, and the same posterior.
                if kept is not None and not trainer.is_done(state):
                    kept.offer(state, history)
        is_partial = not trainer.is_done(state)
        if kept is not None and is_partial:
            kept.offer(state, history, now=True)
        with without_autocast(), trusted(model):
            if is_partial:
                history[-1] = _conclude(trainer, state, history[-1])
            make_posterior = trainer.finish(state)
    model.eval()
    size, examples = problem.data.size, problem.examples(EXAMPLES)
    return Result(
        model,
        problem.likelihood,
        problem.prior,
        tuple(history),
        size,
        examples,
        make_posterior,
        is_partial=is_partial,
        floor=floor_of(problem),
    )


def _never() -> bool:
    return False


def _conclude(trainer: Trainer[S], state: S, last: Record) -> Record:
    """The record of the epoch after which training was stopped."""
    evidence = trainer.conclude(state)
    if evidence is None:
        raise KeyboardInterrupt
    warnings.warn(
        f"Training was stopped after {last.epoch} of {last.epochs} epochs: the result is partial, and its evidence that of "
        "weights which were still moving.",
        stacklevel=2,
    )
    return replace(last, evidence=evidence, extents=all_extents(trainer.problem.model))
