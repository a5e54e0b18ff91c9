"""What a network has to know of the data that it is built for."""

from torch import Tensor

from symbayes.data.task import Task

#: What networks are built for: a task, or a pair of inputs and class numbers.
Classified = Task | tuple[Tensor, Tensor]
Shape = tuple[int, ...]


def shape_and_classes(data: Classified) -> tuple[Shape, int]:
    """The shape of one input, and the number of classes."""
    if isinstance(data, Task):
        return data.in_shape, data.classes
    return tuple(data[0].shape[1:]), int(data[1].max()) + 1
