"""Numbers by datum, of one kind or another, as tensors."""

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn


@runtime_checkable
class Frame(Protocol):
    """A table of pandas, polars and others, or one of its columns."""

    def to_numpy(self) -> np.ndarray:
        """Its values."""


#: Numbers by datum, of one kind or another.
Numbers = Tensor | np.ndarray | Frame


def as_tensor(numbers: Numbers, precision: torch.dtype | None = None) -> Tensor:
    """Numbers as a tensor; real ones in this precision, since those of arrays and frames come in double.

    Raises:
        TypeError: If they are no numbers.
    """
    found = numbers if isinstance(numbers, Tensor) else _from_array(numbers)
    return found if precision is None or not found.is_floating_point() else found.to(precision)


def _from_array(numbers: np.ndarray | Frame) -> Tensor:
    values = np.ascontiguousarray(numbers.to_numpy() if isinstance(numbers, Frame) else numbers)
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"Data must be numbers, so that a network can take them; got a {type(numbers).__name__} of {values.dtype}. Number "
            "what is text, such as by pandas.factorize(column)[0], and drop columns that are no inputs."
        )
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    return torch.as_tensor(values.astype(values.dtype.newbyteorder("="), copy=not values.flags.writeable))


def first_weight(model: nn.Module) -> nn.Parameter | None:
    """The weight whose device and precision data take: the first that is learned, else the first that is no whole number."""
    real = [weight for weight in model.parameters() if weight.is_floating_point() or weight.is_complex()]
    return next((weight for weight in real if weight.requires_grad), real[0] if real else None)
