"""What a curvature rule gives: H, the curvature of −log p(D | W) at the weights, ready for any prior."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, decompose, faint
from symbayes.curvature.replay import Precisions, Replay
from symbayes.data.source import DataSource
from symbayes.likelihoods import Likelihood


class Curvature(ABC):
    """H of the negative log-likelihood summed over the data, over all trainable tensors of a model."""

    #: log p(D | W) from the same pass over the data; differentiable in what `log_det` is.
    log_likelihood: Float[Tensor, ""]
    #: How H was estimated, in words.
    estimator: str

    @abstractmethod
    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        """log|I + H Δ⁻¹|, differentiable in the precisions and in the noise of the likelihood.

        Where the forward pass depends on more than weights, such as extents of invariance, and gradients are on, it is
        differentiable in that, too: then the graph over all the data is kept, which is for small data.
        """

    @abstractmethod
    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        """γ by tensor: how many of its parameters the data determine."""

    @abstractmethod
    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        """Terms, one for each batch, whose gradients add up to that of log p(D | W) − ½ log|I + HΔ⁻¹|.

        In whatever the forward pass depends on beside weights. Only gradients mean something, not values. Differentiate a term
        before asking for the next: then memory does not grow with the data.

        Args:
            precisions: δ by tensor.
            share: Of the data to use, drawn at random; then the gradient is right on average.
            generator: For what is drawn.
        """


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
    #: None where sums cannot be collected again, because the data have gone by.
    replay: Replay | None

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        return log_det_of(self.blocks, precisions)

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        if self.replay is None:
            raise RuntimeError(
                f"The curvature cannot be differentiated: {self.estimator} has no data to go through again. Use passes over "
                "all data, Laplace(running=0)."
            )
        return self.replay.surrogates(precisions, share, generator)

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        series = _decomposed(self.blocks, precisions)
        return {name: block.effective(precisions[name], faint=name in series) for name, block in self.blocks.items()}

    def trace(self) -> dict[str, Float[Tensor, ""]]:
        """tr H by tensor."""
        return {name: block.trace() for name, block in self.blocks.items()}


def log_det_of(blocks: Mapping[str, Block], precisions: Precisions) -> Float[Tensor, ""]:
    """log|I + H Δ⁻¹| of independent blocks."""
    series = _decomposed(blocks, precisions)
    terms = [block.log_det(precisions[name], faint=name in series) for name, block in blocks.items()]
    return sum(terms[1:], terms[0])


def _decomposed(blocks: Mapping[str, Block], precisions: Precisions) -> set[str]:
    """Decompose blocks; names of those that are left alone, because they are faint."""
    series = faint(blocks, precisions)
    decompose(block for name, block in blocks.items() if name not in series)
    return series
