"""Gradients of weights for every datum on its own: from the rows of maps, or by torch where a tensor has none.

The second is done with `torch.func`, which works for any differentiable use of a tensor, at the price of a forward and backward
pass for each datum.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn import functional

from symbayes.adapters import NormsByParts
from symbayes.curvature.memory import ROW_BUDGET, ROW_BUDGET_CPU
from symbayes.layout import Site, call_with, held
from symbayes.precision import multiply, rounded

#: Gradients of tensors without rows are computed for as many data at once as stay below this many numbers.
GRADIENT_BUDGET = 2**26


def squared_products(left: Float[Tensor, "n s block l"], right: Float[Tensor, "n s block r"]) -> Float[Tensor, "block l r"]:
    """Σ_n (Σ_s l rᵀ)², entry by entry: squared gradients of a weight, summed over data."""
    sides = left.shape[3], right.shape[3]
    if not (left.requires_grad or right.requires_grad):
        left, right = (_aligned(rounded(side, min(sides))) for side in (left, right))
    left, right = left.permute(2, 0, 3, 1), right.permute(2, 0, 1, 3)
    at_once = _at_once(right, right.shape[0] * right.shape[1] * right.shape[3])
    at_once = at_once // 8 * 8 or at_once  # each of them as aligned as the first
    found = torch.cat([_sum_of_squares(multiply(some, right)) for some in left.split(at_once, 2)], 1)
    return found[:, : sides[0], : sides[1]]


def _aligned(rows: Float[Tensor, "n s block d"]) -> Float[Tensor, "n s block _"]:
    """Rows of half of single precision with zeros up to 16 bytes, without which their products take twice as long."""
    rest = -rows.shape[3] % 8
    return functional.pad(rows, (0, rest)) if rest and rows.dtype == torch.bfloat16 else rows


def _at_once(like: Tensor, numbers: int) -> int:
    """For how many, of which each takes so many numbers, these are formed at a time."""
    return max(1, (ROW_BUDGET_CPU if like.device.type == "cpu" else ROW_BUDGET) // max(1, numbers))


def _sum_of_squares(each: Float[Tensor, "block n l r"]) -> Float[Tensor, "block l r"]:
    """Over data; by a norm, which reads numbers once, where its slope at zero is not asked for."""
    return each.square().sum(1) if each.requires_grad else torch.linalg.vector_norm(each, dim=1).square()


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
    of_one = sum(site.rows(inputs[site.name][:each]).values.numel() for site, each in zip(sites, seen, strict=True))
    at_once = _at_once(inputs[sites[0].name], of_one)
    total: Tensor = torch.zeros(())
    for first in range(0, count, at_once):
        chosen = [slice(first * each, (first + at_once) * each) for each in seen]
        rows = [site.rows(inputs[site.name][some]).values for site, some in zip(sites, chosen, strict=True)]
        for column in range(columns):
            sides = []
            for site, some, own in zip(sites, chosen, rows, strict=True):
                back = site.gradient_rows(gradients[site.name][column, None, some])[0]
                sides.append((own, back) if site.form.transposed else (back, own))
            # Rows of all maps one below the other: their product is the sum of the maps' gradients.
            left, right = (torch.cat(side, 1) for side in zip(*sides, strict=True))
            total = total + squared_products(left, right)
    return total.flatten()


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
