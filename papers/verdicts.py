"""Are verdicts on conserved quantities as sure as they say? Simulations of systems with random parameters.

Of every simulation the kind of system, its parameters, the number and the length of trajectories and the noise are drawn. Half
of them have a law. Kinds beyond those of `laws` are among them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.drawing import FAINT, NEGATIVE, card, drawn
from papers.laws import (
    Array,
    Case,
    duffing,
    figures,
    henon_heiles,
    kepler,
    lorenz,
    lotka_volterra,
    oscillator,
    pendulum,
    uniform,
    van_der_pol,
)
from papers.rows import Figures, Options, Paper, TextTable, whole_numbers
from symbayes.dynamics.verdict import SURE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Simulations of the table.
_MANY = 200
#: Bins of stated probabilities.
_ENDS = (0.0, 0.05, 0.5, 0.9, SURE, 0.99, 1.0)


def magnetic(field: float = 1.0, spring: float = 0.5) -> Case:
    """A charge in a plane, in a magnetic field and a well; by its velocity, which is no momentum."""

    def velocity(_: float, x: Array) -> Array:
        turned = np.stack([x[:, 3], -x[:, 2]], 1)
        return np.concatenate([x[:, 2:], field * turned - spring * x[:, :2]], 1)

    one = (-1.0, 1.0)
    laws = (
        lambda x: x[:, 2] ** 2 + x[:, 3] ** 2 + spring * (x[:, 0] ** 2 + x[:, 1] ** 2),
        lambda x: x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2] + field * (x[:, 0] ** 2 + x[:, 1] ** 2) / 2,
    )
    return Case(("x", "y", "vx", "vy"), velocity, uniform(one, one, one, one), 15.0, laws)


def rigid_body(first: float = 1.0, second: float = 2.0, third: float = 3.0) -> Case:
    """A body that turns freely, by its angular momentum in axes of its own: three coordinates."""
    inertia = np.array([first, second, third])

    def velocity(_: float, x: Array) -> Array:
        return np.cross(x, x / inertia)

    one = (-1.5, 1.5)
    laws = (lambda x: (x**2).sum(1), lambda x: x[:, 0] ** 2 / first + x[:, 1] ** 2 / second + x[:, 2] ** 2 / third)
    return Case(("Lx", "Ly", "Lz"), velocity, uniform(one, one, one), 30.0, laws)


def double_well(depth: float = 1.0, friction: float = 0.0) -> Case:
    """A ball between two valleys; it conserves v² / 2 − d x² / 2 + x⁴ / 4 without friction."""

    def velocity(_: float, x: Array) -> Array:
        return np.stack([x[:, 1], depth * x[:, 0] - x[:, 0] ** 3 - friction * x[:, 1]], 1)

    law = (lambda x: x[:, 1] ** 2 / 2 - depth * x[:, 0] ** 2 / 2 + x[:, 0] ** 4 / 4,)
    return Case(("x", "v"), velocity, uniform((-2.0, 2.0), (-1.0, 1.0)), 15.0, () if friction else law)


def coupled(coupling: float = 0.5, friction: float = 0.0) -> Case:
    """Two masses on springs of unequal strength, joined by a quartic one; their energy is conserved without friction."""

    def velocity(_: float, x: Array) -> Array:
        pull = coupling * (x[:, 0] - x[:, 1]) ** 3
        return np.stack([x[:, 2], x[:, 3], -x[:, 0] - pull - friction * x[:, 2], -2 * x[:, 1] + pull - friction * x[:, 3]], 1)

    def law(x: Any) -> Any:
        own = x[:, 0] ** 2 + 2 * x[:, 1] ** 2 + x[:, 2] ** 2 + x[:, 3] ** 2
        return own / 2 + coupling * (x[:, 0] - x[:, 1]) ** 4 / 4

    one = (-1.5, 1.5)
    return Case(("x", "y", "vx", "vy"), velocity, uniform(one, one, one, one), 20.0, () if friction else (law,))


def rossler(c: float = 5.7) -> Case:
    """Chaos of another kind; nothing is conserved."""

    def velocity(_: float, s: Array) -> Array:
        x, y, z = s.T
        return np.stack([-y - z, x + 0.2 * y, 0.2 + z * (x - c)], 1)

    return Case(("x", "y", "z"), velocity, uniform((-6, 6), (-6, 6), (0, 1)), 25.0)


Drawn = Callable[[np.random.Generator], Case]


def _friction(rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(np.log(0.03), np.log(0.5))))


#: Kinds with a law and without, their parameters drawn.
LAWFUL: Mapping[str, Drawn] = {
    "oscillator": lambda rng: oscillator(rng.uniform(0.7, 2)),
    "pendulum": lambda rng: pendulum(rng.uniform(0.7, 2)),
    "kepler": lambda rng: kepler(rng.uniform(0.7, 1.5)),
    "henon-heiles": lambda rng: henon_heiles(rng.uniform(0.8, 1.2)),
    "lotka-volterra": lambda rng: lotka_volterra(rng.uniform(0.7, 1.5), rng.uniform(0.7, 1.5)),
    "magnetic": lambda rng: magnetic(rng.uniform(0.5, 2), rng.uniform(0.2, 1)),
    "rigid-body": lambda rng: rigid_body(1.0, rng.uniform(1.5, 2.0), rng.uniform(2.5, 4.0)),
    "double-well": lambda rng: double_well(rng.uniform(0.5, 1.5)),
    "coupled": lambda rng: coupled(rng.uniform(0.2, 1)),
}
LAWLESS: Mapping[str, Drawn] = {
    "damped oscillator": lambda rng: oscillator(rng.uniform(0.7, 2), _friction(rng)),
    "damped pendulum": lambda rng: pendulum(rng.uniform(0.7, 2), _friction(rng)),
    "damped double-well": lambda rng: double_well(rng.uniform(0.5, 1.5), _friction(rng)),
    "damped coupled": lambda rng: coupled(rng.uniform(0.2, 1), _friction(rng)),
    "driven duffing": lambda rng: duffing(rng.uniform(0.2, 0.5), rng.uniform(0.1, 0.4)),
    "van der pol": lambda rng: van_der_pol(rng.uniform(0.3, 2)),
    "lorenz": lambda rng: lorenz(rng.uniform(24, 40)),
    "rossler": lambda rng: rossler(rng.uniform(4, 7)),
}


@dataclass(frozen=True)
class Row:
    """One simulation."""

    seed: int

    @property
    def task(self) -> str:
        return "random"


def rows(lists: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Simulations by seed.

    Raises:
        ValueError: If a seed is no whole number.
    """
    (many,) = whole_numbers("sizes", lists["sizes"]) if len(lists["sizes"]) == 1 else (0,)
    if not many:
        raise ValueError(f"sizes must be one number, of simulations, and at least 1; got {','.join(lists['sizes'])}.")
    return (Row(seed) for seed in range(many))


