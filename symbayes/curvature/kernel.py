"""The full GGN as a kernel over data; and any rule on subsets of them, as a bound.

On a random subset of M of N data, (N/M) log|I + K_M| is on average an upper bound of the log-determinant, so the evidence is
bounded from below (Immer et al. 2023). The Gram matrices are computed once; precisions may then change at the price of an
M × M determinant.

With the data divided into subsets m, log|I + Σ_m H_m Δ⁻¹| ≤ Σ_m log|I + H_m Δ⁻¹|, because the log-determinant is concave. One
subset of M of N data, drawn at random and multiplied by N/M, gives that sum on average (Immer et al. 2023): no pass over all
the data is needed, neither for the evidence nor for its gradient. `TangentKernel` is the same in function space.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import cholesky
from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.curvature.ggn import Jacobians
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Curvature, Precisions, Rule
from symbayes.data.source import Batch, DataSource, TensorSource, chunks, random_subsets
from symbayes.layout import Layout, call_with, held
from symbayes.likelihoods.likelihood import Likelihood


@dataclass(frozen=True)
class TangentKernel(Rule):
    """The bound, averaged over disjoint random subsets.

    Args:
        subset: Data in a subset. All of them, in one subset, give the exact log-determinant of the full GGN.
        subsets: How many to average over; None for as many as the data hold.
        batch_size: Data whose Jacobians are computed at once.
    """

    subset: int = 100
    subsets: int | None = 1
    batch_size: int = 50

    def __post_init__(self) -> None:
        if self.subset < 1 or (self.subsets is not None and self.subsets < 1):
            raise ValueError(
                f"TangentKernel needs at least one subset of at least one datum, got {self.subsets} of {self.subset}."
            )

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> "KernelCurvature":
        sizes = {name: tensor.size for name, tensor in Layout.of(model).tensors.items()}
        jacobians = Jacobians(model, list(sizes))
        grams: list[Gram] = []
        seen = 0
        total: Tensor = torch.zeros(())
        for inputs, targets in self._subsets(data, generator):
            if self.subsets is None or len(grams) < self.subsets:
                grams.append(self._gram(jacobians, sizes, likelihood, inputs, targets))
                seen += len(inputs)
            total = total + self._log_likelihood(model, likelihood, inputs, targets)

        @torch.enable_grad()
        def term(precisions: Precisions, scale: float, inputs: Tensor, targets: Tensor) -> Tensor:
            fit = self._log_likelihood(model, likelihood, inputs, targets)
            return scale * (fit - self._gram(jacobians, sizes, likelihood, inputs, targets).log_det(precisions) / 2)

        def pieces(precisions: Precisions, scale: float, generator: Generator | None) -> Iterator[Tensor]:
            scale /= data.processes.count  # all of which have all terms
            for inputs, targets in islice(self._subsets(data, generator), self.subsets):
                yield term(precisions, scale, inputs, targets)

        return KernelCurvature(grams, seen, data.size, total, str(self), pieces)

    def _subsets(self, data: DataSource, generator: Generator | None) -> Iterator[Batch]:
        return random_subsets(data, self.subset, self.subsets, generator)

    def _log_likelihood(self, model: nn.Module, likelihood: Likelihood, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
        tensors = held(model, differentiable=True)
        with evaluating(model):
            outputs = torch.cat([call_with(model, tensors, part) for part in chunks(inputs, self.batch_size)])
        return log_likelihood(likelihood, inputs, outputs, targets, None)

    def _gram(
        self, jacobians: Jacobians, sizes: dict[str, int], likelihood: Likelihood, inputs: Tensor, targets: Tensor
    ) -> "Gram":
        rows: list[Tensor] = []
        for part, wanted in zip(inputs.split(self.batch_size), targets.split(self.batch_size), strict=True):
            outputs, J = jacobians(part, differentiable=True)
            columns = likelihood.at(wanted).fisher_columns(outputs)
            rows.append(torch.einsum("kvnc,ncp->knvp", columns, J).flatten(1, 2))
        together = torch.cat(rows, dim=1)
        scale = likelihood.scales().to(together).sqrt().repeat_interleave(together.shape[1])
        by_tensor = together.flatten(0, 1).split(list(sizes.values()), dim=1)
        return Gram({name: J_l @ J_l.T for name, J_l in zip(sizes, by_tensor, strict=True)}, scale)

    def __str__(self) -> str:
        many = "all subsets" if self.subsets is None else f"{self.subsets} subset{'s' if self.subsets > 1 else ''}"
        return f"function-space bound ({many} of {self.subset} data)"


@dataclass(frozen=True)
class Gram:
    """K_l for one subset at unit scale, and the scale of its rows, which may depend on a learned noise."""

    by_tensor: dict[str, Float[Tensor, "r r"]]
    row_scale: Float[Tensor, " r"]

    def scaled(self, K: Float[Tensor, "r r"]) -> Float[Tensor, "r r"]:
        return self.row_scale[:, None] * K.double() * self.row_scale

    def kernel(self, precisions: Precisions) -> Float[Tensor, "r r"]:
        """I + Σ_l K_l / δ_l."""
        # In double precision: the decomposition of a nearly singular kernel fails without.
        K = sum((K_l.double() / precisions[name] for name, K_l in self.by_tensor.items()), torch.zeros(()))
        return torch.eye(len(self.row_scale), device=self.row_scale.device) + self.scaled(torch.as_tensor(K))

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        """log|I + Σ_l K_l / δ_l|."""
        return 2 * cholesky(self.kernel(precisions)).diagonal().log().sum()


@dataclass(frozen=True)
class KernelCurvature(Curvature):
    """Gram matrices by tensor for each subset, of so many of the data."""

    grams: list[Gram]
    seen: int
    num_data: int
    log_likelihood: Float[Tensor, ""]
    estimator: str
    #: Surrogates of other subsets, multiplied by a scale.
    pieces: Callable[[Precisions, float, Generator | None], Iterator[Tensor]]

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        total: Tensor = torch.zeros(())
        for gram in self.grams:
            total = total + gram.log_det(precisions)
        return self.num_data / self.seen * total.to(self.grams[0].row_scale)

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        found: dict[str, Tensor] = {}
        for gram in self.grams:
            inverse = torch.cholesky_inverse(cholesky(gram.kernel(precisions)))
            for name, K in gram.by_tensor.items():
                term = self.num_data / self.seen * (inverse * gram.scaled(K)).sum().to(K) / precisions[name]
                found[name] = found[name] + term if name in found else term
        return found

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        # How many data are used is a setting of the rule: the bound itself is of subsets.
        fixed = {name: precision.detach() for name, precision in precisions.items()}
        return self.pieces(fixed, self.num_data / self.seen, generator)


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
        return SubsetCurvature([curvature for curvature, _ in found], scale, str(self), parts, data)

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
        data: DataSource,
    ) -> None:
        self.parts, self.scale, self.estimator, self.others, self.data = parts, scale, estimator, others, data
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
        if part is None:
            return None
        scale = self.scale / self.data.processes.count  # all of which have all terms
        return scale * (part.log_likelihood - part.log_det(precisions) / 2)
