"""Any rule on random subsets of the data: a bound of the evidence from below, from as many data as one likes.

With the data divided into subsets m, log|I + Σ_m H_m Δ⁻¹| ≤ Σ_m log|I + H_m Δ⁻¹|, because the log-determinant is concave. One
subset of M of N data, drawn at random and multiplied by N/M, gives that sum on average (Immer et al. 2023): no pass over all
the data is needed, neither for the evidence nor for its gradient. `Kernel` is the same in function space.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.kfac import Kfac
from symbayes.curvature.replay import Precisions
from symbayes.curvature.rule import Curvature, Rule
from symbayes.data.source import DataSource, TensorSource, random_subsets
from symbayes.likelihoods import Likelihood


@dataclass(frozen=True)
class Subsets(Rule):
    """Another rule, on disjoint random subsets, each with a log-determinant of its own.

    Args:
        rule: What is applied to each subset.
        size: Data in a subset.
        subsets: How many; None for as many as the data hold.
    """

    rule: Rule = field(default_factory=Kfac)
    size: int = 150
    subsets: int | None = 1

    def __post_init__(self) -> None:
        if self.size < 1 or (self.subsets is not None and self.subsets < 1):
            raise ValueError(f"Subsets needs at least one subset of at least one datum, got {self.subsets} of {self.size}.")

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> "SubsetCurvature":
        def parts(generator: Generator | None) -> Iterator[tuple[Curvature, int]]:
            for inputs, targets in islice(random_subsets(data, self.size, self.subsets, generator), self.subsets):
                subset = TensorSource(inputs, targets, inputs.device, in_order=False)
                yield self.rule.curvature(model, subset, likelihood, generator=generator), subset.size

        found = list(parts(generator))
        scale = data.size / sum(size for _, size in found)
        return SubsetCurvature([curvature for curvature, _ in found], scale, str(self), parts)

    def __str__(self) -> str:
        many = "all subsets" if self.subsets is None else f"{self.subsets} subset{'s' if self.subsets > 1 else ''}"
        return f"{self.rule} on {many} of {self.size} data"


class SubsetCurvature(Curvature):
    """The curvature of each subset; what they add up to is scaled from the data seen to all the data."""

    def __init__(
        self,
        parts: Sequence[Curvature],
        scale: float,
        estimator: str,
        others: Callable[[Generator | None], Iterator[tuple[Curvature, int]]],
    ) -> None:
        self.parts, self.scale, self.estimator, self.others = parts, scale, estimator, others
        self.log_likelihood = scale * sum((part.log_likelihood for part in parts), torch.zeros(()))

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        return self.scale * sum((part.log_det(precisions) for part in self.parts), torch.zeros(()))

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        found = [part.effective(precisions) for part in self.parts]
        return {name: self.scale * torch.stack([gamma[name] for gamma in found]).sum() for name in found[0]}

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        # How many data are used is a setting of the rule; the graph of a subset is small enough to be kept.
        fixed = {name: precision.detach() for name, precision in precisions.items()}
        parts = self.others(generator)
        while (term := self._term(parts, fixed)) is not None:
            yield term

    @torch.enable_grad()
    def _term(self, parts: Iterator[tuple[Curvature, int]], precisions: Precisions) -> Float[Tensor, ""] | None:
        """Of the next part, with a graph; None when there is none."""
        part, _ = next(parts, (None, 0))
        return None if part is None else self.scale * (part.log_likelihood - part.log_det(precisions) / 2)
