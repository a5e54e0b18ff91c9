"""How equivariant the layers of any network are, measured on data.

For a layer f and a group, with h the inputs of the layer as they occur on the data, and g drawn from all elements but the
identity,

    error = E ‖f(g h) − g f(h)‖² / E ‖f(h)‖²

Biases, strides and padding are included. An error of 0 is exact symmetry; where f(g h) and g f(h) have nothing to do with
each other it is 2. `from_input` is the same with the input of the network transformed and features at the layer compared, so
it has the errors of all layers before, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from math import prod
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor, nn

from symbayes.curvature.evaluate import evaluating, naming_types
from symbayes.data.numbers import Numbers, as_tensor, first_weight
from symbayes.data.source import Data, check_finite, source_for
from symbayes.groups.group import Group
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import weights
from symbayes.places import POOLS, find_root, sees_channels_last
from symbayes.posterior.posterior import Posterior
from symbayes.probe import Estimate, Key, Measure, Sums, estimate, first_tensor
from symbayes.text import listed, percent, text_table

#: Layers whose parts are not measured.
_WHOLE = (RelaxedLayer, LinearMap, nn.MultiheadAttention)
#: A layer or model with a smaller error keeps a symmetry.
KEPT = 0.01


@dataclass(frozen=True)
class EquivarianceRow:
    """One layer, or the whole model, under one group."""

    #: Its name; empty for the whole model.
    layer: str
    #: The class of the module.
    kind: str
    group: str
    #: Of the outputs; empty where they have none.
    grid: tuple[int, ...]
    #: Whether elements do not act on the outputs, so that the errors are of f(g h) and f(h).
    invariance: bool
    #: Of the layer alone; None where it gives zeros.
    error: Estimate | None
    #: The same with the input of the network transformed; None also where the layer sees parts of data as data.
    from_input: Estimate | None
    #: Which call of the layer in a pass.
    call: int = 1
    #: E ‖path(h)‖², relative to the sum over paths, of a layer that is a sum of paths.
    energy: dict[str, float] = field(default_factory=dict)
    #: The errors of the layer alone under draws of the weights.
    over_draws: tuple[float, ...] = ()
    #: That it gives zeros, sees a single cell, which nothing moves, or sees parts of data as data.
    note: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the symmetry is, by the error of the layer alone."""
        return self.error is not None and self.error.value < KEPT


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that was not measured, and why."""

    layer: str
    group: str
    reason: str


@dataclass(frozen=True)
class Equivariance:
    """A row for each layer and group, then one for the whole model and each group; prints as a table."""

    rows: tuple[EquivarianceRow, ...]
    skipped: tuple[SkippedLayer, ...]
    num_data: int
    #: Elements for each datum; None for all.
    samples: int | None

    @property
    def model(self) -> tuple[EquivarianceRow, ...]:
        """Of the whole model, a row for each group."""
        return tuple(row for row in self.rows if not row.layer)

    def row(self, layer: str, group: str | None = None, call: int = 1) -> EquivarianceRow:
        """The row of a layer; the empty name is the whole model.

        Raises:
            KeyError: If there is none.
        """
        for row in self.rows:
            if (row.layer, row.call) == (layer, call) and group in (None, row.group):
                return row
        known = ", ".join(dict.fromkeys(repr(row.layer) for row in self.rows))
        raise KeyError(f"There must be a row of layer {layer!r}, call {call}, group {group}; there are layers {known}.")

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and the cells of every row."""
        cells = [
            (
                (row.layer or "the model") + (f", call {row.call}" if row.call > 1 else ""),
                row.kind,
                row.group,
                "invariance" if row.invariance else "×".join(map(str, row.grid)),
                _cell(row.error, row.note),
                _cell(row.from_input, row.note),
                str(Estimate(fmean(row.over_draws), pstdev(row.over_draws))) if row.over_draws else "",
                ", ".join(f"{path} {percent(share)}" for path, share in row.energy.items()),
            )
            for row in self.rows
        ]
        headings = ("layer", "kind", "group", "acts on", "error", "from input", "error over draws", "energy by path")
        used = [at for at in range(len(headings)) if at < 6 or any(line[at] for line in cells)]
        return tuple(headings[at] for at in used), [tuple(line[at] for at in used) for line in cells]

    def words(self) -> list[str]:
        """A sentence for each group about the whole model."""
        found = []
        for row in self.model:
            adjective = "invariant" if row.invariance else "equivariant"
            if row.error is None:
                found.append(f"The model gives zeros, so nothing is said of {row.group}.")
            else:
                verb = "is" if row.is_kept else "is not"
                found.append(f"The output {verb} {adjective} under {row.group}: error {row.error}.")
        return found

    def __str__(self) -> str:
        reasons: dict[tuple[str, str], list[str]] = {}
        for skipped in self.skipped:
            reasons.setdefault((skipped.group, skipped.reason), []).append(skipped.layer)
        lines = [f"Not measured under {group}, {reason}: {listed(names)}." for (group, reason), names in reasons.items()]
        return "\n".join([text_table(*self.table(), left=4), "", *self.words(), *lines])


