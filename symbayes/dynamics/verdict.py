"""How sure it is that a quantity is conserved, by trajectories that it was not found in.

The hypothesis to be rejected is that it is *not* conserved: along trajectories it varies by more than a tolerance, relative to
how far it spreads over all states. Trajectories are independent of each other, states of one are not, so each trajectory counts
once. Noise is no variation of the quantity: what it adds is known from how noisy states are, and subtracted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.denoising import Denoised, as_seen
from symbayes.dynamics.phase import Observable, States, gradient
from symbayes.dynamics.trajectories import Trajectories
from symbayes.text import percent

#: How sure it must be that something is conserved for it to be said.
SURE = 0.95
#: Of the spread of a quantity: what it may vary by without noise, and at most; and what rounding may make it vary by.
_TOLERANCE, _COARSEST, _ROUNDING = 0.01, 0.15, 1e-4
#: And of the variance that noise which is left gives it: what it may have on top, how many stds of that more, and at most.
_NOISE, _CHANCE, _LARGEST = 1.0, 2.0, 3.0
#: How much less it must vary than quadratics do, and how much these must, or trajectories are too short to tell.
_SLOWER, _TOO_SHORT = 1 / 8, 0.1
#: The share of trajectories along which it may vary more than the tolerance.
_SHARE = 1 / 3
#: Trajectories with which one can be sure, if it varies along none of them.
ENOUGH = ceil(log(1 - SURE) / log(1 - _SHARE))
#: At which level a trend in time is one, if it is also larger than the tolerance without noise.
_TREND = 0.01
#: At which level a trend is one that is smaller, and how small.
_CLEAR, _SLIGHT = 1e-4, 1e-3
#: Relative to the values: a quantity that spreads less is the same for all trajectories.
_TRIVIAL = 1e-7


@dataclass(frozen=True)
class Verdict:
    """Whether a quantity is conserved.

    Args:
        probability: That it is; 1 − the rate of false discoveries among all that are as sure (Benjamini and Hochberg).
        p_value: Of the hypothesis that it is not, before others were counted.
        variation: Its std along trajectories without noise, relative to its spread; one where it has none.
        most: Its upper limit of 95 %, over trajectories.
        tolerance: What it may vary by: 1 % of its spread, and what noise makes of it; less where its coordinates move little.
        trend: How far it moves in one direction along trajectories, relative to its spread, as far as all have that in common.
        trend_p_value: Of the hypothesis that there is no trend.
        usual: What quadratics vary by.
        trajectories: On how many this rests.
        least_trend: What is no trend yet.
        reason: Why it cannot be told; empty where it can.
    """

    probability: float
    p_value: float
    variation: float
    most: float
    tolerance: float
    trend: float
    trend_p_value: float
    usual: float
    trajectories: int
    least_trend: float = _TOLERANCE
    reason: str = ""

    @property
    def has_trend(self) -> bool:
        """Whether it moves in one direction, by more than it may vary."""
        return self.trend_p_value < _TREND and self.trend > self.least_trend

    @property
    def holds(self) -> bool:
        """Whether it would be said to be conserved if it were the only one."""
        return not self.reason and self.p_value <= 1 - SURE and not self.has_trend

    @property
    def is_sure(self) -> bool:
        """Whether it is said to be conserved."""
        return self.probability >= SURE

    def sureness(self) -> str:
        """The probability in percent, never rounded up: "99.9 %"."""
        return f"{int(1000 * self.probability) / 10:g} %" if self.probability >= 0.9 else f"{int(100 * self.probability)} %"

    def __str__(self) -> str:
        if self.reason:
            return f"cannot be told, {self.reason}"
        trend = f", with a trend of {percent(self.trend)}" if self.has_trend else ""
        varies = f"varies by {percent(self.variation)} of its spread (at most {percent(self.most)}){trend}"
        return f"{self.sureness()} sure, {varies}" if self.is_sure else f"not confirmed ({self.sureness()} sure), {varies}"


def judge(observable: Observable, seen: Denoised, tolerance: float | None = None) -> Verdict:
    """Test one quantity; the probability is that of a single test, until `controlled` counts all.

    Values are taken as asinh((f − median) / median deviation), which is conserved where f is: so the spread is not that of a
    few trajectories far from all others. Two tests must agree, each with a trajectory as its unit. Student's: the mean of W_k,
    the variance along trajectory k less that of noise, is below τ² times the spread. Binomial: W_k is above it along less than
    a third of trajectories; this holds whatever the distribution of W_k, and says that a few trajectories prove little. Then a
    trend: how far the second half of a trajectory is from the first, regressed on the mean. A quantity that friction lowers
    has one long before it varies much.

    What moves little beside how far trajectories are apart is not conserved for that. So without noise the tolerance is an
    eighth at most of what the quantity would vary by if its coordinates moved as they do, but each for itself.

    Args:
        observable: The quantity.
        seen: Trajectories that nothing was learned from.
        tolerance: What the quantity may vary by, or move in one direction; None for 1 %, and what noise makes of it. Never
            more than an eighth of what quadratics vary by.
    """
    from scipy.stats import binom, t  # slow to import

    states = seen.trajectories.states
    flat, shape = states.flatten(0, 1), states.shape[:2]
    values = observable(flat).detach()
    count, usual = len(states), typical_variation(seen)
    blank = Verdict(0.0, 1.0, 1.0, 1.0, _TOLERANCE, 0.0, 1.0, usual, count)
    centre = values.median()
    size = (values - centre).abs().median()
    if not values.isfinite().all() or float(size) <= _TRIVIAL * float(values.square().mean().sqrt()):
        return replace(blank, reason="it is the same for all trajectories")
    slopes = gradient(observable, flat).detach() / (size.square() + (values - centre).square()).sqrt()[:, None]
    values = ((values - centre) / size).asinh().unflatten(0, shape)
    whole = float(values.var(correction=0))
    noise = (slopes.square() * seen.left.flatten(0, 1)).sum(-1).clamp(max=whole).unflatten(0, shape)
    noise = seen.share * noise.mean(1)
    spread = max(whole - float(noise.mean()), _TRIVIAL)
    along = (values.var(1, correction=0) - noise) / spread
    variation = max(float(along.mean()), 0.0) ** 0.5
    most = max(float(along.mean() + t.ppf(SURE, count - 1) * along.std() / count**0.5), 0.0) ** 0.5 if count > 1 else 1.0
    noisy, coarsest = float(noise.mean()) / spread, _SLOWER * usual
    trend, trend_p_value = _trend(values, spread)
    least_trend = min(tolerance, coarsest) if tolerance is not None else _SLIGHT if trend_p_value < _CLEAR else _TOLERANCE
    if tolerance is None:
        own = (float((slopes.square() @ _motion(seen)).mean()) / spread) ** 0.5
        without = min(_TOLERANCE, max(_SLOWER * own, _ROUNDING))
        tolerance = min((without**2 + _slack(slopes, seen) * noisy) ** 0.5, _COARSEST)
    tolerance = min(tolerance, coarsest)
    blank = replace(blank, variation=variation, most=most, tolerance=tolerance, least_trend=least_trend)
    if usual <= _TOO_SHORT:
        return replace(blank, reason="trajectories are too short")
    if noisy > _COARSEST**2:
        return replace(blank, reason="noise is too large")
    if seen.is_coarse and _LARGEST * noisy > _TOLERANCE**2:
        return replace(blank, reason="steps are too long, or angles wrap, to tell motion from noise")
    if count < ENOUGH:
        return replace(blank, reason="trajectories are too few")
    beyond = along - tolerance**2
    student = float(t.cdf(float(beyond.mean() / (beyond.std() / count**0.5).clamp(min=1e-30)), count - 1))
    p_value = max(student, float(binom.cdf(int((beyond > 0).sum()), count, _SHARE)))
    return replace(
        blank, probability=1 - p_value, p_value=p_value, tolerance=tolerance, trend=trend, trend_p_value=trend_p_value
    )


def judge_either_way(observable: Observable, given: Trajectories, seen: Denoised, tolerance: float | None = None) -> Verdict:
    """As `judge`; where motion may have been taken for noise, by states as they were given, if it holds even there.

    Noise adds to what a quantity varies by along trajectories. Where steps are long, motion is taken for noise, though there
    may be none: what is constant along states as they were given is conserved, whatever they were thought to be.

    Args:
        observable: The quantity.
        given: Trajectories that nothing was learned from.
        seen: The same without noise.
        tolerance: As in `judge`.
    """
    found = judge(observable, seen, tolerance)
    if not found.reason or not seen.is_coarse:
        return found
    plainly = judge(observable, as_seen(given), tolerance)
    return plainly if plainly.holds else found


def controlled(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same with probabilities that count all tests of a run: 1 − the adjusted p-values of Benjamini and Hochberg.

    Where there is a trend, it is conserved with the probability of no trend at most.
    """
    order = sorted(range(len(verdicts)), key=lambda place: verdicts[place].p_value, reverse=True)
    found, least = list(verdicts), 1.0
    for rank, place in zip(range(len(order), 0, -1), order, strict=True):
        one = verdicts[place]
        least = min(least, one.p_value * len(order) / rank)
        probability = 1 - least
        if one.has_trend:
            probability = min(probability, one.trend_p_value)
        found[place] = replace(one, probability=probability if not one.reason else 0.0)
    return found


