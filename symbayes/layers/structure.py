"""Which weight tensors a model has, and to which layer and path each belongs; and what it has beside weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from symbayes.groups.grids import SpaceGroup
from symbayes.groups.group import Group
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import RadialBasis


class Hyperparameter(nn.Parameter):
    """A parameter of the model itself, such as how far it is invariant: learned by the evidence, without prior or curvature.

    Not a weight: it is not integrated over. What a model computes may depend on it in any way that torch can differentiate.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:  # torch would make it an nn.Parameter again
        return Hyperparameter, (self.data, self.requires_grad)


def hyperparameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every hyperparameter that is learned, by name."""
    return {n: p for n, p in model.named_parameters() if isinstance(p, Hyperparameter) and p.requires_grad}


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every trainable weight by name: what has a prior and curvature, and is integrated over."""
    return {n: p for n, p in model.named_parameters() if p.requires_grad and not isinstance(p, Hyperparameter)}


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Any:
    """What a model gives with other tensors in place of its own, named as `named_parameters` does.

    A tensor that several modules hold is replaced in all of them. Torch would find them by all their names, and leave a module
    that has two names without its parameters.
    """
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for own, parameter in module._parameters.items():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(f"{name}.{own}" if name else own)
    shared = {other: tensors[first] for first, *others in holders.values() if first in tensors for other in others}
    return functional_call(model, {**tensors, **shared}, (inputs,), tie_weights=False)


def held(model: nn.Module, differentiable: bool) -> dict[str, Tensor]:
    """All parameters by name, cut off from autograd; hyperparameters not, where they are to be differentiated in."""
    kept = Hyperparameter if differentiable else ()
    return {n: p if isinstance(p, kept) else p.detach() for n, p in model.named_parameters()}


@dataclass(frozen=True)
class WeightTensor:
    """A trainable tensor and its place in the model."""

    name: str
    #: The relaxed layer or module that holds it; the empty name is the model itself.
    layer: str
    #: The path inside the layer, or the kind of module where there are no paths.
    path: str
    #: The symmetry of that path, in words, or None.
    symmetry: str | None
    size: int
    #: A lengthscale or the locations of anchors are a "shape": the form that weights take, not weights.
    kind: Literal["weight", "bias", "shape"]
    #: Whether that path breaks a symmetry that another path of its layer keeps.
    relaxes: bool = False
    #: The symmetries of other paths of its layer that this tensor breaks.
    breaks: tuple[str, ...] = ()


def weight_tensors(model: nn.Module) -> dict[str, WeightTensor]:
    """Every trainable tensor of a model by name, in the order of `named_parameters`.

    Raises:
        ValueError: If the model has nothing to train, or weights that are not in single or double precision.
    """
    modules = dict(model.named_modules())
    relaxed = [name for name, module in modules.items() if isinstance(module, RelaxedLayer)]
    # Where a map is made of others (FactoredPath, OrbitPath), tensors belong to the whole.
    maps = [name for name, module in modules.items() if isinstance(module, LinearMap)]
    if wrapped := next((m for m in modules.values() if isinstance(m, nn.DataParallel | torch.jit.ScriptModule)), None):
        raise TypeError(
            f"The model must be made of plain modules, whose weights can be replaced; it has a {type(wrapped).__name__}. Pass "
            "what was wrapped or scripted, such as model.module."
        )
    found = {}
    for name, parameter in weights(model).items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"Parameter {name!r} has no shape yet. Call the model on a batch first, as lazy layers need.")
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"Weights must be in single or double precision, since curvature and evidence are; {name!r} is "
                f"{parameter.dtype}. Convert the model: model.float(). To train at lower precision, use torch.autocast."
            )
        owner, _, attribute = name.rpartition(".")
        kind: Literal["weight", "bias", "shape"] = "bias" if attribute.endswith("bias") else "weight"
        if isinstance(modules[owner], RadialBasis):
            kind, owner = "shape", owner.rpartition(".")[0]  # the map that the basis belongs to
        layer = next((candidate for candidate in maps if f"{owner}.".startswith(f"{candidate}." if candidate else "")), owner)
        outermost = modules[layer]
        path, beside = type(outermost).__name__, list[nn.Module]()
        for candidate in relaxed:
            prefix = f"{candidate}.paths." if candidate else "paths."
            if name.startswith(prefix):
                layer, path = candidate, name.removeprefix(prefix).split(".")[0]
                outermost = modules[f"{prefix}{path}"]
                beside = list(modules[prefix.removesuffix(".")].children())
        group, symmetry = _group(outermost), _symmetry(outermost)
        relaxes = any(other is not None and other.extends(group) for other in map(_group, beside))
        broken = (_symmetry(other) for other in beside if other is not outermost and _breaks(outermost, kind, other))
        breaks = tuple(dict.fromkeys(name for name in broken if name is not None))
        found[name] = WeightTensor(name, layer, path, symmetry, parameter.numel(), kind, relaxes, breaks)
    if not found:
        raise ValueError("The model has no trainable parameter: there is nothing to learn. Set requires_grad on some.")
    return found


def _group(module: nn.Module) -> Group | None:
    return module.group if isinstance(module, LinearMap) else None


def _inner_group(module: nn.Module) -> Group | None:
    return module.inner_group if isinstance(module, LinearMap) else None


def _symmetry(module: nn.Module) -> str | None:
    """In words."""
    group, inner = _group(module), _inner_group(module)
    return group.name if group else f"{inner.name} up to the border" if inner else None


def _breaks(module: nn.Module, kind: str, other: nn.Module) -> bool:
    """Whether weights, biases or shapes of a map break the symmetry that another has, exactly or up to the border."""
    own, wanted = _group(module), _group(other)
    if wanted is None:
        own, wanted = _inner_group(module), _inner_group(other)
    if wanted is None:
        return False
    if own is not None and (own.extends(wanted) or (own.name == wanted.name and not wanted.extends(own))):
        return False
    # At a single position there is nothing for a bias to tell apart; but turns have channels of their own there.
    alone = kind == "bias" and isinstance(module, LinearMap) and module.positions == 1
    return not alone or isinstance(wanted, SpaceGroup)
