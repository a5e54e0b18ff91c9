"""Objectives whose evidence is by Laplace's method: MAP, Augerino, and the evidence itself; and how they train."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Generator, Tensor

from symbayes.curvature.blocks import Block
from symbayes.curvature.check import check_outputs
from symbayes.curvature.decompositions import decompose_under
from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.kfac import Kfac, RunningCurvature
from symbayes.curvature.rule import BlockCurvature, Curvature, MonteCarloFisher, Rule
from symbayes.data.source import Batch
from symbayes.errors import NotFiniteError
from symbayes.evidence.evidence import evidence_at
from symbayes.invariance.extents import all_extents
from symbayes.layout import hyperparameters, weights
from symbayes.posterior.laplace import posterior_at
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.tempering import copied, tempered_posterior
from symbayes.precision import tensor_cores
from symbayes.training.curvature_state import Best, CurvatureState
from symbayes.training.hyper import HyperAdam, refuse_still, update_extents, update_noise, update_precisions
from symbayes.training.optimiser import LARGEST, PLAIN, Optimiser, rotation
from symbayes.training.record import EvidenceRecord, Record
from symbayes.training.scale import ScaleSearch, Search, breaking_gamma, scaled_groups
from symbayes.training.start import begin_symmetric, breaking_weights, slow_share
from symbayes.training.steps import Callback, Steps, steps_for
from symbayes.training.trainer import Objective, Part, Problem, Schedule, Trainer

#: Data by which paths are scaled before training.
_SOME = 64


@dataclass(frozen=True)
class ByCurvature(Objective):
    """An objective whose evidence is estimated by Laplace's method.

    Args:
        rule: The curvature rule while training. Sampled columns are cheap when there are many classes.
        final_rule: The rule for the evidence of the result; the same when None.
    """

    rule: Rule = field(default_factory=lambda: Kfac(MonteCarloFisher()))
    final_rule: Rule | None = None

    @abstractmethod
    def trainer(self, problem: Problem, schedule: Schedule, optimiser: Optimiser | None = None) -> "CurvatureTrainer":
        """As `Objective` says."""

    def moves_at(self, epoch: int, epochs: int) -> bool:
        """Whether a hyper-step follows an epoch, counted from 1."""
        return False

    def usual_optimiser(self, problem: Problem) -> Optimiser:
        """In an eigenbasis where the rule has one; with running factors where the model has no hyperparameters of its own."""
        running = 0 if hyperparameters(problem.model) else Optimiser.running
        return Optimiser(running) if isinstance(self.rule, Kfac) else PLAIN


@dataclass(frozen=True)
class Map(ByCurvature):
    """The posterior density of the weights, with prior and extents as they are; the evidence is estimated at the end."""

    def trainer(self, problem: Problem, schedule: Schedule, optimiser: Optimiser | None = None) -> "CurvatureTrainer":
        return CurvatureTrainer(self, problem, schedule, optimiser or self.usual_optimiser(problem))


@dataclass(frozen=True)
class Augerino(ByCurvature):
    """The training loss, in weights and extents alike, less a reward for large extents (Benton et al. 2020); the prior is kept.

    Without the reward this is maximum likelihood (or MAP), under which extents collapse: a function that can change less never
    fits the training data better.

    Args:
        rule: As in `ByCurvature`.
        final_rule: As in `ByCurvature`.
        strength: Of the reward, strength · ‖η‖, against the loss per datum.
        extent_rate: Learning rate of extents, for Adam.
    """

    strength: float = 0.01
    extent_rate: float = 5e-3

    def __post_init__(self) -> None:
        if self.strength < 0 or not self.extent_rate > 0:
            raise ValueError(
                f"strength must not be negative and extent_rate be positive; got {self.strength} and {self.extent_rate}."
            )

    def trainer(self, problem: Problem, schedule: Schedule, optimiser: Optimiser | None = None) -> "CurvatureTrainer":
        return AugerinoTrainer(self, problem, schedule, optimiser or self.usual_optimiser(problem))


@dataclass(frozen=True)
class Laplace(ByCurvature):
    """The evidence: weights by gradient under the prior, precisions and noise by MacKay's fixed point, extents by gradient.

    Extents of invariance, and whatever else the model has of hyperparameters, follow the gradient of the evidence through the
    curvature, collected batch by batch (`Curvature.surrogates`).

    Args:
        rule: As in `ByCurvature`.
        final_rule: As in `ByCurvature`.
        burn_in: Share of the epochs before the first hyper-step.
        cool_down: Share of the epochs, at the end, in which precisions and noise are held and the weights come to rest.
        hyper_every: Epochs from one hyper-step to the next.
        damping: Share of the way to the fixed point, in log δ, that each update goes.
        hyper_steps: Updates for one estimate of the curvature.
        extent_rate: Learning rate of extents and other hyperparameters, for Adam; it falls to zero along a cosine.
        extent_steps: Steps of Adam for one estimate of the curvature, each on other data.
        extent_share: Share of the data, drawn at random, that all those steps together use.
        symmetric_start: Whether training begins with every layer as symmetric as its paths allow, whatever weights and
            precisions there are (`begin_symmetric`), and paths that break a symmetry move slowly at first (`slow_share`).
        search: How the common scale of precisions is searched, by the full GGN; not at all when None.
        keep_best: Whether the weights and precisions of highest evidence are restored at the end, rather than those of the
            last epoch. Weights that are still moving are at no mode, and their evidence is not to be trusted; so not usually.
    """

    burn_in: float = 0.1
    cool_down: float = 0.1
    hyper_every: int = 1
    damping: float = 0.5
    hyper_steps: int = 1
    extent_rate: float = 0.2
    extent_steps: int = 1
    extent_share: float = 0.25
    symmetric_start: bool = False
    search: ScaleSearch | None = None
    keep_best: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.burn_in < 1 and 0 <= self.cool_down < 1 and self.burn_in + self.cool_down < 1):
            raise ValueError(
                "burn_in and cool_down must be shares of the epochs, at least 0 and together below 1; "
                f"got {self.burn_in} and {self.cool_down}."
            )
        if not 0 < self.damping <= 1:
            raise ValueError(f"damping must lie above 0 and be at most 1 (undamped); got {self.damping}.")
        if self.hyper_every < 1 or self.hyper_steps < 1 or self.extent_steps < 1:
            raise ValueError(
                "hyper_every, hyper_steps and extent_steps must be at least 1; "
                f"got {self.hyper_every}, {self.hyper_steps} and {self.extent_steps}."
            )
        if not self.extent_rate > 0 or not 0 < self.extent_share <= 1:
            raise ValueError(
                "extent_rate must be positive, and extent_share above 0 and at most 1; "
                f"got {self.extent_rate} and {self.extent_share}."
            )

    def moves_at(self, epoch: int, epochs: int) -> bool:
        first = max(1, round(self.burn_in * epochs))
        last = max(first, epochs - round(self.cool_down * epochs))
        return first <= epoch <= last and (epoch - first) % self.hyper_every == 0

    def usual_optimiser(self, problem: Problem) -> Optimiser:
        return PLAIN if self.keep_best else super().usual_optimiser(problem)

    def trainer(self, problem: Problem, schedule: Schedule, optimiser: Optimiser | None = None) -> "CurvatureTrainer":
        return LaplaceTrainer(self, problem, schedule, optimiser or self.usual_optimiser(problem))


class CurvatureTrainer(Trainer[CurvatureState]):
    """Weights by gradient under a prior that is kept; the evidence by Laplace's method at the end."""

    shares = True

    def __init__(self, objective: ByCurvature, problem: Problem, schedule: Schedule, optimiser: Optimiser) -> None:
        super().__init__(objective, problem, schedule, optimiser)
        self.objective, self.rule, self.final_rule = objective, objective.rule, objective.final_rule
        if (optimiser.running or optimiser.eigenbasis) and not isinstance(objective.rule, Kfac):
            raise ValueError(f"Eigenbases and running factors are by Kfac; got {objective.rule}. Use {PLAIN}.")
        if optimiser.running and (learned := hyperparameters(problem.model)):
            raise ValueError(
                "Running factors are for models without hyperparameters of their own, whose gradient goes through all the "
                f"data; this one has {len(learned)}. Use Optimiser(running=0)."
            )

    def check(self) -> float:
        return self.problem.check(self.schedule.batch_size, curvature=True)

    def init(self, generator: Generator) -> CurvatureState:
        problem = self.problem
        parameters = list(weights(problem.model).values())
        draws = torch.Generator(parameters[0].device)
        state = CurvatureState(problem, generator, self.optimiser.over(parameters), HyperAdam(problem.model), draws)
        if self.optimiser.eigenbasis:
            state.descent.refuse_eigenbasis()
        if self.optimiser.running:
            assert isinstance(self.rule, Kfac)
            draws.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            own = (problem.model, problem.likelihood, self.rule, self.optimiser.memory, draws, problem.data.processes)
            state.running = RunningCurvature(*own)
        state.steps = self.steps(state)
        return state

    def steps(self, state: CurvatureState) -> Steps:
        """What takes the steps of an epoch."""
        callback = None if state.running is None else Callback(state.running.add, self.optimiser.running)
        given = (self.problem.data, self.schedule.batch_size, partial(self.step, state), callback)
        return steps_for(*given, lambda: state.descent.settled, [state.draws], self.problem.model)

    def epoch(self, state: CurvatureState) -> Record:
        started = time.perf_counter()
        epoch, epochs = state.epoch + 1, self.schedule.epochs
        state.rate_share, state.curvature = self.rate_share(state, epoch), None
        loss = self.move_weights(state)
        last, moves = self.ends(state), self.moves_at(epoch)
        rotates = self.optimiser.eigenbasis > 0 and epoch % self.optimiser.eigenbasis == 0 and not last
        evidence: EvidenceRecord | None = None
        extents: dict[str, float] | None = None
        if moves or rotates or last:
            curvature = self.curvature(state, last=last)
            if rotates:
                self.rotate(state, curvature)
            if moves or last:
                evidence, extents = self.settle(state, curvature, moves=moves, last=last)
        state.epoch = epoch
        state.seconds += time.perf_counter() - started
        shown = extents if extents is not None else all_extents(self.problem.model)
        rate = self.schedule.learning_rate * state.rate_share
        decision = None if state.search is None else state.search.take_decision()
        return Record(epoch, epochs, state.seconds, rate, loss, shown, evidence, decision=decision)

    def rate_share(self, state: CurvatureState, epoch: int) -> float:
        """The share of every learning rate in an epoch, counted from 1."""
        return self.schedule.rate_share(epoch)

    def ends(self, state: CurvatureState) -> bool:
        """Whether the epoch is the last, now that its steps are done."""
        return state.epoch + 1 == self.schedule.epochs

    def settle(
        self, state: CurvatureState, curvature: Curvature, *, moves: bool, last: bool
    ) -> tuple[EvidenceRecord, dict[str, float]]:
        """The evidence after a hyper-step, if there is one, and the extents that it is of; at the end, of what is kept."""
        problem = self.problem
        with torch.no_grad():
            curvature = self.hyper_step(state, curvature) if moves else curvature
            if last and state.best is None and self.final_rule is not None:
                curvature = self._pass(state, self.final_rule)  # of the other, nobody would see the evidence
            evidence = evidence_at(curvature, problem.model, problem.prior, problem.data.size)
        if not evidence.total.isfinite():
            raise NotFiniteError(f"The log evidence must be finite, got {evidence}. Check the scale of inputs and precisions.")
        found = problem.described(evidence)
        if state.best is not None:
            state.best.offer(evidence, state.epoch + 1, state.before)
        if last:
            state.curvature = curvature
            return found if state.best is None else self._restore(state, state.best), all_extents(problem.model)
        # Before extents move: it is the evidence of those that there were.
        extents = all_extents(problem.model)
        if moves:
            self.move_extents(state, curvature)
        return found, extents

    def _restore(self, state: CurvatureState, best: Best) -> EvidenceRecord:
        """Go back to the best state; its evidence, under the final rule if there is one."""
        problem, found = self.problem, best.restore()
        if best.epoch != state.epoch + 1:
            state.before, state.curvature = best.before, None
        if self.final_rule is None:
            return found
        with torch.no_grad():
            state.curvature = self._pass(state, self.final_rule)
            return problem.described(evidence_at(state.curvature, problem.model, problem.prior, problem.data.size))

    @torch.no_grad()
    def conclude(self, state: CurvatureState) -> EvidenceRecord:
        if state.search is not None and state.search.kept and not state.search.is_over:
            state.search.give_up()
        return self.settle(state, self._pass(state, self.rule), moves=False, last=True)[0]

    def finish(self, state: CurvatureState) -> Callable[[], Posterior]:
        problem = self.problem
        if state.curvature is None:
            state.curvature = self._pass_again(state)
        # As they are now: the model may be trained on before the posterior is asked for.
        mean = {name: parameter.detach().clone() for name, parameter in weights(problem.model).items()}
        precisions = {name: precision.detach().clone() for name, precision in problem.prior.precisions().items()}
        find = partial(posterior_at, state.curvature, mean, precisions)
        return partial(tempered_posterior, find, copied(problem.model), deepcopy(problem.likelihood), problem.data, precisions)

    def moves_at(self, epoch: int) -> bool:
        """Whether a hyper-step follows an epoch, counted from 1."""
        return self.objective.moves_at(epoch, self.schedule.epochs)

    def hyper_step(self, state: CurvatureState, curvature: Curvature) -> Curvature:
        """Move precisions and noise under this curvature; the curvature then."""
        return curvature

    def move_extents(self, state: CurvatureState, curvature: Curvature) -> None:
        """Move extents and other hyperparameters by gradients through this curvature."""

    def move_weights(self, state: CurvatureState) -> float:
        """One pass over the data; the mean loss, fetched from the device once.

        Raises:
            NotFiniteError: If it is not finite.
        """
        problem, rate = self.problem, self.schedule.learning_rate * state.rate_share
        with torch.no_grad():
            precisions = problem.prior.precisions()
            penalties = torch.stack([precisions[name].double() for name in weights(problem.model)]) / problem.data.size
            state.descent.set(rate, penalties)
        problem.model.train()
        mean = float(state.steps.epoch(state.generator)) / problem.data.size
        if mean != mean or mean in (float("inf"), float("-inf")):
            raise NotFiniteError(
                f"The loss must be finite, got {mean} per datum with a learning rate of {rate:.3g}. Use a smaller learning "
                "rate, or check the scale of inputs and targets."
            )
        return mean

    def curvature(self, state: CurvatureState, *, last: bool = False) -> Curvature:
        """At the weights there are: by running factors; at the end, and where data are few, by a pass over all of them."""
        if state.running is not None and state.running.is_known and not last:
            return state.running.curvature(self.problem.data.size)
        with torch.no_grad():
            return self._pass(state, self.rule)

    def _pass(self, state: CurvatureState, rule: Rule) -> Curvature:
        state.before = state.random_state()
        return rule.curvature(self.problem.model, self.problem.data, self.problem.likelihood, generator=state.generator)

    @torch.no_grad()
    def _pass_again(self, state: CurvatureState) -> Curvature:
        """What the last pass gave, with the same draws."""
        now = state.random_state()
        state.load_random_state(state.before)
        try:
            return self._pass(state, self.final_rule or self.rule)
        finally:
            state.load_random_state(now)

    @torch.no_grad()
    def rotate(self, state: CurvatureState, curvature: Curvature) -> None:
        """Move weights in the eigenbasis of this curvature from now on; where it is negligible, as before."""
        assert isinstance(curvature, BlockCurvature)
        now, named = self.problem.prior.precisions(), weights(self.problem.model)
        stay = decompose_under(curvature.blocks, now, vectors=True, up_to=LARGEST, processes=self.processes)
        found = [None if name in stay else rotation(curvature.blocks[name], named[name].numel()) for name in named]
        if any(old is None and new is not None for old, new in zip(state.descent.rotations, found, strict=True)):
            state.steps.forget()
        state.descent.rotate(found)

    def step(self, state: CurvatureState, batch: Batch) -> Tensor:
        """One step on a batch; the loss of what this process has of it, summed over data."""
        inputs, targets = batch
        with tensor_cores(inputs.device):
            with self._autocast(inputs.device):
                outputs = self.problem.model(inputs)
                check_outputs(outputs, len(inputs))
                loss = -self.problem.likelihood.log_prob(outputs, targets).sum()
            gradients = self.problem.data.processes.mean_gradients(loss, len(inputs), state.descent.parameters)
        state.descent.step(gradients)
        return loss.detach()

    def _autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        precision = self.problem.precision
        # Without a cache, which would keep weights from before a step where steps are captured.
        return nullcontext() if precision is None else torch.autocast(device.type, precision, cache_enabled=False)


