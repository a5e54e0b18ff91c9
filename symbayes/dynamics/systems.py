"""Mechanical systems: an energy H(q, p), what its coordinates are called, and where motion starts.

A system of your own is one function: `System(lambda q, p: (p**2).sum(-1) / 2 + (q**4).sum(-1), degrees=2)`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite, pi

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from symbayes.dynamics.phase import States

#: H(q, p) of n states, each of which is on its own.
Energy = Callable[[Float[Tensor, "n d"], Float[Tensor, "n d"]], Float[Tensor, " n"]]


def coordinates(size: int) -> tuple[str, ...]:
    """What coordinates are called where nobody says: q and p, or q1, q2, …, p1, p2, …; of an odd number, x1, x2, …."""
    if size % 2:
        return tuple(f"x{k + 1}" for k in range(size))
    degrees = size // 2
    numbers = [""] if degrees == 1 else [str(k + 1) for k in range(degrees)]
    return tuple(letter + number for letter in "qp" for number in numbers)


@dataclass(frozen=True)
class Start:
    """Where motion starts: q ~ positions · N(0, I) + shift · ξ + moved with one ξ ~ N(0, 1) per state, p ~ momenta · N(0, I).

    Args:
        positions: Standard deviation of each position on its own.
        momenta: Standard deviation of each momentum.
        shift: Standard deviation of what all positions of a trajectory have in common.
        moved: What is added to every position of every trajectory.

    Raises:
        ValueError: If a standard deviation is negative, or a number is not finite.
    """

    positions: float = 1.0
    momenta: float = 0.5
    shift: float = 0.0
    moved: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("positions", self.positions), ("momenta", self.momenta), ("shift", self.shift)):
            if not 0 <= value < inf:
                raise ValueError(f"{name} must be 0 or more and finite, got {value:g}. It is a standard deviation.")
        if not isfinite(self.moved):
            raise ValueError(f"moved must be finite, got {self.moved:g}. It is added to every position.")

    def draw(self, count: int, degrees: int, generator: Generator) -> States:
        """So many states of so many degrees of freedom, in double precision."""
        normal = torch.randn(count, 2 * degrees + 1, generator=generator, dtype=torch.float64)
        q, p, common = normal.split([degrees, degrees, 1], 1)
        return torch.cat([self.positions * q + self.shift * common + self.moved, self.momenta * p], 1)


#: Where trajectories to learn from start, and those of the three test sets of Noether's razor (van der Ouderaa et al. 2024).
TRAIN = Start()
TESTS = {"test": Start(1.0, 0.2), "moved": Start(1.0, 0.2, moved=1.0), "wider": Start(3.0, 0.2)}


@dataclass(frozen=True)
class System:
    """A mechanical system without friction.

    Args:
        energy: H of positions and momenta, one number for every row.
        degrees: Of freedom: how many positions there are, and how many momenta.
        name: For people.
        names: Of the coordinates, positions first; none: those of `coordinates`.
        start: Where motion starts.
        draw: So many initial states, in place of any start; for systems that not every start suits.

    Raises:
        ValueError: If degrees is below 1, or names do not fit.
    """

    energy: Energy
    degrees: int
    name: str = "system"
    names: tuple[str, ...] = ()
    start: Start = field(default_factory=Start)
    draw: Callable[[int, Generator], States] | None = None

    def __post_init__(self) -> None:
        if self.degrees < 1:
            raise ValueError(f"degrees must be 1 or more, got {self.degrees}. It counts positions, without momenta.")
        object.__setattr__(self, "names", self.names or coordinates(2 * self.degrees))
        if len(set(self.names)) != 2 * self.degrees or len(self.names) != 2 * self.degrees:
            raise ValueError(
                f"names must be {2 * self.degrees} different ones, of {self.degrees} positions and as many momenta; got "
                f"{', '.join(self.names)}."
            )

    def hamiltonian(self, states: States) -> Float[Tensor, " n"]:
        """The energy of every state."""
        if states.shape[1] != 2 * self.degrees:
            raise ValueError(
                f"States of {self.name} must be {2 * self.degrees} numbers ({', '.join(self.names)}), got {states.shape[1]}."
            )
        q, p = states.chunk(2, 1)
        found = self.energy(q, p)
        if found.shape != states.shape[:1]:
            raise ValueError(
                f"The energy of {self.name} must be one number for each of {len(states)} states, got the shape "
                f"{tuple(found.shape)}. Sum over the coordinates of a state, as in (p**2).sum(-1) / 2."
            )
        return found

    def initial(self, count: int, generator: Generator, start: Start | None = None) -> States:
        """States to start from: as `start` says, or, without one, as is usual for this system.

        Raises:
            ValueError: If a start is given to a system that draws its own states, or what it draws is of another shape.
        """
        if self.draw is None:
            return (start or self.start).draw(count, self.degrees, generator)
        if start is not None:
            raise ValueError(
                f"start must be left out for {self.name}, which draws initial states of its own: others may lead to "
                "collisions. If they shall, take dataclasses.replace(system, draw=None)."
            )
        found = self.draw(count, generator).double()
        if found.shape != (count, 2 * self.degrees):
            raise ValueError(
                f"draw of {self.name} must return {count} states of {2 * self.degrees} numbers, got the shape "
                f"{tuple(found.shape)}."
            )
        return found


def oscillators(n: int = 1) -> System:
    """Masses on springs, all equal and each on its own: H = (|q|² + |p|²) / 2."""
    _at_least(1, "oscillators", n)

    def energy(q: Tensor, p: Tensor) -> Tensor:
        return (q.square() + p.square()).sum(-1) / 2

    return System(energy, n, "oscillator" if n == 1 else f"{n}-oscillators")


def bodies(n: int = 3, dimensions: int = 2, softening: float = 1.0) -> System:
    """Unit masses that attract each other, H = Σ_i |p_i|² / 2 − Σ_{i<j} 1 / √(|q_i − q_j|² + softening²).

    Args:
        n: How many.
        dimensions: Of space; the coordinates of a body lie next to each other.
        softening: The distance below which attraction stops to grow; without any, bodies collide.

    Raises:
        ValueError: If there are fewer than two bodies, space is neither a plane nor of three dimensions, or softening is
            negative or not finite.
    """
    _at_least(2, "bodies", n)
    if dimensions not in (2, 3):
        raise ValueError(f"dimensions must be 2 or 3, got {dimensions}.")
    if not 0 <= softening < inf:
        raise ValueError(f"softening must be 0 or more and finite, got {softening:g}. It is a distance.")
    first, second = torch.triu_indices(n, n, 1)
    places = [f"{axis}{k + 1}" for k in range(n) for axis in "xyz"[:dimensions]]

    def energy(q: Tensor, p: Tensor) -> Tensor:
        place = q.unflatten(-1, (n, dimensions))
        apart = place[..., first.to(q.device), :] - place[..., second.to(q.device), :]
        return p.square().sum(-1) / 2 - (apart.square().sum(-1) + softening**2).rsqrt().sum(-1)

    return System(energy, n * dimensions, f"{n}-body-{dimensions}d", (*places, *(f"p{place}" for place in places)))


def pendulum() -> System:
    """A unit mass on a rod of unit length under unit gravity, H = p² / 2 − cos θ, with θ = 0 at rest."""

    def energy(q: Tensor, p: Tensor) -> Tensor:
        return (p.square() / 2 - q.cos()).sum(-1)

    return System(energy, 1, "pendulum", ("θ", "p"))


def double_pendulum() -> System:
    """A pendulum below a pendulum, H = (p₁² + 2 p₂² − 2 p₁ p₂ cos δ) / (2 + 2 sin² δ) − 2 cos θ₁ − cos θ₂ with δ = θ₁ − θ₂.

    Masses, lengths and gravity are 1, and both angles are from the vertical. Momenta are those that belong to the angles:
    p₁ = 2 θ̇₁ + θ̇₂ cos δ and p₂ = θ̇₂ + θ̇₁ cos δ.
    """

    def energy(q: Tensor, p: Tensor) -> Tensor:
        between = q[..., 0] - q[..., 1]
        kinetic = p[..., 0].square() + 2 * p[..., 1].square() - 2 * p[..., 0] * p[..., 1] * between.cos()
        return kinetic / (2 + 2 * between.sin().square()) - 2 * q[..., 0].cos() - q[..., 1].cos()

    return System(energy, 2, "double-pendulum", ("θ1", "θ2", "p1", "p2"))


def kepler() -> System:
    """A planet in the plane of its sun, H = |p|² / 2 − 1 / |q|; it starts on ellipses that do not come near the sun."""

    def energy(q: Tensor, p: Tensor) -> Tensor:
        return p.square().sum(-1) / 2 - q.square().sum(-1).rsqrt()

    return System(energy, 2, "kepler", ("x", "y", "px", "py"), draw=_ellipses)


def _ellipses(count: int, generator: Generator) -> States:
    """Half axes within U(½, 1½), eccentricities within U(0, ½), any direction, either sense, and any place along the orbit."""
    unit = torch.rand(count, 5, generator=generator, dtype=torch.float64)
    half_axis, eccentricity = 0.5 + unit[:, 0], 0.5 * unit[:, 1]
    anomaly, turn = 2 * pi * unit[:, 2], 2 * pi * unit[:, 3]
    parameter = half_axis * (1 - eccentricity.square())
    distance = parameter / (1 + eccentricity * anomaly.cos())
    sense = torch.where(unit[:, 4] < 0.5, -1.0, 1.0)
    q = torch.complex(distance * anomaly.cos(), sense * distance * anomaly.sin())
    p = torch.complex(-anomaly.sin(), sense * (eccentricity + anomaly.cos())) / parameter.sqrt()
    direction = torch.polar(torch.ones_like(turn), turn)
    return torch.cat([torch.view_as_real(part * direction) for part in (q, p)], 1)


_NAMED: dict[str, Callable[[], System]] = {
    "oscillator": oscillators,
    "pendulum": pendulum,
    "double-pendulum": double_pendulum,
    "kepler": kepler,
}


def system(name: str) -> System:
    """A system by name: "oscillator", "pendulum", "double-pendulum", "kepler", or with any counts "2-oscillators", "3-body-2d".

    Raises:
        ValueError: If there is no such system.
    """
    if name in _NAMED:
        return _NAMED[name]()
    if found := re.fullmatch(r"([0-9]+)-oscillators?", name):
        return oscillators(int(found[1]))
    if found := re.fullmatch(r"([0-9]+)-body-([0-9]+)d", name):
        return bodies(int(found[1]), int(found[2]))
    raise ValueError(
        f"There is no system {name!r}; there are {', '.join(_NAMED)}, 2-oscillators, 3-body-2d, 3-body-3d, and so on with any "
        "other count. Give System(energy, degrees=...) for one of your own."
    )


def _at_least(fewest: int, what: str, n: int) -> None:
    if n < fewest:
        raise ValueError(f"There must be {fewest} or more {what}, got {n}.")
