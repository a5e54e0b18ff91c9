"""`sb.augmentations`: which transformations of inputs the data allow, each with its learned amount and its log-odds.

A candidate is asked for by comparing two networks: one that is averaged over it, and one that is not. Their log-odds are the
difference of their log evidences. The evidence of a network is that of a mode, so each of the two must be at its own: weights
that were trained without an average are at a mode of the plain network, and would speak for it. So

    1. a plain network is trained;
    2. from its weights and precisions every network that is compared goes on for the same number of epochs, with the same
       batches and the same steps, each with its own average, which is held: nothing else differs;
    3. all of them are judged by one estimator of the full GGN, under the same random vectors, so that errors of the estimate
       cancel in a difference. Its standard error is that of the difference, vector by vector.

How far weights still are from a mode is known, too: a Newton step would gain ½ gᵀ (H + Δ)⁻¹ g, where g is the gradient of the
log joint density. A verdict has to hold when the other network gains that much.

Discrete candidates (mirrors, quarter turns) are compared one by one with no average at all, so that generators which imply each
other (two mirrors and a half turn) do not hide behind each other: off (p = 0), with all powers alike, and with the probability
that is learned by the gradient of the evidence, where that lies between. Continuous ones (rotation, shift, scale) are learned
together, and each is judged by what the network loses without it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import exp, isnan, nan
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import cholesky
from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.ggn import FullCurvature, Ggn
from symbayes.curvature.kfac import Kfac, data_at_once
from symbayes.curvature.lanczos import LanczosCurvature, Preconditioned, PreconditionedCurvature
from symbayes.curvature.rule import Curvature, MonteCarloFisher, Rule
from symbayes.data.source import Data, DataSource, source_for
from symbayes.evidence.evidence import evidence_at
from symbayes.groups.discrete import DiscreteGenerator, mirror, quarter_turns, time_reversal
from symbayes.groups.lie import LieGroup, affine1d, affine2d, colours
from symbayes.invariance.augmentation import LearnedAugmentation
from symbayes.invariance.discrete_average import DiscreteAverage, Probabilities
from symbayes.invariance.extents import Extents, ExtentSummary
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.priors import TensorwisePrior
from symbayes.text import number, text_table
from symbayes.training.by_curvature import Laplace
from symbayes.training.fit import learn, preset
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem, Schedule

Verdict = Literal["yes", "no", "partly", "not decided"]
#: Log-odds of a verdict: 20 to 1.
DECIDED = 3.0
#: Up to so many weights the full GGN is computed, and not estimated.
_EXACT = 1500
#: A learned probability is between off and all powers alike within these shares of the largest.
_BETWEEN = (0.1, 0.9)
#: Extents below this (radians, half sides, logarithms of factors) are none.
_NONE = 0.02
#: Share of the epochs for which compared networks go on, and of the learning rate that they begin with.
_FOLLOW_UP, _RATE = 0.5, 0.5


@dataclass(frozen=True)
class Judged:
    """The evidence of a network at the weights it has.

    Args:
        evidence: log p(D) by the full GGN.
        log_dets: log|I + HΔ⁻¹| under each random vector; empty where it is exact.
        gap: What a Newton step to the mode would gain.
        estimator: In words.
    """

    evidence: float
    log_dets: Float[Tensor, " probe"]
    gap: float
    estimator: str


@dataclass(frozen=True)
class LogOdds:
    """log p(D | averaged) − log p(D | not), and how far it can be trusted.

    Args:
        value: In nats, for all the data together.
        standard_error: Of the estimate of the difference; 0 where it is exact, nan where it is not known.
        gap_with: What the averaged network would still gain at its mode.
        gap_without: What the other one would.
    """

    value: float
    standard_error: float
    gap_with: float
    gap_without: float

    @property
    def low(self) -> float:
        """Two standard errors below, and with the other network at its mode."""
        return self.value - 2 * self._noise - self.gap_without

    @property
    def high(self) -> float:
        """Two standard errors above, and with the averaged network at its mode."""
        return self.value + 2 * self._noise + self.gap_with

    @property
    def _noise(self) -> float:
        return 0.0 if isnan(self.standard_error) else self.standard_error


@dataclass(frozen=True)
class Candidate:
    """A transformation, and what the evidence says of it.

    Args:
        amount: The learned extent or probability, in the units of people.
        verdict: By the evidence.
        log_odds: Of the network that is averaged over it, against the one that is not; None where nothing was compared,
            because the learned extent is next to nothing.
        partly: Of a discrete one with the probability that was learned, against off; None where that is not between.
        compared: Which two networks, in words.
    """

    amount: ExtentSummary
    verdict: Verdict
    log_odds: LogOdds | None
    partly: LogOdds | None
    compared: str

    @property
    def name(self) -> str:
        """Of the generator or the extent."""
        return self.amount.name


@dataclass(frozen=True, repr=False)
class Augmentations:
    """Every candidate, and what they come to; prints as a table."""

    candidates: tuple[Candidate, ...]
    #: How evidences were estimated, in words.
    estimator: str
    num_data: int
    discrete: Probabilities
    extents: Extents | None

    def __getitem__(self, name: str) -> Candidate:
        found = {candidate.name: candidate for candidate in self.candidates}
        if name not in found:
            raise KeyError(f"There is no candidate {name!r}; there are {', '.join(found)}.")
        return found[name]

    def augmentation(self, seed: int | None = None) -> LearnedAugmentation:
        """The candidates with a yes, or a partly, as a transform for any pipeline; images, batches, `image=` arrays.

        Args:
            seed: Of its own generator; when None, torch's global one, as workers of loaders expect.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        extents = self.extents if self.extents is not None and bool(self.extents.value.detach().abs().max() > 0) else None
        return LearnedAugmentation(extents, generator, self.discrete if self.discrete.generators else None)

    def __str__(self) -> str:
        rows = [
            (c.name.replace("_", " "), c.verdict, _amount(c.amount), *_odds(c.log_odds), *_odds(c.partly)[:1], c.compared)
            for c in self.candidates
        ]
        headings = ("candidate", "verdict", "learned", "log-odds", "±", "gap", "partly", "compared")
        return f"{text_table(headings, rows, left=2)}\n{self.words()}"

    def words(self) -> str:
        """What came out, and what it rests on."""
        by = {verdict: [c.name.replace("_", " ") for c in self.candidates if c.verdict == verdict] for verdict in _SAID}
        said = [f"{_SAID[verdict]}: {', '.join(names)}." for verdict, names in by.items() if names]
        return " ".join(
            [
                *said,
                f"Log-odds in nats for all {number(self.num_data)} data, by {self.estimator}; beside them the standard error of "
                "the difference, and what either network would still gain at its mode.",
            ]
        )

    __repr__ = __str__


