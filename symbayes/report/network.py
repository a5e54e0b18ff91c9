"""A network layer by layer, coloured by what it kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symbayes.report.plots import layers
from symbayes.text import percent
from symbayes.training.symmetries import USED, PathRow, breaking, verb_of, with_tensors


@dataclass(frozen=True)
class PathShare:
    """A path of a layer: how much of it is used, in percent, by energy or by γ per weight."""

    name: str
    share: float
    colour: str


@dataclass(frozen=True)
class Layer:
    """A layer as it is drawn: its name, what it does to its symmetries, the style of that, and its paths."""

    name: str
    words: str
    style: str
    paths: tuple[PathShare, ...]
    effective: float
    parameters: int


def drawn_layers(rows: Sequence[PathRow], colours: Mapping[str, str]) -> list[Layer]:
    """The layers of a network in the order of its rows."""
    found = []
    for name, members in layers(with_tensors(rows)).items():
        words, style = _verdict(members)
        by_energy = all(row.energy is not None for row in members)
        shares = [row.energy if by_energy and row.energy is not None else row.share for row in members]
        paths = tuple(
            PathShare(row.path, 100 * share, colours.get(row.path, "#888888"))
            for row, share in zip(members, shares, strict=True)
            if len(members) > 1
        )
        effective, parameters = sum(row.effective for row in members), sum(row.parameters for row in members)
        found.append(Layer(name, words, style, paths, effective, parameters))
    return found


def _verdict(rows: Sequence[PathRow]) -> tuple[str, str]:
    """What a layer does, in a few words, and its style: that of the worst it does to a symmetry."""
    names = list(dict.fromkeys(row.symmetry for row in rows if row.symmetry))
    if len(rows) < 2 or not names:
        return "no choice", "none"
    if all(row.effective <= USED for row in rows):
        return "left open by the data", "none"
    said = {}
    for name in names:
        error = next((row.error for row in rows if row.symmetry == name), None)
        if error is not None:
            verb = verb_of(error)
            measured = f" ({percent(error)})".replace(" %", "\N{NO-BREAK SPACE}%")
            said[f"{verb} {name}{measured}"] = verb
        else:  # not measured, so it is not known by how much
            broken = any(name in tensor.breaks for row in rows for tensor in breaking(row))
            said[f"{'may break' if broken else 'keeps'} {name}"] = "slightly breaks" if broken else "keeps"
    worst = next(verb for verb in ("breaks", "slightly breaks", "keeps") if verb in said.values())
    return ", ".join(said), worst.split()[0]
