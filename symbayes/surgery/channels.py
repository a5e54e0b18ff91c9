"""Channels of any network: what each is written by, what reads it, and models without some of them.

They are found by looking, not by rules for kinds of modules. A model is cut at every linear map: each gives the same, whatever
it sees. Then channels that a map gives are made NaN, half of them at a time, by the bits of their numbers: a
feature that another map sees is NaN for one value of every bit where it depends on a single channel, whose number these are;
and for both values of some bit where it depends on several. Residual sums, flattening, concatenation, norms and gates between
two maps need no word of their own. Tensors beside maps (of norms, of depthwise convolutions) are told by the same marks.

A channel is no longer read once the columns of weights that read it are zero. Then it can be cut out, with all that writes it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from symbayes.surgery.calls import difference, is_layer, observe, outputs_of, shapes_of

#: An axis of a tensor, by the name of that.
Place = tuple[str, int]
#: How far outputs may differ where channels that nothing reads are cut out, relative to the largest or to 1.
SAME = 1e-5
#: Of features: that depend on no channel, and on several.
_NONE, _SEVERAL = -1, -2
#: What torch's and others' code raises where sizes do not fit.
UNFIT = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
#: Attributes of modules of torch that say how long a tensor is, by its axis.
_SIZES = {
    0: ("out_features", "out_channels", "num_features", "num_channels", "num_parameters"),
    1: ("in_features", "in_channels"),
}


@dataclass
class Channel:
    """What is one and the same wherever it is written or read: indices by axis of a tensor."""

    writes: dict[Place, list[int]] = field(default_factory=dict)
    reads: dict[Place, list[int]] = field(default_factory=dict)

    @property
    def places(self) -> dict[Place, list[int]]:
        return {**self.writes, **self.reads}


@dataclass(frozen=True)
class Channels:
    """The channels of a model that can be removed, and why others cannot, by the map that writes them."""

    removable: list[Channel]
    left: dict[str, str]


def find_channels(model: nn.Module, inputs: Tensor) -> Channels:
    """The channels between the linear maps of a model.

    Args:
        model: Its tensors are marked and put back.
        inputs: Some data, all of which are finite.
    """
    maps, left = _maps(model, inputs)
    cut = _Cut(model, maps, inputs)
    reached = {name: cut.marked_outputs(name) for name in maps}
    left |= {name: reason for name, found in reached.items() if (reason := found.obstacle)}
    channels, of_feature = _joined(maps, {name: found.features for name, found in reached.items()}, left)
    _tie(cut, channels, of_feature)
    kept: list[Channel] = []
    for channel_places, family in _families(channels).items():
        writers = sorted({name.rpartition(".")[0] for name, axis in channel_places if axis == 0} & maps.keys())
        reason = "it gives one alone" if len(family) == 1 else _trial(model, inputs, family[0])
        if reason is None:
            kept += family
        else:
            left |= {name: reason for name in writers if name not in left}
    return Channels(kept, left)


def _maps(model: nn.Module, inputs: Tensor) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The linear maps at which a model can be cut, and why not at others."""
    layers = {name: module for name, module in model.named_modules() if is_layer(module)}
    holders: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    calls = {name: len(seen) for name, seen in observe(model, layers, (inputs,), shapes_of).items()}
    found: dict[str, nn.Module] = {}
    left: dict[str, str] = {}
    for name, module in layers.items():
        if getattr(module, "groups", 1) > 1:
            if not is_depthwise(module):
                left[name] = "it has groups of channels"
        elif not {"weight", "bias"} <= module._parameters.keys():
            left[name] = "its weights are computed from others"
        elif any(holders[id(parameter)] > 1 for parameter in module.parameters()):
            left[name] = "its weights are shared"
        elif calls[name] == 0:
            raise ValueError(
                f"Every layer of a model to be pruned must run while it evaluates, so that it is seen what it reads; {name!r} "
                "does not. Remove it, or use units='weights'."
            )
        elif calls[name] != 1:
            left[name] = f"it is called {calls[name]} times"
        else:
            found[name] = module
    return found, left


