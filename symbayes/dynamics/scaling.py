"""Scaling in which states and velocities are of size one, so that one set of settings serves planets and pendulums."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.trajectories import Trajectories

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