class AugerinoTrainer(CurvatureTrainer):
    """The training loss in weights and extents, less a reward."""

    objective: Augerino

    def steps(self, state: CurvatureState) -> Steps:
        if not state.hyper.parameters:
            return super().steps(state)
        return Steps(self.problem.data, self.schedule.batch_size, partial(self._step_with_extents, state))

    def _step_with_extents(self, state: CurvatureState, batch: Batch) -> Tensor:
        inputs, targets = batch
        loss = -self.problem.likelihood.log_prob(self.problem.model(inputs), targets).sum()
        reward = self.objective.strength * torch.cat([loss.new_zeros(0), *(e.value for e in state.hyper.extents)]).norm()
        own, count = [*state.descent.parameters, *state.hyper.parameters], len(state.descent.parameters)
        found = self.problem.data.processes.mean_gradients(loss - len(inputs) * reward, len(inputs), own)
        state.hyper.set(self.objective.extent_rate * state.rate_share)
        state.hyper.step(found[count:])
        state.descent.step(found[:count])
        return loss.detach()


class LaplaceTrainer(CurvatureTrainer):
    """The evidence: hyper-steps after some epochs."""

    objective: Laplace

    def __init__(self, objective: Laplace, problem: Problem, schedule: Schedule, optimiser: Optimiser) -> None:
        super().__init__(objective, problem, schedule, optimiser)
        problem.likelihood.check_noise()
        problem.prior.check(problem.model)
        search = objective.search
        #: Epochs before the scale of precisions is searched: all, where it is not; and those of a try.
        self.main, self.of_try = schedule.epochs, 0
        if search is not None and scaled_groups(problem.prior, problem).any():
            self.of_try = search.epochs_of_try(schedule.epochs, ceil(problem.data.size / schedule.batch_size))
            self.main = search.epochs_before(schedule.epochs)
        if search is not None and not objective.rule.in_blocks:
            raise ValueError(
                f"A search needs curvature in blocks, near which the full GGN is sought; {objective.rule} gives none. Use "
                "Kfac() as rule, or search=None."
            )
        if objective.keep_best and self.of_try:
            raise ValueError("keep_best keeps a state of hyper-steps, and a search goes on from the last; use one of them.")
        if objective.keep_best and optimiser.running:
            raise ValueError(
                "keep_best compares evidences from passes over all the data; those of running factors are of weights that "
                "have moved on. Use Optimiser(running=0, eigenbasis=0), or keep_best=False."
            )

    def init(self, generator: Generator) -> CurvatureState:
        refuse_still(self.problem.model)
        if self.objective.symmetric_start:
            begin_symmetric(self.problem.model, self.problem.prior, self.problem.examples(_SOME), generator)
        state = super().init(generator)
        if self.objective.symmetric_start:
            state.descent.slow = breaking_weights(self.problem.model)
        state.best = Best(self.problem) if self.objective.keep_best else None
        if self.objective.search is not None and self.of_try:
            moved: dict[str, Part | None] = {"descent": state.descent, "running": state.running, "steps": state.steps}
            state.search = Search(
                self.objective.search, self.problem, {name: part for name, part in moved.items() if part is not None}
            )
        return state

    def is_done(self, state: CurvatureState) -> bool:
        return super().is_done(state) or (state.search is not None and state.search.is_over)

    def moves_at(self, epoch: int) -> bool:
        # In the epoch after which a search begins, precisions are what it scales.
        last = self.main - 1 if self.of_try else self.main
        return epoch <= last and self.objective.moves_at(epoch, self.main)

    def rate_share(self, state: CurvatureState, epoch: int) -> float:
        search = state.search
        if epoch <= self.main or search is None:
            return replace(self.schedule, epochs=self.main).rate_share(epoch)
        if search.is_done:
            return search.settings.rate_share(epoch - search.ended, self.schedule.epochs - search.ended)
        return search.settings.rate_share((epoch - self.main - 1) % self.of_try + 1, self.of_try)

    def ends(self, state: CurvatureState) -> bool:
        search, epoch, last, blocks = state.search, state.epoch + 1, super().ends(state), partial(self._blocks, state)
        if search is None or search.is_over:  # it was given up
            return last or search is not None
        if epoch == self.main:
            seed, found = int(torch.randint(2**62, (), generator=state.generator)), blocks()
            search.begin(search.settings.evidence(self.problem, found, seed), seed, breaking_gamma(self.problem, found))
            search.change(found)
        elif search.is_done and last and epoch > search.ended:
            search.finish(search.assess(blocks)[0])
        elif not search.is_done and epoch > self.main and (epoch - self.main) % self.of_try == 0:
            evidence, found = search.assess(blocks)
            is_kept = search.judge(evidence, epoch, has_room=epoch + self.of_try <= self.schedule.epochs)
            if not search.is_done:
                search.change(found if is_kept else blocks())
        return last

    def _blocks(self, state: CurvatureState) -> Mapping[str, Block]:
        curvature = self.curvature(state)
        assert isinstance(curvature, BlockCurvature)  # as the rule says
        return curvature.blocks

    def move_weights(self, state: CurvatureState) -> float:
        state.descent.share = slow_share(state.epoch + 1, self.main)
        try:
            return super().move_weights(state)
        except NotFiniteError:
            if state.search is None or not state.search.kept:
                raise
            state.search.fail(state.epoch + 1)
            return self._loss()

    @torch.no_grad()
    def _loss(self) -> float:
        """Per datum, at the weights there are."""
        problem, total = self.problem, 0.0
        with evaluating(problem.model):
            for inputs, targets in problem.data.batches(self.schedule.batch_size):
                total -= float(problem.likelihood.log_prob(problem.model(inputs), targets).sum())
        return total / problem.data.size

    def hyper_step(self, state: CurvatureState, curvature: Curvature) -> Curvature:
        problem, settings = self.problem, self.objective
        squares = state.running.squares() if state.running is not None and state.running.is_known else None
        if isinstance(curvature, BlockCurvature):
            decompose_under(curvature.blocks, problem.prior.precisions(), processes=self.processes)
        for _ in range(settings.hyper_steps):
            update_precisions(curvature, problem.model, problem.prior, settings.damping, squares)
        is_another = update_noise(curvature, problem, self.schedule.batch_size, settings.damping)
        return self._pass(state, self.rule) if is_another else curvature

    def move_extents(self, state: CurvatureState, curvature: Curvature) -> None:
        own, rate = self.objective, self.objective.extent_rate * state.rate_share
        update_extents(curvature, self.problem, state.hyper, rate, own.extent_steps, own.extent_share, state.generator)