def is_depthwise(module: nn.Module) -> bool:
    """Whether a convolution has one filter for each channel."""
    return getattr(module, "groups", 1) == getattr(module, "in_channels", 0) == getattr(module, "out_channels", 0)


def _axis(module: nn.Module) -> int:
    """Of features, in what a map sees and gives."""
    return -1 if isinstance(module, nn.Linear) else 1


@dataclass(frozen=True)
class _Reached:
    """What some marks came to."""

    #: By map that reads: the number of the mark that each feature depends on.
    features: dict[str, Int[Tensor, " d"]]
    outputs: bool

    @property
    def obstacle(self) -> str | None:
        """Why channels that were marked cannot be removed."""
        if self.outputs:
            return "its outputs reach those of the model"
        for name, features in self.features.items():
            if (features == _SEVERAL).any():
                return f"its outputs are mixed before {name!r} reads them"
        return None if any((features >= 0).any() for features in self.features.values()) else "no other layer reads its outputs"


class _Cut:
    """A model in which every linear map gives the same whatever it sees: what it once gave, with random signs."""

    def __init__(self, model: nn.Module, maps: Mapping[str, nn.Module], inputs: Tensor) -> None:
        self.model, self.maps, self.inputs = model, maps, inputs
        self.given = {name: calls[0] for name, calls in observe(model, maps, (inputs,), lambda seen, given: given).items()}
        generator = torch.Generator().manual_seed(0)
        for name, given in self.given.items():
            if not given.isfinite().all():
                raise ValueError(
                    f"Layers must give finite numbers for the data; {name!r} gives NaN or infinity. Check its weights."
                )
            # With other signs, and those against them: some tensors are used on one side of zero alone.
            signs = torch.randint(0, 2, given[::2].shape, generator=generator).mul_(2).sub_(1).to(given)
            self.given[name] = given * torch.stack([signs, -signs], 1).flatten(0, 1)[: len(given)]

    def marked_outputs(self, name: str) -> _Reached:
        """What the channels that a map gives come to."""
        axis, own = _axis(self.maps[name]), self.given[name]

        @contextmanager
        def marking(which: Bool[Tensor, " d"]) -> Iterator[None]:
            self.given[name] = own.index_fill(axis, which.nonzero()[:, 0], torch.nan)
            try:
                yield
            finally:
                self.given[name] = own

        return self._follow(own.shape[axis], marking)

    def marked_tensors(self, tensors: Sequence[Tensor], axis: int) -> _Reached:
        """What the entries of some tensors of one shape come to, marked together along an axis."""
        own = [tensor.detach().clone() for tensor in tensors]

        @contextmanager
        def marking(which: Bool[Tensor, " d"]) -> Iterator[None]:
            for tensor in tensors:
                tensor.data.index_fill_(axis, which.nonzero()[:, 0], torch.nan)
            try:
                yield
            finally:
                for tensor, values in zip(tensors, own, strict=True):
                    tensor.data.copy_(values)

        return self._follow(tensors[0].shape[axis], marking)

    def _follow(self, size: int, marking: Callable[[Tensor], Any]) -> _Reached:
        """Mark all, then half of them by each bit of their numbers, and the other half."""
        numbers = torch.arange(size, device=self.inputs.device)
        with marking(numbers >= 0):
            touched, outputs = self._seen()
        # What reaches the outputs is not followed further.
        features = {name: torch.where(hit, _SEVERAL if outputs else 0, _NONE) for name, hit in touched.items()}
        if outputs or not any(hit.any() for hit in touched.values()):
            return _Reached(features, outputs)
        for bit in range((size - 1).bit_length()):
            ones = (numbers >> bit) % 2 == 1
            with marking(ones):
                one, _ = self._seen()
            with marking(~ones):
                zero, _ = self._seen()
            for name, known in features.items():
                number = torch.where(one[name], known + (1 << bit), known)
                features[name] = torch.where((known == _SEVERAL) | (one[name] & zero[name]), _SEVERAL, number)
        return _Reached(features, outputs)

    def _seen(self) -> tuple[dict[str, Bool[Tensor, " d"]], bool]:
        """Which features of what each map sees are NaN, and whether some output of the model is."""
        seen: dict[str, Tensor] = {}

        def forward(name: str, inputs: Tensor) -> Tensor:
            seen[name] = inputs.isnan().movedim(_axis(self.maps[name]), 0).flatten(1).any(1)
            return self.given[name]

        for name, module in self.maps.items():
            module.forward = partial(forward, name)
        try:
            outputs = outputs_of(self.model, (self.inputs,))
        finally:
            for module in self.maps.values():
                del module.forward
        return seen, bool(outputs.isnan().any())


