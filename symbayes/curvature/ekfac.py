"""EKFAC: KFAC's eigenbasis with the exact curvature along it (George et al. 2018); a second pass over the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, EigenBlock, KroneckerBlock
from symbayes.curvature.fisher import ExactFisher, Fisher
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import BlockCurvature, Rule
from symbayes.curvature.sites import Site, find_sites, gradient_rows, weight_gradients
from symbayes.curvature.sums import Accumulator, swept_curvature
from symbayes.data.source import DataSource
from symbayes.likelihoods import Likelihood


@dataclass(frozen=True)
class Ekfac(Rule):
    """λ_ij = Σ_n Σ_v ((U_Gᵀ ∇W U_A)_ij)² in the eigenbasis of KFAC's factors: its trace is the exact one.

    Gradients through the curvature, in extents of invariance and the like, are those of λ with the basis held.

    Args:
        fisher: Which columns are sent back, in both passes.
        batch_size: Data in a forward pass; gradients of single data are formed, so keep it small for wide layers.
    """

    fisher: Fisher = field(default_factory=ExactFisher)
    batch_size: int = 100

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> BlockCurvature:
        base = Kfac(self.fisher, batch_size=self.batch_size)
        with torch.no_grad():
            basis = base.curvature(model, data, likelihood, generator=generator).blocks
        sites = find_sites(model).maps

        def accumulator(site: Site) -> Accumulator:
            block = basis.get(site.weight or "")
            if not isinstance(block, KroneckerBlock):
                return base.accumulator(site)
            bias = base.accumulator(replace(site, weight=None)) if site.bias is not None else None
            return EigenAccumulator(site, block, bias)

        return swept_curvature(
            model, data, likelihood, self.fisher, lambda: {name: accumulator(site) for name, site in sites.items()},
            batch_size=self.batch_size, generator=generator, estimator=str(self),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"EKFAC ({self.fisher})"


class EigenAccumulator(Accumulator):
    """Squared gradients of each datum, turned into the eigenbasis of a Kronecker block; a bias is collected by KFAC."""

    def __init__(self, site: Site, basis: KroneckerBlock, bias: Accumulator | None) -> None:
        self.site, self.basis, self.bias = site, basis, bias
        self.rows = torch.empty(0)
        self.squares: dict[str, Tensor] = {}

    def see(self, inputs: Tensor) -> None:
        self.rows = torch.einsum("nsbi,bij->nsbj", self.site.form.input_rows(inputs), self.basis.A.eigenvectors)
        if self.bias is not None:
            self.bias.see(inputs)

    def add(self, part: int, gradients: Float[Tensor, "v m *rest"]) -> None:
        U_G, key = self.basis.G.eigenvectors, f"square{part}"
        for column in gradient_rows(self.site, gradients):
            turned = torch.einsum("nsbo,bop->nsbp", column, U_G.expand(column.shape[2], -1, -1))
            squares = weight_gradients(self.rows, turned[None]).square().sum((0, 1))
            self.squares[key] = self.squares[key] + squares if key in self.squares else squares
        if self.bias is not None:
            self.bias.add(part, gradients)

    def sums(self) -> dict[str, Tensor]:
        return {**self.squares, **(self.bias.sums() if self.bias is not None else {})}

    def blocks(self, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> dict[str, Block]:
        stacked = torch.stack([sums[f"square{part}"] for part in range(len(scales))])
        values = torch.einsum("k,kboi->boi", scales.to(stacked), stacked)
        rest = self.bias.blocks(sums, scales) if self.bias is not None else {}
        return {str(self.site.weight): EigenBlock(values, self.basis), **rest}
