"""The common scale of precisions, searched by the full GGN with the weights following.

The evidence of precisions δ is that at the mode which they have, E(δ) = log p(D, θ*(δ)) − ½ log|H(θ*(δ)) + Δ| + …, so

    dE / d log δ = ½ (γ − δ‖θ‖²) − ½ ∂ log|H + Δ| / ∂θ · dθ* / d log δ.

MacKay's δ = γ / ‖θ‖² is where the first term vanishes. It leaves out the second, and γ by KFAC is too large, since KFAC drops
the correlations between layers. Neither error is small: a network that comes to fit its data saturates as δ falls, and its
curvature with it: precisions several times smaller may have more evidence, by half a nat per datum, and generalise better.

Hyper-steps find the ratios of precisions, in the first part of the epochs. Then the scale that they have in common is tried
out: precisions are multiplied by a factor, the weights go to their new mode, and the evidence of the full GGN says whether that
is kept. It is compared under the same random vector and the same data, so that common errors cancel. Paths that break a
symmetry which another path of their layer keeps are left out: the data have to ask for them at the full price.

Where log p(D) is quadratic, the mode θ under Δ becomes (H + Δ')⁻¹ (H + Δ) θ under Δ'. It is not, so weights begin a try half of
the way there, and its steps do the rest: on small data they are few, and would not go far. Where log p(D) is so far from
quadratic that this leads astray, the try is no gain, and the same scale is tried once more from the weights as they were.

Where such paths are used at all, the first try is of the network without them. What they do is fitted together with all else,
so that to remove one never pays at once; after the weights have followed it may, and the evidence says so.

A try takes a limited number of steps, and all epochs that are left then finish what was kept, under its precisions. That is
judged like a try: what is worse than before is undone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, cos, inf, isfinite, log, pi
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from symbayes.curvature.blocks import Block
from symbayes.curvature.decompositions import decompose_under
from symbayes.curvature.ggn import products_of
from symbayes.curvature.kfac import data_at_once
from symbayes.curvature.lanczos import PreconditionedCurvature
from symbayes.curvature.rule import effective_of
from symbayes.data.source import DataSource, TensorSource
from symbayes.errors import NotFiniteError
from symbayes.layout import Layout, weights
from symbayes.priors import LOG_PRECISION_RANGE, Prior
from symbayes.training.record import Decision
from symbayes.training.symmetries import USED
from symbayes.training.trainer import Part, Problem, copy_parts, restore_parts

#: Data that are taken at least, where there are so many.
_FEWEST = 500


@dataclass(frozen=True)
class ScaleSearch:
    """How the common scale of precisions is searched.

    Args:
        tries: Scales that are tried, at most, one that is tried again among them; before them, where a symmetry is broken, all
            symmetry is.
        share: Of the epochs, for each of them, at most; so many epochs are the last ones of training, and a try begins only
            where they have room for it.
        updates: After so many steps of the weights, in whole epochs, a try ends before that.
        factor: From one scale to the next: first to smaller precisions, and if that is no gain, to larger ones.
        way: Of the way to their mode under these, as it would be if log p(D) were quadratic: the share at which weights begin;
            where that is no gain, they begin where they were.
        rate: Share of the learning rate that a try begins with, and the finish; it falls to zero along a cosine.
        steps: Products of Lanczos for the evidence of a try, beside those that find the share of the blocks.
        data: Of which that is found, at most: half of them, or these if they are fewer; drawn once, at random.
    """

    tries: int = 3
    share: float = 0.1
    updates: int = 800
    factor: float = 3.0
    way: float = 0.5
    rate: float = 0.5
    steps: int = 20
    data: int = 20_000

    def __post_init__(self) -> None:
        if min(self.tries, self.updates, self.steps, self.data) < 1:
            given = f"{self.tries}, {self.updates}, {self.steps} and {self.data}"
            raise ValueError(f"tries, updates, steps and data must be at least 1; got {given}.")
        if not 0 <= self.way <= 1:
            raise ValueError(f"way must be at least 0, where weights stay, and at most 1, all of it; got {self.way}.")
        if not (self.share > 0 and self.tries * self.share < 1) or not self.factor > 1 or not 0 < self.rate <= 1:
            raise ValueError(
                "share must be above 0 and leave epochs before all tries, factor above 1, and rate above 0 and at most 1; got "
                f"{self.share} for {self.tries} tries, {self.factor} and {self.rate}."
            )

    def epochs_of_try(self, epochs: int, steps: int) -> int:
        """Epochs of a try, in a training of so many, of so many steps each; 0 where there are too few to search."""
        return min(int(self.share * epochs), ceil(self.updates / steps))

    def epochs_before(self, epochs: int) -> int:
        """Epochs of a training before its search; all, where there are too few to search."""
        return epochs - self.tries * int(self.share * epochs)

    def rate_share(self, epoch: int, epochs: int) -> float:
        """The share of the learning rate in an epoch of a try or of the finish, counted from 1."""
        return self.rate * (1 + cos(pi * (epoch - 1) / epochs)) / 2

    @torch.no_grad()
    def evidence(self, problem: Problem, blocks: Mapping[str, Block], seed: int) -> float:
        """log p(D) by the full GGN, as the model and the prior are now, up to a constant.

        Args:
            problem: Whose evidence it is.
            blocks: The curvature by another rule, near which that of the full GGN is sought.
            seed: For data and the random vector: the same for all that are compared.
        """
        generator = torch.Generator().manual_seed(seed)
        data, scale = _some(problem.data, min(self.data, max(_FEWEST, problem.data.size // 2)), generator)
        precisions = {name: value.detach() for name, value in problem.prior.precisions().items()}
        named = weights(problem.model)
        try:
            products = products_of(problem.model, data, problem.likelihood, data_at_once(problem.model, data))
        except NotFiniteError:
            return -inf
        of_all = replace(products, product=lambda vector: scale * products.product(vector))
        signs = products.signs(1, generator)
        curvature = PreconditionedCurvature(of_all, signs, self.steps, "full GGN", blocks, "blocks", comparable=True)
        squares = sum(float(precisions[name] * weight.double().square().sum()) for name, weight in named.items())
        found = scale * float(products.log_likelihood) - squares / 2 - float(curvature.log_det(precisions)) / 2
        return found if found == found else -inf


class Search:
    """A search under way: what is kept, and what is tried.

    Args:
        settings: Of the search.
        problem: Whose precisions are scaled, in place.
        moved: What else a try changes, such as what an optimiser remembers, by name.
    """

    def __init__(self, settings: ScaleSearch, problem: Problem, moved: Mapping[str, Part] | None = None) -> None:
        self.settings, self.problem = settings, problem
        self._parts: dict[str, Part] = {"model": problem.model, "prior": problem.prior, **(moved or {})}
        #: Evidence and scale of what is kept, and the seed by which evidences are compared.
        self.evidence, self.scale, self.seed = -inf, 1.0, 0
        #: Scales that were tried, those of which there was a gain, and whether they go to larger precisions; whether the try is
        #: that without what breaks symmetries.
        self.tried, self.gained, self.upwards, self.is_done, self.is_symmetric = 0, 0, False, False, False
        #: Whether weights begin a try on the way to their mode, rather than where they were.
        self.follows = settings.way > 0
        #: The epoch in which the last try ended, counted from 1; whether nothing is to follow.
        self.ended, self.is_over = 0, False
        self._decision: Decision | None = None
        self.kept: dict[str, Any] = {}

    def begin(self, evidence: float, seed: int, breaking: float = 0.0) -> None:
        """Keep what hyper-steps have found.

        Args:
            evidence: As it is now.
            seed: By which evidences are compared.
            breaking: γ of paths that break a symmetry, as it is now.
        """
        self.evidence, self.seed, self.is_symmetric = evidence, seed, breaking > USED
        self.kept = copy_parts(self._parts)
        self._decide("precisions by hyper-steps", evidence, kept=True)

    def assess(self, find: Callable[[], Mapping[str, Block]]) -> tuple[float, Mapping[str, Block]]:
        """The evidence as all is now, or −∞ where numbers are not finite, and the curvature near which it was sought."""
        try:
            blocks = find()
            return self.settings.evidence(self.problem, blocks, self.seed), blocks
        except NotFiniteError:
            return -inf, {}

    def change(self, blocks: Mapping[str, Block]) -> None:
        """Change what is kept, for the next try.

        Args:
            blocks: Its curvature, by which the weights follow.
        """
        if self.is_symmetric:
            self._break_nothing()
        else:
            self._scale(blocks)

    def judge(self, evidence: float, epoch: int, *, has_room: bool = True) -> bool:
        """Keep what was tried, if it is better, or come back to what was kept; whether it is kept.

        Args:
            evidence: Of the try.
            epoch: In which it ends, counted from 1.
            has_room: Whether there are epochs left for another.
        """
        is_scaled, self.is_symmetric = not self.is_symmetric, False
        self.tried += is_scaled
        again = "" if self.follows or not self.settings.way else ", weights as they were"
        what = f"all precisions × {self.scale * self._factor:.2g}{again}" if is_scaled else "nothing that breaks a symmetry"
        is_kept = evidence > self.evidence
        self._decide(what, evidence, kept=is_kept)
        if is_kept:
            if is_scaled:
                self.scale, self.gained = self.scale * self._factor, self.gained + 1
            self.evidence, self.kept = evidence, copy_parts(self._parts)
        else:
            restore_parts(self._parts, self.kept)
            if is_scaled and self.follows and not self.upwards:
                self.follows = False
            elif is_scaled:
                self.is_done, self.upwards, self.follows = self.upwards or self.gained > 0, True, self.settings.way > 0
        self.is_done = self.is_done or self.tried == self.settings.tries or not has_room
        if self.is_done:
            self.ended = epoch
        return is_kept

    def finish(self, evidence: float) -> None:
        """Keep what the last epochs came to, if it is better than what was kept before them."""
        self._decide("what was kept, finished", evidence, kept=evidence > self.evidence)
        if evidence > self.evidence:
            self.evidence, self.is_over = evidence, True
        else:
            self.give_up()

    def fail(self, epoch: int) -> None:
        """Numbers are not finite: come back to what was kept; what is left finishes it, unless that is what failed."""
        if self.is_done:
            self.finish(-inf)
        else:
            self.judge(-inf, epoch, has_room=False)

    def give_up(self) -> None:
        """Come back to what was kept, and go no further."""
        restore_parts(self._parts, self.kept)
        self.is_done = self.is_over = True

    def take_decision(self) -> Decision | None:
        """What was decided since this was asked last."""
        found, self._decision = self._decision, None
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and plain numbers."""
        plain = {name: getattr(self, name) for name in self._PLAIN}
        return {**plain, **{f"kept.{name}": value for name, value in self.kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` gave."""
        for name in self._PLAIN & state.keys():  # of an earlier version some are missing, and stay as they begin
            setattr(self, name, type(getattr(self, name))(state[name]))
        self.kept = {name.removeprefix("kept."): value for name, value in state.items() if name.startswith("kept.")}

    _PLAIN = frozenset(
        {"evidence", "scale", "seed", "tried", "gained", "upwards", "is_done", "is_symmetric", "follows", "ended", "is_over"}
    )

    def _decide(self, what: str, evidence: float, *, kept: bool) -> None:
        self._decision = Decision(what, evidence if isfinite(evidence) else None, kept)

    @property
    def _factor(self) -> float:
        return self.settings.factor if self.upwards else 1 / self.settings.factor

    @torch.no_grad()
    def _scale(self, blocks: Mapping[str, Block]) -> None:
        prior, scaled = self.problem.prior, scaled_groups(self.problem.prior, self.problem)
        before = prior.precisions()
        prior.log_precision.add_(log(self._factor) * scaled).clamp_(*LOG_PRECISION_RANGE)
        moved = {group for group, is_scaled in zip(prior.groups, scaled.tolist(), strict=True) if is_scaled}
        own = {name: block for name, block in blocks.items() if prior.group_of[name] in moved}
        if self.follows:
            follow(self.problem, own, before, self.settings.way)

    @torch.no_grad()
    def _break_nothing(self) -> None:
        """Switch off all paths that break a symmetry."""
        prior, named = self.problem.prior, weights(self.problem.model)
        for name in breaking_tensors(self.problem):
            named[name].zero_()
            prior.log_precision[prior.groups.index(prior.group_of[name])] = LOG_PRECISION_RANGE[1]


@torch.no_grad()
def follow(problem: Problem, blocks: Mapping[str, Block], before: Mapping[str, Tensor], way: float) -> None:
    """Move weights towards the mode that they would have under the precisions there are, if log p(D) were quadratic.

    Args:
        problem: Whose weights, in place.
        blocks: The curvature of those that move. Where it is negligible they stay.
        before: The precisions whose mode they are at.
        way: The share of the way to go.
    """
    now, named = problem.prior.precisions(), weights(problem.model)
    least = {name: torch.minimum(before[name], now[name]) for name in blocks}
    stay = decompose_under(blocks, least, vectors=True, processes=problem.data.processes)
    for name, block in blocks.items():
        if name not in stay:
            weight, values = named[name], block.eigenvalues
            turned = block.turn(weight.flatten().to(values.dtype)) * (before[name] - now[name]) / (values + now[name])
            weight.add_(block.turn(turned, back=True).view_as(weight), alpha=way)


def breaking_tensors(problem: Problem) -> list[str]:
    """Those that break a symmetry which another path of their layer keeps, and may be switched off with their group."""
    tensors, prior = Layout.of(problem.model).tensors, problem.prior
    keeping = {group for name, group in prior.group_of.items() if not tensors[name].relaxes}
    may = {g for g, learned in zip(prior.groups, prior.learned.tolist(), strict=True) if learned and g not in keeping}
    return [name for name, group in prior.group_of.items() if tensors[name].relaxes and group in may]


@torch.no_grad()
def breaking_gamma(problem: Problem, blocks: Mapping[str, Block]) -> float:
    """γ of such tensors, by this curvature."""
    breaking = {name: blocks[name] for name in breaking_tensors(problem)}
    return sum((float(gamma) for gamma in effective_of(breaking, problem.prior.precisions()).values()), 0.0)


def scaled_groups(prior: Prior, problem: Problem) -> Bool[Tensor, " group"]:
    """Groups of tensors that share the scale: those that are learned, and break no symmetry of another path beside them."""
    tensors = Layout.of(problem.model).tensors
    relaxing = {group for name, group in prior.group_of.items() if tensors[name].relaxes}
    return prior.learned & torch.tensor([group not in relaxing for group in prior.groups], device=prior.learned.device)


def _some(data: DataSource, most: int, generator: torch.Generator) -> tuple[DataSource, float]:
    """Some of the data, and what sums over them are multiplied by."""
    if not isinstance(data, TensorSource) or data.size <= most:
        return data, 1.0
    chosen = torch.randperm(data.size, generator=generator)[:most].to(data.inputs.device)
    some = TensorSource(data.inputs[chosen], data.targets[chosen], data.inputs.device, in_order=False)
    some.processes = data.processes
    return some, data.size / most
