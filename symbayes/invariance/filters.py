"""Weights averaged over transformations: a path whose filters are, and a bank of them."""

from collections.abc import Callable
from math import log, prod, sqrt
from typing import cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.groups.lie import Images, LieGroup, resample, resampling
from symbayes.invariance.extents import Extents, check_samples
from symbayes.layers.path import Path
from symbayes.layout import Hyperparameter


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
        #: In training; with the seed, they say what is drawn next.
        self.passes = 0

    def redraw(self) -> None:
        """Other transformations, if they are random; for training, before a pass."""
        self.passes += 1

    def draws(self) -> Float[Tensor, "s k"]:
        """ε of every transformation: random while training, spread evenly and fixed in evaluation."""
        if self.training and self.stochastic:
            return self.orbit.drawn(self.copies, count=1, seed=self.seed, number=self.passes, antithetic=self.antithetic)[0]
        return self.orbit.even(self.copies, antithetic=self.antithetic)[0]

    def operators(self) -> Float[Tensor, "s q p"]:
        """T_s as matrices over pixels, differentiable in the extents."""
        return resampling(self._images, self._coefficients(), (self.in_shape[1], self.in_shape[2]))

    def moved(self) -> Float[Tensor, "s d_out c h w"]:
        """Every filter under every transformation: the filter bank."""
        return resample(self._images, self._coefficients(), self.weight)

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


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
}


class FilterBank(nn.Module):
    """h(x)_k = mean over T of φ(⟨T W_k, x⟩ + b_k), with T = exp(Σ ε_i η_i G_i), ε uniform on [−1, 1] and extents η learned.

    A shallow invariant network is `nn.Sequential(FilterBank(...), nn.Linear(width, classes))`: the mean of hidden units is that
    of logits, since the map behind them is linear. At extents zero it is a plain fully connected layer. With random draws, of
    S transformations, the log-likelihood is on average a lower bound of that of the invariant network, ever tighter as S grows
    (van der Ouderaa and van der Wilk 2022).

    While it trains, transformations are drawn anew for every pass and shared by its batch; in evaluation they are a fixed set,
    spread evenly. Filters of a deterministic first layer are fitted at no cost to the evidence of the last: give both layers a
    prior and a curvature, or fix the filters (`from_images`).

    Args:
        in_shape: Of one input: channels, height and width; and so of a filter.
        width: Filters, and hidden units.
        group: Affine maps of images (`sb.affine2d`), with the bounds and first values of extents.
        samples: Transformations of each filter; the cost grows with them.
        activation: φ: "relu", "tanh", "sigmoid" or "gelu".
        bias: Whether to add b.
        stochastic: Whether transformations are drawn while training; else they are the fixed set, there too.
        antithetic: Whether draws come in pairs of opposite sign.
        seed: For the draws.
        scale: Of the initial filters, as in `DensePath`.
        generator: For the initial filters; the global one when None.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        width: int,
        group: LieGroup,
        samples: int = 20,
        *,
        activation: str = "relu",
        bias: bool = True,
        stochastic: bool = True,
        antithetic: bool = False,
        seed: int = 0,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}. Radial functions are for filters "
                "that are not trained: FilterBank.from_images(images, group, lengthscale=...)."
            )
        self.activation = activation
        self.filters = FilterPath(
            in_shape,
            width,
            group,
            samples,
            bias=bias,
            stochastic=stochastic,
            antithetic=antithetic,
            seed=seed,
            scale=scale,
            generator=generator,
        )

    @staticmethod
    def from_images(
        images: Tensor,
        group: LieGroup,
        samples: int = 20,
        *,
        lengthscale: float,
        learn_lengthscale: bool = False,
        stochastic: bool = True,
        antithetic: bool = False,
        seed: int = 0,
    ) -> "RadialFilterBank":
        """Images as filters that are not trained, with φ = exp(−|x − T W|² / 2ℓ²)."""
        return RadialFilterBank(
            images,
            group,
            samples,
            lengthscale=lengthscale,
            learn_lengthscale=learn_lengthscale,
            stochastic=stochastic,
            antithetic=antithetic,
            seed=seed,
        )

    @property
    def orbit(self) -> Extents:
        """How far filters are transformed."""
        return self.filters.orbit

    @property
    def extents(self) -> dict[str, float]:
        """How far the layer is invariant, by generator: in degrees, pixels and percent."""
        return self.orbit.natural()

    @property
    def samples(self) -> int:
        """Transformations of each filter."""
        return self.filters.copies

    def forward(self, inputs: Tensor) -> Float[Tensor, "n d_out"]:
        """Hidden units, averaged over transformations."""
        if self.training:
            self.filters.redraw()
        return self.hidden(inputs).mean(1)

    def hidden(self, inputs: Tensor) -> Float[Tensor, "n s d_out"]:
        """Hidden units under every transformation."""
        return _ACTIVATIONS[self.activation](self.filters(inputs))

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))


class RadialFilterBank(FilterBank):
    """h(x)_k = mean over T of exp(−|x − T W_k|² / 2ℓ²), for images W_k that are not trained (`FilterBank.from_images`).

    Args:
        images: W: [width, c, h, w].
        group: As in `FilterBank`.
        samples: As in `FilterBank`.
        lengthscale: ℓ, or its first value.
        learn_lengthscale: Whether ℓ is learned by the evidence, as extents are.
        stochastic: As in `FilterBank`.
        antithetic: As in `FilterBank`.
        seed: As in `FilterBank`.
    """

    def __init__(
        self,
        images: Tensor,
        group: LieGroup,
        samples: int = 20,
        *,
        lengthscale: float,
        learn_lengthscale: bool = False,
        stochastic: bool = True,
        antithetic: bool = False,
        seed: int = 0,
    ) -> None:
        if images.ndim != 4 or not images.is_floating_point():
            raise ValueError(
                f"Filters must be images of real numbers, [width, c, h, w]; got {images.dtype} of shape {tuple(images.shape)}."
            )
        if not lengthscale > 0:
            raise ValueError(f"lengthscale must be positive, got {lengthscale}. The distance of two typical images will do.")
        shape = tuple(images.shape[1:])
        super().__init__(
            shape, len(images), group, samples, bias=False, stochastic=stochastic, antithetic=antithetic, seed=seed
        )
        self.activation = "rbf"
        self.filters.to(images)
        self.filters.weight = nn.Parameter(images.detach().clone(), requires_grad=False)
        self.log_lengthscale = Hyperparameter(images.new_tensor(log(lengthscale)), requires_grad=learn_lengthscale)

    @property
    def lengthscale(self) -> float:
        """ℓ."""
        return self.log_lengthscale.exp().item()

    def hidden(self, inputs: Tensor) -> Float[Tensor, "n s d_out"]:
        moved = self.filters.moved()
        squares = inputs.flatten(1).square().sum(1)[:, None, None] + moved.flatten(2).square().sum(2)
        distances = (squares - 2 * self.filters.products(inputs, moved)).clamp(min=0)
        return (-distances / (2 * (2 * self.log_lengthscale).exp())).exp()
