"""What was learned, layer by layer: how much each path is used, as a table and in words.

Whether a layer keeps a symmetry is a matter of functions, so words go by the equivariance error, measured on data, and by the
energy of paths. γ stands beside: it says which weights the data determine, and a path may have many of them and do little.

Where nothing was measured, words go by γ of single tensors. A share is of γ per weight, and biases have none: a path may have a
share of 0 % and break a symmetry by its bias. Rows that earlier versions saved have no tensors; `with_tensors` supposes them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import exp, log
from statistics import fmean
from typing import ClassVar

from symbayes.equivariance import KEPT, LayerSymmetry
from symbayes.layout import UP_TO_THE_BORDER, WeightTensor
from symbayes.text import html_table, listed, number, percent, text_table

#: With more effective parameters γ a tensor is used.
USED = 0.5
#: Up to this share of the paths that have it a layer has given a symmetry up, if some tensor breaks it.
_GIVEN_UP = 0.05
#: A layer with an equivariance error from KEPT up to this breaks a symmetry slightly; with more, it breaks it.
SLIGHT = 0.1
#: Tensors that are named.
_NAMED = 3


@dataclass(frozen=True)
class TensorRow:
    """One tensor of a path: weights, biases or lengthscales."""

    #: Within its layer.
    name: str
    #: γ: how many of its parameters the data determine.
    effective: float
    #: The symmetries of other paths of the layer that it breaks.
    breaks: tuple[str, ...] = ()
    #: Whether it is known what it breaks.
    is_sure: ClassVar[bool] = True


@dataclass(frozen=True)
class SupposedTensor(TensorRow):
    """A tensor of a row that was saved without: it may break what it says, at most."""

    is_sure: ClassVar[bool] = False


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
    #: The equivariance error of the layer under the symmetry of this path; None where it has none, or it was not measured.
    error: float | None = None
    #: E ‖path(h)‖² on data, relative to the sum over the paths of the layer; None where it was not measured.
    energy: float | None = None


@dataclass(frozen=True)
class SharesOverLayers:
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
        """One sentence for each layer that had a choice: which symmetries it keeps or breaks, by how much, and by what."""
        return symmetry_words(self.rows)

    def over_layers(self) -> dict[str, SharesOverLayers]:
        """The share of every kind of path over the layers that had a choice (ELLA, Table 3)."""
        return shares_over_layers(self.rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and the cells of every row; the name of a layer stands in the first of its rows."""
        found: list[tuple[str, ...]] = []
        last = None
        for row in self.rows:
            layer, last = row.layer if row.layer != last else "", row.layer
            measured = tuple("–" if value is None else percent(value) for value in (row.error, row.energy))
            numbers = (f"{row.precision:.3g}", f"{row.effective:.1f}", f"{row.parameters:,}", f"{100 * row.share:.0f} %")
            found.append((layer, row.path, row.symmetry or "none", *measured, *numbers))
        headings = ("layer", "path", "symmetry", "error", "energy", "precision δ", "effective parameters γ", "of", "share")
        return headings, found

    def __str__(self) -> str:
        return text_table(*self.table(), left=3)

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.words())
        return (f"<ul>{said}</ul>" if said else "") + html_table(*self.table(), left=3)


def symmetries(
    tensors: Mapping[str, WeightTensor],
    precision: Mapping[str, float],
    effective: Mapping[str, float],
    measured: Mapping[str, LayerSymmetry] | None = None,
) -> Symmetries:
    """The table, from δ and γ by tensor, and what was measured by layer.

    Shares are of γ per weight, averaged over the factors of a path.
    """
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
        found, symmetry = (measured or {}).get(layer), next((tensor.symmetry for tensor in weights if tensor.symmetry), None)
        rows.append(
            PathRow(
                layer,
                path,
                symmetry,
                sum(tensor.size for tensor in members),
                exp(sum(log(precision[tensor.name]) for tensor in weights) / len(weights)),
                sum(effective[tensor.name] for tensor in members),
                density[layer, path] / total[layer] if total[layer] > 0 else 1 / sum(key[0] == layer for key in paths),
                any(tensor.relaxes for tensor in members),
                tuple(TensorRow(_name(tensor), effective[tensor.name], tensor.breaks) for tensor in members),
                None if found is None or symmetry is None else found.errors.get(symmetry.removesuffix(UP_TO_THE_BORDER)),
                None if found is None else found.energy.get(path),
            )
        )
    return Symmetries(tuple(rows))


def measured_before(rows: Sequence[PathRow]) -> dict[str, LayerSymmetry]:
    """What was measured, by layer, from rows that were saved."""
    found: dict[str, LayerSymmetry] = {}
    for row in rows:
        if row.energy is not None or row.error is not None:
            of = found.setdefault(row.layer, LayerSymmetry({}, {}))
            of.energy.update({} if row.energy is None else {row.path: row.energy})
            if row.error is not None and row.symmetry is not None:
                of.errors[row.symmetry.removesuffix(UP_TO_THE_BORDER)] = row.error
    return found