_SAID: dict[Verdict, str] = {
    "yes": "The evidence asks for",
    "partly": "In part for",
    "no": "Not for",
    "not decided": "Not decided",
}


def augmentations(
    model: nn.Module | Callable[[], nn.Module],
    data: Data,
    *,
    likelihood: Likelihood | None = None,
    candidates: Sequence[str | DiscreteGenerator] | None = None,
    epochs: int = 60,
    samples: int = 8,
    rule: Rule | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Augmentations:
    """Which augmentations the training data ask for, by the evidence, in one run.

    Args:
        model: A network for images [n, c, h, w], volumes [n, c, d, h, w] or sequences [n, c, t], which is copied and stays as
            it is; or a function that makes one.
        data: As `fit` takes them.
        likelihood: Of targets given outputs; `Categorical()` when None.
        candidates: Names, or discrete generators of your own; all that data of this shape have when None (`candidate_names`).
        epochs: For the first network; each that is compared goes on for half as many.
        samples: Transformations of each datum where continuous candidates are learned.
        rule: How evidences are compared; when None the exact GGN up to 1500 weights, and Lanczos with four vectors above.
        seed: For initial weights of a maker, the order of data and all that is drawn.
        progress: Whether to say on standard error what is done.

    Raises:
        ValueError: If data are of no shape that has candidates, or a candidate is not known.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = deepcopy(model) if isinstance(model, nn.Module) else model()
    source = source_for(net, data)
    shape = tuple(next(iter(source.batches(2)))[0].shape[1:])
    discrete, group = _chosen(shape, candidates)
    size = sum(weight.numel() for weight in weights(net).values())
    judge = rule or (Ggn() if size <= _EXACT else Preconditioned(Kfac(), 25, 4, 1, comparable=True))
    run = _Run(source, likelihood or Categorical(), epochs, judge, seed, _say if progress else lambda words: None)
    base = run.first(net)
    found = [run.discrete(base, generator) for generator in discrete]
    extents, rest = run.continuous(base, group, samples, shape) if group is not None else (None, [])
    return _put_together([*found, *rest], discrete, extents, run.estimator, source.size)


def candidate_names(shape: Sequence[int]) -> tuple[str, ...]:
    """The candidates that data of a shape [c, *grid] have: mirrors and turns, affine maps, changes of values.

    Raises:
        ValueError: If it is no shape of sequences, images or volumes.
    """
    discrete, group = _all(tuple(shape))
    return (*(generator.name for generator in discrete), *Extents(group).names)


def _all(shape: tuple[int, ...]) -> tuple[list[DiscreteGenerator], LieGroup]:
    dims = len(shape) - 1
    if dims not in (1, 2, 3):
        raise ValueError(
            "Inputs must be sequences [n, c, t], images [n, c, h, w] or volumes [n, c, d, h, w]; one of these has shape "
            f"{shape}. Reshape them, with an axis of channels."
        )
    of_values = colours(channels=shape[0])
    if dims == 1:
        return [time_reversal()], affine1d() * of_values
    mirrors = [mirror(axis, dims) for axis in ("x", "y", "z")[:dims]]
    turns = [quarter_turns(dims)] if shape[-1] == shape[-2] else []
    if dims == 3:
        return [*mirrors, *turns], of_values
    return [*mirrors, *turns], affine2d().shared("translation").shared("scale") * of_values


def _chosen(
    shape: tuple[int, ...], candidates: Sequence[str | DiscreteGenerator] | None
) -> tuple[list[DiscreteGenerator], LieGroup | None]:
    discrete, group = _all(shape)
    if candidates is None:
        return discrete, group
    known = candidate_names(shape)
    unknown = [name for name in candidates if isinstance(name, str) and name not in known]
    if unknown or not candidates:
        raise ValueError(
            f"Candidates for data of shape {shape} must be some of {', '.join(known)}, or discrete generators of your own; got "
            f"{', '.join(unknown) or 'none'}."
        )
    own = [one for one in candidates if isinstance(one, DiscreteGenerator)]
    wanted = [generator.name for generator in group.generators if generator.extent in candidates]
    return [*(g for g in discrete if g.name in candidates), *own], _only(group, wanted) if wanted else None


def _only(group: LieGroup, names: Sequence[str]) -> LieGroup:
    """Some generators of a group, or of one factor of it alone."""
    for part in (getattr(group, "first", None), getattr(group, "second", None)):
        if isinstance(part, LieGroup) and set(names) <= set(part.names):
            return part.only(*names)
    return group.only(*names)


@dataclass
class _Run:
    """Everything that the trainings of one call have in common."""

    source: DataSource
    likelihood: Likelihood
    epochs: int
    judge: Rule
    seed: int
    say: Callable[[str], None]
    estimator: str = ""
    off: Judged | None = None

    @property
    def follow_up(self) -> int:
        """Epochs for which every network that is compared goes on."""
        return max(1, round(_FOLLOW_UP * self.epochs))

    def first(self, net: nn.Module) -> Problem:
        """A plain network, trained by the evidence."""
        self.say("a network without any average")
        problem = self._problem(DiscreteAverage(net, ()), None)
        usual = preset(problem, Laplace(), self.epochs)
        self._learn(problem, Laplace(), usual.schedule, plain=False)
        return problem

    def discrete(self, base: Problem, generator: DiscreteGenerator) -> Candidate:
        """A discrete candidate: off, with all powers alike, and with the probability that is learned."""
        name = generator.name
        if self.off is None:
            self.off = self.follow(base, ())
        on = self.follow(base, [generator], 1.0)
        self.say(f"how probable {name.replace('_', ' ')} should be")
        learned = self._problem(DiscreteAverage(deepcopy(_net(base)), [generator]), base)
        self._learn(learned, self._hyper(), self._schedule(), plain=True)
        probabilities = cast(DiscreteAverage, learned.model).discrete
        share = float(probabilities.value.detach() / probabilities.largest())
        odds = log_odds(on, self.off)
        partly, against_on = None, None
        if _BETWEEN[0] < share < _BETWEEN[1]:
            between = self.follow(base, [generator], share)
            partly, against_on = log_odds(between, self.off), log_odds(between, on)
        verdict = _verdict(odds, partly, against_on)
        words = f"averaged over {name.replace('_', ' ')}, or over nothing"
        return Candidate(probabilities.described()[0], verdict, odds, partly, words)

    def continuous(
        self, base: Problem, group: LieGroup, samples: int, shape: tuple[int, ...]
    ) -> tuple[Extents, list[Candidate]]:
        """All continuous candidates, learned together; each judged by what the network loses without it."""
        self.say(f"how far: {', '.join(Extents(group).names)}")
        model = DiscreteAverage(OrbitAverage(deepcopy(_net(base)), group, samples, seed=self.seed), ())
        learned = self._problem(model, base)
        schedule = replace(self._schedule(), epochs=self.epochs)
        self._learn(learned, self._hyper(), schedule, plain=True)
        extents = cast(OrbitAverage, model.net).orbit
        extents.requires_grad_(False)
        values = extents.value.detach().clone()
        some = values.abs() >= _NONE
        values = values * some
        with_all = self._with_extents(base, group, samples, values, "all extents that were learned") if some.any() else None
        found = []
        for index, summary in enumerate(extents.described()):
            summary = replace(summary, learned=True)
            if with_all is None or not some[index]:
                found.append(Candidate(summary, "no", None, None, "nothing: it was learned to be next to nothing"))
                continue
            without = values.clone()
            without[index] = 0
            other = self._with_extents(base, group, samples, without, f"all but {summary.name}")
            odds = log_odds(with_all, other)
            words = f"averaged over all that was learned, or over all but {summary.name.replace('_', ' ')}"
            found.append(Candidate(summary, _verdict(odds, None, None), odds, None, words))
        return extents, found

    def follow(self, base: Problem, generators: Sequence[DiscreteGenerator], share: float = 0.0) -> Judged:
        """A network that goes on from the first with a discrete average that is held, and its evidence then."""
        model = DiscreteAverage(deepcopy(_net(base)), generators)
        model.discrete.fix({generator.name: share for generator in generators})
        names = ", ".join(generator.name.replace("_", " ") for generator in generators) or "nothing"
        return self._go_on(model, base, f"averaged over {names}")

    def _with_extents(self, base: Problem, group: LieGroup, samples: int, values: Tensor, words: str) -> Judged:
        # Without draws: so its weights come to a mode of the very function that is judged.
        average = OrbitAverage(deepcopy(_net(base)), group, samples, stochastic=False)
        with torch.no_grad():
            average.orbit.value.copy_(values)
        average.orbit.requires_grad_(False)
        return self._go_on(DiscreteAverage(average, ()), base, f"averaged over {words}")

    def _go_on(self, model: nn.Module, base: Problem, words: str) -> Judged:
        self.say(words)
        problem = self._problem(model, base)
        self._learn(problem, Laplace(burn_in=0.0, cool_down=0.3), self._schedule(), plain=False)
        judged = judge(problem, self.judge, self.seed)
        self.estimator = judged.estimator
        return judged

    def _problem(self, model: nn.Module, base: Problem | None) -> Problem:
        """With the precisions and the noise that the first network ended with."""
        prior = TensorwisePrior(model).to(next(model.parameters()).device)
        likelihood = deepcopy(self.likelihood if base is None else base.likelihood).to(next(model.parameters()).device)
        if base is not None:
            prior.load_state_dict({**prior.state_dict(), "log_precision": base.prior.log_precision.detach().clone()})
        return Problem(model, self.source, likelihood, prior)

    def _learn(self, problem: Problem, objective: Laplace, schedule: Schedule, *, plain: bool) -> None:
        optimiser = PLAIN if plain else objective.usual_optimiser(problem)
        learn(objective.trainer(problem, schedule, optimiser), generator=torch.Generator().manual_seed(self.seed))

    def _hyper(self) -> Laplace:
        return Laplace(Kfac(MonteCarloFisher()), burn_in=0.1, cool_down=0.2, extent_steps=2, extent_share=0.5)

    def _schedule(self) -> Schedule:
        """Of every network that goes on."""
        batch_size = max(16, min(250, self.source.size // 16))
        usual = Schedule(self.follow_up, batch_size)
        return replace(usual, learning_rate=_RATE * usual.learning_rate)


def _net(base: Problem) -> nn.Module:
    return cast(DiscreteAverage, base.model).net


def judge(problem: Problem, rule: Rule, seed: int) -> Judged:
    """The evidence of a network as it is, by random vectors that are the same for one seed, and how far it is from a mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        curvature = rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)
        evidence = evidence_at(curvature, problem.model, problem.prior, problem.data.size)
        precisions = problem.prior.precisions()
        log_dets = curvature.log_dets(precisions) if isinstance(curvature, LanczosCurvature) else torch.zeros(0)
    gap = _gap(problem, curvature)
    return Judged(float(evidence.total), log_dets.double().cpu(), gap, evidence.estimator)


