"""Trajectories without their noise: how smooth motion is and how noisy what was seen of it, the evidence says."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from symbayes.dynamics.trajectories import Trajectories

#: Differences of this order are small where motion is smooth; of these, where it is smooth and steps are short.
_ORDER, _ORDERS = 4, (4, 6, 8)
#: Noise over roughness: which are compared.
_WEIGHTS = np.logspace(-12, 12, 97)
#: The median of what is normal, in stds.
_NORMAL = 0.6745
#: Longer trajectories are smoothed in parts.
_LONGEST = 400
#: A jump that is this near to a turn, where other steps are shorter than half of one, is one of an angle that wraps.
_TURN, _NEAR = 2 * np.pi, 0.25
#: Where a step is a larger share of how far a coordinate moves, motion is as rough as noise.
_COARSE = 0.7
#: Trajectories are the same up to this share of the spread, and up to so many stds of the square of noise.
_SAME, _CHANCE = 1e-9, 3.0


@dataclass(frozen=True, eq=False)
class Denoised:
    """States as they were, as far as can be told, and what is left of the noise in them.

    Args:
        trajectories: With states without noise.
        noise: The std of what was seen, for each coordinate.
        left: The posterior variance of each state: of the noise that is left, and of motion that was smoothed away.
        share: How much of the variance that is left lies along a trajectory; the rest moves it as a whole.
        is_coarse: Whether steps are so long that what was learned as noise may be motion.
    """

    trajectories: Trajectories
    noise: Float[Tensor, " m"]
    left: Float[Tensor, "trajectories times m"]
    share: float
    is_coarse: bool = False


def as_seen(seen: Trajectories) -> Denoised:
    """States as they were seen, as if there were no noise in them."""
    states = seen.states.double()
    return Denoised(replace(seen, states=states, targets=None), torch.zeros(states.shape[2]).double(), 0 * states, 1.0)


def denoised(seen: Trajectories, noise: Float[Tensor, " m"] | None = None) -> Denoised:
    """The smooth motion behind noisy states.

    Along a trajectory y = x + ε with ε ~ N(0, σ²), and differences of fourth order of x are N(0, σ²/w). Both are those of the
    highest evidence: σ for each coordinate, over all trajectories together, and w for each trajectory, too. Then x is the
    posterior mean. In eigenvectors of the squared differences, with eigenvalues r, it is y / (1 + w r). Without noise w is
    nearly zero, and states stay as they are.

    Args:
        seen: The states that were seen; times may be uneven.
        noise: σ of each coordinate, where it is known.
    """
    states, times = seen.states.double().numpy(), seen.times.numpy()
    parts = _parts(states.shape[1])
    bases = [_bases(times[:, part]) for part in parts]
    turned = [np.einsum("kij,kim->kjm", basis, states[:, part]) for part, (_, basis) in zip(parts, bases, strict=True)]
    usual = _usual_noise(states, times)
    smooth, left = np.empty_like(states), np.empty_like(states)
    stds, shares = [], []
    for m in range(states.shape[2]):
        known = None if noise is None else float(noise[m])
        std = min(_noise([r for r, _ in bases], [y[..., m] for y in turned]), usual[m]) if known is None else known
        stds.append(std)
        for part, (roughness, basis), inside in zip(parts, bases, turned, strict=True):
            kept = 1 / (1 + _weights(roughness, inside[..., m], std)[:, None] * roughness)
            smooth[:, part, m] = np.einsum("kij,kj->ki", basis, kept * inside[..., m])
            left[:, part, m] = std**2 * np.einsum("kij,kj->ki", basis**2, kept)
            together = (kept * basis.mean(1) ** 2).sum(1)
            shares.append(1 - (together / kept.mean(1)).mean())
    found = replace(seen, states=torch.from_numpy(smooth), targets=None)
    is_coarse = noise is None and bool((_steps(smooth) > _COARSE).any())
    return Denoised(found, torch.tensor(stds, dtype=torch.float64), torch.from_numpy(left), float(np.mean(shares)), is_coarse)


def unwrapped(trajectories: Trajectories) -> tuple[Trajectories, tuple[str, ...]]:
    """Angles that go on where they jump by a turn, and the names of those that did."""
    states, names = trajectories.states.double().clone(), []
    for m, name in enumerate(trajectories.names):
        steps = states[..., m].diff(dim=1)
        jumps = (steps.abs() - _TURN).abs() < _NEAR * _TURN
        if jumps.any() and bool((jumps | (steps.abs() < _TURN / 2)).all()):
            turns = -torch.where(jumps, steps.sign(), 0.0).cumsum(1) * _TURN
            states[:, 1:, m] += turns
            names.append(name)
    return (replace(trajectories, states=states), tuple(names)) if names else (trajectories, ())


def _steps(states: Float64[np.ndarray, "k t m"]) -> Float64[np.ndarray, " m"]:
    """The length of a step, relative to the std along trajectories."""
    along = np.sqrt(states.var(1).mean(0))
    return np.asarray(np.sqrt((np.diff(states, axis=1) ** 2).mean((0, 1))) / along.clip(1e-300))


def common(train: Trajectories, rest: Trajectories) -> Float[Tensor, "trajectories times m"]:
    """All states, as long as the shorter ones are."""
    times = min(train.states.shape[1], rest.states.shape[1])
    return torch.cat([part.states[:, :times].double() for part in (train, rest)])


def different(train: Trajectories, rest: Trajectories, noise: Float[Tensor, " m"]) -> int:
    """How many trajectories are of different motion: apart from all before them by more than noise explains."""
    states = common(train, rest)
    unit = (2 * (noise**2 + (_SAME * states.flatten(0, 1).std(0)) ** 2)).sqrt().clamp(min=1e-150)
    rows, apart = (states / unit).flatten(1), 1 + _CHANCE * (2 / states[0].numel()) ** 0.5
    found = rows[:1]
    for row in rows[1:]:
        if bool(((found - row).square().mean(1) > apart).all()):
            found = torch.cat([found, row[None]])
    return len(found)


def _parts(count: int) -> list[slice]:
    ends = np.linspace(0, count, -(-count // _LONGEST) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def _bases(times: Float64[np.ndarray, "k t"]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues [k, t] and eigenvectors [k, t, t] of squared differences; one of each where all times are the same."""
    spaced = np.diff(times, axis=1)
    same = np.abs(spaced - np.median(spaced)).max() < 1e-6 * np.median(spaced)
    found = [np.linalg.eigh(_roughness(row)) for row in (times[:1] if same else times)]
    values, vectors = (np.stack(each) for each in zip(*found, strict=True))
    copies = len(times) // len(values)
    values = np.where(values < 1e-12 * values.max(initial=1e-300), 0.0, values)
    return np.broadcast_to(values, (copies * len(values), *values.shape[1:])), np.broadcast_to(
        vectors, (copies * len(vectors), *vectors.shape[1:])
    )


