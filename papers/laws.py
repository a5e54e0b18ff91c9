"""Systems with a law and without: what is found, and how often it is so.

Nine systems, five of which conserve something. Each is simulated from random states and seen with noise, whose standard
deviation is a share of that of each coordinate. What `sb.discover` says is conserved is then followed along the same motion
without noise. Nothing is tuned to a system: all have the settings that a user has who gives none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from papers.rows import Figures, Options, Paper, TextTable, check_names, shares, whole_numbers
from symbayes.dynamics.denoising import as_seen
from symbayes.dynamics.discover import find_terms
from symbayes.dynamics.phase import Observable, gradient
from symbayes.dynamics.quantity import Quantity
from symbayes.dynamics.terms import outside
from symbayes.dynamics.trajectories import Trajectories
from symbayes.dynamics.verdict import judge

Array = Float64[np.ndarray, "*shape"]
#: How fast states [n, m] change at a time, and n initial states.
Velocity = Callable[[float, Array], Array]
Draw = Callable[[np.random.Generator, int], Array]

#: Of the error of a step of the solver, relative and absolute.
_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Case:
    """A system, by its motion.

    Args:
        names: Of its coordinates.
        velocity: Of states.
        draw: Initial states.
        time: For how long a trajectory is followed.
        laws: What is conserved: functions of states [n, m], of which every other conserved quantity is one.
    """

    names: tuple[str, ...]
    velocity: Velocity
    draw: Draw
    time: float
    laws: tuple[Observable, ...] = ()

    def motion(self, trajectories: int, steps: int, seed: int) -> Trajectories:
        """From random states, without noise.

        Raises:
            RuntimeError: If the motion could not be followed to its end.
        """
        from scipy.integrate import solve_ivp  # slow to import

        initial = self.draw(np.random.default_rng((seed, 0)), trajectories)
        times = np.linspace(0, self.time, steps + 1)
        found = solve_ivp(
            lambda t, flat: self.velocity(t, flat.reshape(initial.shape)).ravel(),
            (0, self.time),
            initial.ravel(),
            method="DOP853",
            t_eval=times,
            rtol=_TOLERANCE,
            atol=_TOLERANCE,
        )
        if not found.success:
            raise RuntimeError(f"Motion could be followed to {found.t[-1]:g} of {self.time:g} only: {found.message}")
        states = found.y.T.reshape(len(times), *initial.shape).transpose(1, 0, 2).copy()
        return Trajectories(torch.from_numpy(states), self.time / steps, self.names)


def seen(motion: Trajectories, noise: float, seed: int) -> Trajectories:
    """The same with noise, as a share of the standard deviation of each coordinate."""
    rng = np.random.default_rng((seed, 1))
    stds = motion.states.flatten(0, 1).std(0)
    noisy = motion.states + noise * stds * torch.from_numpy(rng.standard_normal(tuple(motion.states.shape)))
    return Trajectories(noisy, motion.step, motion.names)


def uniform(*ranges: tuple[float, float]) -> Draw:
    """Each coordinate within its range."""
    low, high = np.array(ranges).T
    return lambda rng, count: rng.uniform(low, high, (count, len(low)))


def oscillator(frequency: float = 1.0, friction: float = 0.0) -> Case:
    """A mass on a spring; it conserves p² + ω² q² without friction."""

    def velocity(_: float, x: Array) -> Array:
        return np.stack([x[:, 1], -(frequency**2) * x[:, 0] - friction * x[:, 1]], 1)

    laws: tuple[Observable, ...] = (lambda x: x[:, 1] ** 2 + frequency**2 * x[:, 0] ** 2,)
    return Case(("q", "p"), velocity, uniform((-1.5, 1.5), (-1.5, 1.5)), 12.0, () if friction else laws)


def pendulum(gravity: float = 1.0, friction: float = 0.0) -> Case:
    """A pendulum that may swing over the top; it conserves p² / 2 − g cos θ without friction."""

    def velocity(_: float, x: Array) -> Array:
        return np.stack([x[:, 1], -gravity * np.sin(x[:, 0]) - friction * x[:, 1]], 1)

    laws: tuple[Observable, ...] = (lambda x: x[:, 1] ** 2 / 2 - gravity * x[:, 0].cos(),)
    return Case(("θ", "p"), velocity, uniform((-2.5, 2.5), (-1.0, 1.0)), 12.0, () if friction else laws)


def kepler(mass: float = 1.0) -> Case:
    """A planet in a plane; it conserves its energy, angular momentum, and the vector of Laplace, Runge and Lenz."""

    def velocity(_: float, x: Array) -> Array:
        distance = np.linalg.norm(x[:, :2], axis=1, keepdims=True)
        return np.concatenate([x[:, 2:], -mass * x[:, :2] / distance**3], 1)

    def draw(rng: np.random.Generator, count: int) -> Array:
        half_axis, eccentricity = rng.uniform(0.5, 1.5, count), rng.uniform(0, 0.5, count)
        anomaly, direction, sense = *rng.uniform(0, 2 * np.pi, (2, count)), rng.choice([-1, 1], count)
        parameter = half_axis * (1 - eccentricity**2)
        turn = np.exp(1j * direction)
        q = parameter / (1 + eccentricity * np.cos(anomaly)) * (np.cos(anomaly) + 1j * sense * np.sin(anomaly)) * turn
        p = np.sqrt(mass / parameter) * (-np.sin(anomaly) + 1j * sense * (eccentricity + np.cos(anomaly))) * turn
        return np.stack([q.real, q.imag, p.real, p.imag], 1)

    def energy(x: Tensor) -> Tensor:
        return (x[:, 2:] ** 2).sum(1) / 2 - mass / x[:, :2].norm(dim=1)

    def turning(x: Tensor) -> Tensor:
        return x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]

    def lenz(x: Tensor) -> Tensor:
        return x[:, 3] * turning(x) - mass * x[:, 0] / x[:, :2].norm(dim=1)

    return Case(("x", "y", "px", "py"), velocity, draw, 12.0, (energy, turning, lenz))


def henon_heiles(coupling: float = 1.0) -> Case:
    """A star in a galaxy, on orbits that are regular or chaotic; it conserves its energy alone."""

    def velocity(_: float, x: Array) -> Array:
        q1, q2, p1, p2 = x.T
        return np.stack([p1, p2, -q1 - 2 * coupling * q1 * q2, -q2 - coupling * (q1**2 - q2**2)], 1)

    def draw(rng: np.random.Generator, count: int) -> Array:
        """With less energy than lets it escape, 1 / (6 c²)."""
        x = rng.standard_normal((100 * count, 4)) * 0.25 / coupling
        energy = (x**2).sum(1) / 2 + coupling * (x[:, 0] ** 2 * x[:, 1] - x[:, 1] ** 3 / 3)
        inside = (energy * 6 * coupling**2 < 1) & (np.abs(x).max(1) * coupling < 0.5)
        return x[inside][:count]

    def law(x: Tensor) -> Tensor:
        return (x**2).sum(1) / 2 + coupling * (x[:, 0] ** 2 * x[:, 1] - x[:, 1] ** 3 / 3)

    return Case(("x", "y", "px", "py"), velocity, draw, 40.0, (law,))


def lotka_volterra(growth: float = 1.0, decay: float = 1.0) -> Case:
    """Prey and predators; they conserve x − c log x + y − a log y."""

    def velocity(_: float, x: Array) -> Array:
        return np.stack([x[:, 0] * (growth - x[:, 1]), x[:, 1] * (x[:, 0] - decay)], 1)

    laws: tuple[Observable, ...] = (lambda x: x.sum(1) - decay * x[:, 0].log() - growth * x[:, 1].log(),)
    return Case(("x", "y"), velocity, uniform((0.5, 2.0), (0.5, 2.0)), 15.0, laws)


def duffing(force: float = 0.4, friction: float = 0.2) -> Case:
    """A beam between two magnets, shaken from outside; nothing is conserved."""

    def velocity(t: float, x: Array) -> Array:
        return np.stack([x[:, 1], x[:, 0] - x[:, 0] ** 3 - friction * x[:, 1] + force * np.cos(1.2 * t)], 1)

    return Case(("x", "v"), velocity, uniform((-1.5, 1.5), (-1.0, 1.0)), 25.0)


def van_der_pol(strength: float = 1.0) -> Case:
    """An oscillator that comes to one orbit from everywhere; nothing is conserved."""

    def velocity(_: float, x: Array) -> Array:
        return np.stack([x[:, 1], strength * (1 - x[:, 0] ** 2) * x[:, 1] - x[:, 0]], 1)

    return Case(("x", "v"), velocity, uniform((-2.5, 2.5), (-2.5, 2.5)), 15.0)


def lorenz(rayleigh: float = 28.0) -> Case:
    """Convection, as Lorenz had it: chaos, and nothing conserved."""

    def velocity(_: float, s: Array) -> Array:
        x, y, z = s.T
        return np.stack([10 * (y - x), x * (rayleigh - z) - y, x * y - 8 / 3 * z], 1)

    return Case(("x", "y", "z"), velocity, uniform((-10, 10), (-10, 10), (15, 35)), 5.0)


#: By name, those of the table; with a law first.
CASES: Mapping[str, Callable[[], Case]] = {
    "oscillator": oscillator,
    "pendulum": pendulum,
    "kepler": kepler,
    "henon-heiles": henon_heiles,
    "lotka-volterra": lotka_volterra,
    "damped-pendulum": lambda: pendulum(friction=0.1),
    "driven-duffing": duffing,
    "van-der-pol": van_der_pol,
    "lorenz": lorenz,
}
#: Of the square of its slope: what a law may have beside those that are known; and at how many states that is seen.
_BESIDE, _POINTS = 0.1, 1000
#: Steps of a trajectory, and how many trajectories there are.
_STEPS, _TRAJECTORIES = 200, 60


@dataclass(frozen=True)
class Row:
    """One data set."""

    system: str
    noise: float
    seed: int
    trajectories: int

    @property
    def task(self) -> str:
        return self.system


def rows(lists: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Data sets of some systems, with noises.

    Raises:
        ValueError: If there is no such system, or a noise is no number of zero or more.
    """
    check_names(task=(lists["task"], tuple(CASES)))
    sizes, seeds = whole_numbers("sizes", lists["sizes"]), whole_numbers("seeds", lists["seeds"])
    order = product(lists["task"], shares("noises", lists["noises"]), seeds, sizes)
    return (Row(*each) for each in order)


