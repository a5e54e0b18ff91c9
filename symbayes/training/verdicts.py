"""What every layer became, in words: the symmetries that it keeps, the tensors that break them, and γ of both.

A share is of γ per weight, and biases have none: a path may have a share of 0 % and break a symmetry by its bias. So a verdict
goes by γ of single tensors. From rows as they are saved, also by earlier versions, which have no `tensors`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from symbayes.report.page import number

Row = Mapping[str, Any]

#: With more effective parameters γ a tensor is used.
USED = 0.5
#: Up to this share of the paths that have it a layer has given a symmetry up, if some tensor breaks it.
_GIVEN_UP = 0.05
#: Tensors that are named.
_NAMED = 3


def symmetry_words(rows: Sequence[Row], effective: Mapping[str, float] | None = None) -> list[str]:
    """One sentence for each layer that had a choice.

    Args:
        rows: Of all layers.
        effective: γ by tensor of the whole model, for rows that do not have it.
    """
    layers: dict[str, list[Row]] = {}
    for row in with_tensors(rows, effective):
        layers.setdefault(row["layer"], []).append(row)
    return [_sentence(layer or "the model", members) for layer, members in layers.items() if len(members) > 1]


def with_tensors(rows: Sequence[Row], effective: Mapping[str, float] | None = None) -> list[Row]:
    """Rows with their tensors, each with its γ and what it breaks; where those are not known, as much as can be said.

    Earlier versions kept neither which symmetries a tensor breaks, so what it `may` break is said, nor in rows their γ.
    """
    return [row if row.get("tensors") else {**row, "tensors": _guessed(row, rows, effective or {})} for row in rows]


def _guessed(row: Row, rows: Sequence[Row], effective: Mapping[str, float]) -> list[Row]:
    """The tensors of a path by their names; all of it as one, where there are none."""
    beside = [other for other in rows if other["layer"] == row["layer"] and other["symmetry"] not in (None, row["symmetry"])]
    # What has the most symmetry of its layer has that of the paths that relax it.
    less = [other["symmetry"] for other in beside if other.get("relaxes") and row["symmetry"] and not row.get("relaxes")]
    breaks = [name for name in dict.fromkeys(other["symmetry"] for other in beside) if name not in less]
    prefix = f"{row['layer']}.paths." if row["layer"] else "paths."
    known = {name.removeprefix(prefix): g for name, g in effective.items() if name.startswith(f"{prefix}{row['path']}.")}
    found = known or {row["path"]: row["effective"]}
    return [{"name": name, "effective": gamma, "breaks": breaks, "may": True} for name, gamma in found.items()]


def breaking(row: Row) -> list[Row]:
    """The tensors of a row that are used and break a symmetry of another path, the strongest first."""
    used = [tensor for tensor in row["tensors"] if tensor["breaks"] and tensor["effective"] > USED]
    return sorted(used, key=lambda tensor: -float(tensor["effective"]))


def broken_layers(rows: Sequence[Row]) -> tuple[list[str], int]:
    """The layers in which a symmetry of one path is broken by another, and how many had a choice."""
    sizes = Counter(row["layer"] for row in rows)
    broken = dict.fromkeys(row["layer"] for row in with_tensors(rows) if breaking(row))
    return list(broken), sum(size > 1 for size in sizes.values())


def _sentence(layer: str, rows: Sequence[Row]) -> str:
    ranked = sorted(rows, key=lambda row: -float(row["share"]))
    shares = [f"{row['path']} {100 * row['share']:.0f} %, γ {number(row['effective'], 1)}" for row in ranked]
    used = "; ".join([shares[0].replace(" %,", " % of γ per weight,", 1), *shares[1:]])
    names = list(dict.fromkeys(row["symmetry"] for row in rows if row["symmetry"]))
    if not names:
        return f"{layer} has no symmetry to keep ({used})"
    if all(tensor["effective"] <= USED for row in rows for tensor in row["tensors"]):
        return f"{layer} is left open by the data ({used})"
    having = {name: [row for row in rows if not any(name in tensor["breaks"] for tensor in row["tensors"])] for name in names}
    names.sort(key=lambda name: len(having[name]))  # the most symmetry first
    broken = sorted((tensor for row in rows for tensor in breaking(row)), key=lambda tensor: -float(tensor["effective"]))
    verdicts: dict[str, list[str]] = {"keeps": [], "part": [], "gives up": []}
    for name in names:
        share = sum(row["share"] for row in having[name])
        if any(name in tensor["breaks"] for tensor in broken):
            verdicts["gives up" if share <= _GIVEN_UP else "part"].append(name)
        elif not any(_implied(having, name, kept) for kept in verdicts["keeps"]):
            verdicts["keeps" if share >= 1 - _GIVEN_UP else "part"].append(name)
    kept = [*verdicts["keeps"], *(f"part of {name}" for name in verdicts["part"])]
    said = [f"keeps {_listed(kept)}"] if kept else []
    said += [f"gives up {_listed(verdicts['gives up'])}"] if verdicts["gives up"] else []
    blamed = _blamed(broken, names)
    return f"{layer} {' and '.join(said)} ({used})" + (f": {blamed}" if blamed else "")


def _implied(having: Mapping[str, Sequence[Row]], name: str, kept: str) -> bool:
    """Whether all paths that have the one symmetry have the other."""
    return all(row in having[name] for row in having[kept])


def _blamed(broken: Iterable[Row], names: Sequence[str]) -> str:
    """Which tensors break what, with how many effective parameters."""
    by_symmetry: dict[str, list[Row]] = {}
    for tensor in broken:
        it = "it" if len(names) == 1 else _listed([name for name in names if name in tensor["breaks"]])
        by_symmetry.setdefault(it, []).append(tensor)
    parts = []
    for it, tensors in by_symmetry.items():
        words = [f"{tensor['name']} (γ {number(tensor['effective'], 1)})" for tensor in tensors[:_NAMED]]
        words += [f"{len(tensors) - _NAMED} more"] if len(tensors) > _NAMED else []
        verb = "may break" if any(tensor.get("may") for tensor in tensors) else "breaks" if len(words) == 1 else "break"
        parts.append(f"{_listed(words)} {verb} {it}")
    return "; ".join(parts)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
