"""EKFAC: KFAC's eigenbasis with the exact curvature along it (George et al. 2018); a second pass over the data."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, EigenBlock, KroneckerBlock
from symbayes.curvature.capture import Site, find_sites
from symbayes.curvature.fisher import ExactFisher, Fisher
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import BlockCurvature, Rule
from symbayes.curvature.sweep import Accumulator, gradient_rows, sweep, weight_gradients
from symbayes.data.source import DataSource
from symbayes.likelihoods import Likelihood


@dataclass(frozen=True)
class Ekfac(Rule):
    """λ_ij = Σ_n Σ_v ((U_Gᵀ ∇W U_A)_ij)² in the eigenbasis of KFAC's factors: its trace is the exact one.

    Args:
        fisher: Which columns are sent back, in both passes.
        batch_size: Data in a forward pass; gradients of single data are formed, so keep it small for wide layers.
    """

    fisher: Fisher = field(default_factory=ExactFisher)
    batch_size: int = 100

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> BlockCurvature:
        base = Kfac(self.fisher, batch_size=self.batch_size).curvature(model, data, likelihood, generator=generator)
        accumulators: dict[str, Accumulator] = {}
        for name, site in find_sites(model).maps.items():
            block = base.blocks.get(site.weight or "")
            if isinstance(block, KroneckerBlock):
                accumulators[name] = _EigenAccumulator(site, block)
        corrected, _ = sweep(
            model, data, likelihood, self.fisher, accumulators, batch_size=self.batch_size, generator=generator
        )
        return BlockCurvature({**base.blocks, **corrected}, base.log_likelihood, str(self))

    def __str__(self) -> str:
        return f"EKFAC ({self.fisher})"


class _EigenAccumulator(Accumulator):
    """Squared gradients of each datum, turned into the eigenbasis of a Kronecker block."""

    def __init__(self, site: Site, basis: KroneckerBlock) -> None:
        self.site, self.basis = site, basis
        self.rows = torch.empty(0)
        self.squares: dict[int, Tensor] = {}

    def see(self, inputs: Tensor) -> None:
        self.rows = torch.einsum("nsbi,bij->nsbj", self.site.form.input_rows(inputs), self.basis.A.eigenvectors)

    def add(self, part: int, gradients: Float[Tensor, "v n *rest"]) -> None:
        U_G = self.basis.G.eigenvectors.detach()
        for column in gradient_rows(self.site, gradients):
            turned = torch.einsum("nsbo,bop->nsbp", column, U_G.expand(column.shape[2], -1, -1))
            squares = weight_gradients(self.rows, turned[None]).square().sum((0, 1))
            self.squares[part] = self.squares[part] + squares if part in self.squares else squares

    def blocks(self, scales: Float[Tensor, " k"]) -> dict[str, Block]:
        stacked = torch.stack([self.squares[part] for part in sorted(self.squares)])
        return {str(self.site.weight): EigenBlock(torch.einsum("k,kboi->boi", scales.to(stacked), stacked), self.basis)}
