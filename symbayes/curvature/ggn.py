"""The exact generalised Gauss–Newton matrix H = Σ_n J_nᵀ L_n J_n: the reference for everything else.

By Jacobians it is dense, so for small models only. Its products with vectors, H v, and forms xᵀ H z that can be differentiated,
need no matrix, so that they are for models of any size. Nothing here knows rows or layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import jacrev, jvp, vjp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from symbayes.adapters import NormsByParts
from symbayes.curvature.blocks import Block, DenseBlock, Factor, cholesky
from symbayes.curvature.check import Reference, check_functional, reference_of
from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.curvature.memory import within_budget
from symbayes.curvature.rule import BlockCurvature, Curvature, Precisions, Replay, Rule, Sums, log_det_of, some_batches
from symbayes.data.source import DataSource
from symbayes.layout import Layout, call_with, held
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.precision import tensor_cores
from symbayes.processes import ALONE, Processes

#: What torch raises where it cannot differentiate datum by datum.
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
#: What is summed over data.
_PARTS = ("all tensors", "H")


@dataclass(frozen=True)
class Ggn(Rule):
    """The exact matrix, over all tensors together or for each on its own.

    Args:
        joint: Whether to keep the correlations between tensors. With them it is what Laplace's method means.
        batch_size: Data whose Jacobians are held at once.
    """

    joint: bool = True
    batch_size: int = 50

    @property
    def in_blocks(self) -> bool:
        return not self.joint

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> Curvature:
        sizes = {name: tensor.size for name, tensor in Layout.of(model).tensors.items()}
        jacobians = Jacobians(model, list(sizes))
        parts, log_likelihood = self._parts(jacobians, likelihood, data)
        scales = likelihood.scales()

        def log_det(sums: Sums, precisions: Precisions) -> Tensor:
            H = _scale(sums[_PARTS], scales.detach())
            return _full_log_det(H, sizes, precisions) if self.joint else log_det_of(_by_tensor(H, sizes), precisions)

        def collect(part: DataSource) -> tuple[Sums, Tensor]:
            found, total = self._parts(jacobians, likelihood, part)
            return {_PARTS: found}, total

        replay = Replay({_PARTS: parts.detach()}, collect, log_det, data, self.batch_size)
        H = _scale(parts, scales)
        if self.joint:
            return FullCurvature(H, sizes, log_likelihood, replay)
        return BlockCurvature(_by_tensor(H, sizes), log_likelihood, str(self), replay)

    def _parts(
        self, jacobians: "Jacobians", likelihood: Likelihood, data: DataSource
    ) -> tuple[Float[Tensor, "k p p"], Float[Tensor, ""]]:
        """H at unit scale, and log p(D | W); with a graph where there is more than weights to differentiate in."""
        parts: Tensor = torch.zeros(())
        total: Tensor = torch.zeros(())
        seen = 0
        with data.processes.together():
            for inputs, targets in data.own_batches(self.batch_size):
                outputs, J = jacobians(inputs, differentiable=torch.is_grad_enabled())
                total = total + log_likelihood(likelihood, inputs, outputs, targets, data.number(seen))
                columns = likelihood.at(targets).fisher_columns(outputs)
                rows = torch.einsum("kvnc,ncp->kvnp", columns, J).reshape(len(columns), -1, J.shape[2])
                parts = parts + rows.transpose(1, 2) @ rows
                seen += len(inputs)
        parts, total = data.processes.sum([parts, total])
        return parts, total

    def __str__(self) -> str:
        return f"exact GGN ({'full' if self.joint else 'block-diagonal over tensors'})"


@dataclass(frozen=True)
class FullCurvature(Curvature):
    """H over all tensors together, dense."""

    H: Float[Tensor, "p p"]
    sizes: dict[str, int]
    log_likelihood: Float[Tensor, ""]
    replay: Replay
    estimator: str = "exact GGN (full)"
    _roots: dict[tuple[float, ...], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        return _full_log_det(self.H, self.sizes, precisions)

    def standard_error(self, precisions: Precisions) -> float:
        return 0.0

    def slack(self, precisions: Precisions) -> float:
        return 0.0

    def precondition(self, vector: Float[Tensor, " p"], precisions: Precisions, *, back: bool = False) -> Float[Tensor, " p"]:
        """L⁻¹ v, or L⁻ᵀ v back, where H + Δ = L Lᵀ: with weights L⁻ᵀ u, the curvature in u is the identity."""
        factor = self._root(precisions)
        found = torch.linalg.solve_triangular(factor.mT if back else factor, vector.to(factor)[:, None], upper=back)
        return found[:, 0].to(vector)

    def solve(self, vector: Float[Tensor, " p"], precisions: Precisions) -> Float[Tensor, " p"]:
        """(H + Δ)⁻¹ v."""
        factor = self._root(precisions)
        return torch.cholesky_solve(vector.to(factor)[:, None], factor)[:, 0].to(vector)

    def _root(self, precisions: Precisions) -> Float[Tensor, "p p"]:
        """L with H + Δ = L Lᵀ, in double precision; the last is kept."""
        key = tuple(float(precisions[name]) for name in self.sizes)
        if key not in self._roots:
            self._roots.clear()
            self._roots[key] = cholesky(self.H.detach().double() + torch.diag(_expand(self.H, self.sizes, precisions).detach()))
        return self._roots[key]

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        return self.replay.surrogates(precisions, share, generator)

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        # γ_l = P_l − δ_l tr_l (H + Δ)⁻¹
        delta = _expand(self.H, self.sizes, precisions)
        inverse = torch.cholesky_inverse(cholesky(self.H.double() + torch.diag(delta)))
        spent = (1 - delta * inverse.diagonal()).to(self.H).split(list(self.sizes.values()))
        return {name: part.sum() for name, part in zip(self.sizes, spent, strict=True)}


def _scale(parts: Float[Tensor, "k p p"], scales: Float[Tensor, " k"]) -> Float[Tensor, "p p"]:
    return torch.einsum("k,kpq->pq", scales.to(parts), parts)


def _by_tensor(H: Float[Tensor, "p p"], sizes: dict[str, int]) -> dict[str, Block]:
    blocks: dict[str, Block] = {}
    start = 0
    for name, size in sizes.items():
        blocks[name] = DenseBlock(Factor(H[None, start : start + size, start : start + size], False, name))
        start += size
    return blocks


def _full_log_det(H: Float[Tensor, "p p"], sizes: dict[str, int], precisions: Precisions) -> Float[Tensor, ""]:
    root = _expand(H, sizes, precisions).rsqrt()
    identity = torch.eye(len(H), dtype=root.dtype, device=root.device)
    factor = cholesky(identity + root[:, None] * H.double() * root)
    return 2 * factor.diagonal().log().sum().to(H)


def _expand(H: Float[Tensor, "p p"], sizes: dict[str, int], precisions: Precisions) -> Float[Tensor, " p"]:
    # In double precision: the decomposition of a nearly singular H fails without.
    return torch.cat([precisions[name].to(H.device).double().expand(size) for name, size in sizes.items()])


class Jacobians:
    """Outputs of a model and their Jacobians in some of its weights, datum by datum.

    On the first data they are held against torch's own gradients. Where torch's rules for batches of batches fail (those of
    nn.PReLU and torch.cdist do, and may give wrong numbers), outputs are differentiated one after the other.

    Args:
        model: Any module that maps a batch of inputs to outputs [n, c].
        names: Of the tensors to differentiate in.
        at: Weights, if not those of the model.
    """

    def __init__(self, model: nn.Module, names: list[str], at: Mapping[str, Tensor] | None = None) -> None:
        self.model, self.names, self.at = model, names, at
        #: Rows of a Jacobian at once; all when None.
        self._rows: int | None = None
        self._checked = False

    def __call__(self, inputs: Tensor, *, differentiable: bool) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c p"]]:
        """Outputs, and Jacobians with respect to all tensors side by side.

        Raises:
            RuntimeError: If torch cannot differentiate datum by datum, or not rightly, naming a tensor.
        """
        if not self._checked:
            self._check(inputs)
        return self._found(inputs, differentiable)

    def _found(self, inputs: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
        tensors = {**held(self.model, differentiable), **(self.at or {})}
        chosen = {name: tensors.pop(name) for name in self.names}

        def of_one(weights: dict[str, Tensor], datum: Tensor) -> tuple[Tensor, Tensor]:
            outputs: Tensor = call_with(self.model, {**tensors, **weights}, datum[None])[0]
            return outputs, outputs

        with evaluating(self.model), NormsByParts() if differentiable else nullcontext():
            J, outputs = vmap(jacrev(of_one, has_aux=True, chunk_size=self._rows), in_dims=(None, 0))(chosen, inputs)
        return outputs, torch.cat([J[name].reshape(*outputs.shape, -1) for name in self.names], dim=2)

    @torch.no_grad()
    def _check(self, inputs: Tensor) -> None:
        reference = reference_of(self.model, inputs, self.at)
        self._checked = True
        if reference is None:
            return
        if len(inputs) > len(reference.inputs):
            with evaluating(self.model):
                reference.refuse_others(call_with(self.model, {**held(self.model, False), **(self.at or {})}, inputs))
        if len(reference.outputs) == reference.outputs.shape[1] > 1:
            # Where data and outputs are equally many, rules for batches may mistake one for the other.
            reference = reference_of(self.model, reference.inputs[1:], self.at) or reference
        try:
            wrong = self._unlike(reference)
        except _FAILURES:
            wrong = "unknown"
        if wrong is None:
            return
        self._rows = 1
        try:
            wrong = self._unlike(reference)
        except _FAILURES as error:
            raise RuntimeError(
                f"torch could not differentiate the model datum by datum ({error}). Write what it stops at with operations "
                "that torch can batch, or use Lanczos(), which takes whole batches."
            ) from error
        if wrong is not None:
            raise RuntimeError(
                f"Parameter {wrong!r} has another gradient when torch differentiates the model datum by datum, so its "
                "curvature would be wrong. Read it from its module in every forward pass, without hooks on it, or freeze it "
                "(requires_grad=False)."
            )

    def _unlike(self, reference: Reference) -> str | None:
        """A tensor whose gradients are not torch's own; None where all are."""
        outputs, J = self._found(reference.inputs, differentiable=False)
        if not reference.gives(outputs):
            return self.names[0]
        terms = torch.einsum("nc,ncp->np", reference.column, J).double()
        of_tensors = terms.split([reference.gradients[name].numel() for name in self.names], 1)
        by_name = dict(zip(self.names, of_tensors, strict=True))
        sizes = {name: each.norm() for name, each in by_name.items()}
        return reference.unlike({name: each.sum(0) for name, each in by_name.items()}, sizes)


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
    #: Those that ask for the same products just now.
    processes: Callable[[], Processes] = lambda: ALONE

    def signs(self, count: int, generator: Generator | None) -> Float[Tensor, "probe p"]:
        """Random vectors with entries ±1."""
        return (2.0 * torch.randint(0, 2, (count, sum(self.sizes.values())), generator=generator) - 1).to(self.example)

    def expand(self, precisions: Precisions) -> Float[Tensor, " p"]:
        """δ of every weight."""
        return torch.cat([precisions[name].detach().to(self.example).expand(size) for name, size in self.sizes.items()])

    def split(self, vector: Float[Tensor, " p"]) -> dict[str, Float[Tensor, " q"]]:
        """The part of every tensor."""
        return dict(zip(self.sizes, vector.split(list(self.sizes.values())), strict=True))


