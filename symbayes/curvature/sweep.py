"""One pass over the data that feeds what every map saw and got back to accumulators.

The scale of everything is set here and in the accumulators, once: log-probabilities and curvature are sums over data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, DiagonalBlock
from symbayes.curvature.capture import Capture, Site
from symbayes.curvature.evaluate import log_likelihood
from symbayes.curvature.fisher import Fisher
from symbayes.curvature.free import free_gradients, refuse_unused
from symbayes.data.source import DataSource
from symbayes.likelihoods import Likelihood

Rows = Float[Tensor, "n s block d"]
#: Rows of the gradients of v columns.
GradientRows = Float[Tensor, "v n s block d_out"]


class Accumulator(ABC):
    """Collects the curvature of the tensors of one map over batches; two batches give what one would."""

    @abstractmethod
    def see(self, inputs: Tensor) -> None:
        """Begin a batch: what the map saw."""

    @abstractmethod
    def add(self, part: int, gradients: Float[Tensor, "v n *rest"]) -> None:
        """Add gradients of the map's output for some columns of one part, for the batch last seen."""

    @abstractmethod
    def blocks(self, scales: Float[Tensor, " k"]) -> dict[str, Block]:
        """The finished blocks by tensor."""


def sweep(
    model: nn.Module,
    data: DataSource,
    likelihood: Likelihood,
    fisher: Fisher,
    accumulators: Mapping[str, Accumulator],
    *,
    batch_size: int,
    generator: Generator | None,
) -> tuple[dict[str, Block], Float[Tensor, ""]]:
    """The block of every tensor, and log p(D | W), from one pass over the data.

    Raises:
        NotFiniteError: If inputs or the loss are not finite.
    """
    scales = fisher.scales(likelihood)
    total: Tensor = torch.zeros(())
    free: dict[str, Float[Tensor, "k p"]] = {}
    seen = 0

    def deliver(part: int, name: str, gradients: Tensor) -> None:
        if name in accumulators:
            accumulators[name].add(part, gradients)

    with Capture(model) as capture:
        for inputs, targets in data.batches(batch_size):
            outputs = capture.forward(inputs)
            total = total + log_likelihood(likelihood, inputs, outputs.detach(), targets, seen)
            if capture.sites.free and not seen:
                refuse_unused(model, capture.sites.free, inputs)
            columns = fisher.columns(likelihood, outputs.detach(), targets, generator).detach()
            for name, accumulator in accumulators.items():
                accumulator.see(capture.inputs[name])
            capture.backward(outputs, columns, deliver)
            if capture.sites.free:
                _add_free(model, capture.sites.free, inputs, columns, free)
            seen += len(inputs)
    blocks: dict[str, Block] = {}
    for accumulator in accumulators.values():
        blocks |= accumulator.blocks(scales.to(total.device))
    for name, squares in free.items():
        blocks[name] = DiagonalBlock(torch.einsum("k,kp->p", scales.to(squares), squares))
    return blocks, total


def _add_free(
    model: nn.Module, names: tuple[str, ...], inputs: Tensor, columns: Float[Tensor, "k v n c"], free: dict[str, Tensor]
) -> None:
    for name, gradient in free_gradients(model, names, inputs, columns.flatten(0, 1)).items():
        squares = gradient.unflatten(0, columns.shape[:2]).square().sum((1, 2))
        free[name] = free[name] + squares if name in free else squares


def gradient_rows(site: Site, gradients: Float[Tensor, "v n *rest"]) -> GradientRows:
    """The rows of gradients for several columns."""
    rows = site.form.output_rows(gradients.flatten(0, 1))
    return rows.unflatten(0, gradients.shape[:2])


def weight_gradients(inputs: Rows, gradients: GradientRows) -> Float[Tensor, "v n block d_out d_in"]:
    """The gradient of the weight for every column and datum on its own."""
    return torch.einsum("vnsbo,nsbi->vnboi", gradients, inputs)


def bias_gradients(site: Site, gradients: GradientRows) -> Float[Tensor, "v n p"]:
    """The gradient of the bias for every column and datum on its own."""
    return site.form.bias_from_rows(gradients.sum(2))
