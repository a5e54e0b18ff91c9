"""The gradient of a log-determinant through the curvature, a batch at a time.

Curvature is made of sums over data: S = Σ_b S_b. With V = ∂ log|I + HΔ⁻¹| / ∂S, computed once and without a graph over the
data, the gradient in whatever the forward pass depends on (extents of invariance, inputs, any tensor η) is

    ∂ log|I + HΔ⁻¹| / ∂η = Σ_b ⟨V, ∂S_b/∂η⟩,

so batches can be differentiated one after the other and forgotten: memory does not grow with the data (Immer et al. 2022). With
all batches it is exact; with some of them, drawn at random and scaled up, it is right on average.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from symbayes.data.batches import Batch
from symbayes.data.source import DataSource, LoaderSource, TensorSource

#: Sums over data, by what they are sums of.
Sums = Mapping[tuple[str, str], Tensor]
Precisions = Mapping[str, Float[Tensor, ""]]


@dataclass(frozen=True)
class Replay:
    """How to collect the sums that curvature was made of once more, with a graph.

    Args:
        sums: Over all the data.
        collect: Sums and log p(D | W) of other data, differentiable in what the forward pass depends on.
        log_det: log|I + HΔ⁻¹| from sums over all the data.
        data: All of them.
        batch_size: Data in a batch.
    """

    sums: Sums
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
            yield self._term(TensorSource(*batch, batch[0].device, in_order=False), slopes, scale)

    @torch.enable_grad()
    def _term(self, batch: DataSource, slopes: Sums, scale: float) -> Float[Tensor, ""]:
        sums, log_likelihood = self.collect(batch)
        charge = sum(((slopes[key] * value).sum() for key, value in sums.items()), torch.zeros(()))
        return scale * (log_likelihood - charge / 2)

    def slopes(self, precisions: Precisions) -> dict[tuple[str, str], Tensor]:
        """V = ∂ log|I + HΔ⁻¹| / ∂S, by sum."""
        leaves = {key: value.detach().requires_grad_() for key, value in self.sums.items()}
        with torch.enable_grad():
            log_det = self.log_det(leaves, {name: precision.detach() for name, precision in precisions.items()})
        found = torch.autograd.grad(log_det, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, found, strict=True))


def some_batches(data: DataSource, batch_size: int, share: float, generator: Generator | None) -> Iterator[tuple[Batch, float]]:
    """About a share of the data in random batches, and what sums over them are to be multiplied by; all for a share of 1."""
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
