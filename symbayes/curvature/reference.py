"""What torch alone says of a model: outputs of a few data and the gradient of a random combination of them.

Curvature is found by shortcuts: rows that maps saw, Jacobians datum by datum, products in forward mode. They suppose that a
model treats data one by one, and uses its weights as its modules say. Nothing forces it to. So each shortcut is compared with
one plain backward pass before it is used. With random numbers u for the outputs of every datum, Σ_n u_n J_n by a shortcut and
by torch agree only where all J_n do; one pass compares all tensors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import functional_call

from symbayes.curvature.evaluate import evaluating, naming_types
from symbayes.layers.structure import held, weights

#: How many data are looked at.
COUNT = 8
#: How far numbers may be apart by rounding, relative to their size: models in double precision may compute in single inside,
#: and a GPU has products in TF32. What is computed otherwise is off by about its size.
_DOUBLE, _SINGLE, _TF32 = 1e-5, 1e-3, 0.02


@dataclass(frozen=True)
class Reference:
    """Of some data: their outputs, and the gradient of Σ_n u_n · f(x_n) by tensor, zero where outputs do not depend on it."""

    inputs: Tensor
    outputs: Float[Tensor, "n c"]
    #: u.
    column: Float[Tensor, "n c"]
    gradients: Mapping[str, Tensor]

    def gives(self, outputs: Tensor) -> bool:
        """Whether these are the outputs."""
        return outputs.shape == self.outputs.shape and _close(outputs, self.outputs, self.outputs)

    def unlike(self, found: Mapping[str, Tensor], sizes: Mapping[str, Tensor]) -> str | None:
        """The name of a tensor whose gradient is another than torch's; None where all agree.

        Args:
            found: Gradients by tensor, of any shape that is as long.
            sizes: The root of the sum of squares of what was added up to each number: rounding is relative to that.
        """
        # A gradient that cancels to nothing, as of the bias of keys in attention, is noise beside others.
        largest = max((g.square().mean().sqrt() for g in self.gradients.values() if g.numel()), default=torch.zeros(()))
        for name, gradient in found.items():
            wanted = self.gradients[name].flatten()
            size = torch.cat([wanted, sizes[name].flatten(), largest.expand(len(wanted)) / 100])
            if not _close(gradient.flatten(), wanted, size):
                return name
        return None

    def agrees_along(self, tangents: Mapping[str, Tensor], derivative: Float[Tensor, "n c"]) -> bool:
        """Whether this is J v for a direction v in all weights, as far as u · J v tells."""
        terms = torch.cat([(self.gradients[name] * tangent).flatten() for name, tangent in tangents.items()])
        return _close((self.column * derivative).sum(), terms.sum(), terms)


def reference_of(model: nn.Module, inputs: Tensor, at: Mapping[str, Tensor] | None = None) -> Reference | None:
    """What torch says of the first of some data; None where inputs or outputs are not finite, which others refuse.

    Args:
        model: Of which every datum must have outputs of its own.
        inputs: A batch.
        at: Weights other than those of the model.

    Raises:
        RuntimeError: If the model writes to its inputs, gives other outputs when it is asked again or when other data are
            beside a datum, or cannot be differentiated.
        TypeError: If the inputs are of a type that the model does not take.
        ValueError: If outputs are not [n, c].
    """
    inputs = inputs[:COUNT].detach()
    if not inputs.isfinite().all():
        return None
    named: Mapping[str, Tensor] = weights(model)
    if at is not None:
        named = {name: at[name].detach().requires_grad_() for name in named if name in at}
    with evaluating(model), torch.enable_grad():

        def call(data: Tensor) -> Any:
            return model(data) if at is None else functional_call(model, {**held(model, False), **named}, (data,))

        outputs = _outputs(call, inputs)
        with torch.no_grad():
            _refuse_random(call, inputs, outputs)
            _refuse_coupled(call, inputs, outputs)
        column = torch.randn(outputs.shape, generator=Generator().manual_seed(0), dtype=torch.float64).to(outputs)
        if not outputs.isfinite().all():
            return None
        # Not from a batch of one: there torch's gradient through a batch norm or an instance norm may be wrong.
        shown = outputs if len(inputs) > 1 else call(_copies(inputs, 2))[:1]
        gradients = _gradients((shown * column).sum(), named)
    return Reference(inputs, outputs.detach(), column, gradients)


def check_functional(model: nn.Module, reference: Reference) -> None:
    """Refuse a model that uses weights which it does not ask its modules for, such as a tensor that is kept in a list.

    Raises:
        RuntimeError: Naming the first.
    """
    named = {name: weight.detach().requires_grad_() for name, weight in weights(model).items()}
    with evaluating(model), torch.enable_grad():
        outputs: Tensor = functional_call(model, {**held(model, False), **named}, (reference.inputs,))
        found = _gradients((outputs * reference.column).sum(), named)
    name = reference.unlike(found, found)
    if name is not None:
        raise RuntimeError(
            f"Parameter {name!r} must be read from its module in every forward pass; the model keeps it elsewhere, too. Use "
            "self.layer.weight each time, or freeze it (requires_grad=False)."
        )


def _outputs(call: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
    given = inputs.clone()
    with naming_types(inputs):
        outputs = call(given)
    if not torch.equal(given, inputs):
        raise RuntimeError(
            "The model must leave its inputs as they are; it writes to them in place, and so to the data. Begin it with "
            "x = x.clone(), or without inplace=True in its first layer."
        )
    check_outputs(outputs, len(inputs))
    found: Tensor = outputs
    return found


def check_outputs(outputs: Any, count: int) -> None:
    """Refuse outputs that are not a row of real numbers for each of so many data."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != count:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise ValueError(
            f"The model must give outputs [n, c], a row for each of the {count} inputs; got {got}. Choose, flatten or pool "
            "what it gives in a module around it."
        )
    if not outputs.is_floating_point():
        raise ValueError(f"The model must give real numbers, got {outputs.dtype}.")


