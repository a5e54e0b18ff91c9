"""Batches in which no datum is alone: torch's gradients through norms may be wrong for one, and norms cannot train on it."""

from collections.abc import Iterator

import torch
from torch import Tensor

#: Inputs and targets.
Batch = tuple[Tensor, Tensor]


def chunks(whole: Tensor, size: int) -> list[Tensor]:
    """Pieces of this size; the last may be smaller, or larger by one, so that it is no single datum."""
    pieces = list(whole.split(size))
    if len(pieces) > 1 and len(pieces[-1]) == 1:
        pieces[-2:] = [torch.cat(pieces[-2:])]
    return pieces


def paired(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches in which no datum is alone: it comes with those after it, and the last with those before it."""
    ready: Batch | None = None
    alone: Batch | None = None
    for batch in batches:
        whole = batch if alone is None else _joined(alone, batch)
        alone = whole if len(whole[0]) == 1 else None
        if alone is None:
            if ready is not None:
                yield ready
            ready = whole
    if alone is not None:
        ready = alone if ready is None else _joined(ready, alone)
    if ready is not None:
        yield ready


def _joined(first: Batch, second: Batch) -> Batch:
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])


def regrouped(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    """Batches of just this size, whatever the size of those that come (a DataLoader has its own).

    The last may be smaller, or larger by one, so that no datum is alone unless that is asked for.
    """
    found = _of_size(batches, size)
    return found if size == 1 else paired(found)


def _of_size(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for x, y in batches:
        inputs, targets = [torch.cat([*inputs, x])], [torch.cat([*targets, y])]
        while len(inputs[0]) >= size:
            yield inputs[0][:size], targets[0][:size]
            inputs, targets = [inputs[0][size:]], [targets[0][size:]]
    if inputs and len(inputs[0]):
        yield inputs[0], targets[0]
