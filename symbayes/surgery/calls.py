"""What modules see and give while a model is called, and how far two models agree."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from symbayes.adapters import torch_layer
from symbayes.curvature.evaluate import evaluating
from symbayes.precision import exact_products

Noted = TypeVar("Noted")
Place = TypeVar("Place", bound=Hashable)
#: Of what comes in and goes out, for a datum.
Shapes = tuple[tuple[int, ...], tuple[int, ...]]
#: By the axes of their grid.
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a linear layer or a convolution of torch."""
    return torch_layer(module) in (nn.Linear, *CONVOLUTIONS.values())


def observe(
    model: nn.Module, modules: Mapping[Place, nn.Module], inputs: tuple[Any, ...], note: Callable[[Tensor, Tensor], Noted]
) -> dict[Place, list[Noted]]:
    """What is noted of the input and output of each call of some modules, in one evaluation of a model."""
    found: dict[Place, list[Noted]] = {place: [] for place in modules}

    def hook(place: Place) -> Callable[..., None]:
        def noting(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
                raise ValueError(
                    f"A {type(module).__name__} must be called with a tensor, not by keyword, and give one; {place!r} is "
                    "called otherwise."
                )
            found[place].append(note(args[0], output))

        return noting

    handles = [module.register_forward_hook(hook(place)) for place, module in modules.items()]
    try:
        with torch.no_grad(), evaluating(model):
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def shapes_of(seen: Tensor, given: Tensor) -> Shapes:
    """To be noted."""
    return tuple(seen.shape[1:]), tuple(given.shape[1:])


def replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The model with another module in a place."""
    if not name:
        return module
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
    return model


def outputs_of(model: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """What a model gives for the example, in evaluation mode.

    Raises:
        ValueError: If that is no tensor.
    """
    with torch.no_grad(), evaluating(model), exact_products():
        outputs = model(*inputs)
    if not isinstance(outputs, Tensor):
        raise ValueError(f"The model must give a tensor, got a {type(outputs).__name__}. Choose one in a module around it.")
    return outputs


def difference(outputs: Tensor, others: Tensor, *, least: float = 1e-30) -> float:
    """The largest, relative to the largest output; or to the least that this is taken to be."""
    return float((outputs - others).abs().max()) / max(least, float(others.abs().max()))


def count(model: nn.Module) -> int:
    """Of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def operations(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """For a datum: twice the multiplications of products and convolutions."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), evaluating(model), counter:
        model(*inputs)
    return counter.get_total_flops() // max(1, len(inputs[0]))
