"""A network watched while it is called: what its layers take and give, as it is and under elements of groups.

A layer is called on transformed inputs in a hook of its own, right after the network has called it: other weights that the
network is given hold there, too, and whatever works in place comes later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.errors import NotFiniteError
from symbayes.groups.actions import Element, acts_on, draw_elements, every_element
from symbayes.groups.group import Group
from symbayes.layers.path import Averaging
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import call_with
from symbayes.places import Action, Place, Spot, find_action, find_place, find_spot, moved_cells, squares
from symbayes.text import percent

#: A layer, and which of its calls in a pass.
Key = tuple[str, int]
#: Groups by the name of a layer, and where their grid is in the inputs of the model.
Wanted = Mapping[str, Sequence[tuple[Group, Place | None]]]
#: Outputs may differ by this, relative to the largest, when there is another datum in the batch.
_SAME = 1e-3


@dataclass(frozen=True)
class Estimate:
    """A ratio of means over data, and its standard error; None for that of a single datum."""

    value: float
    standard_error: float | None

    def __str__(self) -> str:
        if self.standard_error is None or percent(self.value) == "0 %":
            return percent(self.value)
        return f"{percent(self.value).removesuffix(' %')} ± {percent(self.standard_error)}"


@dataclass
class Sums:
    """Of one layer under one group: numerators, which have a row for each rounding of strides, and denominators, by datum."""

    kind: str
    spot: Spot
    alone: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    whole: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Measure:
    """Hooks on the layers of a model, and the sums they fill.

    Args:
        model: To be measured.
        wanted: Groups by the name of a layer, with the place of their grid in the inputs of the model, where that is known.
        samples: Elements for each datum; None for all.
        generator: For them.
    """

    def __init__(self, model: nn.Module, wanted: Wanted, samples: int | None, generator: Generator) -> None:
        self.model, self.wanted, self.samples, self.generator = model, wanted, samples, generator
        modules = dict(model.named_modules())
        self.targets = {name: modules[name] for name in wanted}
        self.averaged = [f"{name}." if name else "" for name, module in modules.items() if isinstance(module, Averaging)]
        #: By layer, call and group, which is known by its id.
        self.sums: dict[tuple[Key, int], Sums] = {}
        self.energy: dict[Key, dict[str, float]] = {}
        self.reasons: dict[tuple[Key, int], str] = {}
        #: Rows of what a layer takes and gives for each datum.
        self.copies: dict[Key, int] = {}
        #: In place of those of the model.
        self.tensors: dict[str, Tensor] = {}
        #: What layers gave on the batch as it is.
        self.features: dict[Key, Tensor] = {}
        self.last: tuple[Tensor, nn.Module] | None = None
        self.react: Callable[[Key, nn.Module, Any], None] | None = None

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """With hooks on layers and on paths, which do nothing until a batch is measured."""
        with ExitStack() as undo:
            for name, module in self.targets.items():
                undo.callback(module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
                undo.callback(module.register_forward_hook(partial(self._after, name), with_kwargs=True).remove)
                for path, inner in module.paths.items() if isinstance(module, RelaxedLayer) else ():
                    undo.callback(inner.register_forward_hook(partial(self._add_energy, name, path)).remove)
            yield

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.react is not None:  # copies, since a layer may work in place
            self.given.append((tuple(map(_copy, args)), {name: _copy(value) for name, value in kwargs.items()}))

    def _after(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        if self.react is not None:
            self.calls[name] = self.calls.get(name, 0) + 1
            self.react((name, self.calls[name]), module, outputs)
            self.given.pop()

    def _add_energy(self, name: str, path: str, module: nn.Module, args: tuple[Any, ...], outputs: Tensor) -> None:
        if self.react == self._measure_alone and not self.tensors:
            found = self.energy.setdefault((name, self.calls.get(name, 0) + 1), {})
            found[path] = found.get(path, 0.0) + float(squares(outputs).sum())

    def _call(self, inputs: Tensor, react: Callable[[Key, nn.Module, Any], None]) -> Tensor:
        """The model on a batch, with something to be done whenever a layer was called."""
        self.calls: dict[str, int] = {}
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.inputs, self.react = inputs, react
        try:
            outputs = first_tensor(call_with(self.model, self.tensors, inputs))
        finally:
            self.react = None
        if outputs is None or outputs.ndim < 1 or len(outputs) != len(inputs):
            got = "no tensor" if outputs is None else f"shape {tuple(outputs.shape)}"
            raise ValueError(f"The model must give a tensor with a row for each of {len(inputs)} data; it gives {got}.")
        if not outputs.isfinite().all():
            raise _not_finite("")
        return outputs

    @property
    def _taken(self) -> Tensor | None:
        """The first tensor that the current layer was given."""
        args, kwargs = self.given[-1]
        return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)

    def check(self, inputs: Tensor) -> None:
        """See that data do not depend on each other, and which axis of features they are along.

        Raises:
            ValueError: If they do.
        """
        lengths: list[dict[Key, set[int]]] = []

        def count(key: Key, _: nn.Module, outputs: Any) -> None:
            given = first_tensor(outputs)
            lengths[-1][key] = {len(t) if t is not None and t.ndim else 0 for t in (self._taken, given)}
            if given is not None:
                _check_finite(given, key[0])

        found = []
        for batch in (inputs, torch.cat([inputs, inputs[:1]])):
            lengths.append({})
            found.append(self._call(batch, count))
        n, (few, more) = len(inputs), found
        if lengths[0].keys() != lengths[1].keys() or not torch.allclose(
            few, more[:n], rtol=0, atol=_SAME * float(few.abs().max())
        ):
            raise ValueError(
                "The model must treat data one by one, and the same every time; with another datum in the batch it gives other "
                "outputs. Fix what is drawn, or normalised over a batch: batch norms need running statistics."
            )
        for key, seen in lengths[0].items():
            copies = min(seen) // n
            if copies and seen == {copies * n} and lengths[1][key] == {copies * (n + 1)}:
                self.copies[key] = copies

    def layers(self, inputs: Tensor) -> None:
        """Measure every layer alone, on what it sees of a batch."""
        self.features, self.last = {}, None
        outputs = self._call(inputs, self._measure_alone)
        if self.last is not None and self.last[0] is not outputs:
            self.last = None
        self.features["", 1] = outputs.clone()

    def _measure_alone(self, key: Key, module: nn.Module, outputs: Any) -> None:
        taken, given = self._taken, first_tensor(outputs)
        if given is not None:
            _check_finite(given, key[0])
            self.last, given = (given, module), given.clone()
        for group, root in self.wanted[key[0]]:
            found: Spot | str = "no tensor in the input or output"
            if taken is not None and given is not None:
                found = "a first axis that is not that of data"
                if key in self.copies:
                    same = taken.shape == self.inputs.shape and torch.equal(taken, self.inputs)
                    found = find_spot(module, taken, given, group, root, same)
            if isinstance(found, str):
                self.reasons.setdefault((key, id(group)), found)
            elif taken is not None and given is not None:
                self.features[key] = given
                sums = self.sums.setdefault((key, id(group)), Sums(type(module).__name__, found))
                sums.alone.append((self._alone(key, module, found, taken, given), _fold(squares(given), self.copies[key])))

    def _alone(self, key: Key, module: nn.Module, spot: Spot, taken: Tensor, given: Tensor) -> Float[Tensor, "k n"]:
        """‖f(g h) − g f(h)‖² of every datum, averaged over elements."""
        grid = spot.taken.grid if spot.taken is not None else ()
        chosen = [] if spot.moves_nothing else self._elements(spot.group, grid, len(taken))
        total = torch.zeros(1, len(given), dtype=torch.float64, device=given.device)
        for elements in chosen:
            found = first_tensor(self._call_moved(module, spot, elements))
            if found is None or found.shape != given.shape:
                raise ValueError(f"Layer {key[0]!r} must give outputs of one shape; they depend on the data.")
            _check_finite(found, key[0])
            total = total + spot.distances(found, given, elements, grid)
        return _fold(total / max(1, len(chosen)), self.copies[key])

    def _elements(self, group: Group, grid: tuple[int, ...], count: int) -> list[list[Element]]:
        """Several times an element for each datum."""
        if self.samples is None:
            return [[element] * count for element in every_element(group, grid)]
        drawn = draw_elements(group, grid, self.samples * count, self.generator)
        return [drawn[at : at + count] for at in range(0, len(drawn), count)]

    def _call_moved(self, module: nn.Module, spot: Spot, elements: Sequence[Element]) -> Any:
        """A layer on transformed inputs; other arguments are as they were.

        All features of one shape move, as query, key and value do. The cell that a `RelaxedLayer` is given, through which its
        kept grid goes, is that of the content of the network's input, so it moves with the content.
        """
        taken, place = self._taken, spot.taken

        def moved(value: Any) -> Any:
            if place is None or taken is None or not isinstance(value, Tensor) or len(value) != len(elements):
                return _copy(value)
            if isinstance(module, RelaxedLayer) and not value.is_floating_point():
                return moved_cells(value, spot.group, elements, place.grid)
            return place.move(spot.action.inputs, elements, value) if value.shape == taken.shape else _copy(value)

        args, kwargs = self.given[-1]
        react, self.react = self.react, None
        try:
            return module(*map(moved, args), **{name: moved(value) for name, value in kwargs.items()})
        finally:
            self.react = react

    def whole(self, inputs: Tensor, group: Group, root: Place) -> None:
        """Measure features at every layer, and outputs, with the input of the model transformed; after `layers`."""
        spots = {key: sums.spot for (key, of), sums in self.sums.items() if of == id(group) and key[0]}
        spots = {key: spot for key, spot in spots.items() if self.is_whole_data(key)}
        end = self._spot_of_model(group, root)
        totals: dict[Key, Tensor] = {}
        chosen = self._elements(group, root.grid, len(inputs))

        def compare(key: Key, spot: Spot, outputs: Any, elements: Sequence[Element]) -> None:
            found, wanted = first_tensor(outputs), self.features[key]
            if found is None or found.shape != wanted.shape:
                raise ValueError(f"Layer {key[0]!r} must give outputs of one shape; they depend on the data.")
            _check_finite(found, key[0])
            copies = self.copies.get(key, 1)
            repeated = [element for element in elements for _ in range(copies)]
            part = _fold(spot.distances(found, wanted, repeated, root.grid), copies)
            totals[key] = totals[key] + part if key in totals else part

        for elements in chosen:

            def react(key: Key, _: nn.Module, outputs: Any, elements: Sequence[Element] = elements) -> None:
                if key in spots:
                    compare(key, spots[key], outputs, elements)

            compare(("", 1), end, self._call(root.move(group.act, elements, inputs), react), elements)
        for key, total in totals.items():
            sums = self.sums.setdefault((key, id(group)), Sums(type(self.model).__name__, end))
            sums.whole.append((total / len(chosen), _fold(squares(self.features[key]), self.copies.get(key, 1))))

    def is_whole_data(self, key: Key) -> bool:
        """Whether rows of a layer are data, or copies of them in an average, rather than parts."""
        return self.copies.get(key, 1) == 1 or any(key[0].startswith(prefix) for prefix in self.averaged)

    def _spot_of_model(self, group: Group, root: Place) -> Spot:
        """How the group acts on what the model gives: as its last layer says, where that gives it."""
        outputs, last = self.features["", 1], self.model if self.last is None else self.last[1]
        action = find_action(last, group) or Action(group.act, group.act)
        place = find_place(outputs, last, group, root)
        return Spot(group, action, root, place if place and acts_on(group, root.grid, place.grid) else None)


def estimate(parts: Sequence[tuple[Tensor, Tensor]]) -> Estimate | None:
    """A ratio of sums over data; None where there are none, or the denominator is zero."""
    if not parts:
        return None
    numerators, energy = torch.cat([part for part, _ in parts], 1), torch.cat([part for _, part in parts])
    numerator = numerators[int(numerators.sum(1).argmin())]
    total, n = float(energy.sum()), len(energy)
    if total == 0:
        return None
    value = float(numerator.sum()) / total
    deviations = float((numerator - value * energy).square().sum())
    return Estimate(value, (deviations * n / (n - 1)) ** 0.5 / total if n > 1 else None)


def first_tensor(value: Any) -> Tensor | None:
    """A tensor, or the first of several."""
    if isinstance(value, Tensor):
        return value
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((one for one in several if isinstance(one, Tensor)), None)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _fold(values: Float[Tensor, "*k rows"], copies: int) -> Float[Tensor, "*k n"]:
    """Sums over the rows of each datum."""
    return values.unflatten(-1, (-1, copies)).sum(-1)


def _check_finite(outputs: Tensor, name: str) -> None:
    if not outputs.isfinite().all():
        raise _not_finite(name)


def _not_finite(name: str) -> NotFiniteError:
    what = f"Layer {name!r}" if name else "The model"
    return NotFiniteError(
        f"{what} must give finite numbers; on these data, or on transformed ones, it gives NaN or infinity. Check its weights, "
        "and the scale of inputs."
    )
