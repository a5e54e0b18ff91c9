"""Relax: layers of any network may choose.

A convolution that is relaxed becomes a `RelaxedLayer`: the convolution itself, with all its settings, and beside it paths that
see position. Those begin so small that the network computes the same.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from math import prod
from typing import Any, cast

from torch import Generator, nn

from symbayes.adapters import torch_layer
from symbayes.layers.conv import LayerPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.surgery.calls import Shapes, change, observe, replace, shapes

#: Which layers: patterns of their names, their types, or whatever a function of name and module says.
Layers = str | type[nn.Module] | Sequence[str | type[nn.Module]] | Callable[[str, nn.Module], bool]
#: Size of the outputs of a new path, relative to a map that keeps the size of its inputs.
_UNSEEN = 1e-7
#: How far outputs may be from what they were, relative to the largest of them.
_SAME = 1e-6
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def _factored(in_shape: tuple[int, ...], out_shape: tuple[int, ...], generator: Generator | None) -> nn.Module:
    return FactoredPath(in_shape, out_shape, scale=_UNSEEN, generator=generator)


def _dense(in_shape: tuple[int, ...], out_shape: tuple[int, ...], generator: Generator | None) -> nn.Module:
    return DensePath(in_shape, out_shape, scale=_UNSEEN, generator=generator)


#: Paths that a convolution can be given.
PATHS = {"factored": _factored, "dense": _dense}


def relax(
    model: nn.Module,
    example: Any,
    to: str | Sequence[str] = "factored",
    layers: Layers | None = None,
    *,
    generator: Generator | None = None,
) -> nn.Module:
    """A copy of a model whose convolutions may come to see position, layer by layer, as far as data ask for it.

    Until it is trained it computes the same. Weights, buffers, hooks, device, precision and mode are those of the model, which
    is left as it is. `sb.fit` learns how much each path is used, `sb.harden` makes plain layers of what was learned.

    Args:
        model: Any module. A layer that was chosen must be called once in a forward pass, always on maps of one size.
        example: A batch of inputs, for the shapes that layers see; a tuple where the model takes several.
        to: The paths that a layer is given beside its convolution: "factored", one outer product over space for each pair of
            channels, or "dense", a weight for every pair of features; or both.
        layers: Which convolutions: patterns of names such as "stage2.*", types, or a function of name and module. When None,
            all that see more than one cell and give more than one, except those that treat each channel alone.
        generator: For the new weights; the global one when None.

    Raises:
        ValueError: If a layer cannot be relaxed, naming it; or if there is none.
    """
    kinds = (to,) if isinstance(to, str) else tuple(to)
    if not kinds or any(kind not in PATHS for kind in kinds):
        raise ValueError(f"to must name some of {', '.join(PATHS)}; got {to!r}.")
    relaxed, inputs = deepcopy(model), example if isinstance(example, tuple) else (example,)
    chosen = _chosen(relaxed, layers)
    seen = _shapes(relaxed, chosen, inputs)
    if layers is None:
        chosen = {name: module for name, module in chosen.items() if _has_positions(seen[name])}
    if not chosen:
        raise ValueError(
            "There is no convolution to relax: none sees more than one cell and gives more than one. Say which by layers=..., "
            "or build a RelaxedLayer."
        )
    _refuse_shared(relaxed, chosen)
    for name, module in chosen.items():
        relaxed = replace(relaxed, name, _relaxed(module, seen[name], kinds, generator))
    _check_same(model, relaxed, inputs)
    return relaxed


def _chosen(model: nn.Module, layers: Layers | None) -> dict[str, nn.Module]:
    """The layers to be relaxed, by name."""
    named = dict(model.named_modules())
    if layers is None:
        inside = tuple(f"{name}." for name, module in named.items() if isinstance(module, LinearMap | RelaxedLayer))
        return {name: module for name, module in named.items() if _sees_neighbours(module) and not name.startswith(inside)}
    if callable(layers) and not isinstance(layers, type):
        return {name: _convolution(name, module) for name, module in named.items() if layers(name, module)}
    chosen: dict[str, nn.Module] = {}
    for one in [layers] if isinstance(layers, str | type) else layers:
        found = {
            name: module
            for name, module in named.items()
            if (fnmatchcase(name, one) if isinstance(one, str) else isinstance(module, one))
        }
        taken = {name: module for name, module in found.items() if torch_layer(module) in CONVOLUTIONS.values()}
        if not taken:
            for name, module in found.items():
                _convolution(name, module)  # which refuses it
            raise ValueError(f"layers must match some layer of the model; {one!r} matches none.")
        chosen |= taken
    return {name: module for name, module in named.items() if name in chosen}


def _sees_neighbours(module: nn.Module) -> bool:
    if torch_layer(module) not in CONVOLUTIONS.values():
        return False
    conv = cast(nn.Conv2d, module)
    return max(conv.kernel_size) > 1 and not 1 < conv.groups == conv.in_channels


def _convolution(name: str, module: nn.Module) -> nn.Module:
    if torch_layer(module) not in CONVOLUTIONS.values():
        raise ValueError(
            f"Layers to be relaxed must be nn.Conv1d, nn.Conv2d or nn.Conv3d, with the forward pass of torch; {name!r} is "
            f"a {type(module).__name__}. Leave it out, or build a RelaxedLayer."
        )
    return module


def _shapes(model: nn.Module, chosen: dict[str, nn.Module], inputs: tuple[Any, ...]) -> dict[str, Shapes]:
    """What each layer sees and gives for a datum."""
    found = observe(model, chosen, inputs, shapes)
    for name, calls in found.items():
        if len(calls) != 1:
            raise ValueError(
                f"A layer to be relaxed must be called once in a forward pass; {name!r} is called {len(calls)} times for this "
                "example. Leave it out: layers=..."
            )
        if len(calls[0][0]) != len(cast(nn.Conv2d, chosen[name]).kernel_size) + 1:
            raise ValueError(f"A layer to be relaxed must see a batch; {name!r} sees {list(calls[0][0])}. Use example[None].")
    return {name: calls[0] for name, calls in found.items()}


def _has_positions(shapes: Shapes) -> bool:
    return prod(shapes[1][1:]) > 1


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


def _relaxed(module: nn.Module, shapes: Shapes, kinds: Sequence[str], generator: Generator | None) -> nn.Module:
    weight = next(module.parameters())
    paths: dict[str, nn.Module] = {kind: PATHS[kind](*shapes, generator) for kind in kinds}
    layer = RelaxedLayer({**{kind: path.to(weight) for kind, path in paths.items()}, "conv": LayerPath(module)})
    return layer.train(module.training)


def _check_same(model: nn.Module, relaxed: nn.Module, inputs: tuple[Any, ...]) -> None:
    try:
        changed = change(model, relaxed, inputs)
    except AttributeError as error:
        raise ValueError(
            f"The model asks a layer that was relaxed for what a RelaxedLayer does not have ({error}). Leave it out: layers=..."
        ) from error
    if not changed <= _SAME:
        raise ValueError(
            f"A relaxed model must compute what it did; outputs differ by {changed:.1e} of the largest. Is its forward pass "
            "random, or does it depend on more than its inputs?"
        )
