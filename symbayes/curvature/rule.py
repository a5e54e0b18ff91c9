"""The contract of curvature: rules, the square roots of the Fisher information they send back, and sums to differentiate.

Curvature is made of sums over data: S = Σ_b S_b. With V = ∂ log|I + HΔ⁻¹| / ∂S, computed once and without a graph over the
data, the gradient in whatever the forward pass depends on (extents of invariance, inputs, any tensor η) is

    ∂ log|I + HΔ⁻¹| / ∂η = Σ_b ⟨V, ∂S_b/∂η⟩,

so batches can be differentiated one after the other and forgotten: memory does not grow with the data (Immer et al. 2022). With
all batches it is exact; with some of them, drawn at random and scaled up, it is right on average.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, nan

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block
from symbayes.curvature.decompositions import decompose_under
from symbayes.data.source import Batch, DataSource, LoaderSource, TensorSource
from symbayes.likelihoods.likelihood import Columns, Likelihood

#: Sums over data, by what they are sums of.
Sums = Mapping[tuple[str, str], Tensor]
Precisions = Mapping[str, Float[Tensor, ""]]


@dataclass(frozen=True)
class Replay:
    """How to collect the sums that curvature was made of once more, with a graph.

    Args:
        sums: Over all the data; or what collects them, where hardly anybody will ask.
        collect: Sums and log p(D | W) of other data, differentiable in what the forward pass depends on.
        log_det: log|I + HΔ⁻¹| from sums over all the data.
        data: All of them.
        batch_size: Data in a batch.
    """

    sums: Sums | Callable[[], Sums]
    collect: Callable[[DataSource], tuple[Sums, Float[Tensor, ""]]]
    log_det: Callable[[Sums, Precisions], Float[Tensor, ""]]
    data: DataSource
    batch_size: int

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        """As `Curvature.surrogates` says."""
        slopes = self.slopes(precisions)
        for batch, scale in some_batches(self.data, self.batch_size, share, generator):
            yield self.term(TensorSource(*batch, batch[0].device, in_order=False), slopes, scale)

    @torch.enable_grad()
    def term(self, batch: DataSource, slopes: Sums, scale: float) -> Float[Tensor, ""]:
        """What some data add to the gradient, times a scale; with `slopes`."""
        sums, log_likelihood = self.collect(batch)
        charge = sum(((slopes[key] * value).sum() for key, value in sums.items()), torch.zeros(()))
        return scale * (log_likelihood - charge / 2)

    def slopes(self, precisions: Precisions) -> dict[tuple[str, str], Tensor]:
        """V = ∂ log|I + HΔ⁻¹| / ∂S, by sum."""
        sums = self.sums() if callable(self.sums) else self.sums
        leaves = {key: value.detach().requires_grad_() for key, value in sums.items()}
        with torch.enable_grad():
            log_det = self.log_det(leaves, {name: precision.detach() for name, precision in precisions.items()})
        found = torch.autograd.grad(log_det, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, found, strict=True))


def some_batches(data: DataSource, batch_size: int, share: float, generator: Generator | None) -> Iterator[tuple[Batch, float]]:
    """About a share of the data in random batches, and what sums over them are to be multiplied by; all for a share of 1.

    Of each batch what this process adds up.
    """
    for (inputs, targets), scale in _some_batches(data, max(batch_size, data.processes.fewest), share, generator):
        mine = data.processes.share(len(inputs))
        if mine.start < mine.stop:
            yield (inputs[mine], targets[mine]), scale


def _some_batches(
    data: DataSource, batch_size: int, share: float, generator: Generator | None
) -> Iterator[tuple[Batch, float]]:
    """The same, of whole batches."""
    if not 0 < share <= 1:
        raise ValueError(f"share must lie above 0 and be at most 1 (all the data), got {share}.")
    if share == 1:
        yield from ((batch, 1.0) for batch in data.batches(batch_size))
        return
    generator = generator or torch.Generator().manual_seed(0)
    if isinstance(data, LoaderSource):  # its batches may come in an order of its own: some are drawn, wherever they stand
        count = data.count
        wanted = ceil(share * count)
        chosen = set(torch.randperm(count, generator=generator)[:wanted].tolist())
        for index, batch in enumerate(data.batches(batch_size, generator=generator)):
            if index in chosen:
                yield batch, count / wanted
        return
    wanted = min(data.size, ceil(share * data.size / batch_size) * batch_size)
    seen = 0
    for batch in data.batches(batch_size, generator=generator):
        kept = batch[0][: wanted - seen], batch[1][: wanted - seen]
        yield kept, data.size / wanted
        seen += len(kept[0])
        if seen >= wanted:
            break


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

    def standard_error(self, precisions: Precisions) -> float:
        """Of the log-determinant, by what was drawn to estimate it and where that stopped; nan where that is not known."""
        return nan

    def slack(self, precisions: Precisions) -> float:
        """How far the log-determinant may be off, at most, because its estimate stopped early; nan where that is not known."""
        return nan

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

    @property
    def in_blocks(self) -> bool:
        """Whether it gives a `BlockCurvature`, near which that of the full GGN can be sought."""
        return False

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
                "all data, Optimiser(running=0, eigenbasis=0)."
            )
        return self.replay.surrogates(precisions, share, generator)

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        return effective_of(self.blocks, precisions)

    def trace(self) -> dict[str, Float[Tensor, ""]]:
        """tr H by tensor."""
        return {name: block.trace() for name, block in self.blocks.items()}


def log_det_of(blocks: Mapping[str, Block], precisions: Precisions) -> Float[Tensor, ""]:
    """log|I + H Δ⁻¹| of independent blocks."""
    series = decompose_under(blocks, precisions)
    terms = [block.log_det(precisions[name], negligible=name in series) for name, block in blocks.items()]
    return sum(terms[1:], terms[0])


def effective_of(blocks: Mapping[str, Block], precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
    """γ of independent blocks, by tensor."""
    series = decompose_under(blocks, precisions)
    return {name: block.effective(precisions[name], negligible=name in series) for name, block in blocks.items()}


class Fisher(ABC):
    """A square root of the curvature of −log p(y | f), as columns at unit scale and the scale of each part."""

    #: Whether columns are drawn from the generator.
    draws: bool = True

    @abstractmethod
    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns: ...

    def columns_of(
        self, share: slice, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None
    ) -> Columns:
        """The same for a share of a batch, with what would be drawn for all of it.

        Args:
            share: Which data of the batch.
            likelihood: Of targets given outputs.
            outputs: Of these data.
            targets: Of the whole batch.
            generator: For what is drawn.
        """
        if not self.draws or len(outputs) == len(targets):
            return self.columns(likelihood, outputs, targets[share], generator)
        whole = outputs.new_zeros(len(targets), *outputs.shape[1:])
        whole[share] = outputs
        return self.columns(likelihood, whole, targets, generator)[:, :, share]

    def scales(self, likelihood: Likelihood) -> Float[Tensor, " k"]:
        """What each part is multiplied by; differentiable in the noise."""
        return likelihood.scales()

    def needs_graph(self, likelihood: Likelihood) -> bool:
        """Whether columns depend on the noise in another way than by their scale."""
        return False


@dataclass(frozen=True)
class ExactFisher(Fisher):
    """Every column of the square root: the generalised Gauss–Newton matrix itself."""

    draws = False

    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns:
        return likelihood.at(targets).fisher_columns(outputs)

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
        return likelihood.at(targets).sampled_columns(outputs, self.samples, generator=generator)

    def __str__(self) -> str:
        return f"Monte-Carlo Fisher, {self.samples} sample{'s' if self.samples > 1 else ''}"


@dataclass(frozen=True)
class EmpiricalFisher(Fisher):
    """Scores of the targets observed. Cheap and biased: it shrinks as the fit improves."""

    draws = False

    def columns(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, generator: Generator | None) -> Columns:
        return likelihood.score(outputs, targets)[None, None]

    def scales(self, likelihood: Likelihood) -> Float[Tensor, " k"]:
        return torch.ones(1)

    def needs_graph(self, likelihood: Likelihood) -> bool:
        return likelihood.learns_noise

    def __str__(self) -> str:
        return "empirical Fisher"
