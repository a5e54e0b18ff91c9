"""Made-up discoveries, in the shape that their page takes: oscillators by cos and sin, and three bodies of which one turns."""

from itertools import product
from math import cos, exp, hypot, pi, sin, sqrt
from random import Random
from typing import Any

OSCILLATORS = ("q1", "q2", "p1", "p2")
BODIES = tuple(f"{kind}{axis}{body}" for kind in ("", "p") for body in (1, 2, 3) for axis in "xy")
STEP = 0.2


States = list[list[float]]


def motion(rng: Random, degrees: int, steps: int) -> States:
    """States of oscillators of unit frequency: q = a cos(t + φ), p = −a sin(t + φ)."""
    waves = [(rng.uniform(0.5, 2.0), rng.uniform(0, 2 * pi)) for _ in range(degrees)]
    times = [STEP * step for step in range(steps)]
    return [[a * cos(t + phase) for a, phase in waves] + [-a * sin(t + phase) for a, phase in waves] for t in times]


def noisy(rng: Random, states: States) -> States:
    return [[value + rng.gauss(0, 0.03) for value in state] for state in states]


def generator(rng: Random, size: int, clear: bool) -> list[list[float]]:
    """A turn of two coordinates, or noise; of unit norm."""
    matrix = [[rng.gauss(0, 0.02 if clear else 1.0) * (row < size) for _ in range(size + 1)] for row in range(size + 1)]
    if clear:
        first, second = rng.sample(range(size), 2)
        matrix[first][second], matrix[second][first] = 1.0, -1.0
    norm = sqrt(sum(value * value for row in matrix for value in row))
    return [[value / norm for value in row] for row in matrix]


def quantity(formula: str, series: list[list[float]], **more: Any) -> dict[str, Any]:
    known = {"strength": 2.57, "variation": 0.004, "error": 0.001, "rate": 0.01, "rate_error": 0.002, "bracket": 0.003}
    known |= {"drift": 0.005, "reference": 0.8, "too_short": False}
    terms = [
        {"monomial": "q1²", "learned": 1.0, "fitted": 1.0, "error": 0.0},
        {"monomial": "p1²", "learned": 0.99, "fitted": 1.0003, "error": 0.0004},
    ]
    return {"formula": formula, "confirmed": True, "terms": terms, "series": series, **known, **more}


def discovery(title: str, names: tuple[str, ...], formulas: dict[str, Any], learned: int) -> dict[str, Any]:
    """Formulas of conserved quantities with their functions of states."""
    rng = Random(0)
    degrees, count = len(names) // 2, len(formulas)
    true = [motion(rng, degrees, 41) for _ in range(6)]
    seen = [noisy(rng, states) for states in true]
    strengths = sorted((rng.uniform(1.0, 2.6) for _ in range(count)), reverse=True)
    strengths += sorted((10 ** rng.uniform(-3, -1.6) for _ in range(learned - count)), reverse=True)
    epochs = range(1, 1501, 15)
    long = [STEP * step for step in range(1000)]
    energies = [sum(value**2 for value in states[0]) / 2 for states in seen]
    return {
        "title": title,
        "names": list(names),
        "step": STEP,
        "pairs": 400,
        "trajectories": 40,
        "held_out": 8,
        "followed": {"time": 8.0, "from_start": False},
        "model": {
            "kind": "quadratic",
            "quantities": learned,
            "width": 50,
            "hidden": 2,
            "integrator": "Midpoint(2)",
            "measure": "ball",
            "samples": 16,
            "updates": 1500,
            "seconds": 41.0,
        },
        "evidence": {"nll": -7.77, "kl": 0.94, "negative_elbo": -6.82, "estimator": "evidence lower bound (matrix-normal)"},
        "noise": [0.0316, 0.0316, 0.0316, 0.0316],
        "learned_noise": False,
        "singular_values": strengths,
        "threshold": 0.05,
        "count": count,
        "truth": {"count": count, "parallelness": [0.9999 if at < count else 0.012 for at in range(learned)]},
        "generators": [generator(rng, len(names), at < count) for at in range(min(learned, 12))],
        "quantities": [
            quantity(formula, [[function(state) for state in states] for states in seen], strength=strength)
            for (formula, function), strength in zip(formulas.items(), strengths, strict=False)
        ],
        "times": [STEP * step for step in range(41)],
        "portraits": [
            {
                "names": [names[at], names[degrees + at]],
                "data": [[[state[at], state[degrees + at]] for state in states] for states in seen],
                "model": [[[state[at], state[degrees + at]] for state in states] for states in true],
            }
            for at in range(min(degrees, 6))
        ],
        "rollout": {
            "times": long,
            "energy": [[energy * (1 + 0.002 * sin(2 * t)) + 3 for t in long] for energy in energies],
            "true_energy": [[energy * (1 + 0.004 * sin(2 * t) + 1e-5 * t) for t in long] for energy in energies],
            "error": [1e-3 * hypot(t, t * t / 30) for t in long],
            "drift": 0.002,
            "integrator": "ImplicitMidpoint(4)",
        },
        "history": [
            {
                "epoch": epoch,
                "negative_elbo": -6.82 + 59 * exp(-epoch / 40) + 0.05 * rng.gauss(0, 1),
                "singular_values": [end + (0.1 - end) * exp(-epoch / 150) for end in strengths],
            }
            for epoch in epochs
        ],
        "errors": {
            "held out": {"sampled": 1e-4, "plug-in": 2e-3},
            "test": {"sampled": 3.6e-4, "plug-in": 1.5e-3},
            "moved": {"sampled": 1.5e-3, "plug-in": 4e-3},
            "wider": {"sampled": 5e-2, "plug-in": 8e-2},
        },
    }


def oscillators() -> dict[str, Any]:
    """Two of them, with the four quantities of U(2)."""
    formulas = {
        "q1² + 0.99 p1²": lambda s: s[0] ** 2 + s[2] ** 2,
        "q2² + 1.01 p2²": lambda s: s[1] ** 2 + s[3] ** 2,
        "q1 p2 − q2 p1": lambda s: s[0] * s[3] - s[1] * s[2],
        "q1 q2 + p1 p2": lambda s: s[0] * s[1] + s[2] * s[3],
    }
    return discovery("2-oscillators", OSCILLATORS, formulas, 8)


def bodies() -> dict[str, Any]:
    """Seven quantities of twelve coordinates, with formulas as long as they get."""
    pairs = list(product(range(3), range(2)))
    turns = [f"{'xy'[axis]}{body + 1} p{'yx'[axis]}{body + 1}" for body, axis in pairs]
    sums = [" + ".join(f"0.98 p{axis}{body}" for body in (1, 2, 3)) for axis in "xy"]
    long = " − ".join(turns)
    formulas = {long: lambda s: s[0] * s[7] - s[1] * s[6]}
    formulas |= {words: lambda s: s[0] ** 2 + s[6] ** 2 for words in sums}
    formulas |= {f"({words})²": lambda s: s[1] ** 2 + s[7] ** 2 for words in sums}
    formulas |= {"px1 py2 + 0.5 px3 py3": lambda s: s[0] * s[1] + s[6] * s[7], "px2²": lambda s: s[2] ** 2 + s[8] ** 2}
    return discovery("3-body-2d", BODIES, formulas, 10)
