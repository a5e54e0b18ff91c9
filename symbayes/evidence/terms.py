"""The evidence and its named terms: what every objective returns."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Evidence:
    """log p(D) ≈ log p(D | W*) + log p(W*) + log volume of the posterior around W*."""

    log_likelihood: Float[Tensor, ""]
    log_prior: Float[Tensor, ""]
    log_volume: Float[Tensor, ""]
    #: γ by tensor: how many of its parameters the data determine.
    effective: Mapping[str, Float[Tensor, ""]]
    #: Layer and path of every tensor.
    places: Mapping[str, tuple[str, str]]
    num_data: int
    #: How the volume was estimated, in words; part of the answer.
    estimator: str

    @property
    def effective_by_path(self) -> dict[tuple[str, str], Float[Tensor, ""]]:
        """γ by layer and path: the sum over its tensors."""
        found: dict[tuple[str, str], Tensor] = {}
        for name, place in self.places.items():
            found[place] = found[place] + self.effective[name] if place in found else self.effective[name]
        return found

    @property
    def total(self) -> Float[Tensor, ""]:
        """The estimate of log p(D); `.backward()` gives gradients in precisions, noise and extents."""
        return self.log_likelihood + self.log_prior + self.log_volume

    def __str__(self) -> str:
        per = self.total.item() / self.num_data
        return (
            f"log evidence {self.total.item():.1f} ({per:.3f} per datum) = log-likelihood {self.log_likelihood.item():.1f} "
            f"+ log-prior {self.log_prior.item():.1f} + log-volume {self.log_volume.item():.1f}; {self.estimator}"
        )
