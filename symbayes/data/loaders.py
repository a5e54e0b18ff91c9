"""What a user's DataLoader draws: each datum once in a pass, and the same in every pass."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import BatchSampler, DataLoader


def check_loader(loader: DataLoader[Any], size: int) -> list[int]:
    """The lengths of batches, of a loader that gives each of so many data once in a pass.

    Raises:
        ValueError: If it leaves data out or repeats them, or draws others in every pass.
    """
    with _random_numbers_kept(getattr(sampler_of(loader), "generator", None)):
        passes = [_indices(loader, size) for _ in range(2)]
    drawn, again = ([index for batch in batches for index in batch] for batches in passes)
    repeated = len(drawn) - len(set(drawn))
    if repeated or len(drawn) != size:
        raise ValueError(
            f"A DataLoader for symbayes must give each of its {size} data once in a pass; this one draws "
            f"{len(drawn) if len(drawn) <= size else 'more'}, {repeated} of them again. The evidence is of all the data: "
            "sample without replacement, and without drop_last."
        )
    if set(drawn) != set(again):
        raise ValueError(
            f"A DataLoader for symbayes must give the same data in every pass; this one draws {size} others each time. Choose "
            "them once, such as by torch.utils.data.Subset."
        )
    return [len(batch) for batch in passes[0]]


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What draws the data; beside a batch sampler, torch gives loaders one that draws nothing."""
    return loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else loader.sampler


def _indices(loader: DataLoader[Any], size: int) -> list[list[Any]]:
    """Which data make the batches of a pass, as far as there are one more than there should be."""
    found: list[list[Any]] = []
    seen = 0
    for batch in loader.batch_sampler if loader.batch_sampler is not None else ([index] for index in loader.sampler):
        found.append([int(index) if isinstance(index, Tensor) else index for index in batch])
        seen += len(batch)
        if seen > size:
            break
    return found


@contextmanager
def _random_numbers_kept(own: Generator | None) -> Iterator[None]:
    """Generators that a sampler may draw from are put back to where they were."""
    state = own.get_state() if own is not None else None
    numbers, drawn = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(numbers)  # noqa: NPY002
        random.setstate(drawn)
        if own is not None and state is not None:
            own.set_state(state)


def refuse_dropped(loader: DataLoader[Any]) -> None:
    """Refuse a loader that leaves the last data out."""
    if loader.drop_last:
        raise ValueError("A DataLoader for symbayes must have drop_last=False: the evidence is of all the data.")
