"""What modules see and give while a model is called, and how far two models agree."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from symbayes.curvature.evaluate import evaluating

Noted = TypeVar("Noted")
Place = TypeVar("Place", bound=Hashable)
#: Of what comes in and goes out, for a datum.
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def observe(
    model: nn.Module, modules: Mapping[Place, nn.Module], inputs: tuple[Any, ...], note: Callable[[Tensor, Tensor], Noted]
) -> dict[Place, list[Noted]]:
    """What is noted of the input and output of each call of some modules, in one evaluation of a model."""
    found: dict[Place, list[Noted]] = {place: [] for place in modules}

    def hook(place: Place) -> Callable[..., None]:
        return lambda module, args, output: found[place].append(note(args[0], output))

    handles = [module.register_forward_hook(hook(place)) for place, module in modules.items()]
    try:
        with torch.no_grad(), evaluating(model):
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def shapes(seen: Tensor, given: Tensor) -> Shapes:
    """To be noted."""
    return tuple(seen.shape[1:]), tuple(given.shape[1:])


def replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The model with another module in a place."""
    if not name:
        return module
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
    return model


def change(model: nn.Module, other: nn.Module, inputs: tuple[Any, ...]) -> float:
    """The largest difference of outputs, relative to the largest output."""
    with torch.no_grad(), evaluating(model):
        before = model(*inputs)
    with torch.no_grad(), evaluating(other):
        after = other(*inputs)
    return float((after - before).abs().max()) / max(float(before.abs().max()), torch.finfo(before.dtype).tiny)
