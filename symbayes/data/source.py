"""Where data come from: tensors, a Dataset or a DataLoader, all read as batches of inputs and targets."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from symbayes.data.augment import Variation
from symbayes.errors import NotFiniteError

#: What users may pass wherever data are asked for.
Data = tuple[Tensor, Tensor] | Dataset[Any] | DataLoader[Any]
Batch = tuple[Tensor, Tensor]


class DataSource(ABC):
    """A data set of known size that can be read again and again."""

    size: int

    @abstractmethod
    def batches(self, batch_size: int, *, generator: Generator | None = None) -> Iterator[Batch]:
        """One pass over the data as they are, shuffled if a generator is given."""

    def training_batches(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        """One pass over the data, shuffled, and varied where there is an augmentation."""
        return self.batches(batch_size, generator=generator)


class TensorSource(DataSource):
    """Data that lie in memory, on the device where they are used.

    Args:
        inputs: [n, *rest].
        targets: [n, *rest].
        device: Where they are to lie.
        augment: How they are varied in training; not at all when None.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, device: torch.device, augment: Variation | None = None) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"Inputs and targets must have the same length, got {len(inputs)} and {len(targets)}.")
        self.inputs, self.targets, self.size = inputs.to(device), targets.to(device), len(inputs)
        self.augment = augment

    def batches(self, batch_size: int, *, generator: Generator | None = None) -> Iterator[Batch]:
        if generator is None:
            yield from zip(self.inputs.split(batch_size), self.targets.split(batch_size), strict=True)
            return
        order = torch.randperm(self.size, generator=generator).to(self.inputs.device)
        for index in _chunks(order, batch_size):
            yield self.inputs[index], self.targets[index]

    def training_batches(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        for plan in self.plans(batch_size, generator):
            yield self.planned(plan)

    def plans(self, batch_size: int, generator: Generator) -> list[Int[Tensor, "m k"]]:
        """The plan of a pass, batch by batch."""
        return _chunks(self.plan(generator), batch_size)

    def plan(self, generator: Generator) -> Int[Tensor, "n k"]:
        """A pass of training, datum by datum: which one, and what the augmentation drew for it."""
        plan = torch.randperm(self.size, generator=generator)[:, None]
        if self.augment is not None:
            plan = torch.cat([plan, self.augment.draw(self.size, generator)], 1)
        return plan.to(self.inputs.device)

    def planned(self, plan: Int[Tensor, "m k"]) -> Batch:
        """The batch of some lines of a plan."""
        inputs, targets = self.as_they_are(plan)
        return inputs if self.augment is None else self.augment(inputs, plan[:, 1:]), targets

    def as_they_are(self, plan: Int[Tensor, "m k"]) -> Batch:
        """The same data without augmentation."""
        index = plan[:, 0]
        return self.inputs[index], self.targets[index]


class DatasetSource(DataSource):
    """A map-style Dataset, collated as torch does by default."""

    def __init__(self, dataset: Dataset[Any], device: torch.device) -> None:
        self.dataset, self.device, self.size = dataset, device, _length(dataset)

    def batches(self, batch_size: int, *, generator: Generator | None = None) -> Iterator[Batch]:
        loader = DataLoader(self.dataset, batch_size, shuffle=generator is not None, generator=generator)
        return (_pair(batch, self.device) for batch in loader)


class LoaderSource(DataSource):
    """A user's DataLoader, which keeps its own batch size, order and workers."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        if loader.drop_last:
            raise ValueError("A DataLoader for symbayes must have drop_last=False: the evidence is of all the data.")
        self.loader, self.device, self.size = loader, device, _length(loader.sampler)

    def batches(self, batch_size: int, *, generator: Generator | None = None) -> Iterator[Batch]:
        sampler = self.loader.sampler
        if generator is None or not isinstance(sampler, RandomSampler) or sampler.generator is not None:
            yield from (_pair(batch, self.device) for batch in self.loader)
            return
        # The order of the user's loader is tied to our seed for this pass; one that has its own generator keeps it.
        sampler.generator = generator
        try:
            yield from (_pair(batch, self.device) for batch in self.loader)
        finally:
            sampler.generator = None


def _chunks(whole: Tensor, size: int) -> list[Tensor]:
    chunks = list(whole.split(size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:  # batch norms cannot train on a single datum
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return chunks


def as_source(data: Data | DataSource, device: torch.device, augment: Variation | None = None) -> DataSource:
    """Any accepted kind of data as a source of batches.

    Raises:
        TypeError: If the data are of another kind.
        ValueError: If there are none, or they are to be augmented and are no tensors.
    """
    source: DataSource
    if isinstance(data, DataSource):
        source = data
    elif isinstance(data, DataLoader):
        source = LoaderSource(data, device)
    elif type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform what it gives
        source = TensorSource(data.tensors[0], data.tensors[1], device, augment)
    elif isinstance(data, Dataset):
        source = DatasetSource(data, device)
    elif isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        source = TensorSource(data[0], data[1], device, augment)
    else:
        raise TypeError(
            "Data must be a pair of tensors (inputs, targets), a Dataset of such pairs, or a DataLoader; "
            f"got {type(data).__name__}."
        )
    if augment is not None and (source is data or not isinstance(source, TensorSource)):
        raise ValueError(
            f"Only data that are tensors can be augmented here, got {type(data).__name__}. Give a pair (inputs, targets), or "
            "let the Dataset vary what it gives."
        )
    if source.size == 0:
        raise ValueError("The data set is empty: there must be at least one datum to learn from.")
    return source


def random_subsets(data: DataSource, size: int, count: int | None, generator: Generator | None) -> Iterator[Batch]:
    """Disjoint subsets of this size in random order; the last may be smaller.

    Args:
        data: All of them are read.
        size: Of a subset.
        count: How many will be used; None for all.
        generator: For the order.

    Raises:
        ValueError: If only some are used, and the data come in an order of their own.
    """
    some = count is not None and count * size < data.size
    if some and isinstance(data, LoaderSource) and not isinstance(data.loader.sampler, RandomSampler):
        raise ValueError(
            "Random subsets need data in random order; this DataLoader has an order of its own. Make it with shuffle=True, or "
            "pass the data set itself."
        )
    shuffle = generator if generator is not None else torch.Generator().manual_seed(0)
    return regrouped(data.batches(size, generator=shuffle), size)


def regrouped(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    """Batches of just this size, whatever the size of those that come (a DataLoader has its own); the last may be smaller."""
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for x, y in batches:
        inputs, targets = [torch.cat([*inputs, x])], [torch.cat([*targets, y])]
        while len(inputs[0]) >= size:
            yield inputs[0][:size], targets[0][:size]
            inputs, targets = [inputs[0][size:]], [targets[0][size:]]
    if inputs and len(inputs[0]):
        yield inputs[0], targets[0]


def check_finite(inputs: Tensor, start: int = 0) -> None:
    """Refuse inputs with NaN or infinite entries.

    Raises:
        NotFiniteError: Naming the first bad datum, counted from `start`.
    """
    if not inputs.is_floating_point():
        return
    bad = ~inputs.isfinite().flatten(1).all(1) if inputs.ndim > 1 else ~inputs.isfinite()
    if bad.any():
        first = start + int(bad.nonzero()[0])
        raise NotFiniteError(
            f"Inputs must be finite, got NaN or infinity in {int(bad.sum())} of {len(inputs)} data of a batch, first "
            f"in datum {first}. Clean or drop them."
        )


def _pair(batch: Any, device: torch.device) -> Batch:
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        raise TypeError(f"A batch must be a pair of tensors (inputs, targets), got {type(batch).__name__}.")
    return batch[0].to(device), batch[1].to(device)


def _length(dataset: object) -> int:
    if not isinstance(dataset, Sized):
        raise TypeError(f"A data set must have a length, got {type(dataset).__name__} without one.")
    return len(dataset)