def products_of(model: nn.Module, data: DataSource, likelihood: Likelihood, batch_size: int) -> Products:
    """Products with the GGN of a model as it is now, and log p(D | W) from a pass over the data."""
    sizes = {name: tensor.size for name, tensor in Layout.of(model).tensors.items()}
    batch_size = within_budget(model, data, batch_size, product=True)
    # As they are now: products are asked for later, when weights and noise may have moved.
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    frozen = deepcopy(likelihood).requires_grad_(False)
    total: Tensor = torch.zeros(())
    seen, way = 0, jvp
    with data.processes.together():
        for inputs, targets in data.own_batches(batch_size):
            reference = None if seen else reference_of(model, inputs)
            if reference is not None:
                way = _pushing(model, list(sizes), reference)
            with evaluating(model):
                outputs = call_with(model, held(model, differentiable=True), inputs)
            if reference is not None:
                reference.refuse_others(outputs)
            total = total + log_likelihood(likelihood, inputs, outputs, targets, data.number(seen))
            seen += len(inputs)
    (total,) = data.processes.sum([total])
    linear = Linearised(model, weights, sizes, way)

    @torch.no_grad()  # what the forward pass depends on beside weights is differentiated in `forms`, and nowhere else
    def product(vector: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        return ggn_product(linear, data, frozen, vector, batch_size)

    @torch.enable_grad()
    def form_of(pairs: Pairs, inputs: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        form, outputs = ggn_form(replace(linear, weights=held(model, differentiable=True)), frozen, pairs, inputs, targets)
        fit = scale * log_likelihood(likelihood, inputs, outputs, targets, None)
        return scale * form, fit - scale * form / 2

    def forms(pairs: Pairs, share: float, generator: Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, scale in some_batches(data, batch_size, share, generator):
            yield form_of(pairs, *batch, scale)

    own = weights[next(iter(sizes))]
    return Products(product, forms, sizes, likelihood.scales(), total, own, lambda: data.processes)


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
                pulled = {name: gradient.to_dense() for name, gradient in pulled.items()}
            except RuntimeError as error:
                why = str(error)
                continue
            if reference.agrees_along(tangents, Jv) and reference.unlike(pulled) is None:
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


@dataclass(frozen=True)
class Linearised:
    """A model to first order in its weights, f + J v.

    Args:
        model: That gives f.
        weights: All of them, as they are taken.
        sizes: Of those to differentiate in, by name.
        way: How J v is found.
    """

    model: nn.Module
    weights: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    way: Push = jvp

    def push(self, inputs: Tensor, vector: Float[Tensor, " p"]) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
        """f and J v."""
        outputs_at, chosen, tangents = self._parts(inputs, vector)
        with evaluating(self.model):
            outputs, Jv = self.way(outputs_at, (chosen,), (tangents,))[:2]
        return outputs, Jv

    def push_and_pull(
        self, inputs: Tensor, vector: Float[Tensor, " p"], between: Callable[[Tensor, Tensor], Tensor]
    ) -> Float[Tensor, " p"]:
        """Jᵀ between(f, J v), by one forward pass."""
        outputs_at, chosen, tangents = self._parts(inputs, vector)

        def pushed(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            outputs, Jv = self.way(outputs_at, (weights,), (tangents,))[:2]
            return outputs, Jv

        with evaluating(self.model), tensor_cores(vector.device):
            outputs, pull, *Jv = vjp(pushed, chosen, has_aux=True)
            (pulled,) = pull(between(outputs, *Jv))
        return torch.cat([pulled[name].to_dense().flatten() for name in self.sizes])

    def _parts(
        self, inputs: Tensor, vector: Float[Tensor, " p"]
    ) -> tuple[Callable[[dict[str, Tensor]], Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Outputs as a function of weights, the weights, and the vector in their shapes."""
        fixed = {name: weight for name, weight in self.weights.items() if name not in self.sizes}
        chosen = {name: self.weights[name] for name in self.sizes}
        pieces = zip(self.sizes, vector.split(list(self.sizes.values())), strict=True)

        def outputs_at(tensors: dict[str, Tensor]) -> Tensor:
            found: Tensor = call_with(self.model, {**fixed, **tensors}, inputs)
            return found

        return outputs_at, chosen, {name: piece.view_as(chosen[name]) for name, piece in pieces}


def ggn_product(
    linear: Linearised, data: DataSource, likelihood: Likelihood, vector: Float[Tensor, " p"], batch_size: int
) -> Float[Tensor, " p"]:
    """H v = Σ_n J_nᵀ L_n J_n v, over all the data."""
    total = torch.zeros_like(vector)
    for inputs, targets in data.own_batches(batch_size):
        total += linear.push_and_pull(inputs, vector, likelihood.at(targets).product)
    return data.processes.sum([total])[0]


def ggn_form(
    linear: Linearised, likelihood: Likelihood, pairs: Pairs, inputs: Tensor, targets: Tensor
) -> tuple[Float[Tensor, ""], Float[Tensor, "n c"]]:
    """Σ xᵀ H z over pairs for one batch, and its outputs; differentiable in what the forward pass depends on beside weights."""
    total: Tensor = torch.zeros(())
    outputs: Tensor = torch.zeros(())
    with NormsByParts():
        for x, z in pairs:
            (outputs, Jx), (_, Jz) = linear.push(inputs, x), linear.push(inputs, z)
            total = total + (Jx * likelihood.at(targets).product(outputs, Jz)).sum()
    return total, outputs
