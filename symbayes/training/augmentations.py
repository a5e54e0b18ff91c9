"""`sb.augmentations`: which transformations of inputs the data allow, each with its learned amount and its log-odds.

A candidate is asked for by comparing networks that are averaged over it with networks that are not. Its log-odds are the
difference of their log evidences. The evidence of a network is that of a mode, so each must be at its own: weights that were
trained without an average are at a mode of the plain network, and would speak for it. So

    1. a plain network is trained;
    2. from its weights and precisions every network that is compared goes on for the same number of epochs, with the same
       batches and the same steps, each with its own average, which is held: nothing else differs;
    3. each is brought to its own mode by all the data at once, with the precisions that are best there (MacKay's fixed point
       under the full GGN), and its evidence is taken by the same estimator, with the same random vectors, so that errors of the
       estimate cancel in a difference.

What is left of the way to a mode is known: a Newton step would gain ½ gᵀ (H + Δ)⁻¹ g, where g is the gradient of the log joint
density. A verdict has to hold when the other network gains that much. Networks have many modes, whose evidences differ by some
nats; so everything is repeated from several starts, and the standard error of log-odds is over these.

Discrete candidates (mirrors, quarter turns) depend on each other: two mirrors may pay where one alone does not, and with
quarter turns one mirror implies the other. So there is a network for each group that some of them generate. The odds of a
candidate are those of groups that contain it against groups that do not, with the same prior for all of either kind:

    log-odds = log mean_{G ∋ g} p(D | G) − log mean_{G ∌ g} p(D | G)

Besides, probabilities between off and all powers alike are learned by the gradient of the evidence; where the network that has
them beats every group, candidates are taken in part. Continuous ones (rotation, shift, scale) are learned together, and each is
judged by what the network loses without it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import log, sqrt
from statistics import fmean, stdev
from typing import Literal, cast

import torch
from torch import Tensor, nn

from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Preconditioned
from symbayes.curvature.rule import MonteCarloFisher, Rule
from symbayes.data.source import Data, DataSource, source_for
from symbayes.groups.discrete import DiscreteGenerator, Rearrangement, elements_of, mirror, quarter_turns, time_reversal
from symbayes.groups.lie import LieGroup, affine1d, affine2d, colours
from symbayes.invariance.augmentation import LearnedAugmentation
from symbayes.invariance.discrete_average import DiscreteAverage, Probabilities
from symbayes.invariance.extents import Extents, ExtentSummary
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import hyperparameters, weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.priors import TensorwisePrior
from symbayes.text import listed, number, text_table
from symbayes.training.by_curvature import Laplace
from symbayes.training.deterministic import seeded
from symbayes.training.fit import learn, preset
from symbayes.training.modes import Judged, LogOdds, judge, log_odds
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem, Schedule

Verdict = Literal["yes", "no", "partly", "not decided"]
#: Log-odds of a verdict: 20 to 1.
DECIDED = 3.0
#: Up to so many weights the full GGN is computed, and not estimated.
_EXACT = 1500
#: A learned probability is between off and all powers alike within these shares of the largest.
_BETWEEN = (0.1, 0.9)
#: Networks that are trained for discrete candidates, at most.
_MOST_GROUPS = 16
#: Extents below this (radians, half sides, logarithms of factors) are none.
_NONE = 0.02
#: Share of the epochs for which compared networks go on, and of the learning rate that they begin with.
_FOLLOW_UP, _RATE = 0.5, 0.5
#: Steps of a round on the way to a mode, where data are few; where there are more than so many; and how many are few.
_STEPS, _FEWER, _FEW = 250, 20, 2000


@dataclass(frozen=True)
class Candidate:
    """A transformation, and what the evidence says of it.

    Args:
        amount: The learned extent or probability, in the units of people.
        verdict: By the evidence.
        log_odds: Of networks that are averaged over it, against those that are not; None where nothing was compared, because
            the learned extent is next to nothing.
        compared: Which two networks matter most, in words.
    """

    amount: ExtentSummary
    verdict: Verdict
    log_odds: LogOdds | None
    compared: str

    @property
    def name(self) -> str:
        """Of the generator or the extent."""
        return self.amount.name

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be part of an augmentation."""
        return self.verdict in ("yes", "partly")


