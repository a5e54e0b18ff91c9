"""One pass over the data, which collects sums.

The scale of everything is set here and in the accumulators, once: log-probabilities and curvature are sums over data. What is
collected are sums; blocks are made from them afterwards, so that sums can be collected again to be differentiated (`replay`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, DiagonalBlock
from symbayes.curvature.capture import Capture
from symbayes.curvature.check import check_capture, follow_check
from symbayes.curvature.evaluate import is_differentiable, log_likelihood
from symbayes.curvature.gradients import free_gradients, squared_gradients
from symbayes.curvature.memory import within_budget
from symbayes.curvature.rule import BlockCurvature, Fisher, Precisions, Replay, Sums, log_det_of
from symbayes.data.source import DataSource
from symbayes.layout import Site, hyperparameters
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.processes import Processes


class Accumulator(ABC):
    """Collects the curvature of the tensors of one map over batches; two batches give what one would."""

    site: Site
    #: Input rows that were seen, where blocks depend on how many.
    rows_seen: float = 0

    def see(self, inputs: Tensor, parts: int) -> None:
        """Begin a batch: what the map saw, so many parts of every datum."""
        self.site = replace(self.site, parts=parts)
        self.begin(inputs)

    @abstractmethod
    def begin(self, inputs: Tensor) -> None:
        """Begin a batch, with `site` as the map was called in it."""

    @abstractmethod
    def add(self, part: int, gradients: Float[Tensor, "v m *rest"]) -> None:
        """Add gradients of the map's output for some columns of one part, for the batch last seen."""

    @abstractmethod
    def sums(self) -> dict[str, Tensor]:
        """What was collected, by any name: sums over data."""

    @abstractmethod
    def blocks(self, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> dict[str, Block]:
        """The blocks by tensor that follow from sums: those of this accumulator, or others of the same names.

        What asks for no gradients may be overwritten.
        """


#: What collects the curvature of each map, made anew for a model.
Accumulators = Callable[[], dict[str, Accumulator]]
#: Where sums of free tensors are kept: the name of no map.
_FREE = "."
#: What processes add up beside sums.
_ROWS, _TOTAL = ("", "rows"), ("", "log p(D | W)")


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
    run = partial(sweep, likelihood=likelihood, fisher=fisher, batch_size=batch_size, generator=generator)
    capture = Capture(model)
    sums, log_likelihood = run(capture, data, accumulators=whole)

    def collect(part: DataSource) -> tuple[Sums, Tensor]:
        return run(Capture(model), part, accumulators=accumulators(), check=False)

    def log_det(sums: Sums, precisions: Precisions) -> Tensor:
        return log_det_of(make_blocks(dict(known), dict(sums), scales.detach()), precisions)

    if capture.tracked or hyperparameters(model) or fisher.needs_graph(likelihood):
        known, held = whole, {key: value.detach().clone() for key, value in sums.items()}
        replay = Replay(held, collect, log_det, data, batch_size)
        return BlockCurvature(make_blocks(dict(whole), sums, scales), log_likelihood, estimator, replay)
    known = {}

    @torch.no_grad()
    def again() -> Sums:
        known.update(accumulators())
        return run(Capture(model), data, accumulators=known, check=False)[0]

    # As far as is seen nobody will ask: sums become blocks in their place, and would be collected once more.
    replay = Replay(again, collect, log_det, data, batch_size)
    return BlockCurvature(make_blocks(whole, sums, scales), log_likelihood, estimator, replay)


def make_blocks(
    accumulators: dict[str, Accumulator], sums: dict[tuple[str, str], Tensor], scales: Float[Tensor, " k"]
) -> dict[str, Block]:
    """The block of every tensor from sums over the data, which are overwritten where they ask for no gradients."""
    blocks: dict[str, Block] = {}
    for name, what in [key for key in sums if key[0] == _FREE]:
        squares = sums.pop((name, what))
        blocks[what] = DiagonalBlock(torch.einsum("k,kp->p", scales.to(squares), squares))
    for name in list(accumulators):
        accumulator = accumulators.pop(name)
        own = {what: sums.pop((of, what)) for of, what in [key for key in sums if key[0] == name]}
        if own:
            blocks |= accumulator.blocks(own, scales.to(next(iter(own.values())).device))
    return blocks


def sweep(
    capture: Capture,
    data: DataSource,
    *,
    likelihood: Likelihood,
    fisher: Fisher,
    accumulators: Mapping[str, Accumulator],
    batch_size: int,
    generator: Generator | None,
    check: bool = True,
) -> tuple[dict[tuple[str, str], Tensor], Float[Tensor, ""]]:
    """What accumulators and free tensors collect, as sums over the data, and log p(D | W).

    With a graph, if gradients are on and the forward pass depends on more than weights. Maps are compared with torch's own
    gradients first, unless that was done before. Data that processes share are added up by all of them.
    """
    total: Tensor = torch.zeros(())
    free: dict[str, Float[Tensor, "k p"]] = {}
    seen, reference = 0, None
    predicted: Tensor = torch.zeros(0, 0)
    model, of = capture.model, data.processes
    capture.coarse = likelihood.bears_rounding
    batch_size = within_budget(model, data, batch_size)
    with ExitStack() as capturing, of.together():
        for whole, targets in data.batches(max(batch_size, of.fewest)):
            mine = of.share(len(whole))
            inputs = whole[mine]
            if not len(inputs):  # of few data, at the end
                fisher.columns_of(mine, likelihood, predicted[:0], targets, generator)
                continue
            if not seen:
                if check:
                    reference = check_capture(capture, inputs)
                else:
                    follow_check(capture)
                capturing.enter_context(capture)
                through_noise = fisher.needs_graph(likelihood) and torch.is_grad_enabled()
                capture.differentiable = through_noise or is_differentiable(model, inputs)
            outputs = capture.forward(inputs)
            if reference is not None and not seen:
                reference.refuse_others(outputs)
            predicted = outputs if capture.differentiable else outputs.detach()
            total = total + log_likelihood(likelihood, inputs, predicted, targets[mine], data.number(seen))
            columns = fisher.columns_of(mine, likelihood, predicted, targets, generator)
            collect(capture, accumulators, free, inputs, outputs, columns)
            seen += len(inputs)
    return add_up(of, accumulators, collected(accumulators, free), total)


def add_up(
    processes: Processes, accumulators: Mapping[str, Accumulator], sums: dict[tuple[str, str], Tensor], total: Float[Tensor, ""]
) -> tuple[dict[tuple[str, str], Tensor], Float[Tensor, ""]]:
    """What all processes collected: sums, and log p(D | W); accumulators then know how many rows all have seen."""
    if processes.count == 1:
        return sums, total
    rows = torch.tensor([accumulator.rows_seen for accumulator in accumulators.values()], dtype=torch.float64)
    found = processes.sums({**sums, _ROWS: rows, _TOTAL: total})
    for accumulator, seen in zip(accumulators.values(), found.pop(_ROWS).tolist(), strict=True):
        accumulator.rows_seen = seen
    total = found.pop(_TOTAL)
    return {key: found[key] for key in sums}, total


def collect(
    capture: Capture,
    accumulators: Mapping[str, Accumulator],
    free: dict[str, Float[Tensor, "k p"]],
    inputs: Tensor,
    outputs: Float[Tensor, "n c"],
    columns: Float[Tensor, "k v n c"],
) -> None:
    """Add what maps saw and get back in the forward pass that was captured last; nothing waits for the device."""
    squares = {name: [torch.zeros(())] * len(columns) for name in (*capture.spread, *capture.tied)}
    sharing = {site.name: name for name, sites in capture.tied.items() for site in sites}
    arrived: dict[str, dict[str, Tensor]] = {name: {} for name in capture.tied}

    def deliver(part: int, name: str, gradients: Tensor) -> None:
        if name in accumulators:
            accumulators[name].add(part, gradients)
        elif name in sharing:
            tensor = sharing[name]
            arrived[tensor][name] = gradients
            if len(arrived[tensor]) == len(capture.tied[tensor]):
                sites = [capture.sites[site.name] for site in capture.tied[tensor]]
                squares[tensor][part] = squares[tensor][part] + squared_gradients(sites, capture.inputs, arrived[tensor])
                arrived[tensor] = {}
        elif name in squares:
            squares[name][part] = squares[name][part] + gradients.flatten(2).square().sum((0, 1))

    columns = columns if capture.differentiable else columns.detach()
    for name, accumulator in accumulators.items():
        accumulator.see(capture.inputs[name], capture.sites[name].parts)
    capture.backward(outputs, columns, deliver)
    for name, parts in squares.items():
        _add(name, torch.stack(parts), free)
    if capture.free:
        _add_free(capture, inputs, columns, free)


def collected(accumulators: Mapping[str, Accumulator], free: Mapping[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """The sums of all maps and free tensors."""
    of_maps = {(name, what): value for name, a in accumulators.items() for what, value in a.sums().items()}
    return {**of_maps, **{(_FREE, name): squares for name, squares in free.items()}}


def _add_free(capture: Capture, inputs: Tensor, columns: Float[Tensor, "k v n c"], free: dict[str, Tensor]) -> None:
    found = free_gradients(capture.model, capture.free, inputs, columns.flatten(0, 1), differentiable=capture.differentiable)
    for name, gradient in found.items():
        _add(name, gradient.unflatten(0, columns.shape[:2]).square().sum((1, 2)), free)


def _add(name: str, squares: Float[Tensor, "k p"], free: dict[str, Tensor]) -> None:
    free[name] = free[name] + squares if name in free else squares
