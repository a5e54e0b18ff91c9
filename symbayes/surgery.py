"""Surgery on models: `relax` lets the layers of any network choose, `harden` turns what they chose into plain torch again.

A convolution that is relaxed becomes a `RelaxedLayer`: the convolution itself, with all its settings, and beside it paths that
see position. Those begin so small that the network computes the same. What the evidence did not ask for gives next to nothing
after training, and `harden` removes it; what is left is folded into convolutions, matrices and maps of biases.
"""

import logging
import operator
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial, reduce
from math import prod
from typing import Any, cast

import torch
from torch import Generator, Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from symbayes.adapters import torch_layer
from symbayes.curvature.evaluate import evaluating
from symbayes.layers.conv import ConvPath, LayerPath, PaddingMode
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath
from symbayes.models import AllConv

_log = logging.getLogger("symbayes")

#: Which layers: patterns of their names, their types, or whatever a function of name and module says.
Layers = str | type[nn.Module] | Sequence[str | type[nn.Module]] | Callable[[str, nn.Module], bool]
#: Size of the outputs of a new path, relative to a map that keeps the size of its inputs.
_UNSEEN = 1e-7
#: How far outputs may be from what they were, relative to the largest of them.
_SAME = 1e-6
_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


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
    chosen = dict(_chosen(relaxed, layers))
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
        relaxed = _replace(relaxed, name, _relaxed(module, seen[name], kinds, generator))
    _check_same(model, relaxed, inputs)
    return relaxed


def _chosen(model: nn.Module, layers: Layers | None) -> Iterator[tuple[str, nn.Module]]:
    """Convolutions, by name."""
    named = dict(model.named_modules())
    inside = [f"{name}." for name, module in named.items() if isinstance(module, LinearMap | RelaxedLayer)]
    asked = [layers] if isinstance(layers, str | type) else layers
    for name, module in named.items():
        if layers is None:
            kind = torch_layer(module)
            wanted = kind in _CONVOLUTIONS.values() and not any(name.startswith(prefix) for prefix in inside)
            wanted = wanted and max(module.kernel_size) > 1 and not 1 < module.groups == module.in_channels
        elif callable(asked):
            wanted = bool(asked(name, module))
        else:
            wanted = any(fnmatchcase(name, one) if isinstance(one, str) else isinstance(module, one) for one in asked or ())
            wanted = wanted and (torch_layer(module) in _CONVOLUTIONS.values() or name in (asked or ()))
        if not wanted:
            continue
        if torch_layer(module) not in _CONVOLUTIONS.values():
            raise ValueError(
                f"Layers to be relaxed must be nn.Conv1d, nn.Conv2d or nn.Conv3d, with the forward pass of torch; {name!r} is "
                f"a {type(module).__name__}. Leave it out, or build a RelaxedLayer."
            )
        yield name, module


Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def _shapes(model: nn.Module, chosen: dict[str, nn.Module], inputs: tuple[Any, ...]) -> dict[str, Shapes]:
    """What each layer sees and gives for a datum."""
    found: dict[str, list[Shapes]] = {name: [] for name in chosen}

    def note(name: str) -> Callable[..., None]:
        return lambda module, args, output: found[name].append((tuple(args[0].shape), tuple(output.shape)))

    handles = [module.register_forward_hook(note(name)) for name, module in chosen.items()]
    try:
        with torch.no_grad(), evaluating(model):
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    for name, calls in found.items():
        if len(calls) != 1:
            raise ValueError(
                f"A layer to be relaxed must be called once in a forward pass; {name!r} is called {len(calls)} times for this "
                "example. Leave it out: layers=..."
            )
        if len(calls[0][0]) != len(cast(nn.Conv2d, chosen[name]).kernel_size) + 2:
            raise ValueError(f"A layer to be relaxed must see a batch; {name!r} sees {list(calls[0][0])}. Use example[None].")
    return {name: (calls[0][0][1:], calls[0][1][1:]) for name, calls in found.items()}


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


def _replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    if not name:
        return module
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
    return model


def _check_same(model: nn.Module, relaxed: nn.Module, inputs: tuple[Any, ...]) -> None:
    try:
        change = _change(model, relaxed, inputs)
    except AttributeError as error:
        raise ValueError(
            f"The model asks a layer that was relaxed for what a RelaxedLayer does not have ({error}). Leave it out: layers=..."
        ) from error
    if not change <= _SAME:
        raise ValueError(
            f"A relaxed model must compute what it did; outputs differ by {change:.1e} of the largest. Is its forward pass "
            "random, or does it depend on more than its inputs?"
        )


