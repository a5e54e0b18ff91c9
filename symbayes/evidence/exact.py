"""The evidence in closed form: features that are fixed, weights that are integrated over, and Gaussian noise."""

from dataclasses import dataclass
from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.errors import NotFiniteError
from symbayes.evidence.evidence import Evidence

Scalar = float | Float[Tensor, ""] | Float[Tensor, "1"]


@dataclass(frozen=True)
class _Posterior:
    """What the two ways to compute it have in common, for f = Φ w with H weights for each of c outputs."""

    mode: Float[Tensor, "h c"]
    residual: Float[Tensor, "n c"]
    #: log|ΦᵀΦ / σ² + δ I|, of one output.
    log_det: Float[Tensor, ""]
    #: γ of one output.
    effective: Float[Tensor, ""]


def exact_evidence(features: Tensor, targets: Tensor, precision: Scalar, noise: Scalar) -> Evidence:
    """log p(Y) = Σ_c log N(y_c; 0, ΦΦᵀ / δ + σ² I), of f = Φ w with w ~ N(0, 1/δ) for each weight of each output.

    Differentiable in features, precision and noise; so in everything that features depend on, such as extents. No weight is
    left to be fitted. Computed in double precision, over data or over features, whichever are fewer.

    Args:
        features: Φ [n, h].
        targets: Y [n, c]; the noise is shared by its columns.
        precision: δ.
        noise: σ.

    Returns:
        The log-likelihood and the log-prior at the posterior mode, and the log-volume. Their sum is exact.

    Raises:
        ValueError: If shapes do not match, or precision or noise are not positive.
        NotFiniteError: If the features are not finite, or precision and noise are too small for double precision.
    """
    delta, sigma, posterior = _posterior(features, targets, precision, noise)
    n, outputs = posterior.residual.shape
    size = posterior.mode.numel()
    log_likelihood = -posterior.residual.square().sum() / (2 * sigma.square()) - n * outputs * (sigma.log() + log(2 * pi) / 2)
    log_prior = (size * (delta.log() - log(2 * pi)) - delta * posterior.mode.square().sum()) / 2
    log_volume = (size * log(2 * pi) - outputs * posterior.log_det) / 2
    effective = {"weight": (outputs * posterior.effective).detach()}
    places = {"weight": ("", "features")}
    return Evidence(log_likelihood, log_prior, log_volume, effective, places, n, "exact (Gaussian, linear in the weights)")


def posterior_mode(features: Tensor, targets: Tensor, precision: Scalar, noise: Scalar) -> Float[Tensor, "h c"]:
    """The weights of highest posterior density, which are also its mean: predictions are Φ(x) times them."""
    return _posterior(features, targets, precision, noise)[2].mode


def _posterior(features: Tensor, targets: Tensor, precision: Scalar, noise: Scalar) -> tuple[Tensor, Tensor, _Posterior]:
    if features.ndim != 2 or targets.ndim != 2 or len(features) != len(targets):
        raise ValueError(
            "features must be [n, h] and targets [n, c], a row of each for every datum; got shapes "
            f"{tuple(features.shape)} and {tuple(targets.shape)}. For one output, targets[:, None]."
        )
    if not targets.is_floating_point():
        raise ValueError(
            f"targets must be real numbers, got {targets.dtype}. For classes, torch.nn.functional.one_hot(labels).double()."
        )
    if not (features.isfinite().all() and targets.isfinite().all()):
        raise NotFiniteError("Features and targets must be finite, got NaN or infinity. Check what they are computed from.")
    delta, sigma = (_positive(value, name, features) for value, name in ((precision, "precision"), (noise, "noise")))
    solve = _over_features if features.shape[1] <= len(features) else _over_data
    return delta, sigma, solve(features.double(), targets.double(), delta, sigma)


def _over_features(features: Tensor, targets: Tensor, delta: Tensor, sigma: Tensor) -> _Posterior:
    """With the H × H matrix A = ΦᵀΦ + δσ² I."""
    damping = delta * sigma.square()
    A = features.T @ features + damping * torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
    L = _cholesky(A)
    mode = torch.cholesky_solve(features.T @ targets, L)
    with torch.no_grad():
        effective = len(A) - damping * torch.cholesky_inverse(L).trace()
    log_det = 2 * L.diagonal().log().sum() - 2 * len(A) * sigma.log()
    return _Posterior(mode, targets - features @ mode, log_det, effective)


def _over_data(features: Tensor, targets: Tensor, delta: Tensor, sigma: Tensor) -> _Posterior:
    """With the n × n matrix K = ΦΦᵀ + δσ² I."""
    n, h = features.shape
    damping = delta * sigma.square()
    K = features @ features.T + damping * torch.eye(n, dtype=features.dtype, device=features.device)
    L = _cholesky(K)
    dual = torch.cholesky_solve(targets, L)
    with torch.no_grad():
        effective = n - damping * torch.cholesky_inverse(L).trace()
    log_det = 2 * L.diagonal().log().sum() + (h - n) * delta.log() - 2 * n * sigma.log()
    return _Posterior(features.T @ dual, damping * dual, log_det, effective)


def _cholesky(matrix: Tensor) -> Tensor:
    L, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        raise NotFiniteError(
            "The curvature of the weights must be positive in double precision; it is singular, because precision · noise² is "
            "too small for features of this size. Raise one of them, or scale the features down."
        )
    return L


def _positive(value: Scalar, name: str, like: Tensor) -> Float[Tensor, ""]:
    number = torch.as_tensor(value, dtype=torch.float64, device=like.device)
    if number.numel() != 1 or not (number > 0).all() or not number.isfinite().all():
        raise ValueError(f"{name} must be one positive number, got {number.tolist()}. Learn its logarithm to keep it so.")
    return number.reshape(())
