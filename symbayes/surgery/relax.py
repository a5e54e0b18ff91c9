"""Relax: layers of any network may choose.

A layer that is relaxed becomes a `RelaxedLayer`: the layer itself, with all its settings, and beside it paths of another
symmetry. Those begin so small that the network computes the same. Convolutions may come to see position, or to look the same
after turns and flips; linear layers may become convolutions, or maps that keep the symmetry of a group of permutations.
"""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from math import prod
from typing import Any, cast

from torch import Generator, Tensor, nn
from torch.nn.parameter import UninitializedParameter

from symbayes.adapters import torch_layer
from symbayes.groups.grids import SpaceGroup
from symbayes.groups.group import Group
from symbayes.groups.permutation import Permutations
from symbayes.layers.conv import ConvPath, LayerPath, added_cells
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import SymmetricConvPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.surgery.calls import Shapes, difference, is_layer, observe, outputs_of, replace, shapes_of

#: Which layers: patterns of their names, their types, or whatever a function of name and module says.
Layers = str | type[nn.Module] | Sequence[str | type[nn.Module]] | Callable[[str, nn.Module], bool]
#: What a layer may become: a word of `KINDS`, or a group whose symmetry it may gain.
Kind = str | Group
KINDS = ("factored", "dense", "conv")
#: Size of the outputs of a new path, relative to a map that keeps the size of its inputs.
_UNSEEN = 1e-7
#: How far outputs may be from what they were, relative to the largest of them.
_SAME = 1e-6


def relax(
    model: nn.Module,
    example: Any,
    to: Kind | Sequence[Kind] = "factored",
    layers: Layers | None = None,
    *,
    grid: int | Sequence[int] | None = None,
    generator: Generator | None = None,
) -> nn.Module:
    """A copy of a model whose layers may break their symmetry or gain one, layer by layer, as far as data ask for it.

    Until it is trained it computes the same. Weights, buffers, hooks, device, precision and mode are those of the model, which
    is left as it is. `sb.fit` learns how much each path is used, `sb.harden` makes plain layers of what was learned.

    By default `sb.fit` begins with paths that break a symmetry nearly off. Where a layer may gain one, that is the layer
    itself: to go on from trained weights, use `objective=sb.Laplace()`.

    Args:
        model: Any module. A layer that was chosen must be called once in a forward pass, always on data of one size.
        example: A batch of inputs, for the shapes that layers see; a tuple where the model takes several.
        to: The path that a layer is given beside what it is, or several. For convolutions: "factored", one outer product over
            space for each pair of channels; "dense", a weight for every pair of features; or a group of turns and flips, such
            as `groups.p4m()`, for filters that look the same after each of them. For linear layers: "conv", a convolution over
            `grid`; or a group of permutations of their features, which lie as [channels, points], such as
            `groups.cyclic(24)`. Outputs that are no multiple of its points become invariant.
        layers: Which: patterns of names such as "stage2.*", types, or a function of name and module. When None, all that the
            paths are for, except convolutions that see or give a single cell, or treat each channel alone.
        grid: On which the features of linear layers lie, as [channels, *grid], flattened.
        generator: For the new weights; the global one when None.

    Raises:
        ValueError: If a layer cannot be relaxed, naming it; or if there is none.
    """
    kinds = _kinds(to)
    cells = () if grid is None else (grid,) if isinstance(grid, int) else tuple(grid)
    if ("conv" in kinds and not cells) or len(cells) > 3 or any(size < 1 for size in cells):
        raise ValueError(
            "A linear layer can become a convolution over a grid of one to three axes that its features lie on, such as "
            f"grid=(28, 28); got {grid}."
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"A model to be relaxed must have all its weights; {name!r} has none yet. Call the model once.")
    relaxed, inputs = deepcopy(model), example if isinstance(example, tuple) else (example,)
    chosen = _chosen(relaxed, layers, kinds)
    seen = _shapes(relaxed, chosen, inputs, skip=layers is None)
    found: dict[str, nn.Module] = {}
    reasons = []
    for name in seen:
        try:
            if layers is None:
                _check_usual(chosen[name], seen[name])
            found[name] = _relaxed(chosen[name], seen[name], kinds, cells, generator)
        except _UnsuitedError as error:
            if layers is not None:
                raise ValueError(f"{name!r} cannot be relaxed: {error}.") from error
            reasons.append(f" {name!r}: {error}.")
    if not found:
        raise ValueError(
            f"There is no layer to relax to {' or '.join(map(_name, kinds))}.{''.join(reasons)} Say which by layers=..., or "
            "build a RelaxedLayer."
        )
    _refuse_shared(relaxed, {name: chosen[name] for name in found})
    for name, layer in found.items():
        relaxed = replace(relaxed, name, layer.train(chosen[name].training))
    _check_same(model, relaxed, inputs)
    return relaxed