def typical_variation(seen: Denoised) -> float:
    """The std of coordinates and their products along trajectories, relative to their spread, by root mean squares."""
    states = seen.trajectories.states
    rows, columns = torch.triu_indices(states.shape[2], states.shape[2])
    values = torch.cat([states, states[..., rows] * states[..., columns]], -1)
    spread = values.flatten(0, 1).var(0, correction=0)
    moves = spread > _TRIVIAL**2 * values.flatten(0, 1).square().mean(0)
    return float((values.var(1, correction=0).mean(0)[moves] / spread[moves]).mean().sqrt()) if moves.any() else 0.0


def _slack(slopes: States, seen: Denoised) -> float:
    """What a quantity may vary by along a trajectory, in units of the variance that noise gives it on average.

    What is left of noise has as many degrees of freedom along a trajectory as smoothing kept.
    """
    seen_by = float((slopes.square() @ seen.noise.square()).mean())
    kept = float((slopes.square() * seen.left.flatten(0, 1)).sum(1).mean()) / max(seen_by, 1e-300)
    freedom = max(kept * seen.trajectories.states.shape[1], 1.0)
    return float(min(_NOISE + _CHANCE * (2 / freedom) ** 0.5, _LARGEST))


def _motion(seen: Denoised) -> Float[Tensor, " m"]:
    """The variance of each coordinate along trajectories, less what is left of noise."""
    along = seen.trajectories.states.var(1, correction=0).mean(0)
    return (along - seen.share * seen.left.mean((0, 1))).clamp(min=0)


def _trend(values: Float[Tensor, "trajectories times"], spread: float) -> tuple[float, float]:
    """Its size, and the p-value of none: Fisher's test of the change along trajectories, regressed on one and on their mean."""
    from scipy.stats import f  # slow to import

    half = values.shape[1] // 2
    change = values[:, -half:].mean(1) - values[:, :half].mean(1)
    level = values.mean(1) - values.mean()
    count, std = len(values), float(level.std())
    if count < 4 or std == 0 or not half:
        return 0.0, 1.0
    design = torch.stack([torch.ones_like(level), level / std], 1)
    fitted = design @ torch.linalg.lstsq(design, change[:, None]).solution[:, 0]
    rest = float((change - fitted).square().sum()) / (count - 2)
    size = float(fitted.square().mean()) / spread
    ratio = float(fitted.square().sum()) / 2 / max(rest, 1e-300)
    return size**0.5, float(f.sf(ratio, 2, count - 2))
