"""Time by interleaved repeats: every round runs every case once, and cases are compared within rounds.

Time is that of the processor, on one thread: on a shared machine it does not count what other jobs take.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, process_time

import torch


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(middle, low, high)


@dataclass(frozen=True)
class Timing:
    """Seconds of a case, and its cost as a multiple of the unit in the same round."""

    seconds: Spread
    units: Spread


def interleaved(cases: Mapping[str, Callable[[], object]], unit: str, repeats: int) -> dict[str, Timing]:
    """Every case timed `repeats` times after one run that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for counted in [False] + [True] * repeats:
        for name, case in cases.items():
            start = process_time()
            case()
            if counted:
                seconds[name].append(process_time() - start)
    # The unit is short, so that of a round is smoothed with the rounds beside it.
    steady = [median(seconds[unit][max(0, i - 1) : i + 2]) for i in range(repeats)]
    return {
        name: Timing(Spread.of(taken), Spread.of([t / u for t, u in zip(taken, steady, strict=True)]))
        for name, taken in seconds.items()
    }


def seconds_on(device: torch.device, case: Callable[[], object], repeats: int) -> float:
    """The median of seconds on a device, of the clock, after one time that does not count."""
    taken = []
    for _ in range(repeats + 1):
        started = perf_counter()
        case()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(perf_counter() - started)
    return median(taken[1:])
