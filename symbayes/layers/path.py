"""The contract of a path: a linear map with shared weights, and how it shares them.

Every map y = W x + b in this library can be written over *rows*. With n data, s positions that share weights,
and independent blocks of weights side by side,

    output_rows[n, s, block, :] = weight_rows[block] @ input_rows[n, s, block, :] + bias_rows[block]

An output is its rows, put in order. It may also be a fixed linear function of them (weights that are expanded by a basis);
then `output_rows`, which curvature gives gradients to, is the transpose of that function.

A fully connected map has one position and one block. A convolution has a position for each output pixel, whose
input row is the patch under the filter, and a block for each group of channels. So a symmetry is only a choice of
rows. `forward` is free to be fast; the contract is that it equals the row form. The curvature code knows rows and
nothing else, which is why a new equivariant layer touches no curvature code.

Two sides meet here. Who writes a layer gives tensors (`input_rows`, `output_rows`) and says what is special about them in
attributes. Who reads it gets `Rows`: a value that carries both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn

from symbayes.groups.group import Group

#: What is known of input rows: nothing; a single non-zero entry in each, so that their second moment is diagonal; or that the
#: map only scales its inputs (norm layers), so that its curvature is kept as a diagonal. Dense rows are linear in the inputs.
Structure = Literal["dense", "one-hot", "diagonal"]


@dataclass(frozen=True)
class Rows:
    """The rows of some data, and what is known of them.

    Args:
        values: The numbers.
        copies: How many transformed copies of a datum the positions are of, [copies · rest], where outputs are averaged over
            copies. Rows are then averaged over copies before second moments are taken, as the outputs are.
        structure: Of each row.
        share: Of positions, at which each block has a row; it has zeros at the others. None where it has one at all of them.
    """

    values: Float[Tensor, "n s block d"]
    copies: int = 1
    structure: Structure = "dense"
    share: Float[Tensor, " block"] | None = None

    def fold(self, copies: int) -> "Rows":
        """Copies of a datum that stand side by side among the data, as positions of that datum."""
        if copies == 1:
            return self
        return replace(self, values=self.values.unflatten(0, (-1, copies)).flatten(1, 2), copies=copies * self.copies)

    def join(self, parts: int) -> "Rows":
        """Parts of a datum that stand side by side among the data, as positions of that datum."""
        if parts == 1:
            return self
        values = self.values.unflatten(1, (self.copies, -1)).unflatten(0, (-1, parts)).transpose(1, 2)
        return replace(self, values=values.flatten(1, 3))

    def mean_over_copies(self, weights: Float[Tensor, " some"] | None = None) -> "Rows":
        """One row in place of those of all copies; the mean of several one-hot rows is dense.

        Args:
            weights: Of copies in the mean; for all of them, or for those of an outer average alone, in which the others count
                the same. None where all do.
        """
        if self.copies == 1:
            return self
        values = self.values.unflatten(1, (self.copies, -1))
        return Rows(mean_of_copies(values, weights), 1, self._mixed, self.share)

    def sum_over_copies(self) -> "Rows":
        """The same as a sum, which the rows of gradients take."""
        if self.copies == 1:
            return self
        return Rows(self.values.unflatten(1, (self.copies, -1)).sum(1), 1, self._mixed, self.share)

    def mean_over_positions(self) -> "Rows":
        """One row for each datum: the mean of those that there are."""
        values = self.values.mean(1, keepdim=True)
        return Rows(values if self.share is None else values / self.share[:, None], 1, self._mixed)

    def evened(self) -> "Rows":
        """Rows whose mean of a aᵀ over all positions is that over those where each block has one."""
        if self.share is None:
            return self
        return replace(self, values=self.values / self.share.sqrt()[:, None], share=None)

    @property
    def _mixed(self) -> Structure:
        return "dense" if self.structure == "one-hot" else self.structure


def mean_of_copies(values: Float[Tensor, "n copies ..."], weights: Float[Tensor, " some"] | None) -> Tensor:
    """The mean over copies of each datum, with weights that add up to one where these do not count the same."""
    if weights is None:
        return values.mean(1)
    outer = values.unflatten(1, (len(weights), -1)).mean(2)
    return torch.einsum("c,nc...->n...", weights.to(outer), outer)


class RowForm(ABC):
    """How a linear map shares its weights: what `Path` says of itself, and adapters say of plain torch modules."""

    #: Of its input rows.
    structure: Structure = "dense"
    #: Of each datum, among its positions; see `Rows`.
    copies: int = 1
    #: Whether the weight is stored [d_in, d_out], as that of an embedding is.
    transposed: bool = False
    #: Whether the map is a convolution. On a CPU, one under many weights at once is slower than one after the other.
    convolves: bool = False

    @abstractmethod
    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        """The rows of the input that the weights see."""

    def rows(self, inputs: Tensor, *, distinct: bool = False) -> Rows:
        """The rows of the input as a value, or the distinct ones alone; for whoever reads them."""
        values, present = self.distinct_rows(inputs) if distinct else self.input_rows(inputs), self.presence(inputs)
        return Rows(values, self.copies, self.structure, None if present is None else present.mean((0, 1)))

    def presence(self, inputs: Tensor) -> Float[Tensor, "n s block"] | None:
        """One where a block has a row, and zero where it has none, as many in all data; None where it has one everywhere."""
        return None

    def meets_once(self, inputs: Tensor) -> bool:
        """Whether the output is W a + b with a single row a for each datum, reshaped at most.

        A class that says so says it of its own forward pass; a subclass that has another must say it again.
        """
        return False

    @property
    def arrangements(self) -> Int[Tensor, "g d_in"] | None:
        """Ways to arrange the entries of a distinct row as input rows, where several of those hold the same numbers."""
        return None

    def distinct_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d"]:
        """Rows that `arrangements` make the input rows of; the input rows themselves when there are none."""
        return self.input_rows(inputs)

    def row_moment(self, inputs: Tensor, budget: int) -> tuple[Float[Tensor, "block d_in d_in"], int] | None:
        """Σ a aᵀ over the input rows of all data, and how many there are; None where it is best taken from rows.

        Args:
            inputs: What the map sees.
            budget: Numbers that may be formed at a time.
        """
        return None

    @abstractmethod
    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        """The rows of a gradient with respect to an output; of an output itself, where outputs are rows put in order."""

    def weight_from_rows(self, rows: Float[Tensor, "*batch block d_out d_in"]) -> Tensor:
        """Weight-shaped tensors from their row form, flattened: [*batch, p]."""
        return (rows.transpose(-1, -2) if self.transposed else rows).flatten(-3)

    def matrices(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Blocks and the two sides of the matrices that a weight of this shape is, as it is stored."""
        return 1, shape[0], prod(shape[1:])

    def bias_from_rows(self, rows: Float[Tensor, "*batch block d_out"]) -> Float[Tensor, "*batch p"]:
        """The gradient of the bias from the gradients of output rows summed over positions."""
        return rows.flatten(-2)


