"""An average over transformed inputs by operations of torch alone: what `OrbitAverage` computes when it evaluates.

Transformations are fixed by then, so what depends on them alone is a tensor: places where pixels are read, matrices of points
and of colours. Copies of a datum stand side by side in the batch, as in the average itself.
"""

import operator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional

from symbayes.groups.lie import Colours, Images, LieGroup, Points, Product, Sequences
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.surgery.graphs import module_of


@torch.no_grad()
def written_out(name: str, average: OrbitAverage, shape: tuple[int, ...]) -> nn.Module:
    """The network of an average and its transformations as a graph of torch.fx, for data of a shape.

    Raises:
        ValueError: If the group acts in a way of its own.
    """
    writer = _Writer(name)
    inputs = writer.graph.placeholder("inputs")
    draws = average.orbit.even(average.samples, antithetic=average.antithetic)[0]
    coefficients = average.orbit.coefficients(draws.to(average.orbit.value))
    copies = writer.call("expand", writer.call("unsqueeze", inputs, 0), average.samples, *(-1 for _ in range(len(shape) + 1)))
    moved = writer.moved(average.orbit.group, coefficients, copies, shape)
    batch = writer.call("flatten", writer.call("transpose", moved, 0, 1), 0, 1)
    writer.root.add_module("net", average.net)
    outputs = writer.call("unflatten", writer.graph.call_module("net", (batch,)), 0, (-1, average.samples))
    writer.graph.output(writer.call("mean", outputs, 1))
    plain = module_of(writer.root, writer.graph)
    plain.training = average.training
    return plain


@dataclass(frozen=True)
class _Writer:
    """A graph, and the tensors that it reads. Copies are [s, n, *shape]: the same transformation for all data of a row."""

    #: Of the average.
    name: str
    root: nn.Module = field(default_factory=nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)

    def call(self, method: str, *args: object) -> fx.Node:
        """A method of a tensor."""
        return self.graph.call_method(method, args)  # type: ignore[arg-type]

    def hold(self, tensor: Tensor) -> fx.Node:
        """A tensor that does not change."""
        name = f"maps_{len(self.root._buffers)}"
        self.root.register_buffer(name, tensor.contiguous())
        return self.graph.get_attr(name)

    def moved(self, group: LieGroup, coefficients: Float[Tensor, "s k"], copies: fx.Node, shape: tuple[int, ...]) -> fx.Node:
        """Copies under their transformations."""
        match group:
            case Product() if _acts_as(Product, group):
                for part in (group.first, group.second):
                    copies = self.moved(part, coefficients[:, [group.names.index(name) for name in part.names]], copies, shape)
                return copies
            case Images() if _acts_as(Images, group):
                copies = self._of_shape(copies, shape)
                places = group.places(coefficients, (shape[1], shape[2]))
                read = self._read(self.call("flatten", copies, 1, 2), places, group.padding)
                return self.call("unflatten", read, 1, (-1, shape[0]))
            case Sequences() if _acts_as(Sequences, group):
                copies = self._of_shape(copies, shape)
                rows = self.call("unsqueeze", self.call("flatten", copies, 1, 2), 2)
                read = self._read(rows, group.places(coefficients, shape[1])[:, None], group.padding)
                return self.call("unflatten", self.call("squeeze", read, 2), 1, (-1, shape[0]))
            case Points() if _acts_as(Points, group):
                T = group.elements(coefficients)[:, :-1]
                for _ in shape:
                    T = T[:, None]
                # [s, 1, (1,) d, d + 1]: points are rows.
                matrices, shifts = T[..., :-1].mT.squeeze(1), T[..., -1]
                return self._add(self.graph.call_function(torch.matmul, (copies, self.hold(matrices))), shifts)
            case Colours() if _acts_as(Colours, group):
                copies = self._of_shape(copies, shape)
                T = group.elements(coefficients)[:, None, :-1]
                values = self.call("flatten", copies, 3)
                mixed = self.graph.call_function(torch.matmul, (self.hold(T[..., :-1]), values))
                return self.call("unflatten", self._add(mixed, T[..., -1:]), 3, shape[1:])
            case _:
                raise ValueError(
                    f"Transformations to be written as plain layers must be of images, sequences, points or colours; "
                    f"{self.name or 'the model'!r} is averaged over a {type(group).__name__}. average=False gives the network "
                    "without its average, to be trained with result.augmentation()."
                )

    def _of_shape(self, copies: fx.Node, shape: tuple[int, ...]) -> fx.Node:
        """The same copies; torch refuses others, which would be read at places that are not theirs."""
        for axis, size in enumerate(shape, 2):
            copies = self.call("unflatten", copies, axis, (size,))
        return copies

    def _read(self, maps: fx.Node, places: Float[Tensor, "s h w 2"], padding: str) -> fx.Node:
        settings = {"mode": "bilinear", "padding_mode": padding, "align_corners": False}
        return self.graph.call_function(functional.grid_sample, (maps, self.hold(places)), settings)  # type: ignore[arg-type]

    def _add(self, node: fx.Node, shifts: Tensor) -> fx.Node:
        return self.graph.call_function(operator.add, (node, self.hold(shifts)))


def _acts_as(kind: type[LieGroup], group: LieGroup) -> bool:
    """Whether a group of a kind has no `transform` of its own."""
    return type(group).transform is kind.transform