class OnGrid(nn.Module):
    """A layer over maps [n, *in_shape] for features [n, *others, d], and its outputs as features again.

    Args:
        layer: Over maps.
        in_shape: Of a map, as which d features are seen.
        others: The axes beside features; the layer sees each of their entries for itself.
    """

    def __init__(self, layer: nn.Module, in_shape: tuple[int, ...], others: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.layer, self.in_shape, self.others = layer, in_shape, others

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1:] != (*self.others, prod(self.in_shape)):
            wanted = ", ".join(map(str, ("n", *self.others, prod(self.in_shape))))
            raise ValueError(f"A layer on a grid must see [{wanted}], as in the example; got {tuple(inputs.shape)}.")
        outputs = cast(Tensor, self.layer(inputs.reshape(-1, *self.in_shape)))
        return outputs.reshape(len(inputs), *self.others, -1)


def _kinds(to: Kind | Sequence[Kind]) -> list[Kind]:
    kinds = [to] if isinstance(to, str) or not isinstance(to, Sequence) else list(to)
    if not kinds or any(kind not in KINDS for kind in kinds if not isinstance(kind, SpaceGroup | Permutations)):
        raise ValueError(f"to must name some of {', '.join(KINDS)}, or be a SpaceGroup or Permutations; got {to!r}.")
    return kinds


class _UnsuitedError(ValueError):
    """Says why a path is not for a layer."""


def _relaxed(
    module: nn.Module, seen: Shapes, kinds: Sequence[Kind], grid: tuple[int, ...], generator: Generator | None
) -> nn.Module:
    """A layer, and the paths beside it that are for such a layer."""
    weight = next(module.parameters())
    suited = _suited(module, kinds)
    if torch_layer(module) is nn.Linear:
        if len(suited) != 1:
            raise _UnsuitedError(f"a linear layer takes conv or one group of permutations, not {_names(kinds)}")
        path, maps = _beside_linear(cast(nn.Linear, module), suited[0], grid, generator)
        layer = RelaxedLayer({"linear": LayerPath(module, maps[1]), _name(suited[0]): path.to(weight)})
        return OnGrid(layer, maps[0], seen[0][:-1])
    if not suited:
        raise _UnsuitedError(f"a convolution takes factored, dense or a group of turns and flips, not {_names(kinds)}")
    beside = {_name(kind): _beside_convolution(cast(nn.Conv2d, module), seen, kind, generator).to(weight) for kind in suited}
    return RelaxedLayer({**beside, "conv": LayerPath(module)})


def _name(kind: Kind) -> str:
    """Of the path."""
    if isinstance(kind, str):
        return kind
    name = re.sub(r"\W", "_", kind.name)
    return f"{name}_group" if name in (*KINDS, "linear") else name


def _names(kinds: Sequence[Kind]) -> str:
    return " and ".join(map(_name, kinds))