def _gap(problem: Problem, curvature: Curvature) -> float:
    """½ gᵀ (H + Δ)⁻¹ g, with g the gradient of the log joint density; nan where the curvature cannot be solved with."""
    named, precisions = weights(problem.model), problem.prior.precisions()
    totals = {name: -precisions[name].detach() * weight.detach() for name, weight in named.items()}
    with evaluating(problem.model):
        for inputs, targets in problem.data.batches(data_at_once(problem.model, problem.data)):
            log_likelihood = problem.likelihood.log_prob(problem.model(inputs), targets).sum()
            for name, gradient in zip(named, torch.autograd.grad(log_likelihood, list(named.values())), strict=True):
                totals[name] = totals[name] + gradient.to_dense()
    g = torch.cat([total.flatten() for total in totals.values()]).detach()
    with torch.no_grad():
        if isinstance(curvature, FullCurvature):
            delta = torch.cat([precisions[name].double().expand(weight.numel()) for name, weight in named.items()])
            factor = cholesky(curvature.H.double() + torch.diag(delta))
            return float(g.double() @ torch.cholesky_solve(g.double()[:, None], factor)[:, 0]) / 2
        if isinstance(curvature, PreconditionedCurvature):
            return float(g.double() @ curvature.solve(g, precisions).double()) / 2
    return nan


