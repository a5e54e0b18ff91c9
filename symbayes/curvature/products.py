"""Products of the full GGN with vectors, H v = Σ_n J_nᵀ L_n J_n v, and forms xᵀ H z that can be differentiated."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import jvp, vjp
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from symbayes.curvature.check import Reference, check_functional, reference_of
from symbayes.curvature.evaluate import NormsByParts, evaluating, log_likelihood
from symbayes.curvature.rule import Precisions, some_batches
from symbayes.data.source import DataSource
from symbayes.layers.structure import call_with, held, weight_tensors
from symbayes.likelihoods import Likelihood

Product = Callable[[Float[Tensor, " p"]], Float[Tensor, " p"]]
#: Outputs of a function and their derivative along tangents, as `torch.func.jvp` gives them.
Push = Callable[..., Any]
#: Vectors x and z in the space of weights.
Pairs = Sequence[tuple[Float[Tensor, " p"], Float[Tensor, " p"]]]


@dataclass(frozen=True)
class Products:
    """H as a product with vectors, at the weights and the noise that there were, and what comes with it."""

    product: Product
    #: For pairs x and z, a share of the data and what draws them: xᵀ H z and a surrogate, batch by batch.
    forms: Callable[[Pairs, float, Generator | None], Iterator[tuple[Tensor, Tensor]]]
    sizes: dict[str, int]
    scales: Float[Tensor, " k"]
    log_likelihood: Float[Tensor, ""]
    #: Any weight, for device and precision.
    example: Tensor

    def signs(self, count: int, generator: Generator | None) -> Float[Tensor, "probe p"]:
        """Random vectors with entries ±1."""
        return (2.0 * torch.randint(0, 2, (count, sum(self.sizes.values())), generator=generator) - 1).to(self.example)

    def spread(self, precisions: Precisions) -> Float[Tensor, " p"]:
        """δ of every weight."""
        return torch.cat([precisions[name].detach().to(self.example).expand(size) for name, size in self.sizes.items()])

    def split(self, vector: Float[Tensor, " p"]) -> dict[str, Float[Tensor, " q"]]:
        """The part of every tensor."""
        return dict(zip(self.sizes, vector.split(list(self.sizes.values())), strict=True))


def products_of(model: nn.Module, data: DataSource, likelihood: Likelihood, batch_size: int) -> Products:
    """Products with the GGN of a model as it is now, and log p(D | W) from a pass over the data."""
    sizes = {name: tensor.size for name, tensor in weight_tensors(model).items()}
    # As they are now: products are asked for later, when weights and noise may have moved.
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    frozen = deepcopy(likelihood).requires_grad_(False)
    total: Tensor = torch.zeros(())
    seen, push = 0, jvp
    for inputs, targets in data.batches(batch_size):
        reference = None if seen else reference_of(model, inputs)
        if reference is not None:
            push = _pushing(model, list(sizes), reference)
        with evaluating(model):
            outputs = call_with(model, held(model, differentiable=True), inputs)
        if reference is not None:
            reference.refuse_others(outputs)
        total = total + log_likelihood(likelihood, inputs, outputs, targets, data.number(seen))
        seen += len(inputs)

    @torch.no_grad()  # what the forward pass depends on beside weights is differentiated in `forms`, and nowhere else
    def product(vector: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        return ggn_product(model, weights, sizes, data, frozen, vector, batch_size, push)

    @torch.enable_grad()
    def form_of(pairs: Pairs, inputs: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        form, outputs = ggn_form(model, sizes, frozen, pairs, inputs, push)
        fit = scale * log_likelihood(likelihood, inputs, outputs, targets, None)
        return scale * form, fit - scale * form / 2

    def forms(pairs: Pairs, share: float, generator: Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, scale in some_batches(data, batch_size, share, generator):
            yield form_of(pairs, *batch, scale)

    return Products(product, forms, sizes, likelihood.scales(), total, next(iter(weights.values())))


@torch.no_grad()
def _pushing(model: nn.Module, names: Sequence[str], reference: Reference) -> Push:
    """How J v is found: in forward mode, or by two backward passes where that is not what torch's gradients say.

    Forward mode has no rule for some operations, and does not know that the padding of an embedding has no gradient.

    Raises:
        RuntimeError: If neither is right.
    """
    check_functional(model, reference)
    tensors = held(model, differentiable=False)
    chosen = {name: tensors.pop(name) for name in names}
    generator = Generator().manual_seed(0)
    tangents = {name: torch.randn(weight.shape, generator=generator).to(weight) for name, weight in chosen.items()}

    def outputs_at(weights: dict[str, Tensor]) -> Tensor:
        found: Tensor = call_with(model, {**tensors, **weights}, reference.inputs)
        return found

    why = "they disagree with torch's gradients"
    with evaluating(model):
        with _Padding() as padding:
            outputs_at(chosen)
        for push in (_twice_back,) if padding.found else (jvp, _twice_back):  # padding may be in other data only
            try:
                Jv = push(outputs_at, (chosen,), (tangents,))[1]
                (pulled,) = vjp(outputs_at, chosen)[1](reference.column)
            except (RuntimeError, NotImplementedError) as error:
                why = str(error)
                continue
            if reference.agrees_along(tangents, Jv) and reference.unlike(pulled, pulled) is None:
                return push
    raise RuntimeError(
        "torch could not differentiate the outputs of the model along its weights, neither in forward mode nor by two backward "
        f"passes ({why}), so there are no products with its curvature. Write what it stops at with other operations, without "
        "hooks on gradients; or use Kfac()."
    )


class _Padding(TorchFunctionMode):
    """A context that notes whether an embedding has a row for padding."""

    found = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (functional.embedding, torch.embedding):
            padding = (kwargs or {}).get("padding_idx", args[2] if len(args) > 2 else None)
            self.found = self.found or padding not in (None, -1)
        return func(*args, **(kwargs or {}))


def _twice_back(function: Callable[..., Tensor], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """As `torch.func.jvp`, by backward passes alone: Jᵀ u is linear in u, and the derivative of that along v is J v."""
    outputs, pull = vjp(function, *primals)[:2]
    push = vjp(pull, torch.zeros_like(outputs))[1]
    (Jv,) = push(tangents)
    return outputs, Jv


def ggn_product(
    model: nn.Module,
    weights: dict[str, Tensor],
    sizes: dict[str, int],
    data: DataSource,
    likelihood: Likelihood,
    vector: Float[Tensor, " p"],
    batch_size: int,
    push: Push = jvp,
) -> Float[Tensor, " p"]:
    """H v = Σ_n J_nᵀ L_n J_n v, over all the data."""
    fixed = {name: weight for name, weight in weights.items() if name not in sizes}
    chosen = {name: weights[name] for name in sizes}
    pieces = zip(sizes, vector.split(list(sizes.values())), strict=True)
    tangent = {name: piece.view_as(chosen[name]) for name, piece in pieces}
    total = torch.zeros_like(vector)
    root = likelihood.scales().detach().sqrt()[:, None, None, None]
    with evaluating(model):
        for inputs, _ in data.batches(batch_size):

            def outputs_at(tensors: dict[str, Tensor], inputs: Tensor = inputs) -> Tensor:
                found: Tensor = call_with(model, {**fixed, **tensors}, inputs)
                return found

            outputs, Jv = push(outputs_at, (chosen,), (tangent,))[:2]
            columns = likelihood.fisher_columns(outputs) * root.to(outputs)
            LJv = torch.einsum("kvnc,kvn->nc", columns, torch.einsum("kvnc,nc->kvn", columns, Jv))
            (pulled,) = vjp(outputs_at, chosen)[1](LJv)
            total += torch.cat([pulled[name].flatten() for name in sizes])
    return total


def ggn_form(
    model: nn.Module, sizes: dict[str, int], likelihood: Likelihood, pairs: Pairs, inputs: Tensor, push: Push = jvp
) -> tuple[Float[Tensor, ""], Float[Tensor, "n c"]]:
    """Σ xᵀ H z over pairs for one batch, and its outputs; differentiable in what the forward pass depends on beside weights."""
    fixed = held(model, differentiable=True)
    chosen = {name: fixed.pop(name) for name in sizes}

    def outputs_at(tensors: dict[str, Tensor]) -> Tensor:
        found: Tensor = call_with(model, {**fixed, **tensors}, inputs)
        return found

    def along(vector: Float[Tensor, " p"]) -> tuple[Tensor, Tensor]:
        pieces = zip(sizes, vector.split(list(sizes.values())), strict=True)
        found = push(outputs_at, (chosen,), ({name: piece.view_as(chosen[name]) for name, piece in pieces},))
        return found[0], found[1]

    total: Tensor = torch.zeros(())
    outputs: Tensor = torch.zeros(())
    with evaluating(model), NormsByParts():
        for x, z in pairs:
            outputs, Jx = along(x)
            _, Jz = along(z)
            columns = likelihood.fisher_columns(outputs) * likelihood.scales().sqrt()[:, None, None, None].to(outputs)
            total = total + (torch.einsum("kvnc,nc->kvn", columns, Jx) * torch.einsum("kvnc,nc->kvn", columns, Jz)).sum()
    return total, outputs