@dataclass(frozen=True, repr=False)
class Augmentations:
    """Every candidate, and what they come to; prints as a table."""

    candidates: tuple[Candidate, ...]
    #: How evidences were estimated, in words.
    estimator: str
    num_data: int
    discrete: Probabilities
    extents: Extents | None
    #: Of the network with the probabilities that were learned against the best group; None where none is in between.
    partly: LogOdds | None = None

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
        rows = [(_words(c.name), c.verdict, _amount(c.amount), *_odds(c.log_odds), c.compared) for c in self.candidates]
        headings = ("candidate", "verdict", "learned", "log-odds", "±", "gaps", "compared")
        return f"{text_table(headings, rows, left=2)}\n{self.words()}"

    def words(self) -> str:
        """What came out, and what it rests on."""
        by = {verdict: [_words(c.name) for c in self.candidates if c.verdict == verdict] for verdict in _SAID}
        said = [f"{_SAID[verdict]} {listed(names)}." for verdict, names in by.items() if names]
        if self.partly is not None:
            value, error, _ = _odds(self.partly)
            said.append(f"With the probabilities that were learned, against the best group: log-odds {value} ± {error}.")
        starts = max((c.log_odds.starts for c in self.candidates if c.log_odds is not None), default=0)
        if starts:
            over = f"over {starts} starts" if starts > 1 else "of one start, so that it does not show how much starts matter"
            said.append(
                f"Log-odds are in nats for all {number(self.num_data)} data, by {self.estimator}; beside them their standard "
                f"error, {over}, and what the network with and that without would still gain at their modes."
            )
        return " ".join(said)

    __repr__ = __str__


_SAID: dict[Verdict, str] = {
    "yes": "The evidence asks for",
    "partly": "In part, it asks for",
    "no": "It does not ask for",
    "not decided": "It does not decide on",
}


