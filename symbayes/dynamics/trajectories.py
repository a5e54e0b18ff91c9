"""Trajectories, given or simulated from a known system, and the scaling in which they are of size one."""

import builtins
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.phase import States, velocity
from symbayes.dynamics.systems import Start, System, coordinates
from symbayes.dynamics.systems import system as _system
from symbayes.errors import NotFiniteError


@dataclass(frozen=True, eq=False)
class Trajectories:
    """States of several trajectories, all of the same length.

    Args:
        states: Of any coordinates; for an energy to be learned, positions first, then momenta.
        step: The time between states; of uneven times, the mean.
        names: Of the coordinates; none: q and p, or q1, q2, …, p1, p2, …; of an odd number, x1, x2, ….
        targets: What was seen in place of each next state, where that is noisy; none: the next states themselves.
        when: The time of every state, where times are uneven.

    Raises:
        ValueError: If there is no pair of states, a number is not finite, times do not grow, or parts do not fit together.
    """

    states: Float[Tensor, "trajectories times m"]
    step: builtins.float
    names: tuple[str, ...] = ()
    targets: Float[Tensor, "trajectories times-1 m"] | None = None
    when: Float[Tensor, "trajectories times"] | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.states.shape)
        if len(shape) != 3 or shape[0] < 1:
            raise ValueError(f"states must be [trajectories, times, coordinates] of one trajectory or more, got {shape}.")
        if shape[1] < 2:
            raise ValueError(f"A trajectory must have 2 states or more, got {shape[1]}. What is learned is how states change.")
        if shape[2] < 1:
            raise ValueError("A state must have a coordinate or more; got none.")
        if not 0 < self.step < inf:
            raise ValueError(f"step must be above 0 and finite, got {self.step:g}. It is the time between states.")
        _check_numbers("states", self.states)
        if self.targets is not None:
            wanted = (shape[0], shape[1] - 1, shape[2])
            if tuple(self.targets.shape) != wanted:
                found = tuple(self.targets.shape)
                raise ValueError(f"targets must be {wanted}, one for every state but the last of its trajectory; got {found}.")
            _check_numbers("targets", self.targets)
        if self.when is not None:
            if tuple(self.when.shape) != shape[:2]:
                raise ValueError(f"when must be {shape[:2]}, a time for every state; got {tuple(self.when.shape)}.")
            if not self.when.isfinite().all() or not (self.when.diff(dim=1) > 0).all():
                raise ValueError("when must be finite, and grow from state to state of a trajectory. Sort the states by time.")
        object.__setattr__(self, "names", self.names or coordinates(shape[2]))
        if len(self.names) != shape[2] or len(set(self.names)) != shape[2]:
            raise ValueError(f"names must be {shape[2]} different ones, as there are coordinates; got {', '.join(self.names)}.")

    def __len__(self) -> int:
        return len(self.states)

    @property
    def degrees(self) -> int:
        """Of freedom: how many positions there are.

        Raises:
            ValueError: If there are not as many momenta.
        """
        if self.states.shape[2] % 2:
            raise ValueError(
                f"A state must be as many momenta as positions, an even count; got {self.states.shape[2]} coordinates: "
                f"{', '.join(self.names)}. An energy needs both; sums of terms are sought among any coordinates."
            )
        return self.states.shape[2] // 2

    @property
    def times(self) -> Float[Tensor, "trajectories times"]:
        """Of every state, in double precision."""
        if self.when is not None:
            return self.when.double()
        return (self.step * torch.arange(self.states.shape[1], dtype=torch.float64)).expand(self.states.shape[:2])

    @property
    def duration(self) -> builtins.float:
        """The time from the first state of a trajectory to its last."""
        return self.step * (self.states.shape[1] - 1)

    def pairs(self) -> tuple[States, States]:
        """Every state but the last of its trajectory, and what it became a step later."""
        after = self.states[:, 1:] if self.targets is None else self.targets
        return self.states[:, :-1].flatten(0, 1), after.flatten(0, 1)

    def split(self, share: builtins.float = 0.2) -> tuple["Trajectories", "Trajectories"]:
        """Trajectories to learn from, and the last ones, to test on; a single one is cut in time instead.

        Args:
            share: Of trajectories to test on; of a single one, of its states. The step across that cut is in neither part.

        Raises:
            ValueError: If a part would be left without a trajectory, or without a step.
        """
        alone = len(self) == 1
        many, fewest, what = (self.states.shape[1], 2, "states") if alone else (len(self), 1, "trajectories")
        cut = many - round(share * many) if 0 < share < 1 else 0
        if not fewest <= cut <= many - fewest:
            within = f"Give a share between {fewest / many:.3g} and {1 - fewest / many:.3g}, or record more."
            raise ValueError(
                f"Both parts must have {fewest} or more of the {many} {what}; with share={share:g} one has not. "
                f"{within if many >= 2 * fewest else 'Record more.'}"
            )
        if alone:
            return self._part(times=slice(cut)), self._part(times=slice(cut, None))
        return self._part(slice(cut)), self._part(slice(cut, None))

    def _part(self, which: slice = slice(None), times: slice = slice(None)) -> "Trajectories":
        states = self.states[which, times]
        when = None if self.when is None else self.when[which, times]
        targets = None if self.targets is None else self.targets[which, times][:, : states.shape[1] - 1]
        return replace(self, states=states, targets=targets, when=when)

    def float(self) -> "Trajectories":
        """In single precision."""
        return replace(self, states=self.states.float(), targets=None if self.targets is None else self.targets.float())