def _cell(estimate: Estimate | None, note: str) -> str:
    return "–" if estimate is None and not note else note if estimate is None else str(estimate)


def equivariance(
    model: nn.Module,
    data: Numbers | Data,
    group: Group | Sequence[Group],
    *,
    layers: str | Sequence[str] | None = None,
    samples: int | None = 4,
    seed: int = 0,
    batch_size: int = 64,
    posterior: Posterior | None = None,
    draws: int = 0,
) -> Equivariance:
    """The equivariance error of every layer of a network, and of the whole, on data.

    A layer is a `RelaxedLayer` with all its paths, a convolution, a linear layer, a pool, attention, or another module without
    children that has parameters or changes the grid. Every call of a layer has a row of its own.

    Inputs and outputs are [n, c, *grid] with plain channels, unless a layer says otherwise (group convolutions), or takes
    channels last (linear layers, layer norms, attention; tokens of patches are known by their number). A shift by t acts on an
    output of 1/k of the cells as a shift by t / k; where that is no whole number, every datum is compared with the better
    neighbour. Outputs without a grid do not move: the error is then of invariance.

    Args:
        model: Any module that takes a batch; it is evaluated, and left as it was.
        data: Inputs [n, ...], or data with targets, which are not looked at. Some hundred are enough.
        group: Such as sb.groups.Translation() or sb.p4m(); or several.
        layers: Names of modules, of whatever kind, or patterns for the layers above, such as "block*"; all of these when None.
        samples: Elements that are drawn for each datum; None for every element once.
        seed: For the draws.
        batch_size: Data in a forward pass.
        posterior: Of the weights.
        draws: Of weights from the posterior, under each of which errors of layers are measured, too.

    Raises:
        TypeError: If the group is none.
        ValueError: If data have no grid that the group acts on, no layer has a name, or the model does not treat data one by
            one.
        NotFiniteError: If data or a layer are not finite.
    """
    groups = _check_groups(group)
    if (samples is not None and samples < 1) or batch_size < 1:
        raise ValueError(f"samples and batch_size must be 1 or more, or samples None for all; got {samples} and {batch_size}.")
    if draws < 0 or (draws > 0) != (posterior is not None):
        raise ValueError(
            "To measure under draws of the weights there must be a posterior and draws of 1 or more; got "
            f"{'no posterior' if posterior is None else 'a posterior'} and draws={draws}."
        )
    weight = first_weight(model)
    device = torch.device("cpu") if weight is None else weight.device
    if isinstance(data, Numbers):
        inputs = as_tensor(data)
        data = (inputs, torch.zeros(len(inputs)))
    source = source_for(model, data)
    read: Callable[[], Iterator[Tensor]] = lambda: (_checked(x, weight) for x, _ in source.batches(batch_size))  # noqa: E731
    with _evaluated(model, device):
        first = next(read())
        targets, last = _look(model, first, layers)
        roots = [find_root(first, each, last) for each in groups]
        wanted = {name: list(zip(groups, roots, strict=True)) for name in targets}
        measure = Measure(model, wanted, samples, torch.Generator().manual_seed(seed))
        with measure.hooked():
            measure.check(first)
            for inputs in read():
                measure.layers(inputs)
                for acting in zip(groups, roots, strict=True):
                    measure.whole(inputs, *acting)
        drawn = [] if posterior is None else _over_draws(measure, read, posterior, draws, seed)
    return Equivariance(_rows(measure, drawn), _skipped(measure), source.size, samples)