def _change(model: nn.Module, other: nn.Module, inputs: tuple[Any, ...]) -> float:
    """The largest difference of outputs, relative to the largest output."""
    with torch.no_grad(), evaluating(model):
        before = model(*inputs)
    with torch.no_grad(), evaluating(other):
        after = other(*inputs)
    return float((after - before).abs().max()) / max(float(before.abs().max()), torch.finfo(before.dtype).tiny)


@dataclass(frozen=True)
class Hardened:
    """A hardened model, and what became of each layer; prints as a report."""

    model: nn.Module
    #: By relaxed layer: the paths that were removed, and what is left, in words.
    layers: dict[str, tuple[tuple[str, ...], str]]
    #: The largest change of an output on the example, relative to the largest output.
    change: float
    #: Before and after.
    parameters: tuple[int, int]
    #: Multiplications and additions for a datum, as torch counts them, before and after.
    operations: tuple[int, int]
    #: Of a forward pass on the example, before and after.
    seconds: tuple[float, float]

    def __str__(self) -> str:
        lines = [f"{name or 'model'}: {kept}{_without(removed)}" for name, (removed, kept) in self.layers.items()]
        sizes, counts, times = self.parameters, self.operations, self.seconds
        return "\n".join(
            [
                *lines,
                f"outputs on the example change by at most {self.change:.1e} of the largest",
                f"parameters {sizes[0]:,} → {sizes[1]:,}, operations for a datum {counts[0]:,} → {counts[1]:,}, "
                f"a forward pass {1e3 * times[0]:.1f} ms → {1e3 * times[1]:.1f} ms",
            ]
        )


def _without(removed: Sequence[str]) -> str:
    return f" (removed: {', '.join(removed)})" if removed else ""


def harden(model: nn.Module, example: Any, *, off: float = 1e-3) -> nn.Module:
    """A copy of a model with plain layers of torch in place of relaxed ones, without paths that change next to nothing.

    It has nothing of this library: it can be saved, loaded, compiled and exported as any other. What was removed and what
    changed is logged; `sb.surgery.hardened` gives it.

    Args:
        model: With relaxed layers, such as `result.model`.
        example: A batch of inputs, by which is told what a path is for: data as in training, some hundreds of them.
        off: Paths are removed, those that give least first, while outputs change by less than this share of their variance over
            the example, all together. A path that is used for its biases alone becomes a map of them.

    Raises:
        ValueError: If something cannot be written as plain layers, naming it.
    """
    found = hardened(model, example, off=off)
    _log.info("%s", found)
    return found.model


def hardened(model: nn.Module, example: Any, *, off: float = 1e-3) -> Hardened:
    """What `harden` gives, with a report."""
    if not 0 <= off < 1:
        raise ValueError(f"off must be a share of the variance of outputs, at least 0 and below 1; got {off}.")
    inputs = example if isinstance(example, tuple) else (example,)
    plain = deepcopy(model)
    relaxed = {name: module for name, module in plain.named_modules() if isinstance(module, RelaxedLayer)}
    if not relaxed:
        raise ValueError("The model has no relaxed layer to harden. sb.relax and sb.allconv make them.")
    for name, layer in relaxed.items():
        if layer.equivariant_stride:
            raise ValueError(
                f"A stride that follows the content of each datum is no plain layer; {name!r} has one. Build the network with "
                "equivariant_stride=False."
            )
    parts, shapes = _parts(plain, relaxed, inputs, off)
    words: dict[str, tuple[tuple[str, ...], str]] = {}
    for name, layer in relaxed.items():
        kept = {path: part for path, part in parts[name].items() if part != "nothing"}
        left = " + ".join(path if part == "all" else f"{part} of {path}" for path, part in kept.items())
        words[name] = tuple(path for path in layer.paths if path not in kept), left or "nothing"
        plain = _replace(plain, name, _fold(name, layer, kept, shapes[name]))
    plain = _without_classes(plain)
    for name, module in plain.named_modules():
        if type(module).__module__.partition(".")[0] == "symbayes":
            raise ValueError(
                f"A hardened model must be made of plain layers; {name or 'the model'!r} is a {type(module).__name__}. For an "
                "OrbitAverage, harden its network, and train with result.augmentation()."
            )
    plain.train(model.training)
    return Hardened(
        plain,
        words,
        _change(model, plain, inputs),
        (_count(model), _count(plain)),
        (_operations(model, inputs), _operations(plain, inputs)),
        (_seconds(model, inputs), _seconds(plain, inputs)),
    )


