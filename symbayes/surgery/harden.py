"""Harden: what the layers of a network chose, as plain layers of torch.

What the evidence did not ask for gives next to nothing after training, and is removed; what is left is folded into
convolutions, matrices and maps of biases. An average over transformed inputs is written out (`average.py`). Layers can be made
smaller at once (`prune.py`).
"""

import dataclasses
import logging
import operator
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional

from symbayes.curvature.evaluate import evaluating, without_autocast
from symbayes.data.source import Data
from symbayes.invariance.discrete_average import DiscreteAverage
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.conv import ConvPath, LayerPath, PaddingMode
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.likelihoods.positions import AtPositions
from symbayes.models import AllConv
from symbayes.surgery.average import written_out
from symbayes.surgery.calls import CONVOLUTIONS, Shapes, count, difference, observe, operations, outputs_of, replace, shapes_of
from symbayes.surgery.graphs import module_of
from symbayes.surgery.prune import Pruned, pruned
from symbayes.surgery.relax import OnGrid

_log = logging.getLogger("symbayes")
#: Columns of a matrix that are found at once.
_COLUMNS = 256
#: A path of a relaxed layer, by the names of both; and what is left of it: "all" it gives, its "biases", or "nothing".
#: Of an average, "all" or the network alone: "nothing" of the average.
_Place = tuple[str, str]
_AVERAGE = "average"


@dataclass(frozen=True)
class Hardened:
    """A hardened model, and what became of each layer; prints as a report."""

    model: nn.Module
    #: By relaxed layer or average: the paths that were removed, and what is left, in words.
    layers: dict[str, tuple[tuple[str, ...], str]]
    #: The largest change of an output on the example, relative to the largest output.
    change: float
    #: Before and after.
    parameters: tuple[int, int]
    #: Multiplications and additions for a datum, as torch counts them, before and after.
    operations: tuple[int, int]
    #: Of a forward pass on the example, before and after.
    seconds: tuple[float, float]
    #: What was pruned after that; the model is smaller then, and all figures above are without it.
    pruned: Pruned | None = None

    def __str__(self) -> str:
        lines = [f"{name or 'model'}: {kept}{_without(removed)}" for name, (removed, kept) in self.layers.items()]
        sizes, counts, times = self.parameters, self.operations, self.seconds
        return "\n".join(
            [
                *lines,
                f"outputs on the example change by at most {self.change:.1e} of the largest",
                f"parameters {sizes[0]:,} → {sizes[1]:,}, operations for a datum {counts[0]:,} → {counts[1]:,}, "
                f"a forward pass {1e3 * times[0]:.1f} ms → {1e3 * times[1]:.1f} ms",
                *([] if self.pruned is None else ["then pruned:", str(self.pruned)]),
            ]
        )


def _without(removed: Sequence[str]) -> str:
    return f" (removed: {', '.join(removed)})" if removed else ""


def harden(
    model: nn.Module,
    example: Any,
    *,
    off: float = 1e-3,
    average: bool = True,
    prune: float | None = None,
    data: Data | None = None,
    likelihood: Likelihood | None = None,
) -> nn.Module:
    """A copy of a model with plain layers of torch in place of relaxed ones, without paths that change next to nothing.

    It has nothing of this library: it can be saved, loaded, compiled and exported as any other. Of a model in `AtPositions` it
    is the network, which gives [n, c, *grid]. What was removed and what changed is logged; `sb.surgery.hardened` gives it.

    Args:
        model: With relaxed layers, or an `OrbitAverage`, such as `result.model`.
        example: A batch of inputs, by which is told what a path is for: data as in training, some hundreds of them.
        off: Paths are removed, those that give least first, while outputs change by less than this share of their variance over
            the example, all together. A path that is used for its biases alone becomes a map of them. A path with a weight for
            every pair of features, or of a group of permutations, becomes one matrix with all that stands beside it. An average
            is removed before all paths, since a network alone is as many times cheaper as there are copies.
        average: Whether an `OrbitAverage` becomes the mean over the transformations that it has in evaluation, which are fixed
            then, also for training. If not, the network alone is left, for which paths are judged as well: what
            `result.augmentation()` goes with.
        prune: The share of parameters to keep of what is hardened, as by `sb.prune`, which can do more; None keeps all.
        data: For `prune`: as for `sb.fit`, which trained the model.
        likelihood: For `prune`: of targets given outputs; `Categorical()` when None.

    Raises:
        ValueError: If something cannot be written as plain layers, or not be pruned, naming it.
    """
    found = hardened(model, example, off=off, average=average, prune=prune, data=data, likelihood=likelihood)
    _log.info("%s", found)
    return found.model


