"""The full GGN by products, preconditioned by blocks: KFAC says what the bulk of H is, a few products say what it left out.

With K the curvature of another rule as blocks, K + Δ = U diag(λ + δ) Uᵀ and S = diag(λ + δ)^-½, everything is asked of

    M = S Uᵀ (H + Δ) U S,        which is the identity where K is right.

Random signs z in the eigenbasis, and k steps of Lanczos, give the log-determinant and the effective parameters of every tensor:

    log|I + HΔ⁻¹| = log|I + KΔ⁻¹| + tr log M ≈ log|I + KΔ⁻¹| + zᵀ log(M) z
    γ_l = P_l − δ_l tr_l (H + Δ)⁻¹ ≈ P_l − b_lᵀ (M⁻¹ b)_l,   b = S Δ^½ z

The second starts from b rather than from z, so that in sum over all tensors it is a quadratic form, which a short solve gives
with an error of second order, from one side: the sum of γ comes down on the right one as k grows. K need not be subtracted as a
control variate: signs in its own basis give tr K (K + Δ)⁻¹ without error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block
from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import LanczosCurvature, quadrature, solution, tridiagonalise
from symbayes.curvature.products import Pairs, Product, Products, products_of
from symbayes.curvature.replay import Precisions
from symbayes.curvature.rule import BlockCurvature, Rule, log_det_of
from symbayes.data.source import DataSource
from symbayes.likelihoods import Likelihood

#: A tensor with this many effective parameters is believed half: signs tell γ_l up to about √(2 γ_l).
BELIEVED = 4.0


@dataclass(frozen=True)
class Preconditioned(Rule):
    """The full GGN by products, preconditioned by the blocks of another rule.

    Args:
        base: The other rule: `Kfac`, `Ekfac`, `Diagonal` or `Ggn(joint=False)`.
        steps: Products for each probe, once for γ and once for the log-determinant; more make it less biased.
        probes: Random vectors; more make the estimate less noisy.
        batch_size: Data in a forward pass of a product.
    """

    base: Rule = field(default_factory=lambda: Kfac(MonteCarloFisher()))
    steps: int = 20
    probes: int = 1
    batch_size: int = 500

    def __post_init__(self) -> None:
        if self.probes < 1 or self.steps < 1:
            raise ValueError(f"Preconditioned needs at least one probe and one step, got {self.probes} and {self.steps}.")

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> "PreconditionedCurvature":
        with torch.no_grad():
            base = self.base.curvature(model, data, likelihood, generator=generator)
        if not isinstance(base, BlockCurvature):
            raise ValueError(
                f"The base of Preconditioned must give blocks, got {self.base}. Use Kfac, Ekfac, Diagonal or Ggn(joint=False)."
            )
        products = products_of(model, data, likelihood, self.batch_size)
        return PreconditionedCurvature(products, products.signs(self.probes, generator), self.steps, str(self), base.blocks)

    def __str__(self) -> str:
        many = f"{self.probes} probe{'s' if self.probes > 1 else ''}, {self.steps} steps"
        return f"full GGN by Lanczos ({many}), preconditioned by {self.base}"


class PreconditionedCurvature(LanczosCurvature):
    """H as a product with vectors, beside blocks that are close to it."""

    def __init__(
        self,
        products: Products,
        probes: Float[Tensor, "probe p"],
        steps: int,
        estimator: str,
        blocks: Mapping[str, Block],
    ) -> None:
        super().__init__(products, probes, steps, estimator)
        self.blocks = {name: blocks[name] for name in products.sizes}
        self.eigenvalues = torch.cat([block.eigenvalues for block in self.blocks.values()])

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        """γ by tensor, never zero where the blocks have some.

        Of a tensor with few effective parameters signs say little; what all tensors have, relative to the blocks, says more.
        """
        found = super().effective(precisions)
        blocks = {name: block.effective(precisions[name].detach()) for name, block in self.blocks.items()}
        by_blocks = torch.stack(list(blocks.values())).sum()
        ratio = torch.stack(list(found.values())).sum() / by_blocks.clamp(min=torch.finfo(by_blocks.dtype).tiny)
        few = BELIEVED / len(self.probes)
        return {name: of * (found[name] + few * ratio) / (of + few) for name, of in blocks.items()}

    def log_dets(self, precisions: Precisions) -> Float[Tensor, " probe"]:
        return self._keep("log_dets", precisions, self._log_dets)

    def pairs(self, precisions: Precisions) -> Pairs:
        return self._keep("pairs", precisions, self._pairs)

    def _log_dets(self, precisions: Precisions) -> Float[Tensor, " probe"]:
        product, _ = self._scaled(precisions)
        beside = log_det_of(self.blocks, {name: precision.detach() for name, precision in precisions.items()})
        return torch.stack([beside + quadrature(tridiagonalise(product, z, self.steps)[1], z) for z in self.probes])

    def _pairs(self, precisions: Precisions) -> Pairs:
        product, S = self._scaled(precisions)
        root = self.products.spread(precisions).sqrt()
        pairs = []
        for z in self.probes:
            b = S * root * z
            x = S * solution(*tridiagonalise(product, b, self.steps), b) / len(self.probes)
            pairs.append((self._turned(x, back=True), self._turned(z / root, back=True)))
        return pairs

    def _scaled(self, precisions: Precisions) -> tuple[Product, Float[Tensor, " p"]]:
        """v ↦ M v, and S."""
        delta = self.products.spread(precisions)
        S = (self.eigenvalues + delta).rsqrt()

        def product(v: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
            Hv = self.products.product(self._turned(S * v, back=True))
            return S * (self._turned(Hv) + delta * S * v)

        return product, S

    def _turned(self, vector: Float[Tensor, " p"], *, back: bool = False) -> Float[Tensor, " p"]:
        """Into the eigenbasis of all blocks, or back."""
        parts = self.products.split(vector)
        return torch.cat([block.turn(parts[name], back=back) for name, block in self.blocks.items()])