@dataclass(frozen=True)
class LayerSymmetry:
    """What a layer of a trained model was measured to have."""

    #: The error under a group, by its name.
    errors: dict[str, float]
    #: By path.
    energy: dict[str, float]


def measure_layers(
    model: nn.Module, inputs: Tensor, groups: Mapping[str, Sequence[Group]], seed: int = 0
) -> dict[str, LayerSymmetry]:
    """The errors of layers, each alone and under groups of its own, and the energy of their paths.

    It raises what `equivariance` does.

    Args:
        model: That they are in.
        inputs: A batch of data.
        groups: By the name of the layer.
        seed: For the draws.
    """
    inputs = _checked(inputs, first_weight(model))
    with _evaluated(model, inputs.device):
        wanted = {name: [(group, None) for group in some] for name, some in groups.items()}
        measure = Measure(model, wanted, 4, torch.Generator().manual_seed(seed))
        with measure.hooked():
            measure.check(inputs)
            measure.layers(inputs)
    found: dict[str, LayerSymmetry] = {}
    for row in _rows(measure):
        if row.layer in groups and row.call == 1:
            of = found.setdefault(row.layer, LayerSymmetry({}, row.energy))
            of.errors.update({row.group: row.error.value} if row.error is not None else {})
    return found


def _skipped(measure: Measure) -> tuple[SkippedLayer, ...]:
    """Every layer and group that has no row, and why."""
    called = {name for (name, _), _ in (*measure.sums, *measure.reasons)}
    found = []
    for name, some in measure.wanted.items():
        for group, _ in some:
            reasons = [why for (key, of), why in measure.reasons.items() if key[0] == name and of == id(group)]
            reasons = reasons if name in called else ["not called"]
            found += [SkippedLayer(name, group.name, why) for why in dict.fromkeys(reasons)]
    return tuple(found)


def _rows(measure: Measure, over_draws: Sequence[Mapping[tuple[Key, int], float]] = ()) -> tuple[EquivarianceRow, ...]:
    """In the order in which layers were called; the model comes last."""
    found = []
    for (key, of), sums in sorted(measure.sums.items(), key=lambda item: not item[0][0][0]):
        whole, spot = estimate(sums.whole), sums.spot
        alone = estimate(sums.alone or sums.whole)
        energies = measure.energy.get(key, {})
        total = sum(energies.values())
        row = EquivarianceRow(
            layer=key[0],
            kind=sums.kind,
            group=spot.group.name,
            grid=spot.grid,
            invariance=spot.is_invariance,
            error=alone,
            from_input=whole,
            call=key[1],
            energy={path: energy / total for path, energy in energies.items()} if total else {},
            over_draws=tuple(draw[key, of] for draw in over_draws if (key, of) in draw),
            note=_note(measure, key, sums, alone),
        )
        found.append(row)
    return tuple(found)


def _note(measure: Measure, key: Key, sums: Sums, alone: Estimate | None) -> str:
    if alone is None:
        return "gives zeros"
    if not measure.is_whole_data(key):
        return "parts of data"
    return "one cell" if key[0] and sums.spot.moves_nothing else ""


