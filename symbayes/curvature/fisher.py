"""The square root of the Fisher information that goes back through the network: exact, sampled, or the scores of the labels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from symbayes.likelihoods import Columns, Likelihood


class Fisher(ABC):
    """A square root of the curvature of −log p(y | f), as columns at unit scale and the scale of each part."""

    @abstractmethod
    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns: ...

    def scales(self, likelihood: Likelihood) -> Float[Tensor, " k"]:
        """What each part is multiplied by; differentiable in the noise."""
        return likelihood.scales()

    def needs_graph(self, likelihood: Likelihood) -> bool:
        """Whether columns depend on the noise in another way than by their scale."""
        return False


@dataclass(frozen=True)
class ExactFisher(Fisher):
    """Every column of the square root: the generalised Gauss–Newton matrix itself."""

    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns:
        return likelihood.fisher_columns(outputs)

    def __str__(self) -> str:
        return "exact Fisher"


@dataclass(frozen=True)
class MonteCarloFisher(Fisher):
    """Random combinations of the exact columns: right on average, at the cost of `samples` backward passes."""

    samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}.")

    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns:
        return likelihood.sampled_columns(outputs, self.samples, generator=generator)

    def __str__(self) -> str:
        return f"Monte-Carlo Fisher, {self.samples} sample{'s' if self.samples > 1 else ''}"


@dataclass(frozen=True)
class EmpiricalFisher(Fisher):
    """Scores of the targets observed. Cheap and biased: it shrinks as the fit improves."""

    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns:
        return likelihood.score(outputs, targets)[None, None]

    def scales(self, likelihood: Likelihood) -> Float[Tensor, " k"]:
        return torch.ones(1)

    def needs_graph(self, likelihood: Likelihood) -> bool:
        return likelihood.learns_noise

    def __str__(self) -> str:
        return "empirical Fisher"
