"""Data as batches: tensors, arrays, frames, a Dataset or a DataLoader, checked, counted, and never one datum alone."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from symbayes.data.loaders import check_loader, refuse_dropped, sampler_of
from symbayes.data.numbers import Numbers, as_tensor, first_weight
from symbayes.data.packed import Inputs, Packed, are_all, are_numbers
from symbayes.data.transform import Augmentation
from symbayes.errors import NotFiniteError
from symbayes.processes import ALONE, Processes

#: Inputs and targets.
Batch = tuple[Tensor, Tensor]
#: As many data of an IterableDataset are read, and as many bytes of them; and so many at a time.
MOST_DATA, MOST_BYTES, _AT_ONCE = 2**20, 2**32, 256

_log = logging.getLogger("symbayes")


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


@runtime_checkable
class Indexed(Protocol):
    """Data by number, as torch's Dataset has them, and those of other libraries."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


#: What users may pass wherever data are asked for; several inputs for a model that is `Packed`.
Data = tuple[Numbers | Inputs, Numbers] | Mapping[str, Numbers] | Dataset[Any] | DataLoader[Any] | Indexed


@dataclass(frozen=True)
class Taking:
    """How a model takes data: on a device, real numbers in a precision, several inputs side by side."""

    device: torch.device
    #: As they are when None.
    precision: torch.dtype | None = None
    #: None for a model of one input.
    packed: Packed | None = None
    #: Whether inputs may come without targets.
    alone: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> "Taking":
        """As its weights are, and side by side where it, or a module in it, is `Packed`."""
        weight = first_weight(model)
        packed = next((module for module in model.modules() if isinstance(module, Packed)), None)
        return cls(torch.device("cpu"), None, packed) if weight is None else cls(weight.device, weight.dtype, packed)

    def pair(self, data: Any) -> Batch:
        """Inputs and targets of a batch, or of all data; targets [n, 0] where inputs may come alone, and do.

        Raises:
            TypeError: If they are no such pair.
        """
        parts = (data,) if isinstance(data, Numbers) else data
        if self.packed is not None:
            inputs, targets = self.packed.split(data, alone=self.alone)
        elif are_numbers(parts) and (len(parts) == 2 or (self.alone and len(parts) == 1)):
            inputs, targets = parts if len(parts) == 2 else (*parts, None)
        else:
            many = f" of {len(data)}" if isinstance(data, tuple | list) else ""
            raise TypeError(
                f"A batch must be a pair of tensors (inputs, targets), got a {type(data).__name__}{many}. A network of several "
                "inputs stands in sb.Packed(network, data), which takes dictionaries and tuples of them."
            )
        given = self.numbers(inputs)
        if targets is None and self.alone:
            return given, given.new_empty(len(given), 0)
        if not isinstance(targets, Numbers):
            raise TypeError(f"Targets must be a tensor or an array, got a {type(targets).__name__}.")
        return given, self.numbers(targets)

    def numbers(self, given: Numbers) -> Tensor:
        """Inputs or targets alone."""
        return as_tensor(given, self.precision).to(self.device)


class DataSource(ABC):
    """A data set of known size that can be read again and again."""

    size: int
    #: Whether a pass goes through the data as they were given, so that a datum can be named by its number.
    in_order: bool = True
    #: Whether all processes read the same in the same order, so that batches can be shared out.
    can_be_shared: bool = True
    #: Those that sum over the data together.
    processes: Processes = ALONE

    def own_batches(self, batch_size: int) -> Iterator[Batch]:
        """Of every batch of a pass what this process adds up; all of it, unless the data are shared."""
        of = self.processes
        for inputs, targets in self.batches(max(batch_size, of.fewest)):
            mine = of.share(len(inputs))
            if mine.start < mine.stop:
                yield inputs[mine], targets[mine]

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
        return index if self.in_order and self.processes.count == 1 else None

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

    def __init__(self, dataset: Dataset[Any] | Indexed, taking: Taking) -> None:
        self.dataset, self.taking, self.size = dataset, taking, _length(dataset)

    def _batches(self, batch_size: int, generator: Generator | None) -> Iterator[Batch]:
        dataset = cast("Dataset[Any]", self.dataset)
        loader = DataLoader(dataset, batch_size, shuffle=generator is not None, generator=generator, collate_fn=_stacked)
        return map(self.taking.pair, loader)


