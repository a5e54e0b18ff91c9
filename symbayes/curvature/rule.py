"""What a curvature rule gives: H, the curvature of −log p(D | W) at the weights, ready for any prior."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block
from symbayes.data.source import DataSource
from symbayes.likelihoods import Likelihood

Precisions = Mapping[str, Float[Tensor, ""]]


class Curvature(ABC):
    """H of the negative log-likelihood summed over the data, over all trainable tensors of a model."""

    #: log p(D | W) from the same pass over the data; differentiable in the noise of the likelihood.
    log_likelihood: Float[Tensor, ""]
    #: How H was estimated, in words.
    estimator: str

    @abstractmethod
    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        """log|I + H Δ⁻¹|, differentiable in the precisions and in the noise of the likelihood."""

    @abstractmethod
    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        """γ by tensor: how many of its parameters the data determine."""


class Rule(ABC):
    """A way to estimate the curvature. Rules are frozen settings; `curvature` does the work."""

    @abstractmethod
    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> Curvature:
        """H at the weights the model has now, over all the data."""


@dataclass(frozen=True)
class BlockCurvature(Curvature):
    """H as independent blocks, one for each tensor."""

    blocks: Mapping[str, Block]
    log_likelihood: Float[Tensor, ""]
    estimator: str

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        terms = [block.log_det(precisions[name]) for name, block in self.blocks.items()]
        return sum(terms[1:], terms[0])

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        return {name: block.effective(precisions[name]) for name, block in self.blocks.items()}

    def trace(self) -> dict[str, Float[Tensor, ""]]:
        """tr H by tensor."""
        return {name: block.trace() for name, block in self.blocks.items()}
