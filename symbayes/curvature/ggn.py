"""The exact generalised Gauss–Newton matrix H = Σ_n J_nᵀ L_n J_n by Jacobians: the reference for everything else.

Dense, so for small models only. Nothing here knows rows or layers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import functional_call, jacrev, vmap

from symbayes.curvature.blocks import Block, DenseBlock, Factor
from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.curvature.replay import Precisions, Replay, Sums
from symbayes.curvature.rule import BlockCurvature, Curvature, Rule, log_det_of
from symbayes.data.source import DataSource
from symbayes.layers.structure import held, weight_tensors
from symbayes.likelihoods import Likelihood

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
        parts, log_likelihood = self._parts(model, likelihood, sizes, data)
        scales = likelihood.scales()

        def log_det(sums: Sums, precisions: Precisions) -> Tensor:
            H = _scaled(sums[_PARTS], scales.detach())
            return _full_log_det(H, sizes, precisions) if self.joint else log_det_of(_by_tensor(H, sizes), precisions)

        def collect(part: DataSource) -> tuple[Sums, Tensor]:
            found, total = self._parts(model, likelihood, sizes, part)
            return {_PARTS: found}, total

        replay = Replay({_PARTS: parts.detach()}, collect, log_det, data, self.batch_size)
        H = _scaled(parts, scales)
        if self.joint:
            return FullCurvature(H, sizes, log_likelihood, replay)
        return BlockCurvature(_by_tensor(H, sizes), log_likelihood, str(self), replay)

    def _parts(
        self, model: nn.Module, likelihood: Likelihood, sizes: dict[str, int], data: DataSource
    ) -> tuple[Float[Tensor, "k p p"], Float[Tensor, ""]]:
        """H at unit scale, and log p(D | W); with a graph where there is more than weights to differentiate in."""
        parts: Tensor = torch.zeros(())
        total: Tensor = torch.zeros(())
        with evaluating(model):
            for inputs, targets in data.batches(self.batch_size):
                outputs, J = jacobians(model, list(sizes), inputs, differentiable=torch.is_grad_enabled())
                total = total + log_likelihood(likelihood, inputs, outputs, targets)
                columns = likelihood.fisher_columns(outputs)
                rows = torch.einsum("kvnc,ncp->kvnp", columns, J).reshape(len(columns), -1, J.shape[2])
                parts = parts + rows.transpose(1, 2) @ rows
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
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.H.double() + torch.diag(delta)))
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
    factor = torch.linalg.cholesky(identity + root[:, None] * H.double() * root)
    return 2 * factor.diagonal().log().sum().to(H)


def _spread(H: Float[Tensor, "p p"], sizes: dict[str, int], precisions: Precisions) -> Float[Tensor, " p"]:
    # In double precision: the decomposition of a nearly singular H fails without.
    return torch.cat([precisions[name].to(H.device).double().expand(size) for name, size in sizes.items()])


def jacobians(
    model: nn.Module,
    names: list[str],
    inputs: Tensor,
    *,
    differentiable: bool,
    at: Mapping[str, Tensor] | None = None,
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c p"]]:
    """Outputs, and their Jacobians with respect to the named tensors, side by side, datum by datum.

    At the weights of the model, or `at` others.
    """
    tensors = {**held(model, differentiable), **(at or {})}
    chosen = {name: tensors.pop(name) for name in names}

    def of_one(weights: dict[str, Tensor], datum: Tensor) -> tuple[Tensor, Tensor]:
        outputs: Tensor = functional_call(model, {**tensors, **weights}, (datum[None],))[0]
        return outputs, outputs

    J, outputs = vmap(jacrev(of_one, has_aux=True), in_dims=(None, 0))(chosen, inputs)
    return outputs, torch.cat([J[name].reshape(*outputs.shape, -1) for name in names], dim=2)
