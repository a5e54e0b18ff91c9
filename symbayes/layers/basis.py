"""A radial basis on the cells of a grid, and on the turns of a group: weights given at anchors, and in between.

The dense weights w over the T cells of a grid are what regression from values u at P anchors Z predicts there,

    w = u Ψ,      Ψ = (K_ZZ + σ² I)⁻¹ K_ZT,      k(z, t) = exp(−½ ω² ‖z − t‖²),

in units of cells, from the centre of the grid. As ω → 0 the weights become the same everywhere, so ω is an inverse
lengthscale whose prior N(0, δ⁻¹) controls how far a fully connected map may be from a stationary one.

Filters of group convolutions are smooth over turns, too. A turn by a matrix R is the point R / √2, beside that of its cell, so
that a quarter turn is √2 cells away. A group that turns both arguments of this kernel does not change it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import prod, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from symbayes.groups.grids import Matrix

#: σ where ω or anchors are learned: K is singular at ω = 0, and where anchors meet.
LEARNED_NOISE = 0.01


class RadialBasis(nn.Module):
    """Ψ on a grid in 1, 2 or 3 dimensions. It is computed once where nothing of it is learned, as on a grid of a single cell.

    Args:
        grid: Cells along each axis.
        anchors: How many: a number, or a share of the cells (Python's rounding, at least one). All cells when None: then the
            anchors are the cells, row by row, and without noise u are the dense weights themselves.
        learn_lengthscale: Whether `omega` is a parameter.
        learn_locations: Whether the `locations` of anchors are.
        omega: The first value of ω.
        noise: σ; when None, 0.01 where something is learned and 0 otherwise.
        turns: Matrices, each of which has all cells: then Ψ is on turns and cells, one turn after the other.

    Raises:
        ValueError: If there is no such grid or number of anchors, or K is singular.
    """

    omega: Float[Tensor, "1"]
    locations: Float[Tensor, "anchor axis"]
    #: Where the cells are.
    _cells: Float[Tensor, "cell axis"]
    #: Ψ where nothing of it is learned.
    _fixed: Float[Tensor, "anchor cell"] | None

    def __init__(
        self,
        grid: Sequence[int],
        anchors: int | float | None = None,
        *,
        learn_lengthscale: bool = False,
        learn_locations: bool = False,
        omega: float = 1.0,
        noise: float | None = None,
        turns: Sequence[Matrix] = (),
    ) -> None:
        super().__init__()
        self.grid, self.turns = tuple(grid), tuple(turns)
        if len(self.grid) not in (1, 2, 3) or min(self.grid) < 1:
            raise ValueError(f"The grid of a RadialBasis must have 1, 2 or 3 axes of at least one cell, got {self.grid}.")
        count = prod(self.grid) * max(1, len(self.turns))
        if count == 1:
            learn_lengthscale = learn_locations = False  # one weight has no shape
        self.learns_locations = learn_locations
        self.is_learned = learn_lengthscale or learn_locations
        self.noise = (LEARNED_NOISE if self.is_learned else 0.0) if noise is None else noise
        _register(self, "omega", torch.tensor([float(omega)]), learn_lengthscale)
        _register(self, "locations", _locations(self.grid, self.turns, _count(count, anchors)), learn_locations)
        self.register_buffer("_cells", _cells(self.grid, self.turns), persistent=False)
        self.register_buffer("_fixed", None, persistent=False)
        self._refresh()

    def matrix(self) -> Float[Tensor, "anchor cell"]:
        """Ψ, differentiable in what is learned of it; once in training, if that is ω alone and no tensor takes its place."""
        if self._fixed is not None:
            return self._fixed
        if not self.training or self.learns_locations or not isinstance(self.omega, nn.Parameter):
            return self._at(self.omega)
        matrix: Tensor = _WithSlope.apply(self.omega, *self._and_slope())  # type: ignore[no-untyped-call]
        return matrix

    def slope(self) -> Float[Tensor, "anchor cell"]:
        """∂Ψ/∂ω."""
        return self._and_slope()[1]

    @torch.no_grad()
    def std(self) -> Float[Tensor, ""]:
        """Standard deviation of the dense weights, on average over cells, where that of u is 1."""
        return self.matrix().square().sum(0).mean().sqrt()

    def _at(self, omega: Float[Tensor, "1"]) -> Float[Tensor, "anchor cell"]:
        # In double precision: K is close to singular where ω is small.
        anchors = self.locations.double()
        kernel = partial(_kernel, omega.double())
        K = kernel(anchors, anchors) + self.noise**2 * torch.eye(len(anchors), dtype=anchors.dtype, device=anchors.device)
        root, trouble = torch.linalg.cholesky_ex(K)  # nothing waits for a GPU to say whether K is singular
        matrix = torch.cholesky_solve(kernel(anchors, self._cells.to(anchors)), root)
        matrix = matrix.where(trouble == 0, torch.nan)  # half a root is finite, and wrong
        return matrix.to(self.locations.dtype).contiguous()

    @torch.no_grad()
    def _and_slope(self) -> tuple[Float[Tensor, "anchor cell"], Float[Tensor, "anchor cell"]]:
        """Ψ and ∂Ψ/∂ω, with a single decomposition: the gradient of one number needs no pass back through it.

        ∂Ψ = (K_ZZ + σ²I)⁻¹ (∂K_ZT − ∂K_ZZ Ψ), and ∂k/∂ω = −ω ‖z − t‖² k.
        """
        anchors, omega = self.locations.detach().double(), self.omega.detach().double()
        eye = torch.eye(len(anchors), dtype=anchors.dtype, device=anchors.device)
        among, across = (_squares(anchors, right) for right in (anchors, self._cells.to(anchors)))
        K_ZZ, K_ZT = (torch.exp(-0.5 * omega**2 * squares) for squares in (among, across))
        root, trouble = torch.linalg.cholesky_ex(K_ZZ + self.noise**2 * eye)
        root = root.where(trouble == 0, torch.nan)  # half a root is finite, and wrong
        matrix = torch.cholesky_solve(K_ZT, root)
        slope = torch.cholesky_solve((among * K_ZZ) @ matrix - across * K_ZT, root) * omega
        return matrix.to(self.locations.dtype).contiguous(), slope.to(self.locations.dtype).contiguous()

    @torch.no_grad()
    def _refresh(self) -> None:
        if self.is_learned:
            return
        self._fixed = self._at(self.omega)
        if not self._fixed.is_meta and not self._fixed.isfinite().all():
            raise ValueError(
                f"The anchors of a RadialBasis must be apart on the scale of its kernel; with omega={self.omega.item():.3g} "
                f"and noise={self.noise} their covariance is singular. Use a larger omega, or noise=0.01."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RadialBasis":
        # Moved or converted: Ψ is computed again, so that a model made double is as exact as double is.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._cells.copy_(_cells(self.grid, self.turns))  # known whatever was done to memory (`to_empty`)
        self._fixed = None
        # Values may not be there yet (`to_empty`); then Ψ is computed when they are loaded, or when it is used.
        with suppress(ValueError):
            self._refresh()
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._refresh()

    def extra_repr(self) -> str:
        learned = [name for name, _ in self.named_parameters()]
        turns = f"{len(self.turns)} turns of " if self.turns else ""
        return f"{len(self.locations)} anchors on {turns}{'×'.join(map(str, self.grid))}" + (
            f", {learned} learned" if learned else ""
        )


def _register(module: nn.Module, name: str, tensor: Tensor, learned: bool) -> None:
    if learned:
        module.register_parameter(name, nn.Parameter(tensor))
    else:
        module.register_buffer(name, tensor)


def _kernel(omega: Tensor, left: Float[Tensor, "a axis"], right: Float[Tensor, "b axis"]) -> Float[Tensor, "a b"]:
    return torch.exp(-0.5 * omega**2 * _squares(left, right))


def _squares(left: Float[Tensor, "a axis"], right: Float[Tensor, "b axis"]) -> Float[Tensor, "a b"]:
    """‖z − t‖²."""
    return (left[:, None] - right).square().sum(-1)


class _WithSlope(torch.autograd.Function):
    """A value that is known together with its derivative in a number; it has no second one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(number: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return (gradient * ctx.saved_tensors[0]).sum()[None], None, None


def _count(cells: int, anchors: int | float | None) -> int:
    """The number of anchors."""
    if anchors is None:
        return cells
    if isinstance(anchors, bool):
        raise ValueError(f"anchors must be a number, a share of the cells or None, got {anchors}.")
    if isinstance(anchors, float):
        if not 0 < anchors <= 1:
            raise ValueError(f"anchors as a share of the cells must lie above 0 and be at most 1, got {anchors}.")
        return max(1, round(anchors * cells))
    if not 1 <= anchors <= cells:
        raise ValueError(f"anchors must be at least 1 and at most the {cells} cells, got {anchors}.")
    return anchors


def _cells(grid: Sequence[int], turns: Sequence[Matrix]) -> Float[Tensor, "cell axis"]:
    """Where the cells are, row by row, from the centre of the grid; of every turn, beside where that is."""
    axes = [torch.arange(size) - (size - 1) / 2 for size in grid]
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
    if not turns:
        return cells
    matrices = torch.tensor(turns, dtype=cells.dtype).flatten(1) / sqrt(2)
    return torch.cat([matrices.repeat_interleave(len(cells), 0), cells.repeat(len(turns), 1)], 1)


def _locations(grid: Sequence[int], turns: Sequence[Matrix], anchors: int) -> Float[Tensor, "anchor axis"]:
    """Spread over the box that the cells span, where it has room for anchors one cell apart; else, as with turns, cells.

    Closer anchors would know much the same, and extrapolate wildly: a few directions of u would decide everything.

    Spread by the additive recurrence z_i = ½ + i (φ⁻¹, φ⁻², …) mod 1 with φ^(d+1) = φ + 1 (Roberts 2018): it starts at the
    centre, and its points keep apart however many there are.
    """
    if turns or anchors > prod(size - 1 for size in grid if size > 1):
        return _spread_cells(grid, turns, anchors)
    axes, root = len(grid), 1.0
    for _ in range(60):
        root = (1 + root) ** (1 / (axes + 1))
    steps = torch.tensor([root ** -(axis + 1) for axis in range(axes)], dtype=torch.float64)
    unit = (0.5 + torch.arange(anchors)[:, None] * steps) % 1
    return ((unit - 0.5) * (torch.tensor(grid) - 1)).to(torch.get_default_dtype())


def _spread_cells(grid: Sequence[int], turns: Sequence[Matrix], anchors: int) -> Float[Tensor, "anchor axis"]:
    """Cells, row by row: one at the centre, and always one that is farthest from those there are; or all of them."""
    if anchors == prod(grid) * max(1, len(turns)):
        return _cells(grid, turns)
    with torch.device("cpu"):  # where networks are made without memory (`meta`), too, it must be known which
        cells = _cells(grid, turns)
    chosen = [int(cells.square().sum(1).argmin())]
    nearest = _squares(cells[chosen], cells)[0]
    while len(chosen) < anchors:
        chosen.append(int(nearest.argmax()))
        nearest = nearest.minimum(_squares(cells[chosen[-1:]], cells)[0])
    return _cells(grid, turns)[sorted(chosen)]