def _over_draws(
    measure: Measure, read: Callable[[], Iterator[Tensor]], posterior: Posterior, draws: int, seed: int
) -> list[dict[tuple[Key, int], float]]:
    """The errors of layers alone under draws of the weights, with the same elements for each."""
    own = weights(measure.model)
    if unknown := [name for name in posterior.mean if name not in own]:
        raise ValueError(f"The posterior must be of the weights of the model, which has no {listed(unknown[:3])}.")
    like = next(iter(own.values()))
    sample = posterior.detached().like(like).sample(draws, generator=torch.Generator().manual_seed(seed))
    found = []
    for draw in range(draws):
        again = Measure(measure.model, measure.wanted, measure.samples, torch.Generator().manual_seed(seed))
        again.tensors, again.copies = {name: values[draw % len(values)] for name, values in sample.items()}, measure.copies
        with again.hooked():
            for inputs in read():
                again.layers(inputs)
        errors = {key: estimate(sums.alone) for key, sums in again.sums.items()}
        found.append({key: error.value for key, error in errors.items() if error is not None})
    return found


def _look(model: nn.Module, inputs: Tensor, layers: str | Sequence[str] | None) -> tuple[list[str], bool]:
    """The names of layers to measure, and whether the first that sees the inputs as they are takes channels last."""
    modules = {name: module for name, module in model.named_modules() if name}
    if isinstance(model, _WHOLE) or not modules:
        modules = {"": model}
    changing, first = set[str](), list[bool]()

    def watch(name: str, module: nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        taken = next((value for value in args if isinstance(value, Tensor)), None)
        given, last = first_tensor(outputs), sees_channels_last(module)
        if taken is None or given is None:
            return
        if taken.shape == inputs.shape and last is not None:
            first.append(last)
        if not [*module.children()] and taken.shape[2:] != given.shape[2:] and prod(taken.shape[2:]) > 1:
            changing.add(name)

    with ExitStack() as undo, naming_types(inputs, next((p.dtype for p in model.parameters()), inputs.dtype)):
        for name, module in modules.items():
            undo.callback(module.register_forward_hook(partial(watch, name)).remove)
        model(inputs)
    usual = [name for name in modules if _is_layer(name, modules, changing)]
    chosen = usual if layers is None else _matching([layers] if isinstance(layers, str) else layers, usual, list(modules))
    return chosen, bool(first and first[0])


def _matching(patterns: Sequence[str], usual: Sequence[str], every: Sequence[str]) -> list[str]:
    """The modules that patterns name: exactly, or of the usual layers, or of all where none of those is meant."""
    chosen = set[str]()
    for pattern in patterns:
        found = [pattern] if pattern in every else [name for name in usual if fnmatch(name, pattern)]
        found = found or [name for name in every if fnmatch(name, pattern)]
        if not found:
            raise ValueError(f"Layers must be names of modules, or patterns; {pattern!r} matches none of {', '.join(every)}.")
        chosen.update(found)
    return [name for name in every if name in chosen]


def _is_layer(name: str, modules: Mapping[str, nn.Module], changing: set[str]) -> bool:
    """Whether a module is measured unless others are named: a layer as a whole, and never its parts."""
    parents = (name[:at] for at, letter in enumerate(name) if letter == ".")
    if any(isinstance(modules.get(parent), _WHOLE) for parent in parents):
        return False
    module = modules[name]
    has_weights = not [*module.children()] and next(module.parameters(), None) is not None
    return isinstance(module, (*_WHOLE, *POOLS)) or has_weights or name in changing


@contextmanager
def _evaluated(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Without gradients, evaluating, and with random numbers as they were afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad(), evaluating(model):
        yield


def _checked(inputs: Tensor, weight: Tensor | None) -> Tensor:
    """Inputs where weights are, and in their precision where they are real numbers."""
    check_finite(inputs, None)
    if weight is None:
        return inputs
    return inputs.to(weight) if inputs.is_floating_point() else inputs.to(weight.device)


def _check_groups(group: Group | Sequence[Group]) -> list[Group]:
    groups = [group] if isinstance(group, Group) else list(group) if isinstance(group, list | tuple) else []
    if not groups or not all(isinstance(each, Group) for each in groups):
        kind = type(group).__name__
        raise TypeError(
            f"The group must be a finite one, or several, such as sb.groups.Translation(), sb.p4m() or sb.groups.symmetric(8); "
            f"got {kind}. Lie groups, such as affine2d, have no elements to draw from evenly."
        )
    return groups
