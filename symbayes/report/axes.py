"""Where values are along an axis, and its ticks: linear, logarithmic, or of names."""

from collections.abc import Mapping, Sequence
from html import unescape
from math import ceil, floor, isfinite, log10
from typing import Any

from symbayes.text import minus

Number = float | int
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class Axis:
    """Where values are along an axis, and its ticks.

    Args:
        settings: Of plotly.
        values: That it should show, where it has no range.
        from_zero: Whether it begins at zero, as bars do.
        tight: Whether it ends with its values, as cells do.
    """

    def __init__(
        self, settings: Mapping[str, Any], values: Sequence[Any], *, from_zero: bool = False, tight: bool = False
    ) -> None:
        self.settings = settings
        self.names = [str(one) for one in settings.get("categoryarray") or ()]
        named = [one for one in values if isinstance(one, str)]
        self.names += [one for one in dict.fromkeys(named) if one not in self.names]
        self.is_log = settings.get("type") == "log"
        found = [place for place in map(self.coordinate, values) if isfinite(place)] or [0.0]
        low, high = (0.0, float(len(self.names) - 1)) if self.names else (min(found), max(found))
        if from_zero and not self.is_log:
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.0 if tight else 0.5 if self.names else 0.05 * (high - low) or 0.5
        given = settings.get("range")
        self.low, self.high = (float(given[0]), float(given[1])) if given else (low - room, high + room)
        if settings.get("autorange") == "reversed":
            self.low, self.high = self.high, self.low

    def coordinate(self, value: Any) -> float:
        """A value as a number along the axis; nan where it has none."""
        if isinstance(value, str):
            return float(self.names.index(value)) if value in self.names else float("nan")
        if value is None or (self.is_log and value <= 0):
            return float("nan")
        return log10(value) if self.is_log else float(value)

    def share(self, coordinate: Number) -> float:
        """How far along the axis a coordinate is, from 0 to 1."""
        return (coordinate - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Coordinates and labels, no more than fit."""
        low, high = sorted((self.low, self.high))
        given = self.settings.get("tickvals")
        if given is not None:
            return [
                (self.coordinate(at), unescape(str(words))) for at, words in zip(given, self.settings["ticktext"], strict=True)
            ]
        if self.names:
            return [(float(at), unescape(name)) for at, name in enumerate(self.names)]
        if self.is_log:
            return _log_ticks(low, high, most)
        suffix = self.settings.get("ticksuffix", "")
        step = self.settings.get("dtick")
        step = float(step) if isinstance(step, int | float) and (high - low) / step <= 2 * most else _step(high - low, most)
        if self.settings.get("tickformat") == "d":
            step = max(1.0, round(step))
        digits = max(0, -floor(log10(step) + 1e-9)) if step < 1 else int(step % 1 != 0)
        first = ceil(low / step - 1e-9)
        count = floor(high / step + 1e-9) - first + 1
        return [(at * step, f"{_number(at * step, digits)}{suffix}") for at in range(first, first + count)]


def _number(value: Number, digits: int) -> str:
    return minus(f"{value + 0.0:,.{digits}f}") if digits < 6 and abs(value) < 1e9 else minus(f"{value:.2g}")


def _step(span: Number, most: int) -> float:
    """A round number that goes into a span no more often than that."""
    rough = span / max(1, most) or 1.0
    power = 10.0 ** floor(log10(rough))
    return next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * (1 - 1e-9))


def _log_ticks(low: Number, high: Number, most: int) -> list[tuple[float, str]]:
    powers = range(ceil(low - 1e-9), floor(high + 1e-9) + 1)
    if len(powers) >= 3:
        every = ceil(len(powers) / max(2, most))
        return [(float(power), _power(power)) for power in powers if power % every == 0]
    factors = (1, 2, 5) if high - low > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    places = [(log10(factor) + power, factor, power) for power in range(floor(low), ceil(high) + 1) for factor in factors]
    found = [(at, minus(f"{factor * 10.0**power:.3g}")) for at, factor, power in places if low - 1e-9 <= at <= high + 1e-9]
    if len(found) > 1:
        return found
    step = _step(10.0**high - 10.0**low, most)  # within so little, the axis is nearly linear
    whole = range(ceil(10.0**low / step - 1e-9), floor(10.0**high / step + 1e-9) + 1)
    return [(log10(at * step), minus(f"{at * step:.6g}")) for at in whole if at > 0]


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else f"10{str(power).translate(_SUPERSCRIPTS)}"
