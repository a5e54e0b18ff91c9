"""What was learned, layer by layer: how much each path is used, as a table and in words."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from symbayes.layout import WeightTensor
from symbayes.training.verdicts import symmetry_words

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class TensorRow:
    """One tensor of a path: weights, biases or lengthscales."""

    #: Within its layer.
    name: str
    #: γ: how many of its parameters the data determine.
    effective: float
    #: The symmetries of other paths of the layer that it breaks.
    breaks: tuple[str, ...] = ()


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
    #: γ per weight, relative to the sum over the paths of the layer (ELLA, Table 3); 1 where there is one path. Biases and
    #: lengthscales do not count, and may break a symmetry at a share of nothing.
    share: float
    #: Whether it breaks a symmetry that another path of the layer keeps.
    relaxes: bool = False
    tensors: tuple[TensorRow, ...] = ()


@dataclass(frozen=True)
class Spread:
    """The share of a kind of path over layers; prints in percent as mean (smallest–largest), and γ."""

    mean: float
    smallest: float
    largest: float
    #: γ in all layers together; of several runs, on average.
    effective: float

    @property
    def share(self) -> str:
        """Without γ, which is then to stand beside it."""
        return f"{100 * self.mean:.1f} ({100 * self.smallest:.0f}–{100 * self.largest:.0f})"

    def __str__(self) -> str:
        return f"{self.share}, γ {self.effective:,.1f}"


@dataclass(frozen=True)
class Symmetries:
    """A row for each path of each layer; prints as a table."""

    rows: tuple[PathRow, ...]

    def words(self) -> list[str]:
        """One sentence for each layer that had a choice: what it keeps, and the tensors of γ > 0.5 that break the rest."""
        return symmetry_words([asdict(row) for row in self.rows])

    def over_layers(self) -> dict[str, Spread]:
        """The share of every kind of path over the layers that had a choice (ELLA, Table 3)."""
        return shares_over_layers([asdict(row) for row in self.rows])

    def __rich__(self) -> "rich.table.Table":
        from rich.table import Table

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
        from rich.console import Console

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
                tuple(TensorRow(_name(tensor), effective[tensor.name], tensor.breaks) for tensor in members),
            )
        )
    return Symmetries(tuple(rows))


def _density(weights: Sequence[WeightTensor], effective: Mapping[str, float]) -> float:
    """γ per weight, averaged over factors; numbered parts, such as those of an `OrbitPath`, are one factor together."""
    factors: dict[str, list[WeightTensor]] = {}
    for tensor in weights:
        factors.setdefault(re.sub(r"\.\d+\.", ".", tensor.name), []).append(tensor)
    return fmean(sum(effective[t.name] for t in parts) / sum(t.size for t in parts) for parts in factors.values())


def _name(tensor: WeightTensor) -> str:
    """Within its layer."""
    return tensor.name.removeprefix(f"{tensor.layer}." if tensor.layer else "").removeprefix("paths.")


def shares_over_layers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """The share of every kind of path over the layers that had a choice, and its γ, from rows as they are saved.

    Of several runs of a network, rows are taken together.
    """
    sizes = Counter(row["layer"] for row in rows)
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if sizes[row["layer"]] > 1:
            found.setdefault(row["path"], []).append(row)
    spreads = {}
    for path, members in found.items():
        shares, layers = [row["share"] for row in members], {row["layer"] for row in members}
        effective = fmean(row["effective"] for row in members) * len(layers)
        spreads[path] = Spread(sum(shares) / len(shares), min(shares), max(shares), effective)
    return spreads