@dataclass
class _Paths:
    """What each path of relaxed layers is left with while a model is called: "all" it gives, its "biases", or "nothing"."""

    layers: dict[str, RelaxedLayer]
    parts: dict[str, dict[str, str]]
    #: By layer and path, what it gives where it sees zeros; and by layer, the shapes of what comes in and out.
    constants: dict[tuple[str, str], Tensor]
    shapes: dict[str, Shapes]
    energies: dict[tuple[str, str], float]

    def hooks(self) -> Iterator[Any]:
        for name, layer in self.layers.items():
            for path_name, path in layer.paths.items():
                yield path.register_forward_hook(partial(self._called, name, path_name))

    def _called(self, layer: str, name: str, path: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        place, part = (layer, name), self.parts[layer][name]
        if place not in self.constants:
            self.constants[place] = torch.empty(0)  # the path is called again, just now
            self.constants[place] = path(torch.zeros_like(args[0][:1]))
            self.shapes[layer] = tuple(args[0].shape[1:]), tuple(output.shape[1:])
        elif not self.constants[place].numel():
            return None
        self.energies.setdefault(place, float(output.double().square().sum()))
        if part == "all":
            return None
        return self.constants[place].expand_as(output) if part == "biases" else torch.zeros_like(output)


@torch.no_grad()
def _parts(
    model: nn.Module, layers: dict[str, RelaxedLayer], inputs: tuple[Any, ...], off: float
) -> tuple[dict[str, dict[str, str]], dict[str, Shapes]]:
    """What is left of every path, and the shapes that layers see and give."""
    paths = _Paths(layers, {name: dict.fromkeys(layer.paths, "all") for name, layer in layers.items()}, {}, {}, {})
    handles = list(paths.hooks())
    try:
        with evaluating(model):
            whole = model(*inputs).double()
            for name in layers:
                if name not in paths.shapes:
                    raise ValueError(f"A layer to be hardened must be called for the example; {name!r} is not.")
            allowed = off * float((whole - whole.mean(0)).square().sum())
            for (layer, path), _ in sorted(paths.energies.items(), key=lambda item: item[1]):
                for part in ("nothing", "biases"):
                    if part == "biases" and not paths.constants[layer, path].any():
                        continue
                    paths.parts[layer][path] = part
                    if float((model(*inputs).double() - whole).square().sum()) <= allowed:
                        break
                    paths.parts[layer][path] = "all"
    finally:
        for handle in handles:
            handle.remove()
    return paths.parts, paths.shapes


@torch.no_grad()
def _fold(name: str, layer: RelaxedLayer, kept: dict[str, str], shapes: Shapes) -> nn.Module:
    """A plain module for what is kept of a layer: a layer of torch where one will do, else a sum, as a graph of torch.fx."""
    root, graph = nn.Module(), fx.Graph()
    seen = graph.placeholder("inputs")
    terms: list[fx.Node] = []
    like = next(layer.parameters())
    zeros, constant = like.new_zeros(1, *shapes[0]), like.new_zeros(shapes[1])
    for path_name, part in kept.items():
        path = layer.paths[path_name]
        if part == "biases":
            constant += path(zeros)[0]
        elif (plain := _as_layer(path)) is not None:
            root.add_module(path_name, plain.to(like))
            terms.append(graph.call_module(path_name, (seen,)))
        elif isinstance(path, FactoredPath):
            terms.append(_factors(root, graph, seen, path_name, path))
        else:
            raise ValueError(
                f"{type(path).__name__} cannot be written as plain layers yet; {name!r} keeps one as {path_name!r}. If it "
                "changes next to nothing, a larger off removes it."
            )
    if constant.any() or not terms:
        root.register_parameter("position_bias", nn.Parameter(constant))
        bias = graph.get_attr("position_bias")
        if not terms:  # a batch of zeros, as long as what came in
            total = graph.call_method("sum", (graph.call_method("flatten", (seen, 1)), 1))
            zero = graph.call_function(operator.mul, (total, 0))
            terms.append(graph.call_method("view", (zero, (-1, *(1 for _ in shapes[1])))))
        terms.append(bias)
    if len(terms) == 1 and len(root._modules) == 1:
        module = next(root.children())
    else:
        graph.output(reduce(lambda a, b: graph.call_function(operator.add, (a, b)), terms))
        module = fx.GraphModule(root, graph)
    return module.train(layer.training)


def _factors(root: nn.Module, graph: fx.Graph, seen: fx.Node, name: str, path: FactoredPath) -> fx.Node:
    """The two products of a factored map."""

    def hold(tensor: Tensor, word: str) -> fx.Node:
        root.register_parameter(f"{name}_{word}", nn.Parameter(tensor.detach().clone()))
        return graph.get_attr(f"{name}_{word}")

    def add(term: fx.Node, bias: Tensor | None, word: str) -> fx.Node:
        return term if bias is None else graph.call_function(operator.add, (term, hold(bias, word)))

    flat = graph.call_method("flatten", (seen, 2))
    hidden = graph.call_function(torch.einsum, ("ncs,cds->ncd", flat, hold(path.gather.dense_weight(), "gather")))
    hidden = add(hidden, path.gather.bias, "gather_bias")
    given = graph.call_function(torch.einsum, ("ncd,dtc->ndt", hidden, hold(path.scatter.dense_weight(), "scatter")))
    return graph.call_method("unflatten", (add(given, path.scatter.bias, "scatter_bias"), 2, path.out_shape[1:]))


def _as_layer(path: nn.Module) -> nn.Module | None:
    """A path as a layer of torch; None where there is none."""
    match path:
        case LayerPath():
            return path.module
        case GroupConvPath():
            bias = None if path.bias is None else path.bias.repeat_interleave(path.group.order)
            padding = [size // 2 for size in path.kernel_size]
            return _convolution(path.filters(), bias, path.stride, padding, "circular", path.channel_groups)
        case ConvPath():
            weight = path.dense_weight() if isinstance(path, SparseConvPath) else path.weight
            return _convolution(weight, path.bias, path.stride, path.padding, path.padding_mode, path.groups)
        case DensePath():
            linear = nn.Linear(prod(path.in_shape), prod(path.out_shape), bias=path.bias is not None)
            _set(linear, path.weight, path.bias)
            return nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, path.out_shape))
        case nn.Linear() | nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return path
        case _:
            return None


