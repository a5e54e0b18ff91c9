"""The exact diagonal of the generalised Gauss–Newton matrix, from rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, DiagonalBlock
from symbayes.curvature.gradients import squared_products
from symbayes.curvature.rule import BlockCurvature, ExactFisher, Fisher, Rule
from symbayes.curvature.sums import Accumulator, swept_curvature
from symbayes.data.source import DataSource
from symbayes.layout import GradientRows, Layout, Site
from symbayes.likelihoods.likelihood import Likelihood


@dataclass(frozen=True)
class Diagonal(Rule):
    """Σ_n Σ_v (∂(column v of datum n)/∂θ)², for every weight on its own.

    Args:
        fisher: Its square root, exact or sampled.
        batch_size: Data in a forward pass.
    """

    fisher: Fisher = field(default_factory=ExactFisher)
    batch_size: int = 250

    @property
    def in_blocks(self) -> bool:
        return True

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> BlockCurvature:
        sites = Layout.of(model).sites
        return swept_curvature(
            model, data, likelihood, self.fisher, lambda: {name: DiagonalAccumulator(site) for name, site in sites.items()},
            batch_size=self.batch_size, generator=generator, estimator=str(self),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"diagonal ({self.fisher})"


class DiagonalAccumulator(Accumulator):
    """Sums of squared gradients of each datum, for one map."""

    def __init__(self, site: Site) -> None:
        self.site = site
        #: Whether it holds the rows of a batch, which are more than what the map saw, such as patches.
        self.holds_rows = site.matrix is not None and site.form.structure != "diagonal"
        self.rows = torch.empty(0)
        self.squares: dict[tuple[str, int], Tensor] = {}

    def begin(self, inputs: Tensor) -> None:
        self.rows = self.site.rows(inputs).values

    def add(self, part: int, gradients: Float[Tensor, "v m *rest"]) -> None:
        rows = self.site.gradient_rows(gradients)
        if self.site.bias is not None:
            self._add(self.site.bias, part, self.site.bias_gradients(rows).square().sum((0, 1)))
        if self.site.weight is not None:
            self._add(self.site.weight, part, self._weight_squares(rows))

    def _weight_squares(self, rows: GradientRows) -> Float[Tensor, " p"]:
        if self.rows.shape[3] == rows.shape[4] == 1:  # a number for each block: no gradient has more, and nothing is copied
            squares = (rows * self.rows).sum(2).square().sum((0, 1))[..., None]
        elif rows.shape[2] == 1:  # one position: the square of a product is the product of squares
            squares = torch.einsum("vnsbo,nsbi->boi", rows.square(), self.rows.square())
        else:
            squares = torch.stack([squared_products(row, self.rows) for row in rows]).sum(0)
        return self.site.form.weight_from_rows(squares)

    def sums(self) -> dict[str, Tensor]:
        return {f"{part} {name}": squares for (name, part), squares in self.squares.items()}

    def blocks(self, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> dict[str, Block]:
        found: dict[str, Tensor] = {}
        for key, squares in sums.items():
            part, _, name = key.partition(" ")
            term = scales[int(part)].to(squares) * squares
            found[name] = found[name] + term if name in found else term
        return {name: DiagonalBlock(diagonal) for name, diagonal in found.items()}

    def _add(self, name: str, part: int, squares: Tensor) -> None:
        key = (name, part)
        self.squares[key] = self.squares[key] + squares if key in self.squares else squares