def _beside_convolution(
    conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, seen: Shapes, kind: Kind, generator: Generator | None
) -> nn.Module:
    if kind == "factored":
        return FactoredPath(*seen, scale=_UNSEEN, generator=generator)
    if kind == "dense":
        return DensePath(*seen, scale=_UNSEEN, generator=generator)
    assert isinstance(kind, SpaceGroup)
    size = conv.kernel_size[0]
    if (
        len(conv.kernel_size) != kind.dims
        or {*conv.kernel_size} != {size}
        or size % 2 == 0
        or {*conv.stride, *conv.dilation} != {1}
    ):
        raise _UnsuitedError(
            f"filters that turn by {kind.name} have {kind.dims} axes of one odd length, without stride or dilation; got {conv}"
        )
    try:
        kind.check_grid(seen[0][1:])
    except ValueError as error:
        raise _UnsuitedError(str(error)) from error
    padding = [cells // 2 for cells in added_cells(conv)]
    return SymmetricConvPath(
        conv.in_channels, conv.out_channels, kind, size, padding=padding, padding_mode=conv.padding_mode, groups=conv.groups,
        scale=_UNSEEN, generator=generator,
    )  # fmt: skip


def _beside_linear(
    linear: nn.Linear, kind: Kind, grid: tuple[int, ...], generator: Generator | None
) -> tuple[nn.Module, Shapes]:
    """The path, and the shapes of its inputs and outputs as maps."""
    d_in, d_out = linear.in_features, linear.out_features
    if not isinstance(kind, Permutations):
        cells = prod(grid)
        if d_in % cells or d_out % cells or cells == 1:
            raise _UnsuitedError(f"its {d_in} and {d_out} features must be channels of a grid {grid} of {cells} cells")
        maps = (d_in // cells, *grid), (d_out // cells, *grid)
        kernel = [min(3, size - 1 + size % 2) for size in grid]  # odd, and no larger than the grid
        return ConvPath(maps[0][0], maps[1][0], kernel, scale=_UNSEEN, generator=generator), maps
    if d_in % kind.num_inputs:
        raise _UnsuitedError(f"its {d_in} features must be channels of the {kind.num_inputs} points that {kind.name} permutes")
    kind = kind if d_out % kind.num_outputs == 0 else kind.pooled()  # outputs that are not permuted are invariant
    maps = (d_in // kind.num_inputs, kind.num_inputs), (d_out // kind.num_outputs, kind.num_outputs)
    return OrbitPath(maps[0][0], maps[1][0], kind, scale=_UNSEEN, generator=generator), maps


def _chosen(model: nn.Module, layers: Layers | None, kinds: Sequence[Kind]) -> dict[str, nn.Module]:
    """Layers that might be relaxed, by name; those that are parts of others, which know them, are not."""
    every = dict(model.named_modules())
    inside = tuple(f"{name}." if name else "" for name, module in every.items() if isinstance(module, LinearMap | RelaxedLayer))
    named = {name: module for name, module in every.items() if not name or not name.startswith(inside)}
    if layers is None:
        return {name: module for name, module in named.items() if is_layer(module) and _suited(module, kinds)}
    if callable(layers) and not isinstance(layers, type):
        return {name: _layer(name, module) for name, module in named.items() if layers(name, module)}
    chosen: dict[str, nn.Module] = {}
    for one in [layers] if isinstance(layers, str | type) else layers:
        found = {
            name: module
            for name, module in named.items()
            if (fnmatchcase(name, one) if isinstance(one, str) else isinstance(module, one))
        }
        taken = {name: module for name, module in found.items() if is_layer(module)}
        if not taken:
            for name, module in found.items():
                _layer(name, module)  # which refuses it
            raise ValueError(f"layers must match some layer of the model; {one!r} matches none.")
        chosen |= taken
    return {name: module for name, module in named.items() if name in chosen}


def _layer(name: str, module: nn.Module) -> nn.Module:
    if not is_layer(module):
        raise ValueError(
            "Layers to be relaxed must be nn.Conv1d, nn.Conv2d, nn.Conv3d or nn.Linear, with the forward pass of torch; "
            f"{name!r} is a {type(module).__name__}. Leave it out, or build a RelaxedLayer."
        )
    return module


def _suited(module: nn.Module, kinds: Sequence[Kind]) -> list[Kind]:
    """Those that are for such a layer."""
    if torch_layer(module) is nn.Linear:
        return [kind for kind in kinds if kind == "conv" or isinstance(kind, Permutations)]
    return [kind for kind in kinds if kind in ("factored", "dense") or isinstance(kind, SpaceGroup)]


def _check_usual(module: nn.Module, seen: Shapes) -> None:
    """Refuse a convolution that sees no neighbours or other channels, or gives a single cell."""
    if torch_layer(module) is nn.Linear:
        return
    conv = cast(nn.Conv2d, module)
    if max(conv.kernel_size) == 1 or 1 < conv.groups == conv.in_channels or prod(seen[1][1:]) == 1:
        raise _UnsuitedError("it sees or gives a single cell, or treats each channel alone")


def _shapes(model: nn.Module, chosen: dict[str, nn.Module], inputs: tuple[Any, ...], *, skip: bool) -> dict[str, Shapes]:
    """What each layer sees and gives for a datum; of those that are not called, nothing."""
    found = observe(model, chosen, inputs, shapes_of)
    if all(isinstance(one, Tensor) and len(one) > 1 for one in inputs):
        fewer = observe(model, chosen, tuple(one[:-1] for one in inputs), shapes_of)
        for name in found:
            if found[name] != fewer[name]:
                raise ValueError(
                    f"A layer to be relaxed must get the data along its first axis; {name!r} sees {list(found[name][0][0])} "
                    f"for each of {len(inputs[0])}, and {list(fewer[name][0][0])} for each of one less. Leave it out."
                )
    for name, calls in found.items():
        if len(calls) > 1 or (not calls and not skip):
            raise ValueError(
                f"A layer to be relaxed must be called once in a forward pass; {name!r} is called {len(calls)} times for this "
                "example. Leave it out: layers=..."
            )
        axes = 1 if torch_layer(chosen[name]) is nn.Linear else len(cast(nn.Conv2d, chosen[name]).kernel_size) + 1
        if calls and len(calls[0][0]) < axes:
            raise ValueError(f"A layer to be relaxed must see a batch; {name!r} sees {list(calls[0][0])}. Use example[None].")
    return {name: calls[0] for name, calls in found.items() if calls}


def _refuse_shared(model: nn.Module, chosen: dict[str, nn.Module]) -> None:
    """Refuse modules that have two names, and weights that two modules hold."""
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    holders: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), []).append(name)
    for name, module in chosen.items():
        if len(names[id(module)]) > 1:
            raise ValueError(
                f"A layer to be relaxed must have one place; {' and '.join(map(repr, names[id(module)]))} are the same."
            )
        for parameter in module.parameters():
            if len(holders[id(parameter)]) > 1:
                raise ValueError(
                    f"A layer to be relaxed must have weights of its own; {' and '.join(map(repr, holders[id(parameter)]))} "
                    f"are the same tensor. Leave {name!r} out: layers=..."
                )


def _check_same(model: nn.Module, relaxed: nn.Module, inputs: tuple[Any, ...]) -> None:
    try:
        changed = difference(outputs_of(relaxed, inputs), outputs_of(model, inputs), least=1.0)
    except AttributeError as error:
        raise ValueError(
            f"The model asks a layer that was relaxed for what a RelaxedLayer does not have ({error}). Leave it out: layers=..."
        ) from error
    if not changed <= _SAME:
        raise ValueError(
            f"A relaxed model must compute what it did; outputs differ by {changed:.1e}, relative to the largest or to 1. Is "
            "its forward pass random, or does it depend on more than its inputs?"
        )
