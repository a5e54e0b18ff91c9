"""Several inputs of a datum as one tensor: a dictionary of tensors, as tokenizers give it, or a tuple of them."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from symbayes.data.numbers import Numbers, as_tensor, first_weight

#: What a network takes beside a single tensor.
Inputs = Mapping[str, Numbers] | Sequence[Numbers]


class Packed(nn.Module):
    """A network of several inputs, which `fit`, `predict` and all others are given as they are: they lay them side by side.

    `sb.fit(model, data)` takes a Dataset or a DataLoader whose data are dictionaries with targets among them, tuples with
    targets last, or pairs (inputs, targets); or all data as one of these. The model itself is called with inputs that lie side
    by side, [n, numbers], as `pack` gives them.

    Args:
        network: Called with inputs by name where they are a dictionary, else in their order. Of what it gives, `logits` are
            taken where it has them, as networks of transformers do.
        example: Inputs of some data, for their names, shapes and types; or a Dataset, a list or a DataLoader, whose first
            is looked at.
        targets: The name of targets where data are dictionaries.
    """

    def __init__(self, network: nn.Module, example: Any, targets: str = "labels") -> None:
        super().__init__()
        self.network, self.targets = network, targets
        inputs = self._example(example)
        self.names = tuple(inputs) if isinstance(inputs, Mapping) else None
        parts = self._parts(inputs)
        self.shapes = tuple(tuple(part.shape[1:]) for part in parts)
        self.types = tuple(part.dtype for part in parts)

    def pack(self, inputs: Any) -> Tensor:
        """Inputs as one tensor, in the precision of the weights.

        Raises:
            ValueError: If they are others than those of the example, of different lengths, or whole numbers too large for that
                precision.
        """
        parts, first = self._parts(inputs), first_weight(self.network)
        weight = torch.empty(()) if first is None else first
        found = [(tuple(part.shape[1:]), part.is_floating_point()) for part in parts]
        if found != [(shape, dtype.is_floating_point) for shape, dtype in zip(self.shapes, self.types, strict=True)]:
            got = [(tuple(part.shape), part.dtype) for part in parts]
            raise ValueError(
                f"Inputs must be as in the example, {list(zip(self.shapes, self.types, strict=True))}; got {got}. Pad what "
                "differs in length, such as by padding='max_length' of a tokenizer."
            )
        if len({part.shape[:1] for part in parts}) > 1:
            raise ValueError(
                f"Inputs must be of as many data each, got shapes {', '.join(str(list(part.shape)) for part in parts)}. Give "
                "every datum all of them."
            )
        packed = torch.cat([part.to(weight).reshape(len(part), -1) for part in parts], 1)
        for part, again in zip(parts, self._unpack(packed), strict=True):
            if not part.is_floating_point() and not torch.equal(again, part.to(again.device)):
                raise ValueError(
                    f"Whole numbers must fit into {weight.dtype}; the largest is {int(part.max())}. Number what they stand for "
                    "from 0 on."
                )
        return packed

    def forward(self, packed: Tensor) -> Tensor:
        parts = self._unpack(packed)
        given: Any = self.network(*parts) if self.names is None else self.network(**dict(zip(self.names, parts, strict=True)))
        found: Tensor = getattr(given, "logits", given)
        return found

    def split(self, data: Any, *, alone: bool = False) -> tuple[Numbers, Any]:
        """Inputs side by side, and targets, of a batch or of all data; None for targets where inputs may come alone, and do.

        Raises:
            TypeError: If they are laid out in no way that is known.
            ValueError: If a dictionary has no targets.
        """
        if isinstance(data, Mapping):
            if not alone and self.targets not in data:
                raise ValueError(
                    f"Data of dictionaries must have their targets as {self.targets!r}; got {', '.join(map(str, data))}. Name "
                    "them by sb.Packed(network, example, targets=...), or give a pair (inputs, targets)."
                )
            return self.pack(self._without_targets(data)), data.get(self.targets)
        if _is_pair(data):
            return self.pack(data[0]), data[1]
        parts = (data,) if isinstance(data, Numbers) else data
        if are_numbers(parts):
            together = self.names is not None or self._lies_together(as_tensor(parts[0]))
            count = 1 if together else len(self.shapes)
            if len(parts) == count + 1 or (alone and len(parts) == count):
                return parts[0] if together else self.pack(parts[:count]), parts[-1] if len(parts) > count else None
        wanted = f"dictionaries with {self.targets!r}" if self.names is not None else "tuples with targets last"
        many = f" of {len(data)}" if isinstance(data, tuple | list) else ""
        raise TypeError(f"Data for this model must be {wanted}, or pairs (inputs, targets); got a {type(data).__name__}{many}.")

    def _lies_together(self, inputs: Tensor) -> bool:
        """Whether these are inputs side by side already, as `pack` gives them."""
        return inputs.is_floating_point() and inputs.shape[1:] == (sum(self._sizes()),)

    def _example(self, example: Any) -> Any:
        """Inputs of an example, or of the first of some data."""
        by_number = not are_all(example)
        if by_number:
            example = _first(example)
        if isinstance(example, Mapping):
            return self._without_targets(example)
        inputs: Any = None
        if _is_pair(example):
            inputs = example[0]
        elif isinstance(example, tuple | list):
            inputs = tuple(example[:-1] if by_number else example)
        if not inputs:
            raise TypeError(
                "An example must be a dictionary or a tuple of inputs, or data that are made of such; got a "
                f"{type(example).__name__}. A network of a single input needs no sb.Packed."
            )
        return inputs

    def _without_targets(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {name: part for name, part in data.items() if name != self.targets}

    def _sizes(self) -> list[int]:
        """Of each input of a datum, side by side."""
        return [prod(shape) for shape in self.shapes]

    def _unpack(self, packed: Tensor) -> list[Tensor]:
        sizes = self._sizes()
        if packed.ndim != 2 or packed.shape[1] != sum(sizes):
            raise ValueError(
                f"Packed inputs must be [n, {sum(sizes)}], as model.pack(inputs) gives; got {tuple(packed.shape)}."
            )
        parts = zip(packed.split(sizes, 1), self.shapes, self.types, strict=True)
        return [_typed(part.reshape(len(part), *shape), dtype) for part, shape, dtype in parts]

    def _parts(self, inputs: Any) -> list[Tensor]:
        """Tensors in the order of the example."""
        if self.names is None and isinstance(inputs, tuple | list):
            return [as_tensor(part) for part in _checked(dict(enumerate(inputs))).values()]
        if self.names is not None and isinstance(inputs, Mapping) and set(inputs) == set(self.names):
            return [as_tensor(part) for part in _checked({name: inputs[name] for name in self.names}).values()]
        wanted = "a tuple of tensors" if self.names is None else f"a dictionary of {', '.join(self.names)}"
        got = f"one of {', '.join(inputs)}" if isinstance(inputs, Mapping) else f"a {type(inputs).__name__}"
        raise ValueError(f"Inputs must be {wanted}, as in the example; got {got}.")


def _first(data: Any) -> Any:
    """A batch of the first datum."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset):
        if iter(dataset) is iter(dataset):
            raise ValueError(
                f"Data must be there again after their first was looked at; this {type(dataset).__name__} can be read once. "
                "Give an example of inputs."
            )
        datum = next(iter(dataset))
    else:
        datum = dataset[0]
    if not isinstance(data, DataLoader):
        return default_collate([datum])
    return data.collate_fn([datum] if data.batch_sampler is not None else datum)


def _is_pair(data: Any) -> bool:
    """Whether these are several inputs, and targets."""
    return isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Mapping | tuple | list)


def are_numbers(parts: Any) -> bool:
    """Whether these are tensors, arrays or frames; one at least."""
    return isinstance(parts, tuple | list) and len(parts) > 0 and all(isinstance(part, Numbers) for part in parts)


def are_all(data: Any) -> bool:
    """Whether these are all data in one, rather than data by number, as a list of tuples or dictionaries is."""
    if isinstance(data, list):
        return len(data) > 0 and isinstance(data[-1], Numbers)
    return isinstance(data, Mapping | tuple)


def _checked(parts: Mapping[Any, Any]) -> Mapping[Any, Numbers]:
    for name, part in parts.items():
        if not isinstance(part, Numbers):
            raise TypeError(
                f"Inputs must be tensors or arrays; {name!r} is a {type(part).__name__}. Let a tokenizer give tensors, "
                "return_tensors='pt', or a data set, with_format('torch'); and drop columns of text."
            )
    return parts


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers and truth values as they were; real ones stay in the precision of the weights."""
    return part if dtype.is_floating_point else part.round().to(dtype)