def run(row: Row, _: None, options: Options, folder: Path) -> Figures:
    """One simulation, as figures; those with an even seed have a law."""
    rng = np.random.default_rng((row.seed, 2))
    kinds = LAWLESS if row.seed % 2 else LAWFUL
    kind = list(kinds)[rng.integers(len(kinds))]
    case = kinds[kind](rng)
    case = replace(case, time=case.time * rng.uniform(0.8, 1.5))
    trajectories, steps = int(rng.integers(24, 81)), int(rng.integers(80, 241))
    noise = 0.0 if rng.uniform() < 0.2 else float(np.exp(rng.uniform(np.log(1e-3), np.log(0.1))))
    motion = case.motion(trajectories, steps, row.seed)
    return figures(case, motion, noise, row.seed) | {"system": kind, "steps": steps}


def key(found: Figures) -> tuple[Any, ...]:
    """The order of rows, and what makes them the same run."""
    return "random", found["seed"]


def stated(found: Sequence[Figures]) -> list[tuple[float, bool]]:
    """Of all verdicts, what was stated and whether it is so."""
    return [(one["probability"], bool(one["true"])) for row in found for one in row["quantities"]]


def binned(found: Sequence[Figures]) -> list[tuple[float, float, int, int, float]]:
    """By stated probability: the ends of a bin, verdicts in it, how many hold, and the mean of what was stated."""
    lines = []
    for low, high in pairwise(_ENDS):
        inside = [(p, so) for p, so in stated(found) if low <= p < high or p == high == 1]
        if inside:
            lines.append((low, high, len(inside), sum(so for _, so in inside), float(np.mean([p for p, _ in inside]))))
    return lines