def log_odds(averaged: Judged, other: Judged) -> LogOdds:
    """Of two networks that were judged with the same random vectors."""
    count = len(averaged.log_dets)
    differences = (other.log_dets - averaged.log_dets) / 2
    error = 0.0 if not count else float(differences.std() / count**0.5) if count > 1 else nan
    return LogOdds(averaged.evidence - other.evidence, error, averaged.gap, other.gap)


def _verdict(odds: LogOdds, partly: LogOdds | None, against_all: LogOdds | None) -> Verdict:
    if partly is not None and against_all is not None and partly.low > DECIDED and against_all.low > DECIDED:
        return "partly"
    if odds.low > DECIDED:
        return "yes"
    return "no" if odds.high < -DECIDED else "not decided"


def _put_together(
    found: Sequence[Candidate], generators: Sequence[DiscreteGenerator], extents: Extents | None, estimator: str, size: int
) -> Augmentations:
    verdicts: Mapping[str, Candidate] = {candidate.name: candidate for candidate in found}
    kept = [generator for generator in generators if verdicts[generator.name].verdict in ("yes", "partly")]
    discrete = Probabilities(kept)
    shares = {}
    for generator in kept:
        amount = verdicts[generator.name].amount
        shares[generator.name] = 1.0 if verdicts[generator.name].verdict == "yes" else amount.value / cast(float, amount.bound)
    discrete.fix(shares)
    if extents is not None:
        keep = torch.tensor([verdicts[name].verdict == "yes" for name in extents.names])
        with torch.no_grad():
            extents.value.mul_(keep.to(extents.value))
    return Augmentations(tuple(found), estimator, size, discrete, extents)


def _amount(amount: ExtentSummary) -> str:
    sign = "" if amount.one_sided else "±"
    return f"{sign}{amount.value:.3g} {amount.unit}".rstrip()


def _odds(odds: LogOdds | None) -> tuple[str, str, str]:
    if odds is None:
        return "–", "–", "–"
    error = "–" if isnan(odds.standard_error) else number(odds.standard_error, 1)
    return number(odds.value, 1), error, f"{number(odds.gap_with, 1)}, {number(odds.gap_without, 1)}"


def _say(words: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"augmentations: {words}", highlight=False)