def _density(weights: Sequence[WeightTensor], effective: Mapping[str, float]) -> float:
    """γ per weight, averaged over factors; numbered parts, such as those of an `OrbitPath`, are one factor together."""
    factors: dict[str, list[WeightTensor]] = {}
    for tensor in weights:
        factors.setdefault(re.sub(r"\.\d+\.", ".", tensor.name), []).append(tensor)
    return fmean(sum(effective[t.name] for t in parts) / sum(t.size for t in parts) for parts in factors.values())


def _name(tensor: WeightTensor) -> str:
    """Within its layer."""
    return tensor.name.removeprefix(f"{tensor.layer}." if tensor.layer else "").removeprefix("paths.")


def shares_over_layers(rows: Sequence[PathRow]) -> dict[str, SharesOverLayers]:
    """The share of every kind of path over the layers that had a choice, and its γ; rows may be of several runs."""
    sizes = Counter(row.layer for row in rows)
    found: dict[str, list[PathRow]] = {}
    for row in rows:
        if sizes[row.layer] > 1:
            found.setdefault(row.path, []).append(row)
    over = {}
    for path, members in found.items():
        shares, layers = [row.share for row in members], {row.layer for row in members}
        effective = fmean(row.effective for row in members) * len(layers)
        over[path] = SharesOverLayers(sum(shares) / len(shares), min(shares), max(shares), effective)
    return over


def symmetry_words(rows: Sequence[PathRow], effective: Mapping[str, float] | None = None) -> list[str]:
    """One sentence for each layer that had a choice.

    Args:
        rows: Of all layers.
        effective: γ by tensor of the whole model, for rows that do not have it.
    """
    layers: dict[str, list[PathRow]] = {}
    for row in with_tensors(rows, effective):
        layers.setdefault(row.layer, []).append(row)
    return [_sentence(layer or "the model", members) for layer, members in layers.items() if len(members) > 1]


def with_tensors(rows: Sequence[PathRow], effective: Mapping[str, float] | None = None) -> list[PathRow]:
    """Rows with their tensors, each with its γ and what it breaks; where those are not known, as much as can be said.

    Earlier versions kept neither which symmetries a tensor breaks, so what it may break is said, nor in rows their γ.
    """
    return [row if row.tensors else replace(row, tensors=_suppose(row, rows, effective or {})) for row in rows]


def _suppose(row: PathRow, rows: Sequence[PathRow], effective: Mapping[str, float]) -> tuple[TensorRow, ...]:
    """The tensors of a path by their names; all of it as one, where there are none."""
    beside = [other for other in rows if other.layer == row.layer and other.symmetry not in (None, row.symmetry)]
    # What has the most symmetry of its layer has that of the paths that relax it.
    less = [other.symmetry for other in beside if other.relaxes and row.symmetry and not row.relaxes]
    breaks = tuple(dict.fromkeys(other.symmetry for other in beside if other.symmetry and other.symmetry not in less))
    prefix = f"{row.layer}.paths." if row.layer else "paths."
    known = {name.removeprefix(prefix): g for name, g in effective.items() if name.startswith(f"{prefix}{row.path}.")}
    found = known or {row.path: row.effective}
    return tuple(SupposedTensor(name, gamma, breaks) for name, gamma in found.items())


def breaking(row: PathRow) -> list[TensorRow]:
    """The tensors of a row that are used and break a symmetry of another path, the strongest first."""
    used = [tensor for tensor in row.tensors if tensor.breaks and tensor.effective > USED]
    return sorted(used, key=lambda tensor: -tensor.effective)


def broken_layers(rows: Sequence[PathRow]) -> tuple[list[str], int]:
    """The layers in which a symmetry of one path is broken by another, and how many had a choice."""
    sizes = Counter(row.layer for row in rows)
    broken = dict.fromkeys(row.layer for row in with_tensors(rows) if breaking(row))
    return list(broken), sum(size > 1 for size in sizes.values())


def headline(rows: Sequence[PathRow]) -> str:
    """What was learned in a sentence for each symmetry: how many layers keep it, and which do not; empty if not measured."""
    sizes = Counter(row.layer for row in rows)
    known: dict[str, dict[str, bool]] = {}
    for row in rows:
        if sizes[row.layer] > 1 and row.symmetry is not None:
            if row.error is None:
                return ""
            known.setdefault(row.symmetry, {})[row.layer] = row.error < KEPT
    said = []
    for symmetry, layers in known.items():
        name = f"{symmetry}, as convolutions do" if symmetry.startswith("translation") else symmetry
        breaks = [layer or "the model" for layer, keeps in layers.items() if not keeps]
        if not breaks:
            said.append(f"{_all(len(layers))} {name}.")
        elif len(breaks) == len(layers):
            said.append(f"{_all(len(layers), none=True)} {symmetry}.")
        else:
            kept = len(layers) - len(breaks)
            verb = "keep" if kept > 1 else "keeps"
            said.append(f"{kept} of {len(layers)} layers {verb} {name}; not {listed(breaks)}.")
    return " ".join(said)


def _all(count: int, *, none: bool = False) -> str:
    if count == 1:
        return "The layer that could choose does not keep" if none else "The layer that could choose keeps"
    return f"None of the {count} layers that could choose keeps" if none else f"All {count} layers that could choose keep"


