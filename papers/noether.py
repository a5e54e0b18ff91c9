"""Conserved quantities of known systems: the plain Hamiltonian network, learned symmetries, and those known beforehand.

The experiments of Noether's razor (van der Ouderaa, van der Wilk and de Haan 2024): systems, data, networks. Models differ in
their symmetry and in nothing else. Errors are one step ahead, on three sets of the same system: `test`, `moved` and `wider`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import log, pi
from pathlib import Path
from typing import Any

from papers.rows import Figures, Options, Paper, TextTable, check_names, keeping, refuse_partial, whole_numbers
from symbayes.dynamics.discover import learn_energy
from symbayes.dynamics.energy import EnergyDiscovery
from symbayes.dynamics.observables import Quadratics, euclidean, unitary
from symbayes.dynamics.phase import Euler, RungeKutta
from symbayes.dynamics.search import Search
from symbayes.dynamics.systems import TESTS, Start
from symbayes.dynamics.systems import system as by_name
from symbayes.dynamics.trajectories import Scaling, Trajectories, simulate
from symbayes.training.record import Record

PLAIN, LEARNED, ORACLE = "plain", "learned", "oracle"
METHODS = (PLAIN, LEARNED, ORACLE)
#: As many trajectories as a system usually has.
USUAL = "usual"
#: Trajectories of a test set, and steps of each.
_TESTED, _STEPS = 100, 20
#: The standard deviation of what is observed.
NOISE = 1e-3**0.5


@dataclass(frozen=True)
class Setting:
    """What is learned from, and how.

    Args:
        trajectories: How many.
        steps: Of each.
        step: The time between states.
        start: Where they start.
        oracle: The symmetries known beforehand.
        search: Settings of all models.
        scaled: Whether networks see states in units in which they are of size one; otherwise as they are.
        system: What moves, where these settings have another name.
    """

    trajectories: int
    steps: int
    step: float
    start: Start
    oracle: Callable[[], Quadratics]
    search: Search = field(default_factory=Search)
    scaled: bool = True
    system: str | None = None


_THREE = Setting(
    200,
    50,
    0.3,
    Start(1.0, 0.5, 3.0),
    lambda: euclidean(3, 2),
    Search(
        quantities=10,
        start=0.12,
        width=80,
        hidden=3,
        integrator=RungeKutta(1),
        samples=16,
        final_samples=128,
        batch_size=200,
        updates=13_000,
        first=4 / 13,
        learning_rate=2e-3,
        rate=0.001,
        annealing=0.02,
    ),
    scaled=False,
    system="3-body-2d",
)
#: Towards the paper's scripts, one difference after the other: their steps, their integrator, their network, their batches and
#: rate of weights, their rate of observables. Learned symmetries are then not compared with a plain energy, as there. They have
#: a thousand epochs and a hundred transformations, which `--epochs` and `--samples` give, and begin at random.
_LONG = replace(_THREE, step=1.0, search=replace(_THREE.search, integrator=RungeKutta(2), samples=8, final_samples=32))
_EULER = replace(_LONG, search=replace(_LONG.search, integrator=Euler(10)))
_ELU = replace(_EULER, search=replace(_EULER.search, width=250, activation="elu"))
_THEIRS = replace(_ELU.search, batch_size=1000, updates=8000, first=0.5, learning_rate=1e-3, samples=16, against_plain=False)
_BATCH = replace(_ELU, search=_THEIRS)
_TALK = replace(_BATCH, search=replace(_BATCH.search, rate=0.01))
#: By name, which is that of a system, or says how it differs.
SETTINGS: Mapping[str, Setting] = {
    "oscillator": Setting(7, 4, 0.2, Start(1.0, 0.5), lambda: unitary(1), Search(quantities=1, measure="uniform")),
    "2-oscillators": Setting(40, 10, 0.2, Start(1.0, 0.5), lambda: unitary(2), Search(quantities=8, first=0.3)),
    "3-oscillators": Setting(60, 10, 0.2, Start(1.0, 0.5), lambda: unitary(3), Search(quantities=18, updates=2500, first=0.3)),
    "3-body-2d": _THREE,
    "3-body-2d-long": _LONG,
    "3-body-2d-euler": _EULER,
    "3-body-2d-elu": _ELU,
    "3-body-2d-batch": _BATCH,
    "3-body-2d-talk": _TALK,
}


def moves(name: str) -> str:
    """The system of settings."""
    return SETTINGS[name].system or name


@dataclass(frozen=True)
class Row:
    """One run; on as many trajectories as the system usually has when None."""

    system: str
    method: str
    seed: int
    trajectories: int | None = None

    @property
    def task(self) -> str:
        return self.system


def rows(lists: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """The runs of some systems.

    Raises:
        ValueError: If there is no setting for one, or no such method.
    """
    check_names(task=(lists["task"], tuple(SETTINGS)), methods=(lists["methods"], METHODS))
    sizes = [None if size == USUAL else whole_numbers("sizes", [size])[0] for size in lists["sizes"]]
    order = product(lists["task"], sizes, whole_numbers("seeds", lists["seeds"]), lists["methods"])
    return (Row(system, method, seed, size) for system, size, seed, method in order)


def learn(
    row: Row,
    search: Search,
    device: str = "cpu",
    each_epoch: Callable[[Record], None] = lambda record: None,
    folder: Path | None = None,
    options: Options | None = None,
) -> EnergyDiscovery:
    """Learn one model from the data of its setting; conserved quantities are checked on the test set.

    Args:
        row: Which.
        search: How.
        device: Where to compute.
        each_epoch: Called with what training says.
        folder: Where it is kept; nowhere when None.
        options: Which say how often.
    """
    setting = SETTINGS[row.system]
    system = by_name(moves(row.system))
    train = simulate(
        system,
        trajectories=row.trajectories or setting.trajectories,
        steps=setting.steps,
        step=setting.step,
        start=setting.start,
        noise=NOISE,
        seed=row.seed,
    )
    symmetries: dict[str, str | Quadratics] = {PLAIN: "none", LEARNED: "quadratic", ORACLE: setting.oracle()}
    found = learn_energy(
        train,
        symmetry=symmetries[row.method],
        noise=NOISE,
        search=search,
        held_out=test_sets(moves(row.system), setting.step)["test"],
        units=None if setting.scaled else Scaling.none(train),
        system=system,
        device=device,
        seed=row.seed,
        each_epoch=each_epoch,
        progress=False,
        **keeping(folder, options),
    )
    refuse_partial(found)
    return found


@cache
def test_sets(system: str, step: float) -> dict[str, Trajectories]:
    """The three test sets, without noise; the same for all seeds of training."""
    return {
        name: simulate(system, trajectories=_TESTED, steps=_STEPS, step=step, start=start, seed=1000 + index)
        for index, (name, start) in enumerate(TESTS.items())
    }


def run(row: Row, _: None, options: Options, folder: Path) -> Figures:
    """One run, as figures."""
    usual = SETTINGS[row.system].search
    search = replace(usual, samples=options.samples or usual.samples, width=options.width or usual.width)
    found = learn(row, lasting(search, row, options.epochs), options.device, folder=folder, options=options)
    return figures(row, found)


def lasting(search: Search, row: Row, epochs: int | None) -> Search:
    """The same for so many passes over the data of a run; as it is when None."""
    setting = SETTINGS[row.system]
    pairs = (row.trajectories or setting.trajectories) * setting.steps
    return search if epochs is None else replace(search, updates=search.updates_in(epochs, pairs))


def figures(row: Row, found: EnergyDiscovery) -> Figures:
    """What is kept of a run."""
    errors = {name: found.evaluate(data) for name, data in test_sets(moves(row.system), found.held_out.step).items()}
    truth = found.compared()
    return {
        "system": row.system,
        "method": row.method,
        "seed": row.seed,
        "trajectories": len(found.learned_from),
        "pairs": found.result.num_data,
        **found.evidence,
        "errors": errors,
        "gain": found.gain,
        "count": sum(one.confirmed for one in found.quantities),
        "held_out": {"trajectories": len(found.held_out), "time": found.held_out.duration},
        "truth": truth.count if truth else None,
        "singular_values": [] if found.span is None else found.span.strengths.tolist(),
        "parallelness": list(truth.parallelness) if truth else [],
        "quantities": [
            {
                "formula": one.formula,
                "confirmed": one.confirmed,
                "variation": one.variation,
                "error": one.error,
                "drift": one.drift,
                "bracket": found.bracket(one),
            }
            for one in found.quantities
        ],
        "updates": found.search.updates,
        "seconds": found.seconds,
    }


def key(found: Figures) -> tuple[Any, ...]:
    """The order of rows, and what makes them the same run."""
    return found["system"], found["pairs"], found["seed"], METHODS.index(found["method"])


def table(found: Sequence[Figures]) -> TextTable:
    """A line for each run; errors by draws of weights, and in brackets at their mean."""
    heading = ["system", "pairs", "model", "seed", "NLL / N", "KL / N", "−ELBO / N", "train", *TESTS, "confirmed", "strengths"]
    lines = []
    for row in found:
        errors = [f"{row['errors'][name]['sampled']:.2g} ({row['errors'][name]['plug-in']:.2g})" for name in TESTS]
        strengths = " ".join(f"{value:.2g}" for value in row["singular_values"])
        terms = [*(f"{row[name]:.2f}" for name in ("nll", "kl", "negative_elbo")), f"{train_error(row):.2g}"]
        count = confirmed(row) if row["method"] == LEARNED else "–"
        lines.append([row["system"], f"{row['pairs']:,}", row["method"], str(row["seed"]), *terms, *errors, count, strengths])
    about = (
        "Errors: mean squares one step ahead, by draws of weights (and at their mean); those of training are of draws one by "
        f"one, and of targets with noise, of variance {NOISE**2:g}. Confirmed: how many of the quadratics that were found hold "
        f"on {confirmed_on(found)}, of those known to be conserved."
    )
    return TextTable(heading, lines, [about])


def confirmed(row: Figures) -> str:
    """How many quantities are; none where a plain energy was taken, since its bound is higher."""
    return "none (plain taken)" if (row.get("gain") or 0.0) < 0 else f"{row['count']} of {row['truth']}"


def train_error(row: Figures) -> float:
    """Of noisy targets, on average over draws of weights: what the NLL is made of, (m/2) log(2πσ²) + m · error / (2σ²)."""
    size = 2 * by_name(moves(row["system"])).degrees
    return 2 * NOISE**2 * (float(row["nll"]) / size - log(2 * pi * NOISE**2) / 2)


def confirmed_on(found: Sequence[Figures]) -> str:
    """The test set, and how long it lasts; earlier runs did not keep that, but had the same."""
    usual = [{"trajectories": _TESTED, "time": _STEPS * SETTINGS[row["system"]].step} for row in found]
    kept = [row.get("held_out", before) for row, before in zip(found, usual, strict=True)]
    counts, times = ({of[name] for of in kept} for name in ("trajectories", "time"))
    return f"{_range(counts)} fresh trajectories of {_range(times)} time units"


def _range(values: Iterable[float | int]) -> str:
    ordered = sorted(values)
    return " or ".join(f"{value:g}" for value in ordered) if len(ordered) < 3 else f"{ordered[0]:g} to {ordered[-1]:g}"


def _words(found: Figures) -> str:
    errors = ", ".join(f"{name} {found['errors'][name]['sampled']:.2g}" for name in TESTS)
    count = f"{confirmed(found)} confirmed, " if found["method"] == LEARNED else ""
    return f"−ELBO/N {found['negative_elbo']:.2f}, {errors}, {count}{found['seconds']:.0f} s"


PAPER = Paper(
    "Noether's razor",
    "Conserved quantities of known systems: a plain Hamiltonian network, learned symmetries, and those known beforehand.",
    {"task": "2-oscillators", "methods": ",".join(METHODS), "sizes": USUAL, "seeds": "0"},
    rows,
    run,
    key,
    table,
    _words,
    reads_files=False,
)