def _joined(
    maps: Mapping[str, nn.Module], reached: Mapping[str, Mapping[str, Tensor]], left: dict[str, str]
) -> tuple[list[Channel], dict[tuple[str, int], int]]:
    """Channels that meet in a feature are one. What each feature that can go belongs to is its number in the list.

    Where one of those that meet cannot be removed, none can; `left` is told.
    """
    parent: dict[tuple[str, int], tuple[str, int]] = {}

    def root(node: tuple[str, int]) -> tuple[str, int]:
        while parent.setdefault(node, node) != node:
            parent[node] = node = parent[parent[node]]
        return node

    meets: dict[tuple[str, int], tuple[str, int]] = {}
    for writer, features in reached.items():
        for reader, numbers in features.items():
            for feature, number in enumerate(numbers.tolist()):
                if number >= 0:
                    node = root((writer, number))
                    parent[root(meets.setdefault((reader, feature), node))] = node
    fixed = {root(node): node[0] for node in list(parent) if node[0] in left}
    channels: list[Channel] = []
    number_of: dict[tuple[str, int], int] = {}

    def channel(node: tuple[str, int]) -> int | None:
        at = root(node)
        if at in fixed:
            if node[0] not in left:
                left[node[0]] = f"its outputs meet those of {fixed[at]!r}, which must stay"
            return None
        if at not in number_of:
            number_of[at] = len(channels)
            channels.append(Channel())
        return number_of[at]

    for node in parent:
        if (found := channel(node)) is not None:
            for own in ("weight", "bias"):
                if getattr(maps[node[0]], own) is not None:
                    channels[found].writes.setdefault((f"{node[0]}.{own}".removeprefix("."), 0), []).append(node[1])
    of_feature: dict[tuple[str, int], int] = {}
    for (reader, feature), node in meets.items():
        if (found := channel(node)) is not None:
            of_feature[reader, feature] = found
            channels[found].reads.setdefault((f"{reader}.weight".removeprefix("."), 1), []).append(feature)
    return channels, of_feature


def _tie(cut: _Cut, channels: list[Channel], of_feature: Mapping[tuple[str, int], int]) -> None:
    """Add the tensors beside maps whose entries along an axis belong to one channel each."""
    for names, tensors in _beside(cut):
        for axis in (axis for axis, size in enumerate(tensors[0].shape) if size > 1):
            found = cut.marked_tensors(tensors, axis)
            owners: dict[int, set[int]] = {}
            for reader, numbers in found.features.items():
                for feature, number in enumerate(numbers.tolist()):
                    if number != _NONE:
                        owners.setdefault(number, set()).add(of_feature.get((reader, feature), _NONE))
            if _SEVERAL in owners or any(len(some) > 1 for some in owners.values()):
                continue
            tied = {number: owner for number, (owner,) in owners.items() if owner != _NONE}
            for number, owner in tied.items():
                for name in names:
                    channels[owner].writes.setdefault((name, axis), []).append(number)
            if tied:
                break


def _beside(cut: _Cut) -> Iterator[tuple[list[str], list[Tensor]]]:
    """The tensors of other modules than maps; those of one shape that a module has, such as a norm, together."""
    inside = {id(tensor) for module in cut.maps.values() for tensor in module.parameters()}
    found: dict[tuple[str, torch.Size], dict[str, Tensor]] = {}
    for name, tensor in [*cut.model.named_parameters(), *cut.model.named_buffers()]:
        if id(tensor) not in inside and tensor.is_floating_point():
            found.setdefault((name.rpartition(".")[0], tensor.shape), {})[name] = tensor
    return ((list(some), list(some.values())) for some in found.values())