def _check_numbers(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating-point numbers, got {tensor.dtype}. Convert them: {name}.double().")
    if not tensor.isfinite().all():
        place = (~tensor.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"{name} must be finite; the number at {place} (trajectory, time, coordinate) is not.")


#: Of the error of a step of the solver in every trajectory, relative and absolute.
_TOLERANCE = 1e-10
#: Finer ones are below what double precision resolves.
_FINEST = 1e-13


def simulate(
    system: System | str,
    *,
    trajectories: int = 40,
    steps: int = 10,
    step: float = 0.2,
    start: Start | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> Trajectories:
    """Motion of a system from random states, in double precision and as good as exact.

    Args:
        system: Or its name.
        trajectories: How many.
        steps: Of each, which has one state more.
        step: The time between states.
        start: Where they start; none: where is usual for the system.
        noise: The standard deviation of what is added to targets; states are never noisy.
        seed: Of initial states and noise; states do not depend on noise.

    Raises:
        ValueError: If a number is too small or not finite, or there is no system of this name.
        NotFiniteError: If the system does not move from its initial states at a finite speed.
        RuntimeError: If the motion could not be followed to its end.
    """
    if isinstance(system, str):
        system = _system(system)
    for name, count in (("trajectories", trajectories), ("steps", steps)):
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, got {count}.")
    if not 0 < step < inf:
        raise ValueError(f"step must be above 0 and finite, got {step:g}. It is the time between states.")
    if not 0 <= noise < inf:
        raise ValueError(f"noise must be 0 or more and finite, got {noise:g}. It is a standard deviation.")
    generator = Generator().manual_seed(seed)
    initial = system.initial(trajectories, generator, start)
    states = motion(system, initial, steps, step)
    after = states[:, 1:]
    noisy = after + noise * torch.randn(after.shape, generator=generator, dtype=after.dtype) if noise else None
    return Trajectories(states, step, system.names, noisy)


def motion(system: System, initial: States, steps: int, step: float) -> Float[Tensor, "n times m"]:
    """States at all times, of all trajectories; they are one large system to the solver.

    Args:
        system: That moves.
        initial: The first states, in double precision.
        steps: How many follow.
        step: The time between them.
    """
    from scipy.integrate import solve_ivp  # slow to import

    times = step * np.arange(steps + 1)

    def speed(_: float, flat: np.ndarray) -> np.ndarray:
        states = torch.from_numpy(flat).view_as(initial)
        return velocity(system.hamiltonian, states).detach().flatten().numpy()

    flat = initial.flatten().numpy()
    if not np.isfinite(speed(0.0, flat)).all():
        raise NotFiniteError(
            f"The velocity of {system.name} must be finite at its initial states; it is not. Start where its energy is smooth."
        )
    # The solver bounds the mean square over all trajectories; so much finer, it bounds that of each.
    tolerance = max(_TOLERANCE / len(initial) ** 0.5, _FINEST)
    found = solve_ivp(speed, (0.0, times[-1]), flat, method="DOP853", t_eval=times, rtol=tolerance, atol=tolerance)
    if not found.success:
        reached = found.t[-1] if len(found.t) else 0.0
        raise RuntimeError(
            f"{system.name} could be followed to time {reached:g} of {times[-1]:g} only: {found.message} Its energy may have a "
            "singularity on the way; start elsewhere, or take fewer steps."
        )
    return torch.from_numpy(found.y.T.copy()).view(steps + 1, *initial.shape).transpose(0, 1)


#: How far from zero positions may lie, in stds.
_FAR = 100.0


@dataclass(frozen=True)
class Scaling:
    """Of positions, momenta and time; all positions have the same, and all momenta, so that motion stays Hamiltonian.

    Args:
        scale: What is one unit of each coordinate.
        time: What is one unit of time.
    """

    scale: Float[Tensor, " m"]
    time: float

    @classmethod
    def of(cls, trajectories: Trajectories) -> "Scaling":
        """In which positions, momenta and velocities are of size one, on average over the data.

        Raises:
            ValueError: If nothing moves, all positions or all momenta are zero, or positions are far from zero.
        """
        states = trajectories.states.double()
        positions = states[..., : trajectories.degrees]
        centre, spread = positions.mean((0, 1)), float((positions - positions.mean((0, 1))).square().mean().sqrt())
        if float(centre.abs().max()) > _FAR * spread > 0:
            place = int(centre.abs().argmax())
            raise ValueError(
                f"Positions must lie about zero, or motion is lost beside them; {trajectories.names[place]} is about "
                f"{float(centre[place]):.3g}, where positions differ by {spread:.3g}. Subtract a constant; momenta stay."
            )
        sizes = [float(half.square().mean().sqrt()) for half in states.chunk(2, -1)]
        scale = torch.tensor(sizes, dtype=torch.float64).repeat_interleave(trajectories.degrees)
        speed = float((states.diff(dim=1) / scale).square().mean().sqrt()) / trajectories.step if min(sizes) > 0 else 0.0
        if not speed > 0:
            raise ValueError(
                "States must change, and neither positions nor momenta may all be zero, or there is nothing to learn from; got "
                f"positions of size {sizes[0]:g}, momenta of size {sizes[1]:g} and a speed of {speed:g}."
            )
        return cls(scale, 1 / speed)

    @classmethod
    def none(cls, trajectories: Trajectories) -> "Scaling":
        """Those of the data."""
        return cls(torch.ones(2 * trajectories.degrees, dtype=torch.float64), 1.0)

    @property
    def action(self) -> float:
        """The unit of position times momentum, in which observables are measured that generate the same flows."""
        return float(self.scale[0] * self.scale[-1])

    @property
    def energy(self) -> float:
        """The unit of energies."""
        return self.action / self.time

    @property
    def log_volume(self) -> float:
        """Of the unit cell of states: what the log density of a state in the units of the data is lower by."""
        return float(self.scale.log().sum())

    def entered(self, trajectories: Trajectories) -> Trajectories:
        """The same motion in these units."""
        targets = None if trajectories.targets is None else trajectories.targets / self.scale
        return Trajectories(trajectories.states / self.scale, trajectories.step / self.time, trajectories.names, targets)

    def left(self, quadratics: Quadratics) -> Quadratics:
        """Quadratics in these units as functions of states outside, in units of action; fixed, in double precision."""
        scale = self.scale.to(quadratics.linear.device)
        return _scale(quadratics, 1 / scale, self.action)

    def taken_in(self, quadratics: Quadratics) -> Quadratics:
        """Quadratics of states outside, in these units: those with the same flows."""
        return _scale(quadratics, self.scale.to(quadratics.linear.device), 1 / self.action)


def _scale(quadratics: Quadratics, scale: Float[Tensor, " m"], factor: float) -> Quadratics:
    """factor · C(scale x)."""
    halves, linear = quadratics.halves.detach().double(), quadratics.linear.detach().double()
    return Quadratics(factor * halves * scale[:, None] * scale, factor * linear * scale, learned=False)
