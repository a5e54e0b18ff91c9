"""Data as batches: tensors, arrays, frames, a Dataset or a DataLoader, checked, counted, and never one datum alone."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from symbayes.data.transform import Augmentation
from symbayes.errors import NotFiniteError

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
        whole = batch if alone is None else _join(alone, batch)
        alone = whole if len(whole[0]) == 1 else None
        if alone is None:
            if ready is not None:
                yield ready
            ready = whole
    if alone is not None:
        ready = alone if ready is None else _join(ready, alone)
    if ready is not None:
        yield ready


def _join(first: Batch, second: Batch) -> Batch:
    return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])


def regroup(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
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


def check_loader(loader: DataLoader[Any], size: int) -> list[int]:
    """The lengths of batches, of a loader that gives each of so many data once in a pass.

    Raises:
        ValueError: If it leaves data out or repeats them, or draws others in every pass.
    """
    with _random_numbers_kept(getattr(loader.sampler, "generator", None)):
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


#: What users may pass wherever data are asked for.
@runtime_checkable
class Frame(Protocol):
    """A table of pandas, polars and others, or one of its columns."""

    def to_numpy(self) -> np.ndarray:
        """Its values."""


#: Numbers by datum, of one kind or another.
Numbers = Tensor | np.ndarray | Frame
Data = tuple[Numbers, Numbers] | Dataset[Any] | DataLoader[Any]


class DataSource(ABC):
    """A data set of known size that can be read again and again."""

    size: int
    #: Whether a pass goes through the data as they were given, so that a datum can be named by its number.
    in_order: bool = True

    def batches(self, batch_size: int, *, generator: Generator | None = None) -> Iterator[Batch]:
        """One pass over the data as they are, shuffled if a generator is given; in no batch is a datum alone.

        For a single datum torch's gradients through norms may be wrong, and batch norms cannot train.

        Raises:
            ValueError: If fewer or more data came than there are.
        """
        return self._count(paired(self._batches(max(2, batch_size), generator)))

    @abstractmethod
    def _batches(self, batch_size: int, generator: Generator | None) -> Iterator[Batch]:
        """One pass over the data."""

    def training_batches(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        """One pass over the data, shuffled, and varied where there is an augmentation; one by one only if asked for."""
        batches = self._batches(batch_size, generator)
        return self._count(batches if batch_size == 1 else paired(batches))

    def generators(self) -> tuple[Generator, ...]:
        """Generators of its own, from which passes draw beside the one they are given."""
        return ()

    def number(self, index: int) -> int | None:
        """The number of a datum that came at this place in a pass; None where that is not known."""
        return index if self.in_order else None

    def _count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        seen = 0
        for batch in batches:
            seen += len(batch[0])
            yield batch
        if seen != self.size:
            raise ValueError(
                f"A pass over the data must give each of the {self.size} data once; got {seen}. The evidence is of all of "
                "them: use a DataLoader without drop_last, and samplers whose length is what they draw."
            )


class TensorSource(DataSource):
    """Data that lie in memory, on the device where they are used.

    Args:
        inputs: [n, *rest].
        targets: [n, *rest].
        device: Where they are to lie.
        augment: How they are varied in training; not at all when None.
        in_order: Whether these are the data from the first on.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        device: torch.device,
        augment: Augmentation | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"Inputs and targets must have the same length, got {len(inputs)} and {len(targets)}.")
        self.inputs, self.targets, self.size = inputs.to(device), targets.to(device), len(inputs)
        self.augment, self.in_order = augment, in_order

    def _batches(self, batch_size: int, generator: Generator | None) -> Iterator[Batch]:
        if generator is None:
            yield from zip(chunks(self.inputs, batch_size), chunks(self.targets, batch_size), strict=True)
            return
        order = torch.randperm(self.size, generator=generator).to(self.inputs.device)
        for index in chunks(order, batch_size):
            yield self.inputs[index], self.targets[index]

    def training_batches(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        for plan in self.plans(batch_size, generator):
            yield self.planned(plan)

    def plans(self, batch_size: int, generator: Generator) -> list[Int[Tensor, "m k"]]:
        """The plan of a pass, batch by batch."""
        return chunks(self.plan(generator), batch_size)

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

    def _batches(self, batch_size: int, generator: Generator | None) -> Iterator[Batch]:
        loader = DataLoader(self.dataset, batch_size, shuffle=generator is not None, generator=generator)
        return (_pair(batch, self.device) for batch in loader)


class LoaderSource(DataSource):
    """A user's DataLoader, which keeps its own batch size, order and workers.

    Raises:
        ValueError: If it leaves data out or repeats them.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        if loader.drop_last:
            raise ValueError("A DataLoader for symbayes must have drop_last=False: the evidence is of all the data.")
        self.loader, self.device, self.size = loader, device, _length(loader.sampler)
        self.in_order = type(loader.sampler) is SequentialSampler and type(loader.batch_sampler) is BatchSampler
        lengths = check_loader(loader, self.size)
        #: Batches in a pass.
        self.count = sum(1 for _ in paired((torch.empty(length),) * 2 for length in lengths))

    def generators(self) -> tuple[Generator, ...]:
        own = (self.loader.generator, getattr(self.loader.sampler, "generator", None))
        return tuple({id(generator): generator for generator in own if generator is not None}.values())

    def training_batches(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        return super().training_batches(self.loader.batch_size or batch_size, generator)

    def _batches(self, batch_size: int, generator: Generator | None) -> Iterator[Batch]:
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


def as_tensor(numbers: Numbers, precision: torch.dtype | None = None) -> Tensor:
    """Numbers as a tensor; real ones of arrays and frames, which come in double precision, in this one.

    Raises:
        TypeError: If they are no numbers.
    """
    if isinstance(numbers, Tensor):
        return numbers
    values = np.ascontiguousarray(numbers.to_numpy() if isinstance(numbers, Frame) else numbers)
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"Data must be numbers, so that a network can take them; got a {type(numbers).__name__} of {values.dtype}. Number "
            "what is text, such as by pandas.factorize(column)[0], and drop columns that are no inputs."
        )
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    native = values.astype(values.dtype.newbyteorder("="), copy=not values.flags.writeable)
    found = torch.as_tensor(native)
    return found if precision is None or not found.is_floating_point() else found.to(precision)


def as_source(
    data: Data | DataSource, device: torch.device, augment: Augmentation | None = None, precision: torch.dtype | None = None
) -> DataSource:
    """Any accepted kind of data as a source of batches.

    Args:
        data: Of which kind they are.
        device: For what is given out.
        augment: How inputs vary from pass to pass.
        precision: Of real numbers in arrays and frames; as they are when None.

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
    elif isinstance(data, IterableDataset):
        raise TypeError(
            "A data set must give its data by number, since they are read again and again in other orders; an IterableDataset "
            "does not. Use a Dataset with __getitem__ and __len__, or tensors."
        )
    elif isinstance(data, Dataset):
        source = DatasetSource(data, device)
    elif isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Numbers) for part in data):
        source = TensorSource(as_tensor(data[0], precision), as_tensor(data[1], precision), device, augment)
    else:
        raise TypeError(
            "Data must be a pair of tensors, arrays or frames (inputs, targets), a Dataset of such pairs, or a DataLoader; "
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
    return regroup(data.batches(size, generator=shuffle), size)


def check_finite(inputs: Tensor, start: int | None = 0) -> None:
    """Refuse inputs with NaN or infinite entries.

    Args:
        inputs: A batch.
        start: The number of its first datum in the data; None where they are shuffled.

    Raises:
        NotFiniteError: Naming the first bad datum.
    """
    if not (inputs.is_floating_point() or inputs.is_complex()):
        return
    bad = ~inputs.isfinite().flatten(1).all(1) if inputs.ndim > 1 else ~inputs.isfinite()
    if bad.any():
        raise NotFiniteError(
            f"Inputs must be finite, got NaN or infinity in {int(bad.sum())} of {len(inputs)} data of a batch"
            f"{first_datum(bad, start)}. Clean or drop them."
        )


def first_datum(bad: Bool[Tensor, " n"], start: int | None) -> str:
    """Where in the data the first of some is, in words; nothing where that is not known."""
    return "" if start is None else f", first in datum {start + int(bad.nonzero()[0])}"


def _pair(batch: Any, device: torch.device) -> Batch:
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        many = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(f"A batch must be a pair of tensors (inputs, targets), got a {type(batch).__name__}{many}.")
    return batch[0].to(device), batch[1].to(device)


def _length(dataset: object) -> int:
    if not isinstance(dataset, Sized):
        raise TypeError(f"A data set must have a length, got {type(dataset).__name__} without one.")
    return len(dataset)
