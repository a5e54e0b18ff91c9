"""Trajectories of a known system, to learn from and to test on."""

from math import inf

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Generator, Tensor

from symbayes.dynamics.phase import States, velocity
from symbayes.dynamics.systems import Start, System
from symbayes.dynamics.systems import system as by_name
from symbayes.dynamics.trajectories import Trajectories
from symbayes.errors import NotFiniteError

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
        system = by_name(system)
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