class LoaderSource(DataSource):
    """A user's DataLoader, which keeps its own batch size, order and workers.

    Raises:
        ValueError: If it leaves data out or repeats them.
    """

    can_be_shared = False

    def __init__(self, loader: DataLoader[Any], taking: Taking) -> None:
        refuse_dropped(loader)
        self.loader, self.taking, self.size = loader, taking, _length(sampler_of(loader))
        plain = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
        self.in_order = plain and type(sampler_of(loader)) is SequentialSampler
        lengths = check_loader(loader, self.size)
        #: Batches in a pass.
        self.count = sum(1 for _ in paired((torch.empty(length),) * 2 for length in lengths))

    def generators(self) -> tuple[Generator, ...]:
        own = (self.loader.generator, getattr(sampler_of(self.loader), "generator", None))
        return tuple({id(generator): generator for generator in own if generator is not None}.values())

    def training_batches(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        return super().training_batches(self.loader.batch_size or batch_size, generator)

    def _batches(self, batch_size: int, generator: Generator | None) -> Iterator[Batch]:
        sampler = sampler_of(self.loader)
        if generator is None or not isinstance(sampler, RandomSampler) or sampler.generator is not None:
            yield from map(self.taking.pair, self.loader)
            return
        # The order of the user's loader is tied to our seed for this pass; one that has its own generator keeps it.
        sampler.generator = generator
        try:
            yield from map(self.taking.pair, self.loader)
        finally:
            sampler.generator = None


def _stacked(data: list[Any]) -> Any:
    """A batch, as torch makes it.

    Raises:
        ValueError: If data have several shapes.
    """
    try:
        return default_collate(data)
    except RuntimeError as error:
        raise ValueError(
            f"All data must have one shape, so that they can be a tensor ({error}). Pad them, or give a DataLoader with a "
            "collate_fn that does."
        ) from error


def read_once(stream: Dataset[Any] | DataLoader[Any], taking: Taking) -> Batch:
    """All data of an IterableDataset, or of a DataLoader of one, as tensors; without workers, which may repeat them.

    Raises:
        ValueError: If there are too many of them to be kept, other than they say, or of several shapes; or if a subclass of
            DataLoader has workers.
    """
    if isinstance(stream, DataLoader):
        refuse_dropped(stream)
        dataset, loader = stream.dataset, stream
        if type(stream) is DataLoader:
            collate = _stacked if stream.collate_fn is default_collate else stream.collate_fn
            loader = DataLoader(dataset, stream.batch_size, collate_fn=collate)
        elif stream.num_workers:
            raise ValueError(
                f"An IterableDataset must be read without workers, each of which may give all of it; this "
                f"{type(stream).__name__} has {stream.num_workers}. Make it with num_workers=0."
            )
    else:
        dataset, loader = stream, DataLoader(stream, _AT_ONCE, collate_fn=_stacked)
    found: list[Batch] = []
    count = size = 0
    for batch in map(taking.pair, loader):
        count, size = count + len(batch[0]), size + sum(part.nbytes for part in batch)
        if count > MOST_DATA or size > MOST_BYTES:
            raise ValueError(
                "Data must end, since the evidence is of all of them; an IterableDataset is read once and kept, up to "
                f"{MOST_DATA:,} data and {MOST_BYTES / 2**30:.3g} GiB, and this one goes on. Cut it off, such as by "
                "itertools.islice, or use a Dataset with __getitem__ and __len__."
            )
        found.append(batch)
    given, what = (len(found), "batches") if loader.batch_size is None else (count, "data")
    said = len(dataset) if isinstance(dataset, Sized) else given
    if said != given:
        raise ValueError(f"An IterableDataset must give as many {what} as its length says, {said}; got {given}.")
    if len({(inputs.shape[1:], targets.shape[1:]) for inputs, targets in found}) > 1:
        raise ValueError("All data of an IterableDataset must have one shape, since they are kept as tensors. Pad them.")
    _log.info("Read %s data of a %s once; they are kept, %.3g MiB.", f"{count:,}", type(dataset).__name__, size / 2**20)
    if not found:
        return torch.empty(0), torch.empty(0)
    return torch.cat([inputs for inputs, _ in found]), torch.cat([targets for _, targets in found])


def source_for(model: nn.Module, data: Data | DataSource, augment: Augmentation | None = None) -> DataSource:
    """Any accepted kind of data as a source of batches that a model takes; as `as_source` otherwise."""
    return as_source(data, Taking.of(model), augment)


def inputs_for(model: nn.Module, data: Numbers | Inputs | Data) -> Tensor:
    """The inputs of some data as a model takes them; targets, where there are some, are left aside.

    Raises:
        ValueError: If data come in another order than they have.
    """
    taking = replace(Taking.of(model), alone=True)
    if isinstance(data, Numbers):
        return taking.pair(data)[0]
    source = as_source(cast(Data, data), taking)
    if not source.in_order:
        raise ValueError(
            "Inputs must come in the order of the data, so that predictions can be told apart; this DataLoader has an order of "
            "its own. Give one without shuffle and sampler, or the data set itself."
        )
    return torch.cat([inputs for inputs, _ in source.batches(_AT_ONCE)])


def as_source(data: Data | DataSource, taking: Taking | torch.device, augment: Augmentation | None = None) -> DataSource:
    """Any accepted kind of data as a source of batches.

    Args:
        data: Of which kind they are.
        taking: How they are given out; as they are on a device.
        augment: How inputs vary from pass to pass.

    Raises:
        TypeError: If the data are of another kind.
        ValueError: If there are none, or they are to be augmented and are no tensors.
    """
    taking = Taking(taking) if isinstance(taking, torch.device) else taking
    source: DataSource
    streams = isinstance(data, IterableDataset) or (isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset))
    if isinstance(data, DataSource):
        source = data
    elif streams:
        source = TensorSource(*read_once(cast(Any, data), replace(taking, device=torch.device("cpu"))), taking.device, augment)
    elif isinstance(data, DataLoader):
        source = LoaderSource(data, taking)
    elif type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform what it gives
        source = TensorSource(*taking.pair(data.tensors), taking.device, augment)
    elif isinstance(data, Dataset):
        source = DatasetSource(data, taking)
    elif are_all(data):
        source = TensorSource(*taking.pair(data), taking.device, augment)
    elif isinstance(data, Indexed) and not isinstance(data, Numbers | str):
        source = DatasetSource(data, taking)
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
    if some and isinstance(data, LoaderSource) and not isinstance(sampler_of(data.loader), RandomSampler):
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
    if not (inputs.is_floating_point() or inputs.is_complex()) or inputs.sum().isfinite():  # which one that is not would spoil
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


def _length(dataset: object) -> int:
    if not isinstance(dataset, Sized):
        raise TypeError(f"A data set must have a length, got {type(dataset).__name__} without one.")
    return len(dataset)
