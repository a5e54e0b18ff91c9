"""Several inputs of a datum as one tensor: a dictionary of tensors, as tokenizers give it, or a tuple of them."""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

#: What a network takes beside a single tensor.
Inputs = Mapping[str, Tensor] | tuple[Tensor, ...]


class Packed(nn.Module):
    """A network of several inputs, for data in which these lie side by side, [n, numbers].

    `pack` makes such data: `sb.fit(model, (model.pack(inputs), targets))`, `result.predict(model.pack(others))`.

    Args:
        network: Called with inputs by name where they are a dictionary, else in their order. Of what it gives, `logits` are
            taken where it has them, as networks of transformers do.
        example: Inputs of some data, for their names, shapes and types.
    """

    def __init__(self, network: nn.Module, example: Inputs) -> None:
        super().__init__()
        self.network = network
        self.names = tuple(example) if isinstance(example, Mapping) else None
        parts = self._parts(example)
        self.shapes = tuple(tuple(part.shape[1:]) for part in parts)
        self.types = tuple(part.dtype for part in parts)

    def pack(self, inputs: Inputs) -> Tensor:
        """Inputs as one tensor, in the precision of the weights.

        Raises:
            ValueError: If they are others than those of the example, or whole numbers too large for that precision.
        """
        parts, weight = self._parts(inputs), next(self.network.parameters())
        found = [(tuple(part.shape[1:]), part.is_floating_point()) for part in parts]
        if found != [(shape, dtype.is_floating_point) for shape, dtype in zip(self.shapes, self.types, strict=True)]:
            got = [(tuple(part.shape), part.dtype) for part in parts]
            raise ValueError(f"Inputs must be as in the example, {list(zip(self.shapes, self.types, strict=True))}; got {got}.")
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

    def _unpack(self, packed: Tensor) -> list[Tensor]:
        sizes = [prod(shape) for shape in self.shapes]
        if packed.ndim != 2 or packed.shape[1] != sum(sizes):
            raise ValueError(
                f"Packed inputs must be [n, {sum(sizes)}], as model.pack(inputs) gives; got {tuple(packed.shape)}."
            )
        parts = zip(packed.split(sizes, 1), self.shapes, self.types, strict=True)
        return [_typed(part.reshape(len(part), *shape), dtype) for part, shape, dtype in parts]

    def _parts(self, inputs: Inputs) -> list[Tensor]:
        """Tensors in the order of the example."""
        if self.names is None and not isinstance(inputs, Mapping):
            return list(inputs)
        if self.names is not None and isinstance(inputs, Mapping) and set(inputs) == set(self.names):
            return [inputs[name] for name in self.names]
        wanted = "a tuple of tensors" if self.names is None else f"a dictionary of {', '.join(self.names)}"
        got = f"one of {', '.join(inputs)}" if isinstance(inputs, Mapping) else f"a {type(inputs).__name__}"
        raise ValueError(f"Inputs must be {wanted}, as in the example; got {got}.")


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers and truth values as they were; real ones stay in the precision of the weights."""
    return part if dtype.is_floating_point else part.round().to(dtype)