def _differences(times: Float64[np.ndarray, " t"], order: int = _ORDER) -> Float64[np.ndarray, "d t"]:
    """Those of an order, or of the highest that there are, per unit of the usual step."""
    order = min(order, len(times) - 1)
    at = (times - times[0]) / np.median(np.diff(times))
    found = np.eye(len(at))
    for k in range(1, order + 1):
        found = k * np.diff(found, axis=0) / (at[k:] - at[:-k])[:, None]
    return np.asarray(found)


def _roughness(times: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, "t t"]:
    """The squared differences."""
    differences = _differences(times)
    return np.asarray(differences.T @ differences)


def _usual_noise(states: Float64[np.ndarray, "k t m"], times: Float64[np.ndarray, "k t"]) -> Float64[np.ndarray, " m"]:
    """The std of noise that the median difference may come from: at most so large it is, since noise is everywhere.

    Motion that is fast for a few states is taken for noise by the evidence, which has it as rough everywhere. Differences of
    noise are as large in every order, those of motion are less and less where steps are short: the least decides.
    """
    found: dict[int, list[np.ndarray]] = {order: [] for order in _ORDERS}
    for row, at in zip(states, times, strict=True):
        for order, sizes in found.items():
            differences = _differences(at[:_LONGEST], order)
            sizes.append(np.abs(differences @ row[:_LONGEST]) / np.linalg.norm(differences, axis=1, keepdims=True))
    medians = [np.median(np.concatenate(sizes), axis=0) for sizes in found.values()]
    return np.asarray(np.min(medians, axis=0) / _NORMAL)


def _noise(roughness: list[np.ndarray], values: list[np.ndarray]) -> float:
    """The std of the highest evidence, over trajectories that are all as smooth as each other."""
    r = np.concatenate([np.broadcast_to(each, y.shape).ravel() for each, y in zip(roughness, values, strict=True)])
    y = np.concatenate([each.ravel() for each in values])
    r, y = r[r > 0], y[r > 0]
    if not y.any():
        return 0.0
    best = (np.inf, 0.0)
    for weight in _WEIGHTS:
        shrunk = weight * r / (1 + weight * r)
        variance = float((shrunk * y**2).mean())
        best = min(best, (len(r) * np.log(variance) - np.log(shrunk).sum(), variance))
    return float(np.sqrt(best[1]))


def _weights(roughness: Float64[np.ndarray, "k t"], values: Float64[np.ndarray, "k t"], std: float) -> np.ndarray:
    """Of the highest evidence for each trajectory, whose motion may be smoother than that of others; the noise is the same."""
    if std == 0:
        return np.full(len(values), _WEIGHTS[0])
    shrunk = _WEIGHTS[:, None, None] * roughness / (1 + _WEIGHTS[:, None, None] * roughness)
    costs = shrunk * (values / std) ** 2 - np.log(np.where(roughness > 0, shrunk, 1.0))
    return np.asarray(_WEIGHTS[np.where(roughness > 0, costs, 0.0).sum(2).argmin(0)])
