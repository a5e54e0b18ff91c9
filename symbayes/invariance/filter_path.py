"""The linear part of a filter bank: filters under transformations, as a path whose rows are transformed inputs."""

from math import prod, sqrt

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.groups.lie import LieGroup
from symbayes.groups.resample import resampled, resampling
from symbayes.groups.warp import Images
from symbayes.invariance.extents import Extents, check_samples
from symbayes.layers.path import Path


class FilterPath(Path):
    """z[n, s, h] = ⟨T_s W_h, x_n⟩ + b_h: filters under s transformations, T_s = exp(Σ ε_i η_i G_i), with learned extents η.

    Since ⟨T W, x⟩ = ⟨W, Tᵀ x⟩, the rows that the weights see are Tᵀ x: transformations are positions, copies of a datum.
    `forward` transforms filters, of which there are fewer. Transformations are shared by all data of a batch. They change only
    by `redraw`, so that `forward` and the rows speak of the same ones.

    Args:
        in_shape: Of one input: channels, height and width; and so of a filter.
        width: Filters.
        group: Affine maps of images (`sb.affine2d`), with any padding.
        samples: Transformations s.
        bias: Whether to add b, one value for each filter.
        stochastic: Whether transformations are drawn while training; else they are the fixed, even set, there too.
        antithetic: Whether draws come in pairs of opposite sign.
        seed: For the draws.
        scale: Standard deviation of W relative to a map that keeps the variance of its input after a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        width: int,
        group: LieGroup,
        samples: int = 20,
        *,
        bias: bool = True,
        stochastic: bool = True,
        antithetic: bool = False,
        seed: int = 0,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(group, Images):
            raise ValueError(
                f"Filters are transformed by affine maps of images, sb.affine2d(..., on='images'); got {type(group).__name__}."
                " For other groups average the network over transformed inputs (sb.OrbitAverage)."
            )
        if len(in_shape) != 3 or min(in_shape) < 1 or width < 1:
            raise ValueError(
                f"in_shape must be channels, height and width of an image, and width at least 1 filter; got {tuple(in_shape)} "
                f"and {width}."
            )
        check_samples(samples, antithetic)
        self._images, self.in_shape = group, tuple(in_shape)
        self.orbit = Extents(group)
        self.orbit.shape = self.in_shape
        self.copies = samples
        self.stochastic, self.antithetic, self.seed = stochastic, antithetic, seed
        bound = scale * sqrt(6 / prod(in_shape))  # U(±bound) has variance 2 / d_in
        self.weight = nn.Parameter(torch.empty(width, *in_shape).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self._passes = 0

    def redraw(self) -> None:
        """Other transformations, if they are random; for training, before a pass."""
        self._passes += 1

    def draws(self) -> Float[Tensor, "s k"]:
        """ε of every transformation: random while training, spread evenly and fixed in evaluation."""
        if self.training and self.stochastic:
            return self.orbit.drawn(self.copies, count=1, seed=self.seed, number=self._passes, antithetic=self.antithetic)[0]
        return self.orbit.even(self.copies, antithetic=self.antithetic)[0]

    def operators(self) -> Float[Tensor, "s q p"]:
        """T_s as matrices over pixels, differentiable in the extents."""
        return resampling(self._images, self._coefficients(), (self.in_shape[1], self.in_shape[2]))

    def moved(self) -> Float[Tensor, "s d_out c h w"]:
        """Every filter under every transformation: the filter bank."""
        return resampled(self._images, self._coefficients(), self.weight)

    def forward(self, inputs: Tensor) -> Float[Tensor, "n s d_out"]:
        outputs = self.products(inputs, self.moved())
        return outputs if self.bias is None else outputs + self.bias

    def products(self, inputs: Tensor, moved: Float[Tensor, "s d_out c h w"]) -> Float[Tensor, "n s d_out"]:
        """⟨T_s W_h, x_n⟩, for filters that were moved."""
        if inputs.shape[1:] != self.in_shape:
            wanted = ", ".join(map(str, self.in_shape))
            raise ValueError(f"This filter bank expects inputs of shape (n, {wanted}), got {tuple(inputs.shape)}.")
        return (inputs.flatten(1) @ moved.flatten(2).flatten(0, 1).T).unflatten(1, moved.shape[:2])

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 d_in"]:
        rows = torch.einsum("sqp,ncq->nscp", self.operators(), inputs.flatten(2))
        return rows.flatten(2)[:, :, None]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 d_out"]:
        return outputs[:, :, None]

    def weight_rows(self) -> Float[Tensor, "1 d_out d_in"]:
        return self.weight.flatten(1)[None]

    def bias_rows(self) -> Float[Tensor, "1 d_out"] | None:
        return None if self.bias is None else self.bias[None]

    def _coefficients(self) -> Float[Tensor, "s k"]:
        return self.orbit.coefficients(self.draws().to(self.weight))

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.in_shape))} -> {self.copies} × {len(self.weight)}"