def table(found: Sequence[Figures]) -> TextTable:
    """A line for each bin of stated probabilities, and what follows from all."""
    lines = [
        [f"{100 * low:g} to {100 * high:g} %", str(many), str(so), f"{100 * so / many:.1f} %", _limits(so, many)]
        for low, high, many, so, _ in binned(found)
    ]
    sure = [so for p, so in stated(found) if p >= SURE]
    without = [row for row in found if not row["lawful"]]
    silent = sum(not any(one["confirmed"] for one in row["quantities"]) for row in without)
    lawful = [row for row in found if row["lawful"]]
    detected = sum(any(one["confirmed"] and one["true"] for one in row["quantities"]) for row in lawful)
    about = (
        f"{len(found)} simulations. Of {len(sure)} verdicts of 95 % or more, {sum(sure)} hold "
        f"({_share(sum(sure), len(sure))}). "
        f"Of {len(without)} systems without a law, {silent} are said to have none ({_share(silent, len(without))}). Of "
        f"{len(lawful)} with a law, one is found in {detected} ({_share(detected, len(lawful))}). Limits are those of Clopper "
        "and Pearson, 95 %."
    )
    return TextTable(["stated", "verdicts", "hold", "share", "95 % limits"], lines, [about])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def limits(part: int, whole: int) -> tuple[float, float]:
    """Of a share, by Clopper and Pearson."""
    from scipy.stats import beta  # slow to import

    low = float(beta.ppf(0.025, part, whole - part + 1)) if part else 0.0
    return low, float(beta.ppf(0.975, part + 1, whole - part)) if part < whole else 1.0


def _limits(part: int, whole: int) -> str:
    return " to ".join(f"{100 * end:.1f}" for end in limits(part, whole)) + " %"


@drawn
def calibration_picture(found: Sequence[Figures]) -> "Figure":
    """What was stated against how often it was so, with limits."""
    figure = card(
        520,
        480,
        "Are verdicts as sure as they say?",
        f"{len(found)} simulations, {len(stated(found))} quantities judged on held-out data",
    )
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1)
    for _, _, many, so, mean in binned(found):
        low, high = limits(so, many)
        axes.plot([mean, mean], [low, high], color=NEGATIVE)
        axes.plot([mean], [so / many], "o", color=NEGATIVE)
        axes.annotate(str(many), (mean, so / many), (7, -4), textcoords="offset points", color=FAINT)
    axes.set(xlim=(-0.03, 1.06), ylim=(-0.03, 1.06), xlabel="stated probability that it is conserved", ylabel="share that is")
    axes.grid()
    return figure


def _words(found: Figures) -> str:
    said = ", ".join(
        f"{one['formula']} ({100 * one['probability']:.0f} %, {'so' if one['true'] else 'not so'})"
        for one in found["quantities"]
        if one["confirmed"]
    )
    return f"{found['system']}, noise {found['noise']:.3g}: {said or 'nothing'}, {found['seconds']:.1f} s"


PAPER = Paper(
    "Verdicts on conserved quantities",
    "Are verdicts as sure as they say? Simulations of systems with random parameters, half of them with a law.",
    {"sizes": str(_MANY)},
    rows,
    run,
    key,
    table,
    _words,
    pictures=lambda found: {"verdicts": calibration_picture(found)} if stated(found) else {},
    reads_files=False,
)
