"""Networks of torch's own layers as plain values, and back: what JSON can hold instead of a pickle.

A layer of torch keeps what its constructor was given under the same names. Where it does, and nothing was put into it by hand,
it can be built again. `load_result` compares outputs afterwards, so a network that was described wrongly is not taken for it.
"""

from collections import OrderedDict
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.models import AllConv

#: The files of `torch.nn.modules` whose classes are single layers.
_FILES = (
    "activation", "batchnorm", "channelshuffle", "conv", "dropout", "flatten", "fold", "instancenorm", "linear",
    "normalization", "padding", "pixelshuffle", "pooling", "sparse", "upsampling",
)  # fmt: skip
#: Of layers, which are built on the CPU, in the precision of their weights.
_PLACE = ("device", "dtype")
#: Numbers that a layer may give for all examples together: what asks for more is no result of training.
_MOST = 2**30
_PLAIN = (bool, int, float, str, type(None))


def model_words(model: nn.Module) -> str:
    """What a model is: as its maker described it, or by its class."""
    if isinstance(model, OrbitAverage):
        return f"{model_words(model.net)}, averaged over {model.samples} transformations of its input"
    return model.description if isinstance(model, AllConv) else type(model).__name__


def describe_layers(module: nn.Module) -> dict[str, Any] | None:
    """What to build a module again from; None where it is not made of torch's own layers in `nn.Sequential`."""
    kind = type(module).__name__
    if type(module) is not getattr(nn, kind, None) or module._forward_hooks or module._forward_pre_hooks:
        return None
    if isinstance(module, nn.Sequential):
        if _is_tied(module):
            return None
        inner = {name: describe_layers(child) for name, child in module._modules.items() if child is not None}
        return None if None in inner.values() else {"kind": kind, "layers": inner}
    if not _is_layer(type(module)) or any(True for _ in module.children()):
        return None
    settings: dict[str, Any] = {}
    if isinstance(module, nn.Identity) or type(module).__init__ is nn.Module.__init__:  # these keep nothing
        return {"kind": kind, "settings": settings}
    for name, parameter in signature(type(module)).parameters.items():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            return None
        if name not in _PLACE and not name.startswith("_"):
            if not hasattr(module, name):
                return None
            value = getattr(module, name)
            settings[name] = value is not None if name == "bias" and not isinstance(value, bool) else value
    if not all(_is_plain(value) for value in settings.values()):
        return None
    return {"kind": kind, "settings": {name: _listed(value) for name, value in settings.items()}}


def build_layers(described: dict[str, Any]) -> nn.Module:
    """What `describe_layers` described, with initial weights.

    Raises:
        ValueError: If it is no such description.
    """
    kind, layers, settings = (described.get(name) for name in ("kind", "layers", "settings"))
    made = getattr(nn, kind, None) if isinstance(kind, str) else None
    if made is nn.Sequential:
        if not isinstance(layers, dict):
            raise ValueError("nn.Sequential must have layers")
        return nn.Sequential(OrderedDict((name, build_layers(child)) for name, child in layers.items()))
    if not (isinstance(made, type) and _is_layer(made)):
        raise ValueError(f"a layer must be one of torch.nn, got {kind!r}")
    if not isinstance(settings, dict) or not all(_is_plain(value) for value in settings.values()):
        raise ValueError(f"settings of {kind} must be plain values, got {settings!r}")
    if any(name in _PLACE or name.startswith("_") for name in settings):  # which would take memory before shapes are compared
        raise ValueError(f"settings of {kind} must not say where it is built, got {settings!r}")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    built: nn.Module = made(**given)
    return built


def refuse_large(described: dict[str, Any], examples: Tensor | None) -> None:
    """Refuse layers that would give more than memory should hold: found out without any.

    Raises:
        ValueError: Naming the first.
    """

    def look(layer: nn.Module, _: Any, outputs: Any) -> None:
        if isinstance(outputs, Tensor) and outputs.numel() > _MOST:
            raise ValueError(f"layers must give at most {_MOST:,} numbers for all examples, {layer} gives {outputs.numel():,}")

    if examples is None:  # by which nothing is tried
        return
    with torch.no_grad(), torch.device("meta"):
        probe = build_layers(described).eval().to(examples.dtype if examples.is_floating_point() else None)
        for layer in probe.modules():
            layer.register_forward_hook(look)
        probe(examples.to("meta"))


def _is_tied(module: nn.Module) -> bool:
    """Whether layers share parameters or buffers, which they would not when they are built again."""
    every, own = (
        [*module.named_parameters(remove_duplicate=no), *module.named_buffers(remove_duplicate=no)] for no in (False, True)
    )
    return len(every) > len(own)


def _is_layer(kind: type) -> bool:
    package, _, file = kind.__module__.rpartition(".")
    return package == "torch.nn.modules" and file in _FILES


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | list) and all(isinstance(one, _PLAIN) for one in value))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