def _families(channels: Sequence[Channel]) -> dict[tuple[Place, ...], list[Channel]]:
    """Channels by where they are written and read."""
    found: dict[tuple[Place, ...], list[Channel]] = {}
    for channel in channels:
        found.setdefault(tuple(sorted(channel.places)), []).append(channel)
    return found


def _trial(model: nn.Module, inputs: Tensor, channel: Channel) -> str | None:
    """Why a model without a channel is not what it is when nothing reads it; None where it is the same."""
    unread = deepcopy(model)
    stop_reading(unread, [channel])
    try:
        other = deepcopy(unread)
        cut_out(other, [channel])
        wrong = difference(outputs_of(other, (inputs,)), outputs_of(unread, (inputs,)), least=1.0)
    except UNFIT as error:
        return f"the model cannot be called with one less ({error})"
    return None if wrong <= SAME else f"the model computes something else with one less (outputs differ by {wrong:.1e})"


@torch.no_grad()
def stop_reading(model: nn.Module, channels: Sequence[Channel]) -> None:
    """Set the columns of weights that read some channels to zero."""
    named = dict(model.named_parameters())
    for (name, axis), indices in _gone(channels, lambda channel: channel.reads).items():
        named[name].index_fill_(axis, index_of(indices, named[name]), 0.0)


@torch.no_grad()
def cut_out(model: nn.Module, channels: Sequence[Channel]) -> None:
    """Make all tensors of a model smaller by some channels, in place."""
    for (name, axis), indices in _gone(channels, lambda channel: channel.places).items():
        owner, _, own = name.rpartition(".")
        module = model.get_submodule(owner)
        tensor = getattr(module, own)
        kept = torch.ones(tensor.shape[axis], dtype=torch.bool, device=tensor.device)
        kept[index_of(indices, tensor)] = False
        smaller = tensor.detach().index_select(axis, kept.nonzero()[:, 0]).contiguous()
        if isinstance(tensor, nn.Parameter):
            setattr(module, own, nn.Parameter(smaller, tensor.requires_grad))
        else:
            module.register_buffer(own, smaller, own not in module._non_persistent_buffers_set)
        _say_size(module, axis, tensor.shape[axis], smaller.shape[axis])


def _say_size(module: nn.Module, axis: int, before: int, after: int) -> None:
    """What a module says of its size; a depthwise convolution has a group for each channel."""
    depthwise = ("in_channels", "groups") if axis == 0 and is_depthwise(module) and before > 1 else ()
    for attribute in (*_SIZES.get(axis, ()), *depthwise):
        if getattr(module, attribute, None) == before:
            setattr(module, attribute, after)


def index_of(indices: Sequence[int], like: Tensor) -> Int[Tensor, " k"]:
    """Numbers as an index of a tensor."""
    return torch.tensor(indices, dtype=torch.long, device=like.device)


def _gone(channels: Sequence[Channel], of: Callable[[Channel], Mapping[Place, list[int]]]) -> dict[Place, list[int]]:
    """What some channels are, all together."""
    found: dict[Place, list[int]] = {}
    for channel in channels:
        for place, indices in of(channel).items():
            found.setdefault(place, []).extend(indices)
    return found


def parameters_without(model: nn.Module, channels: Sequence[Channel]) -> int:
    """How many parameters a model has without some channels."""
    return sum(prod(size) for size in _sizes_without(model, channels).values())


def parameters_of(model: nn.Module, channels: Sequence[Channel], gone: Sequence[Channel]) -> list[int]:
    """How many parameters go with each of some channels, where others are gone."""
    sizes, found = _sizes_without(model, gone), list[int]()
    for channel in channels:
        smaller = {name: list(sizes[name]) for name, _ in channel.places if name in sizes}
        for (name, axis), indices in channel.places.items():
            if name in smaller:
                smaller[name][axis] -= len(indices)
        found.append(sum(prod(sizes[name]) - prod(size) for name, size in smaller.items()))
    return found


def _sizes_without(model: nn.Module, channels: Sequence[Channel]) -> dict[str, list[int]]:
    sizes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    for (name, axis), indices in _gone(channels, lambda channel: channel.places).items():
        if name in sizes:
            sizes[name][axis] -= len(indices)
    return sizes