def augmentations(
    model: nn.Module | Callable[[], nn.Module],
    data: Data,
    *,
    likelihood: Likelihood | None = None,
    candidates: Sequence[str | DiscreteGenerator] | None = None,
    epochs: int = 60,
    samples: int = 8,
    repeats: int = 2,
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
        repeats: Starts from which everything is compared; of a maker they are different networks, of a model other orders of
            the data.
        rule: How evidences are compared, by `Ggn()` or `Preconditioned(...)`; when None the exact GGN up to 1500 weights, and
            Lanczos with four vectors above.
        seed: For initial weights of a maker, the order of data and all that is drawn.
        progress: Whether to say on standard error what is done.

    Raises:
        ValueError: If a candidate is not known or does not act on data, targets are at positions, or numbers make no sense.
        TypeError: If a candidate is neither a name nor a discrete generator.
    """
    if epochs < 2 or repeats < 1 or samples < 2:
        raise ValueError(
            f"epochs and samples must be at least 2 and repeats at least 1; got {epochs}, {samples} and {repeats}."
        )
    if likelihood is not None and likelihood.has_positions:
        raise ValueError(
            f"Networks are averaged so that outputs stay when inputs move; targets at positions ({type(likelihood).__name__}) "
            "would have to move with them, so that every answer would be no. Ask with a target for each datum."
        )
    nets = [_made(model, seed + start) for start in range(repeats)]
    with seeded(seed, nets[0]):
        source = source_for(nets[0], data)
        shape = tuple(next(iter(source.batches(2)))[0].shape[1:])
        discrete, group = _chosen(shape, candidates)
        size = sum(weight.numel() for weight in weights(nets[0]).values())
        judged_by = rule or (Ggn() if size <= _EXACT else Preconditioned(Kfac(), 25, 4, 1, comparable=True))
        if not isinstance(judged_by, Ggn | Preconditioned) or judged_by.in_blocks:
            raise ValueError(f"Evidences must be compared by the full GGN, Ggn() or Preconditioned(...); got {judged_by}.")
        run = _Run(source, likelihood or Categorical(), epochs, judged_by, seed, _say if progress else lambda words: None)
        run.first(nets)
        found, partly = run.discrete(discrete) if discrete else ([], None)
        extents, rest = run.continuous(group, samples) if group is not None else (None, [])
    shares = {c.name: 1.0 if c.verdict == "yes" else c.amount.value / cast(float, c.amount.bound) for c in found if c.is_wanted}
    probabilities = Probabilities([generator for generator in discrete if generator.name in shares])
    probabilities.fix(shares)
    if extents is not None:
        with torch.no_grad():
            extents.value.mul_(torch.tensor([c.is_wanted for c in rest]).to(extents.value))
    return Augmentations((*found, *rest), run.estimator, source.size, probabilities, extents, partly)


def _made(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model()


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
    wrong = next((one for one in candidates if not isinstance(one, str | DiscreteGenerator)), None)
    if wrong is not None or isinstance(candidates, str):
        raise TypeError(
            "Candidates must be a list of names, or of discrete generators such as sb.groups.mirror('x'); got "
            f"{type(candidates if wrong is None else wrong).__name__}. Names are {', '.join(known)}."
        )
    unknown = [name for name in candidates if isinstance(name, str) and name not in known]
    if unknown or not candidates:
        raise ValueError(
            f"Candidates for data of shape {shape} must be some of {', '.join(known)}, or discrete generators of your own; got "
            f"{', '.join(unknown) or 'none'}."
        )
    chosen = [*(g for g in discrete if g.name in candidates), *(g for g in candidates if isinstance(g, DiscreteGenerator))]
    for generator in chain.from_iterable(groups_of(chosen).values()):  # refused now, and not after training
        generator.step.act(torch.empty(1, *shape))
    wanted = [generator.name for generator in group.generators if generator.extent in candidates]
    return chosen, _only(group, wanted) if wanted else None


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
    rule: Rule
    seed: int
    say: Callable[[str], None]
    #: Networks without any average, from which all others go on.
    bases: Sequence[Problem] = ()
    estimator: str = ""

    def first(self, nets: Sequence[nn.Module]) -> None:
        """Networks without any average, trained by the evidence."""
        self.say("networks without any average")
        self.bases = [self._problem(DiscreteAverage(net, ()), None) for net in nets]
        for start, base in enumerate(self.bases):
            schedule = preset(base, Laplace(), self.epochs).schedule
            if not start:
                base.check(schedule.batch_size)
            self._learn(base, Laplace(), schedule, start)

    def discrete(self, generators: Sequence[DiscreteGenerator]) -> tuple[list[Candidate], LogOdds | None]:
        """All discrete candidates: every group that some of them generate, and the probabilities that are learned."""
        judged = {group: self._averaged(Probabilities(some, 1.0)) for group, some in groups_of(generators).items()}
        self.say(f"how probable: {', '.join(generator.name for generator in generators)}")
        learned = self._problem(DiscreteAverage(deepcopy(_net(self.bases[0])), generators), self.bases[0])
        self._learn(learned, self._hyper(), self._schedule(), 0)
        probabilities = cast(DiscreteAverage, learned.model).discrete
        shares = (probabilities.value.detach() / probabilities.largest().to(probabilities.value)).tolist()
        between = [_BETWEEN[0] < share < _BETWEEN[1] for share in shares]
        best = max(judged.values(), key=_mean_evidence)
        partly = log_odds(self._averaged(probabilities), best) if any(between) else None
        found = []
        for generator, amount, is_between in zip(generators, probabilities.described(), between, strict=True):
            odds, compared = inclusion(generator, generators, judged)
            better = is_between and partly is not None and partly.low > DECIDED
            found.append(Candidate(amount, "partly" if better else _verdict(odds), odds, compared))
        return found, partly

    def continuous(self, group: LieGroup, samples: int) -> tuple[Extents, list[Candidate]]:
        """All continuous candidates, learned together; each judged by what the network loses without it."""
        self.say(f"how far: {', '.join(Extents(group).names)}")
        average = OrbitAverage(deepcopy(_net(self.bases[0])), group, samples, seed=self.seed)
        learned = self._problem(DiscreteAverage(average, ()), self.bases[0])
        self._learn(learned, self._hyper(), replace(self._schedule(), epochs=self.epochs), 0)
        extents = average.orbit
        described = extents.described()
        extents.requires_grad_(False)
        some = extents.value.abs() >= _NONE
        values = extents.value.detach() * some
        with_all = self._moved(group, samples, values, "all extents that were learned") if some.any() else []
        found = []
        for index, summary in enumerate(described):
            words = _words(summary.name)
            if not some[index]:
                found.append(Candidate(summary, "no", None, "nothing: next to none was learned"))
                continue
            without = values.clone()
            without[index] = 0
            odds = log_odds(with_all, self._moved(group, samples, without, f"all but {words}"))
            found.append(Candidate(summary, _verdict(odds), odds, f"all that was learned, or all but {words}"))
        return extents, found

    def _averaged(self, probabilities: Probabilities) -> list[Judged]:
        """Networks that go on with a discrete average that is held, and their evidences then."""
        found = []
        for start, base in enumerate(self.bases):
            model = DiscreteAverage(deepcopy(_net(base)), probabilities.generators)
            with torch.no_grad():
                model.discrete.value.copy_(probabilities.value)
            model.discrete.requires_grad_(False)
            found.append(self._go_on(model, start, ", ".join(probabilities.names) or "nothing"))
        return found

    def _moved(self, group: LieGroup, samples: int, values: Tensor, words: str) -> list[Judged]:
        """The same with extents that are held."""
        found = []
        for start, base in enumerate(self.bases):
            # Without draws: so its weights come to a mode of the very function that is judged.
            average = OrbitAverage(deepcopy(_net(base)), group, samples, stochastic=False)
            with torch.no_grad():
                average.orbit.value.copy_(values)
            average.orbit.requires_grad_(False)
            found.append(self._go_on(DiscreteAverage(average, ()), start, words))
        return found

    def _go_on(self, model: nn.Module, start: int, words: str) -> Judged:
        self.say(f"averaged over {words}")
        problem = self._problem(model, self.bases[start])
        self._learn(problem, Laplace(burn_in=0.0, cool_down=0.3), self._schedule(), start)
        steps = _STEPS if self.source.size <= _FEW else _FEWER
        judged = judge(problem, self.rule, self.seed + start, steps)
        self.estimator = judged.estimator
        return judged

    def _problem(self, model: nn.Module, base: Problem | None) -> Problem:
        """With the precisions and the noise that the first network ended with."""
        device = next(model.parameters()).device
        prior = TensorwisePrior(model).to(device)
        if base is not None:
            with torch.no_grad():
                prior.log_precision.copy_(base.prior.log_precision)
        return Problem(model, self.source, deepcopy(self.likelihood if base is None else base.likelihood).to(device), prior)

    def _learn(self, problem: Problem, objective: Laplace, schedule: Schedule, start: int) -> None:
        trainer = objective.trainer(problem, schedule, PLAIN if hyperparameters(problem.model) else None)
        with seeded(self.seed + start, problem.model):  # the same dropout for all that are compared
            learn(trainer, generator=torch.Generator().manual_seed(self.seed + start))

    def _hyper(self) -> Laplace:
        return Laplace(Kfac(MonteCarloFisher()), burn_in=0.1, cool_down=0.2, extent_steps=2, extent_share=0.5)

    def _schedule(self) -> Schedule:
        """Of every network that goes on."""
        usual = preset(self.bases[0], Laplace(), max(2, round(_FOLLOW_UP * self.epochs))).schedule
        return replace(usual, learning_rate=_RATE * usual.learning_rate)


def _net(base: Problem) -> nn.Module:
    return cast(DiscreteAverage, base.model).net


#: The elements of a group, but for the identity.
GroupKey = frozenset[Rearrangement]


def groups_of(generators: Sequence[DiscreteGenerator]) -> dict[GroupKey, tuple[DiscreteGenerator, ...]]:
    """Every group that some generators generate, none at all among them, and as few as do so.

    Raises:
        ValueError: If there are too many to train a network for each.
    """
    found: dict[GroupKey, tuple[DiscreteGenerator, ...]] = {}
    for count in range(len(generators) + 1):
        for some in combinations(generators, count):
            found.setdefault(frozenset(elements_of(some).rearrangements[1:]), some)
    if len(found) > _MOST_GROUPS:
        names = ", ".join(generator.name for generator in generators)
        raise ValueError(
            f"Discrete candidates may generate at most {_MOST_GROUPS} groups, since a network is trained for each; {names} "
            f"generate {len(found)}. Ask for some of them at a time: candidates=[...]."
        )
    return found


def inclusion(
    generator: DiscreteGenerator, generators: Sequence[DiscreteGenerator], judged: Mapping[GroupKey, Sequence[Judged]]
) -> tuple[LogOdds, str]:
    """The log-odds of a generator: groups that contain it against those that do not; and the best of either, in words."""
    kinds = [{key: of for key, of in judged.items() if (generator.step in key) == inside} for inside in (True, False)]
    best = [max(kind, key=lambda key: _mean_evidence(kind[key])) for kind in kinds]
    single = log_odds(kinds[0][best[0]], kinds[1][best[1]])
    values = [
        _log_mean([of[start].evidence for of in kinds[0].values()])
        - _log_mean([of[start].evidence for of in kinds[1].values()])
        for start in range(single.starts)
    ]
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else single.standard_error
    known = groups_of(generators)
    names = [" + ".join(_words(g.name) for g in known[key]) or "nothing" for key in best]
    return replace(single, value=fmean(values), standard_error=error), f"{names[0]}, or {names[1]}"


def _log_mean(values: Sequence[float]) -> float:
    """log mean exp."""
    return float(torch.tensor(values, dtype=torch.float64).logsumexp(0)) - log(len(values))


def _mean_evidence(judged: Sequence[Judged]) -> float:
    return fmean(one.evidence for one in judged)


def _verdict(odds: LogOdds) -> Verdict:
    if odds.low > DECIDED:
        return "yes"
    return "no" if odds.high < -DECIDED else "not decided"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _amount(amount: ExtentSummary) -> str:
    sign = "" if amount.one_sided else "±"
    return f"{sign}{amount.value:.3g} {amount.unit}".rstrip()


def _odds(odds: LogOdds | None) -> tuple[str, str, str]:
    if odds is None:
        return "–", "–", "–"
    is_known = odds.standard_error > 0 or odds.starts > 1  # of one start, judged exactly, nothing is known
    error = number(odds.standard_error, 1) if is_known else "–"
    return number(odds.value, 1), error, f"{number(odds.gap_with, 1)}, {number(odds.gap_without, 1)}"


def _say(words: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"augmentations: {words}", highlight=False)