@without_autocast()
def hardened(
    model: nn.Module,
    example: Any,
    *,
    off: float = 1e-3,
    average: bool = True,
    prune: float | None = None,
    data: Data | None = None,
    likelihood: Likelihood | None = None,
) -> Hardened:
    """What `harden` gives, with a report."""
    if not 0 <= off < 1:
        raise ValueError(f"off must be a share of the variance of outputs, at least 0 and below 1; got {off}.")
    if prune is not None and not 0 < prune < 1:
        raise ValueError(f"prune must be the share of parameters to keep, above 0 and below 1; got {prune}.")
    if (prune is None) != (data is None):
        raise ValueError(
            f"prune and data go together: what to keep, and what tells its cost; got prune={prune} and "
            f"{'no data' if data is None else 'data'}. Give both, or neither."
        )
    if prune is None and likelihood is not None:
        raise ValueError(
            f"likelihood is for prune, whose costs it tells; got a {type(likelihood).__name__} and no prune. Leave it out."
        )
    found = _hardened(model, example, off, average)
    if prune is None or data is None:
        return found
    if isinstance(model, AtPositions):
        whole = AtPositions(found.model, channels_last=model.channels_last)
        smaller = _of_network(pruned(whole, data, prune, likelihood=likelihood))
    else:
        smaller = pruned(found.model, data, prune, likelihood=likelihood)
    return dataclasses.replace(found, model=smaller.model, pruned=smaller)


def _of_network(found: Pruned) -> Pruned:
    """What became of the network in an `AtPositions`, by its own names."""
    layers = {name.removeprefix("network."): sizes for name, sizes in found.layers.items()}
    left = {name.removeprefix("network."): reason for name, reason in found.left.items()}
    return dataclasses.replace(found, model=cast(AtPositions, found.model).network, layers=layers, left=left)


def _hardened(model: nn.Module, example: Any, off: float, average: bool) -> Hardened:
    """All but what is pruned."""
    inputs = example if isinstance(example, tuple) else (example,)
    model = model.network if isinstance(model, AtPositions) else model
    plain = deepcopy(model)
    relaxed = {name: module for name, module in plain.named_modules() if isinstance(module, RelaxedLayer)}
    averages = {name: module for name, module in plain.named_modules() if isinstance(module, OrbitAverage)}
    others = any(isinstance(module, DiscreteAverage) for module in plain.modules())  # refused in the end, by name
    if not relaxed and not averages and not others:
        raise ValueError("The model has no relaxed layer to harden, and no average. sb.relax and sb.allconv make layers.")
    for name, layer in relaxed.items():
        if layer.equivariant_stride:
            raise ValueError(
                f"A stride that follows the content of each datum is no plain layer; {name!r} has one. Build the network with "
                "equivariant_stride=False."
            )
    parts, shapes, left = _parts(plain, relaxed, averages, inputs, off, average)
    words: dict[str, tuple[tuple[str, ...], str]] = {}
    for name, layer in relaxed.items():
        kept = {path: parts[name, path] for path in layer.paths if parts[name, path] != "nothing"}
        summands = " + ".join(path if part == "all" else f"{part} of {path}" for path, part in kept.items())
        words[name] = tuple(path for path in layer.paths if path not in kept), summands or "nothing"
        plain = replace(plain, name, _fold(name, layer, kept, shapes[name]))
    for name, module in reversed(averages.items()):  # those inside others first
        copies = f"average of {module.samples} copies, {module.orbit.words()}"
        kept_alone = parts[name, _AVERAGE] == "nothing"
        words[name] = ((copies,), "its network") if kept_alone else ((), copies)
        plain = replace(plain, name, module.net if kept_alone else written_out(name, module, shapes[name][0]))
    plain = _without_classes(plain)
    for name, module in plain.named_modules():
        if type(module).__module__.partition(".")[0] == "symbayes":
            raise ValueError(
                f"A hardened model must be made of plain layers; {name or 'the model'!r} is a {type(module).__name__}, which "
                "has no plain form. Harden the parts that it holds (of sb.Packed its network, with a tuple of inputs for "
                "example), or put another module in its place."
            )
    given = outputs_of(plain, inputs)
    wrong = difference(given.double(), left, least=1.0)
    if not wrong <= torch.finfo(next(model.parameters()).dtype).eps ** 0.5:
        raise ValueError(
            f"Plain layers must give what the paths that are kept give; outputs differ by {wrong:.1e}, relative to the largest "
            "or to 1. Remove hooks that change what relaxed layers see or give, and use an example that is finite."
        )
    return Hardened(
        plain,
        words,
        difference(given, outputs_of(model, inputs)),
        (count(model), count(plain)),
        (operations(model, inputs), operations(plain, inputs)),
        (_seconds(model, inputs), _seconds(plain, inputs)),
    )