def _refuse_random(call: Callable[[Tensor], Tensor], inputs: Tensor, outputs: Tensor) -> None:
    if not _close(call(inputs.clone()), outputs, outputs):
        raise RuntimeError(
            "In evaluation mode the model must give the same outputs every time; it does not. Draw random numbers only while "
            "it trains, such as F.dropout(x, p, self.training)."
        )


def _refuse_coupled(call: Callable[[Tensor], Tensor], inputs: Tensor, outputs: Tensor) -> None:
    same, words = True, ""
    try:
        for index in {0, len(inputs) - 1}:  # among copies of itself, since models may drop the axis of a single datum
            found = call(_copies(inputs[index : index + 1], 3))
            same &= found.shape[1:] == outputs.shape[1:] and _close(found[1], outputs[index], outputs)
    except (RuntimeError, ValueError, IndexError) as error:
        same, words = False, f" ({error})"
    if not same:
        raise RuntimeError(
            "In evaluation mode the outputs of a datum must not depend on the other data of its batch; they do"
            f"{words}. Keep the batch first in every layer ([n, positions, features]), and use norms with running statistics "
            "(BatchNorm) or over each datum (LayerNorm, GroupNorm)."
        )


def _copies(datum: Tensor, count: int) -> Tensor:
    return datum.repeat(count, *(1,) * (datum.ndim - 1))


def _gradients(total: Tensor, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not total.requires_grad:
        return {name: torch.zeros_like(weight) for name, weight in named.items()}
    try:
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        raise RuntimeError(
            f"torch could not differentiate the outputs of the model in its weights, as training and curvature must: {error}"
        ) from error
    return {name: gradient.detach() for name, gradient in zip(named, found, strict=True)}


def _close(found: Tensor, wanted: Tensor, size: Tensor) -> bool:
    """Whether numbers are the same up to rounding; where some are not finite, others say so."""
    if found.shape != wanted.shape:
        return False
    if not (found.isfinite().all() and wanted.isfinite().all()):
        return bool(torch.equal(found.isfinite(), wanted.isfinite()))
    tolerance = _DOUBLE if wanted.dtype == torch.float64 else _TF32 if wanted.is_cuda else _SINGLE
    return float((found - wanted).norm()) <= tolerance * float(size.norm())
