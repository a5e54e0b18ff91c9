"""One pass over the data that feeds what every map saw and got back to accumulators.

The scale of everything is set here and in the accumulators, once: log-probabilities and curvature are sums over data. What is
collected are sums; blocks are made from them afterwards, so that sums can be collected again to be differentiated (`replay`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, DiagonalBlock
from symbayes.curvature.capture import Capture, is_differentiable
from symbayes.curvature.evaluate import log_likelihood
from symbayes.curvature.fisher import Fisher
from symbayes.curvature.free import free_gradients, refuse_unused
from symbayes.curvature.reference import reference_of
from symbayes.curvature.replay import Precisions, Replay, Sums
from symbayes.curvature.rule import BlockCurvature, log_det_of
from symbayes.curvature.sites import Site
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
    def add(self, part: int, gradients: Float[Tensor, "v m *rest"]) -> None:
        """Add gradients of the map's output for some columns of one part, for the batch last seen."""

    @abstractmethod
    def sums(self) -> dict[str, Tensor]:
        """What was collected, by any name: sums over data."""

    @abstractmethod
    def blocks(self, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> dict[str, Block]:
        """The blocks by tensor that follow from sums: those of this accumulator, or others of the same names."""


#: What collects the curvature of each map, made anew for a model.
Accumulators = Callable[[], Mapping[str, Accumulator]]
#: Where sums of free tensors are kept: the name of no map.
_FREE = "."


def swept_curvature(
    model: nn.Module,
    data: DataSource,
    likelihood: Likelihood,
    fisher: Fisher,
    accumulators: Accumulators,
    *,
    batch_size: int,
    generator: Generator | None,
    estimator: str,
) -> BlockCurvature:
    """Curvature as blocks that follow from sums over the data, from one pass over them.

    Raises:
        NotFiniteError: If inputs or the loss are not finite.
    """
    whole = accumulators()
    scales = fisher.scales(likelihood)
    sums, log_likelihood = sweep(model, data, likelihood, fisher, whole, batch_size=batch_size, generator=generator)

    def collect(part: DataSource) -> tuple[Sums, Tensor]:
        return sweep(model, part, likelihood, fisher, accumulators(), batch_size=batch_size, generator=generator)

    def log_det(sums: Sums, precisions: Precisions) -> Tensor:
        return log_det_of(make_blocks(whole, sums, scales.detach()), precisions)

    held = {key: value.detach() for key, value in sums.items()}
    replay = Replay(held, collect, log_det, data, batch_size)
    return BlockCurvature(make_blocks(whole, sums, scales), log_likelihood, estimator, replay)


def make_blocks(accumulators: Mapping[str, Accumulator], sums: Sums, scales: Float[Tensor, " k"]) -> dict[str, Block]:
    """The block of every tensor from sums over the data."""
    blocks: dict[str, Block] = {}
    by_map: dict[str, dict[str, Tensor]] = {}
    for (name, what), value in sums.items():
        by_map.setdefault(name, {})[what] = value
    for what, squares in by_map.pop(_FREE, {}).items():
        blocks[what] = DiagonalBlock(torch.einsum("k,kp->p", scales.to(squares), squares))
    for name, of_map in by_map.items():
        blocks |= accumulators[name].blocks(of_map, scales.to(next(iter(of_map.values())).device))
    return blocks


def sweep(
    model: nn.Module,
    data: DataSource,
    likelihood: Likelihood,
    fisher: Fisher,
    accumulators: Mapping[str, Accumulator],
    *,
    batch_size: int,
    generator: Generator | None,
) -> tuple[Sums, Float[Tensor, ""]]:
    """What accumulators and free tensors collect, as sums over the data, and log p(D | W).

    With a graph, if gradients are on and the forward pass depends on more than weights.
    """
    total: Tensor = torch.zeros(())
    free: dict[str, Float[Tensor, "k p"]] = {}
    seen = 0
    capture = Capture(model)
    with ExitStack() as capturing:
        for inputs, targets in data.batches(batch_size):
            if not seen:
                check_capture(capture, inputs)
                capturing.enter_context(capture)
                capture.differentiable = is_differentiable(model, inputs)
            outputs = capture.forward(inputs)
            predicted = outputs if capture.differentiable else outputs.detach()
            total = total + log_likelihood(likelihood, inputs, predicted, targets, data.number(seen))
            columns = fisher.columns(likelihood, predicted, targets, generator)
            collect(capture, accumulators, free, inputs, outputs, columns)
            seen += len(inputs)
    return collected(accumulators, free), total


@torch.no_grad()
def check_capture(capture: Capture, inputs: Tensor) -> None:
    """Hold what maps and free tensors say of the first of some data against torch's own gradients.

    Raises:
        RuntimeError: If they do not agree, naming a tensor; or as `reference_of` says.
    """
    model, sites = capture.model, capture.sites
    reference = reference_of(model, inputs)
    if reference is None:
        return
    found: dict[str, Tensor] = {}
    sizes: dict[str, Tensor] = {}
    one = len(reference.inputs) // 2

    def add(part: int, name: str, gradients: Tensor) -> None:
        site = sites.maps[name]
        rows, seen = gradient_rows(site, gradients), site.form.input_rows(capture.inputs[name])
        if site.weight is not None:
            found[site.weight] = site.form.weight_from_rows(torch.einsum("vnsbo,nsbi->boi", rows, seen))
            squares = torch.einsum("vnsbo,nsbi->boi", rows.square(), seen.square())
            sizes[site.weight] = site.form.weight_from_rows(squares).sqrt()
        if site.bias is not None:
            found[site.bias] = bias_gradients(site, rows).sum((0, 1))
            sizes[site.bias] = site.form.bias_from_rows(rows.square().sum(2)).sum((0, 1)).sqrt()

    def check_alone(part: int, name: str, gradients: Tensor) -> None:
        site = sites.maps[name]
        by_datum = gradients[0].unflatten(0, (-1, site.fold)).abs().flatten(1).amax(1)
        by_datum[one] = 0
        if (by_datum > 0).any():
            raise RuntimeError(
                f"Module {site.module!r} must get the data along its first axis: what it gave for one of them matters to the "
                "outputs of others. Keep the batch first ([n, positions, features]); expand what is the same for all data to "
                "it, or make it an nn.Parameter."
            )

    with capture:
        capture.differentiable = False
        outputs = capture.forward(reference.inputs)
        if not reference.gives(outputs.detach()):
            raise RuntimeError(
                "The model must give the same outputs while its curvature is captured; it does not. Use Ggn() or Lanczos(), "
                "which do not look into modules."
            )
        capture.backward(outputs, reference.column[None, None], add)
        alone = torch.zeros_like(reference.column)
        alone[one] = reference.column[one]
        capture.backward(capture.forward(reference.inputs), alone[None, None], check_alone)
        if sites.free:
            refuse_unused(model, sites.free, reference.inputs)
            for name, each in free_gradients(model, sites.free, reference.inputs, reference.column[None]).items():
                found[name], sizes[name] = each.sum((0, 1)), each.square().sum((0, 1)).sqrt()
    wrong = reference.unlike(found, sizes)
    if wrong is not None:
        raise RuntimeError(
            f"Parameter {wrong!r} is used in another way than as its module says, so its curvature from what the module saw "
            "would be wrong. Use it in that module alone, give each use a parameter of its own, freeze it "
            "(requires_grad=False), or use Ggn() or Lanczos(), which do not look into modules."
        )


def collect(
    capture: Capture,
    accumulators: Mapping[str, Accumulator],
    free: dict[str, Float[Tensor, "k p"]],
    inputs: Tensor,
    outputs: Float[Tensor, "n c"],
    columns: Float[Tensor, "k v n c"],
) -> None:
    """Add what maps saw and get back in the forward pass that was captured last; nothing waits for the device."""

    def deliver(part: int, name: str, gradients: Tensor) -> None:
        if name in accumulators:
            accumulators[name].add(part, gradients)

    columns = columns if capture.differentiable else columns.detach()
    for name, accumulator in accumulators.items():
        accumulator.see(capture.inputs[name])
    capture.backward(outputs, columns, deliver)
    if capture.sites.free:
        _add_free(capture, inputs, columns, free)


def collected(accumulators: Mapping[str, Accumulator], free: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """The sums of all maps and free tensors."""
    of_maps = {(name, what): value for name, a in accumulators.items() for what, value in a.sums().items()}
    return {**of_maps, **{(_FREE, name): squares for name, squares in free.items()}}


def _add_free(capture: Capture, inputs: Tensor, columns: Float[Tensor, "k v n c"], free: dict[str, Tensor]) -> None:
    model, names = capture.model, capture.sites.free
    found = free_gradients(model, names, inputs, columns.flatten(0, 1), differentiable=capture.differentiable)
    for name, gradient in found.items():
        squares = gradient.unflatten(0, columns.shape[:2]).square().sum((1, 2))
        free[name] = free[name] + squares if name in free else squares


def gradient_rows(site: Site, gradients: Float[Tensor, "v m *rest"]) -> GradientRows:
    """The rows of gradients for several columns."""
    rows = site.form.output_rows(gradients.flatten(0, 1))
    return rows.unflatten(0, (len(gradients), -1))


def weight_gradients(inputs: Rows, gradients: GradientRows) -> Float[Tensor, "v n block d_out d_in"]:
    """The gradient of the weight for every column and datum on its own."""
    return torch.einsum("vnsbo,nsbi->vnboi", gradients, inputs)


def bias_gradients(site: Site, gradients: GradientRows) -> Float[Tensor, "v n p"]:
    """The gradient of the bias for every column and datum on its own."""
    return site.form.bias_from_rows(gradients.sum(2))
