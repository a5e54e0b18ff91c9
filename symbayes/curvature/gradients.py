"""Gradients of weights for every datum on its own: from the rows of maps, or by torch where a tensor has none.

The second is done with `torch.func`, which works for any differentiable use of a tensor, at the price of a forward and backward
pass for each datum.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vjp, vmap

from symbayes.adapters import NormsByParts
from symbayes.layout import GradientRows, Site, call_with, held

#: Gradients are computed for as many data at once as stay below this many numbers.
GRADIENT_BUDGET = 2**26


def weight_gradients(inputs: Float[Tensor, "n s block d_in"], gradients: GradientRows) -> Float[Tensor, "v n block d_out d_in"]:
    """The gradient of the weight for every column and datum on its own, from rows."""
    return torch.einsum("vnsbo,nsbi->vnboi", gradients, inputs)


def squared_gradients(
    sites: Sequence[Site], inputs: Mapping[str, Tensor], gradients: Mapping[str, Float[Tensor, "v m *rest"]]
) -> Float[Tensor, " p"]:
    """Squared gradients of a weight, summed over columns and data; each is the sum over the maps that share it.

    Args:
        sites: These maps, as they were called.
        inputs: What each saw.
        gradients: Of what it gave, for some columns.
    """
    columns = len(gradients[sites[0].name])
    seen = [site.copies * site.parts for site in sites]
    count = len(inputs[sites[0].name]) // seen[0]
    at_once = max(1, GRADIENT_BUDGET // prod(sites[0].matrix or ()))
    total: Tensor = torch.zeros(())
    for first in range(0, count, at_once):
        chosen = [slice(first * each, (first + at_once) * each) for each in seen]
        rows = [site.rows(inputs[site.name][some]).values for site, some in zip(sites, chosen, strict=True)]
        for column in range(columns):
            found: Tensor = torch.zeros(())
            for site, some, own in zip(sites, chosen, rows, strict=True):
                back = site.gradient_rows(gradients[site.name][column, None, some])
                found = found + site.form.weight_from_rows(weight_gradients(own, back)[0])
            total = total + found.square().sum(0)
    return total


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

    at_once = max(1, GRADIENT_BUDGET // max(1, sum(tensor.numel() for tensor in chosen.values())))
    try:
        with NormsByParts() if differentiable else nullcontext():
            found = [vmap(of_one, chunk_size=at_once)(inputs, column) for column in columns]
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