def run(row: Row, _: None, options: Options, folder: Path) -> Figures:
    """One data set, as figures."""
    case = CASES[row.system]()
    motion = case.motion(row.trajectories, _STEPS, row.seed)
    return figures(case, motion, row.noise, row.seed) | {"system": row.system}


def figures(case: Case, motion: Trajectories, noise: float, seed: int) -> Figures:
    """What is said of a motion that is seen with noise, and how much of that is so."""
    found = find_terms(seen(motion, noise, seed))
    return {
        "seed": seed,
        "noise": noise,
        "per_mille": round(1000 * noise),
        "trajectories": len(motion),
        "lawful": bool(case.laws),
        "quantities": [
            {
                "formula": one.formula,
                "probability": one.verdict.probability,
                "tolerance": one.verdict.tolerance,
                "confirmed": one.confirmed,
                "follows": one.follows,
                "true_variation": (truth := true_variation(one, motion)),
                "true": truth <= one.verdict.tolerance and is_law(one, case, motion),
            }
            for one in found.quantities
            if one.verdict is not None
        ],
        "seconds": found.seconds,
    }


def true_variation(quantity: Quantity, motion: Trajectories) -> float:
    """How far a quantity varies along motion without noise, relative to its spread."""
    return judge(quantity, as_seen(motion)).variation