def _sentence(layer: str, rows: Sequence[PathRow]) -> str:
    ranked = sorted(rows, key=lambda row: -row.share)
    shares = [f"{row.path} {100 * row.share:.0f} %, γ {number(row.effective, 1)}" for row in ranked]
    used = "; ".join([shares[0].replace(" %,", " % of γ per weight,", 1), *shares[1:]])
    names = list(dict.fromkeys(row.symmetry for row in rows if row.symmetry))
    if not names:
        return f"{layer} has no symmetry to keep ({used})"
    if all(tensor.effective <= USED for row in rows for tensor in row.tensors):
        return f"{layer} is left open by the data ({used})"
    having = {name: [row for row in rows if not any(name in tensor.breaks for tensor in row.tensors)] for name in names}
    names.sort(key=lambda name: len(having[name]))  # the most symmetry first
    broken = sorted((tensor for row in rows for tensor in breaking(row)), key=lambda tensor: -tensor.effective)
    errors = {row.symmetry: row.error for row in rows if row.symmetry and row.error is not None}
    if errors.keys() == set(names):
        return f"{layer} {_measured(rows, errors, names, having, broken)}"
    verdicts: dict[str, list[str]] = {"keeps": [], "part": [], "gives up": []}
    for name in names:
        share = sum(row.share for row in having[name])
        if any(name in tensor.breaks for tensor in broken):
            verdicts["gives up" if share <= _GIVEN_UP else "part"].append(name)
        elif not any(_implies(having, name, kept) for kept in verdicts["keeps"]):
            verdicts["keeps" if share >= 1 - _GIVEN_UP else "part"].append(name)
    kept = [*verdicts["keeps"], *(f"part of {name}" for name in verdicts["part"])]
    said = [f"keeps {listed(kept)}"] if kept else []
    said += [f"gives up {listed(verdicts['gives up'])}"] if verdicts["gives up"] else []
    blamed = _blame(broken, names)
    return f"{layer} {' and '.join(said)} ({used})" + (f": {blamed}" if blamed else "")


def verb_of(error: float) -> str:
    """What a layer of an equivariance error does to the symmetry."""
    return "keeps" if error < KEPT else "slightly breaks" if error < SLIGHT else "breaks"


def _measured(
    rows: Sequence[PathRow],
    errors: Mapping[str, float],
    names: Sequence[str],
    having: Mapping[str, Sequence[PathRow]],
    broken: Sequence[TensorRow],
) -> str:
    """What a layer does to its symmetries, by their equivariance errors."""
    verdicts: dict[str, list[str]] = {"breaks": [], "slightly breaks": [], "keeps": []}
    kept: list[str] = []
    for name in names:
        words = f"{name} ({'equivariance ' if name == names[0] else ''}error {percent(errors[name])})"
        if errors[name] >= KEPT:
            verdicts[verb_of(errors[name])].append(words)
        elif not any(_implies(having, name, other) for other in kept):
            kept.append(name)
            verdicts["keeps"].append(words)
    said = " and ".join(f"{verb} {listed(found)}" for verb, found in verdicts.items() if found)
    ranked = sorted(rows, key=lambda row: -(row.energy or 0.0))
    energies = [
        f"{row.path} {percent(row.energy or 0.0)} (γ {number(row.effective, 1)}, share {100 * row.share:.0f} %)"
        for row in ranked
    ]
    lost = {name for name in names if errors[name] >= KEPT}
    loud = [replace(tensor, breaks=tuple(lost.intersection(tensor.breaks))) for tensor in broken]
    quiet = [tensor for tensor, still in zip(broken, loud, strict=True) if not still.breaks]
    blamed = _blame([tensor for tensor in loud if tensor.breaks], names), _blame(quiet, names, hardly=True)
    return "; ".join(filter(None, [f"{said}: of the energy, {listed(energies)}", *blamed]))


def _implies(having: Mapping[str, Sequence[PathRow]], name: str, kept: str) -> bool:
    """Whether all paths that have the one symmetry have the other."""
    return all(row in having[name] for row in having[kept])


def _blame(broken: Iterable[TensorRow], names: Sequence[str], *, hardly: bool = False) -> str:
    """Which tensors break what, with how many effective parameters."""
    by_symmetry: dict[str, list[TensorRow]] = {}
    for tensor in broken:
        it = "it" if len(names) == 1 else listed([name for name in names if name in tensor.breaks])
        by_symmetry.setdefault(it, []).append(tensor)
    parts = []
    for it, tensors in by_symmetry.items():
        words = [f"{tensor.name} (γ {number(tensor.effective, 1)})" for tensor in tensors[:_NAMED]]
        words += [f"{len(tensors) - _NAMED} more"] if len(tensors) > _NAMED else []
        verb = "may break" if not all(tensor.is_sure for tensor in tensors) else "breaks" if len(words) == 1 else "break"
        parts.append(f"{listed(words)} {'hardly ' if hardly else ''}{verb} {it}")
    return "; ".join(parts)