class TangentRows(RowForm):
    """A single number θ that a map depends on in any way: every entry y of the output is a position, with ∂y/∂θ for input row.

    Args:
        tangent: Of the output, from the inputs of the map; with weights cut off from autograd.
    """

    structure = "diagonal"

    def __init__(self, tangent: Callable[[Tensor], Tensor]) -> None:
        self.tangent = tangent

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 1"]:
        return self.output_rows(self.tangent(inputs))

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 1"]:
        return outputs.reshape(len(outputs), -1, 1, 1)


class Shaped(ABC):
    """A map whose weights depend on parameters of their shape, such as a lengthscale."""

    @abstractmethod
    def shape_rows(self) -> dict[str, RowForm]:
        """Row forms of shape parameters that have one, by their name in the module; the others are free parameters."""


class Averaging(ABC):
    """A module that calls others with several copies of each datum, side by side in a batch, and averages what they give."""

    @property
    @abstractmethod
    def copies_inside(self) -> Mapping[str, int]:
        """How many copies of each datum a child sees, by its name."""

    def copy_weights(self) -> Float[Tensor, " copies"] | None:
        """What each copy counts in the average, in sum one; None where all count the same.

        Differentiable in what they depend on, since curvature is made of rows that are averaged by them.
        """
        return None


class LinearMap(nn.Module):
    """A linear map that may have a symmetry: a `Path`, or a product of paths; layers are sums of them."""

    #: Between the positions that are kept, for maps over a grid that have a symmetry.
    stride: int = 1
    #: Of the outputs, where that does not depend on the inputs.
    positions: int | None = None

    @property
    def group(self) -> Group | None:
        """The symmetry that this map has whatever its weights are; None when it has none."""
        return None

    @property
    def inner_group(self) -> Group | None:
        """The symmetry that it has up to the border of its grid, which may break it; to be said, and for nothing else."""
        return self.group

    def act_on_inputs(self, element: tuple[int, ...], inputs: Tensor) -> Tensor:
        """An element of the group, as it acts on what the map sees.

        Raises:
            ValueError: If the map has no group.
        """
        return self._symmetry().act(element, inputs)

    def act_on_outputs(self, element: tuple[int, ...], outputs: Tensor) -> Tensor:
        """An element of the group, as it acts on what the map gives: map(g x) = g map(x)."""
        return self._symmetry().act(element, outputs)

    def _symmetry(self) -> Group:
        if self.group is None:
            raise ValueError(f"{type(self).__name__} has no symmetry, so nothing acts on its inputs and outputs.")
        return self.group

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))


class Path(LinearMap, RowForm):
    """A linear map whose weights are shared as its rows say."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """The map, as fast as it can be."""

    @abstractmethod
    def weight_rows(self) -> Float[Tensor, "block d_out d_in"]:
        """The weight of every block."""

    @abstractmethod
    def bias_rows(self) -> Float[Tensor, "block d_out"] | None:
        """The bias of every block, or None."""

    def matrices(self, shape: Sequence[int]) -> tuple[int, int, int]:
        blocks, d_out, d_in = self.weight_rows().shape
        return blocks, d_out, d_in


class Tables:
    """Tables by name, copied to a device when they are first used there.

    They are no buffers, so that a layer whose state is emptied and loaded again (`to_empty`) keeps them, and a layer that is
    built under another default device finds them where its weights are.
    """

    def __init__(self, tables: Mapping[str, ArrayLike]) -> None:
        self._on = {torch.device("cpu"): {name: torch.as_tensor(table, device="cpu") for name, table in tables.items()}}

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """All tables, on a device."""
        if device not in self._on:
            self._on[device] = {name: table.to(device) for name, table in self._on[torch.device("cpu")].items()}
        return self._on[device]