def is_law(quantity: Quantity, case: Case, motion: Trajectories) -> bool:
    """Whether a quantity is a function of what is known to be conserved, by its slope."""
    states = motion.states.flatten(0, 1)
    points, scale = states[:: max(1, len(states) // _POINTS)], states.std(0)
    laws = [gradient(law, points) * scale for law in case.laws]
    return bool(laws) and outside(gradient(quantity, points) * scale, laws) < _BESIDE


def key(found: Figures) -> tuple[Any, ...]:
    """The order of rows, and what makes them the same run."""
    return found["system"], found["per_mille"], found["trajectories"], found["seed"]


def counts(found: Sequence[Figures]) -> tuple[int, int, int]:
    """Data sets in which a law was found that is one, those with something that is none, and all."""
    confirmed = [[one["true"] for one in row["quantities"] if one["confirmed"]] for row in found]
    return sum(any(of) for of in confirmed), sum(not all(of) for of in confirmed), len(found)


def table(found: Sequence[Figures]) -> TextTable:
    """A line for each system and noise."""
    lines = []
    order = [name for name in CASES if any(row["system"] == name for row in found)]
    for name in [*order, *dict.fromkeys(row["system"] for row in found if row["system"] not in CASES)]:
        of_system = [row for row in found if row["system"] == name]
        for noise in sorted({row["noise"] for row in of_system}):
            these = [row for row in of_system if row["noise"] == noise]
            detected, false, many = counts(these)
            usual = [one["formula"] for one in these[0]["quantities"] if one["confirmed"]]
            law = "yes" if these[0]["lawful"] else "no"
            seconds = max(row["seconds"] for row in these)
            said = "; ".join(usual) or "–"
            lines.append([name, law, f"{noise:g}", f"{detected} of {many}", f"{false} of {many}", f"{seconds:.1f}", said])
    about = (
        "Found: data sets in which something is said to be conserved, 95 % sure, that is. False: those in which something is "
        "said to be that is not. What is said is so if it is a function of what is known to be conserved, and varies along the "
        "same motion without noise by no more than was said. Noise is a share of the standard deviation of each coordinate. "
        "What is said is that of the first seed."
    )
    return TextTable(["system", "law", "noise", "found", "false", "s at most", "said to be conserved"], lines, [about])


def _words(found: Figures) -> str:
    detected, false, _ = counts([found])
    verdict = "false" if false else "found" if detected else "nothing found"
    said = ", ".join(one["formula"] for one in found["quantities"] if one["confirmed"])
    return f"{verdict}{': ' if said else ''}{said}, {found['seconds']:.1f} s"


PAPER = Paper(
    "Systems with a law and without",
    "What is said to be conserved in nine systems, five of which have a law, and how much of that is so.",
    {"task": ",".join(CASES), "noises": "0,0.01,0.03,0.1", "sizes": str(_TRAJECTORIES), "seeds": "0,1,2,3,4"},
    rows,
    run,
    key,
    table,
    _words,
    reads_files=False,
)