@torch.no_grad()
def _parts(
    model: nn.Module,
    layers: dict[str, RelaxedLayer],
    averages: dict[str, OrbitAverage],
    inputs: tuple[Any, ...],
    off: float,
    average: bool,
) -> tuple[dict[_Place, str], dict[str, Shapes], Tensor]:
    """What is left of every path and average, the shapes that layers see and give, and what the model then gives."""
    paths = {(name, path): module for name, layer in layers.items() for path, module in layer.paths.items()}
    seen = observe(model, {**layers, **averages}, inputs, shapes_of)
    for name, calls in seen.items():
        if not calls:
            raise ValueError(f"A layer to be hardened must be called for the example; {name!r} is not.")
        if len(set(calls)) > 1:
            raise ValueError(f"A layer to be hardened must see data of one size; {name!r} sees {sorted(set(calls))}.")
    found = {name: calls[0] for name, calls in seen.items()}
    zeros = {name: next(layer.parameters()).new_zeros(1, *found[name][0]) for name, layer in layers.items()}
    constants = {(name, path): module(zeros[name]) for (name, path), module in paths.items()}
    energies = observe(model, paths, inputs, lambda _, given: float(given.double().square().sum()))
    places: dict[_Place, OrbitAverage] = {(name, _AVERAGE): module for name, module in averages.items()}
    parts = {**dict.fromkeys(paths, "all"), **dict.fromkeys(places, "all" if average else "nothing")}

    def leave(place: _Place, path: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if parts[place] == "all":
            return None
        if isinstance(path, OrbitAverage):
            return cast(Tensor, path.net(*args))
        return constants[place].expand_as(output) if parts[place] == "biases" else torch.zeros_like(output)

    handles = [module.register_forward_hook(partial(leave, place)) for place, module in {**paths, **places}.items()]
    try:
        whole = left = outputs_of(model, inputs).double()
        allowed = off * float((whole - whole.mean(0)).square().sum())
        for place in [*(places if average else ()), *sorted(paths, key=energies.__getitem__)]:
            for part in ("nothing", "biases") if place in paths and constants[place].any() else ("nothing",):
                parts[place] = part
                given = outputs_of(model, inputs).double()
                if float((given - whole).square().sum()) <= allowed:
                    left = given
                    break
                parts[place] = "all"
    finally:
        for handle in handles:
            handle.remove()
    return parts, found, left


@torch.no_grad()
def _fold(name: str, layer: RelaxedLayer, kept: dict[str, str], shapes: Shapes) -> nn.Module:
    """A plain module for what is kept of a layer: a layer of torch where one will do, else a sum, as a graph of torch.fx."""
    if any(part == "all" and _is_matrix(layer.paths[path]) for path, part in kept.items()):
        return _matrix(layer, kept, shapes).train(layer.training)
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
        module = module_of(root, graph)
    return module.train(layer.training)


def _is_matrix(path: nn.Module) -> bool:
    """Whether a path has a weight for every pair of features, or is of a group of permutations."""
    return isinstance(path, DensePath | OrbitPath) or (isinstance(path, LayerPath) and path.out_shape is not None)


def _matrix(layer: RelaxedLayer, kept: dict[str, str], shapes: Shapes) -> nn.Module:
    """All that is kept, in one linear layer: that which was relaxed, where nothing else is."""
    paths, like = {name: layer.paths[name] for name in kept}, next(layer.parameters())
    (first, *others) = paths.values()
    if isinstance(first, LayerPath) and not others:
        linear = first.module
    else:
        zeros = like.new_zeros(1, *shapes[0])
        bias = torch.stack([path(zeros)[0].flatten() for path in paths.values()]).sum(0)
        weight = torch.stack([_weight(path, shapes) for name, path in paths.items() if kept[name] == "all"]).sum(0)
        d_out, d_in = weight.shape
        linear = nn.Linear(d_in, d_out, bias=bool(bias.any()), device=like.device, dtype=like.dtype)
        _set(linear, weight, bias if bias.any() else None)
    return nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, shapes[1]))


