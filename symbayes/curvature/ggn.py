"""The exact generalised Gauss–Newton matrix H = Σ_n J_nᵀ L_n J_n by Jacobians: the reference for everything else.

Dense, so for small models only. Nothing here knows rows or layers.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import jacrev, vmap

from symbayes.curvature.blocks import Block, DenseBlock, Factor, cholesky
from symbayes.curvature.check import Reference, reference_of
from symbayes.curvature.evaluate import NormsByParts, evaluating, log_likelihood
from symbayes.curvature.rule import BlockCurvature, Curvature, Precisions, Replay, Rule, Sums, log_det_of
from symbayes.data.source import DataSource
from symbayes.layers.structure import call_with, held, weight_tensors
from symbayes.likelihoods import Likelihood

#: What torch raises where it cannot differentiate datum by datum.
_FAILURES = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
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

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> Curvature:
        sizes = {name: tensor.size for name, tensor in weight_tensors(model).items()}
        jacobians = Jacobians(model, list(sizes))
        parts, log_likelihood = self._parts(jacobians, likelihood, data)
        scales = likelihood.scales()

        def log_det(sums: Sums, precisions: Precisions) -> Tensor:
            H = _scaled(sums[_PARTS], scales.detach())
            return _full_log_det(H, sizes, precisions) if self.joint else log_det_of(_by_tensor(H, sizes), precisions)

        def collect(part: DataSource) -> tuple[Sums, Tensor]:
            found, total = self._parts(jacobians, likelihood, part)
            return {_PARTS: found}, total

        replay = Replay({_PARTS: parts.detach()}, collect, log_det, data, self.batch_size)
        H = _scaled(parts, scales)
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
        for inputs, targets in data.batches(self.batch_size):
            outputs, J = jacobians(inputs, differentiable=torch.is_grad_enabled())
            total = total + log_likelihood(likelihood, inputs, outputs, targets, data.number(seen))
            columns = likelihood.fisher_columns(outputs)
            rows = torch.einsum("kvnc,ncp->kvnp", columns, J).reshape(len(columns), -1, J.shape[2])
            parts = parts + rows.transpose(1, 2) @ rows
            seen += len(inputs)
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

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        return _full_log_det(self.H, self.sizes, precisions)

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        return self.replay.surrogates(precisions, share, generator)

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        # γ_l = P_l − δ_l tr_l (H + Δ)⁻¹
        delta = _spread(self.H, self.sizes, precisions)
        inverse = torch.cholesky_inverse(cholesky(self.H.double() + torch.diag(delta)))
        spent = (1 - delta * inverse.diagonal()).to(self.H).split(list(self.sizes.values()))
        return {name: part.sum() for name, part in zip(self.sizes, spent, strict=True)}


def _scaled(parts: Float[Tensor, "k p p"], scales: Float[Tensor, " k"]) -> Float[Tensor, "p p"]:
    return torch.einsum("k,kpq->pq", scales.to(parts), parts)


def _by_tensor(H: Float[Tensor, "p p"], sizes: dict[str, int]) -> dict[str, Block]:
    blocks: dict[str, Block] = {}
    start = 0
    for name, size in sizes.items():
        blocks[name] = DenseBlock(Factor(H[None, start : start + size, start : start + size], False, name))
        start += size
    return blocks


def _full_log_det(H: Float[Tensor, "p p"], sizes: dict[str, int], precisions: Precisions) -> Float[Tensor, ""]:
    root = _spread(H, sizes, precisions).rsqrt()
    identity = torch.eye(len(H), dtype=root.dtype, device=root.device)
    factor = cholesky(identity + root[:, None] * H.double() * root)
    return 2 * factor.diagonal().log().sum().to(H)


def _spread(H: Float[Tensor, "p p"], sizes: dict[str, int], precisions: Precisions) -> Float[Tensor, " p"]:
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
        sizes = [reference.gradients[name].numel() for name in self.names]
        found, spread = (total.split(sizes) for total in (terms.sum(0), terms.square().sum(0).sqrt()))
        return reference.unlike(dict(zip(self.names, found, strict=True)), dict(zip(self.names, spread, strict=True)))
