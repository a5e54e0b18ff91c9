"""Free parameters: trainable tensors that belong to no known map (tokens, scales, layers of others).

Their gradients are computed datum by datum with `torch.func`, which works for any differentiable use of a tensor.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vjp, vmap

from symbayes.curvature.evaluate import NormsByParts
from symbayes.layers.structure import call_with, held


def free_gradients(
    model: nn.Module, names: Sequence[str], inputs: Tensor, columns: Float[Tensor, "v n c"], *, differentiable: bool = False
) -> dict[str, Float[Tensor, "v n p"]]:
    """∂(column · outputs of a datum)/∂(free tensor), flattened, for every datum on its own; with a graph if that is asked for.

    Raises:
        RuntimeError: If torch cannot differentiate the model datum by datum, naming the tensors.
    """
    tensors = held(model, differentiable)
    chosen = {name: tensors.pop(name) for name in names}

    def of_one(datum: Tensor, column: Float[Tensor, " c"]) -> dict[str, Tensor]:
        def outputs(free: dict[str, Tensor]) -> Tensor:
            found: Tensor = call_with(model, {**tensors, **free}, datum[None])[0]
            return found

        (gradients,) = vjp(outputs, chosen)[1](column)
        return {name: gradient.flatten() for name, gradient in gradients.items()}

    try:
        with NormsByParts() if differentiable else nullcontext():
            found = [vmap(of_one)(inputs, column) for column in columns]
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"Parameters {sorted(names)} are trainable and belong to no layer that symbayes knows, and torch could not "
            f"differentiate the model datum by datum with respect to them ({error}). Freeze them (requires_grad=False), or "
            "build that part from nn.Linear, nn.Conv*, nn.Embedding, norm layers or a Path."
        ) from error
    return {name: torch.stack([gradients[name] for gradients in found]) for name in names}


def refuse_unused(model: nn.Module, names: Sequence[str], inputs: Tensor) -> None:
    """Refuse free tensors that the outputs do not depend on.

    Raises:
        RuntimeError: Naming the first.
    """
    tensors = held(model, differentiable=False)
    chosen = [tensors[name].requires_grad_() for name in names]
    with torch.enable_grad():
        outputs: Tensor = call_with(model, tensors, inputs)
        found = torch.autograd.grad(outputs.sum(), chosen, allow_unused=True) if outputs.requires_grad else [None] * len(names)
    for name, gradient in zip(names, found, strict=True):
        if gradient is None:
            raise RuntimeError(
                f"Parameter {name!r} is trainable, but the outputs of the model do not depend on it. "
                "Freeze it (requires_grad=False), or use it."
            )