def _convolution(
    weight: Tensor, bias: Tensor | None, stride: int, padding: Sequence[int], mode: PaddingMode, groups: int
) -> nn.Module:
    kind: Callable[..., nn.Module] = _CONVOLUTIONS[weight.ndim - 2]
    layer = kind(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), stride, tuple(padding), groups=groups,
        bias=bias is not None, padding_mode=mode,
    )  # fmt: skip
    _set(layer, weight, bias)
    return layer


def _set(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())


def _without_classes(model: nn.Module) -> nn.Module:
    """Modules of this library that are only an order of others, as torch has them."""
    for name, module in list(model.named_modules()):
        if isinstance(module, GroupPool):
            graph = fx.Graph()
            fibres = graph.call_method("unflatten", (graph.placeholder("inputs"), 1, (-1, module.order)))
            graph.output(graph.call_method("amax" if module.by == "max" else "mean", (fibres, 2)))
            model = _replace(model, name, fx.GraphModule(nn.Module(), graph))
    for name, module in list(model.named_modules()):
        if isinstance(module, AllConv):
            plain = nn.Sequential(OrderedDict(module.named_children()))
            model = _replace(model, name, plain.train(module.training))
    return model


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _operations(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """For a datum: twice the multiplications of products and convolutions."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), evaluating(model), counter:
        model(*inputs)
    return counter.get_total_flops() // max(1, len(inputs[0]))


def _seconds(model: nn.Module, inputs: tuple[Any, ...], times: int = 3) -> float:
    """Of the fastest of some forward passes."""
    found = []
    with torch.no_grad(), evaluating(model):
        for _ in range(times):
            start = time.perf_counter()
            model(*inputs).sum().item()  # a GPU is waited for
            found.append(time.perf_counter() - start)
    return min(found)