def _weight(path: nn.Module, shapes: Shapes) -> Float[Tensor, "d_out d_in"]:
    """The matrix of a linear map: its own where it has one, else column by column."""
    if isinstance(path, DensePath):
        return path.weight
    if isinstance(path, LayerPath) and path.out_shape is not None:
        return cast(nn.Linear, path.module).weight
    size, like = prod(shapes[0]), next(path.parameters())
    constant, columns = path(like.new_zeros(1, *shapes[0])), []
    for start in range(0, size, _COLUMNS):
        some = torch.arange(start, min(start + _COLUMNS, size), device=like.device)
        units = functional.one_hot(some, size).to(like).unflatten(1, shapes[0])
        columns.append((path(units) - constant).flatten(1))
    return torch.cat(columns).T


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
        case LayerPath(out_shape=None):
            return path.module
        case GroupConvPath():
            bias = None if path.bias is None else path.bias.repeat_interleave(path.group.order)
            padding = [size // 2 for size in path.kernel_size]
            return _convolution(path.filters(), bias, path.stride, padding, "circular", path.channel_groups)
        case ConvPath():
            return _convolution(path.filters(), path.bias, path.stride, path.padding, path.padding_mode, path.groups)
        case nn.Linear() | nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return path
        case _:
            return None


def _convolution(
    weight: Tensor, bias: Tensor | None, stride: int, padding: Sequence[int], mode: PaddingMode, groups: int
) -> nn.Module:
    kind: Callable[..., nn.Module] = CONVOLUTIONS[weight.ndim - 2]
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
            model = replace(model, name, module_of(nn.Module(), graph))
    for name, module in list(model.named_modules()):
        if isinstance(module, OnGrid):
            inner = list(module.layer.children()) if type(module.layer) is nn.Sequential else [module.layer]
            if [type(part) for part in inner] == [nn.Flatten, nn.Linear, nn.Unflatten]:
                plain: nn.Module = inner[1]
            else:
                plain = nn.Sequential(*_split(module), *inner, *_joined(module))
            model = replace(model, name, plain.train(module.training))
    for name, module in list(model.named_modules()):
        if isinstance(module, AllConv):
            model = replace(model, name, nn.Sequential(OrderedDict(module.named_children())).train(module.training))
    return model


def _split(module: OnGrid) -> list[nn.Module]:
    """From features to maps, parts of a datum side by side in a batch."""
    others = len(module.others)
    return [*([nn.Flatten(0, others)] if others else []), nn.Unflatten(1, module.in_shape)]


def _joined(module: OnGrid) -> list[nn.Module]:
    """From maps to features."""
    return [nn.Flatten(), *([nn.Unflatten(0, (-1, *module.others))] if module.others else [])]


def _seconds(model: nn.Module, inputs: tuple[Any, ...], times: int = 3) -> float:
    """Of the fastest of some forward passes."""
    found = []
    with torch.no_grad(), evaluating(model):
        for _ in range(times):
            start = time.perf_counter()
            model(*inputs).sum().item()  # a GPU is waited for
            found.append(time.perf_counter() - start)
    return min(found)
