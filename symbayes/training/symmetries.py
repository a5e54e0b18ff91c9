"""What was learned, layer by layer: how much each path is used, as a table and in words."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from symbayes.layers.structure import WeightTensor

#: From this share on a layer is said to have (or, in the rest, to have broken) a symmetry.
_CLEAR = 0.95


@dataclass(frozen=True)
class PathRow:
    """One path of one layer."""

    layer: str
    path: str
    symmetry: str | None
    #: Number of weights, biases and lengthscales included.
    parameters: int
    #: Prior precision δ of its weights: geometric mean over tensors.
    precision: float
    #: γ: how many of its parameters the data determine, biases and lengthscales included.
    effective: float
    #: γ per weight, relative to the sum over the paths of the layer (ELLA, Table 3); 1 where there is one path.
    share: float
    #: Whether it breaks a symmetry that another path of the layer keeps.
    relaxes: bool = False


@dataclass(frozen=True)
class Spread:
    """The share of a kind of path over layers; prints in percent as mean (smallest–largest)."""

    mean: float
    smallest: float
    largest: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ({100 * self.smallest:.0f}–{100 * self.largest:.0f})"


@dataclass(frozen=True)
class Symmetries:
    """A row for each path of each layer; prints as a table."""

    rows: tuple[PathRow, ...]

    def words(self) -> list[str]:
        """One sentence for each layer that had a choice."""
        layers: dict[str, list[PathRow]] = {}
        for row in self.rows:
            layers.setdefault(row.layer, []).append(row)
        return [_sentence(layer, rows) for layer, rows in layers.items() if len(rows) > 1]

    def over_layers(self) -> dict[str, Spread]:
        """The share of every kind of path over the layers that had a choice (ELLA, Table 3)."""
        return shares_over_layers([asdict(row) for row in self.rows])

    def __rich__(self) -> Table:
        table = Table("layer", "path", "symmetry", box=None, header_style="bold")
        for heading in ("precision δ", "effective parameters γ", "of", "share"):
            table.add_column(heading, justify="right")
        last = None
        for row in self.rows:
            layer, last = row.layer if row.layer != last else "", row.layer
            numbers = (f"{row.precision:.3g}", f"{row.effective:.1f}", f"{row.parameters:,}", f"{100 * row.share:.0f} %")
            table.add_row(layer, row.path, row.symmetry or "none", *numbers)
        return table

    def __str__(self) -> str:
        console = Console(width=110, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def symmetries(
    tensors: Mapping[str, WeightTensor], precision: Mapping[str, float], effective: Mapping[str, float]
) -> Symmetries:
    """The table, from δ and γ by tensor. Shares are of γ per weight, averaged over the factors of a path."""
    paths: dict[tuple[str, str], list[WeightTensor]] = {}
    for tensor in tensors.values():
        paths.setdefault((tensor.layer, tensor.path), []).append(tensor)
    density: dict[tuple[str, str], float] = {}
    total: dict[str, float] = {}
    for key, members in paths.items():
        weights = [tensor for tensor in members if tensor.kind == "weight"] or members
        density[key] = _density(weights, effective)
        total[key[0]] = total.get(key[0], 0.0) + density[key]
    rows = []
    for (layer, path), members in paths.items():
        weights = [tensor for tensor in members if tensor.kind == "weight"] or members
        rows.append(
            PathRow(
                layer,
                path,
                next((tensor.symmetry for tensor in weights if tensor.symmetry), None),
                sum(tensor.size for tensor in members),
                exp(sum(log(precision[tensor.name]) for tensor in weights) / len(weights)),
                sum(effective[tensor.name] for tensor in members),
                density[layer, path] / total[layer] if total[layer] > 0 else 1 / sum(key[0] == layer for key in paths),
                any(tensor.relaxes for tensor in members),
            )
        )
    return Symmetries(tuple(rows))


def _density(weights: Sequence[WeightTensor], effective: Mapping[str, float]) -> float:
    """γ per weight, averaged over factors; numbered parts, such as those of an `OrbitPath`, are one factor together."""
    factors: dict[str, list[WeightTensor]] = {}
    for tensor in weights:
        factors.setdefault(re.sub(r"\.\d+\.", ".", tensor.name), []).append(tensor)
    return fmean(sum(effective[t.name] for t in parts) / sum(t.size for t in parts) for parts in factors.values())


def shares_over_layers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """The share of every kind of path over the layers that had a choice, from rows as they are saved."""
    sizes = Counter(row["layer"] for row in rows)
    shares: dict[str, list[float]] = {}
    for row in rows:
        if sizes[row["layer"]] > 1:
            shares.setdefault(row["path"], []).append(row["share"])
    return {path: Spread(sum(found) / len(found), min(found), max(found)) for path, found in shares.items()}


def _sentence(layer: str, rows: list[PathRow]) -> str:
    ranked = sorted(rows, key=lambda row: -row.share)
    kept = {row.symmetry for row in rows if not row.relaxes}
    if len(kept) != 1 or kept == {None} or any(row.symmetry for row in rows if row.relaxes):
        seen = [row for row in ranked if row.share >= 0.005]  # what rounds to nothing is not worth a word
        return f"{layer}: " + ", ".join(f"{row.symmetry or 'no symmetry'} {100 * row.share:.0f} % ({row.path})" for row in seen)
    used = ", ".join(f"{row.path} {100 * row.share:.0f} %" for row in ranked)
    share = sum(row.share for row in rows if not row.relaxes)
    verdict = "keeps" if share >= _CLEAR else "gives up" if share <= 1 - _CLEAR else "keeps part of"
    return f"{layer} {verdict} {kept.pop()} ({used})"
