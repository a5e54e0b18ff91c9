"""ORBIT: one weight for each orbit of index pairs (output, input) under a group of permutations, given by its generators."""

from math import pi, prod

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Generator, Tensor, nn

from symbayes.groups.orbits import OutputOrbit, Points, pair_orbits
from symbayes.groups.permutation import Permutations
from symbayes.layers.path import LinearMap, Path, Tables


class OrbitRows(Path):
    """y[c', b, s] = Σ_c Σ_k θ[b, c', c, k] a[c, k, b, s] + β[b, c'], for orbits b of outputs that are alike.

    a[c, k, b, s] is the sum of x[c, i] over the inputs i of class k as output s of orbit b sees them (`groups/orbits.py`). A
    class that is not listed is summed as its orbit of inputs less the classes that are, so a set of n points takes n numbers.

    Args:
        in_channels: Channels c of the input.
        out_channels: Channels c' of the output.
        orbits: Of outputs; with the same number of outputs, and classes of the same sizes.
        orbit_of_input: The orbit of each input.
        bias: Whether to add β, one value for each orbit and output channel.
        scale: Standard deviation of the output relative to one that keeps the variance of its input after a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        orbits: list[OutputOrbit],
        orbit_of_input: Points,
        *,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        first = orbits[0]
        self._listed, self._orbits = len(first.sizes), int(orbit_of_input.max()) + 1
        self._outputs = len(first.outputs)
        beside = [(k, first.rest.index(orbit)) for k, orbit in enumerate(first.orbit_of) if orbit in first.rest]
        classes = np.repeat(np.arange(self._listed), first.sizes)
        tables: dict[str, ArrayLike] = {
            "seen": np.stack([orbit.seen.T for orbit in orbits], axis=1),
            "class_of_seen": classes,
            "rest": np.array(first.rest, dtype=np.int64),
            "beside": np.array(beside, dtype=np.int64).reshape(-1, 2).T,
            "orbit_of_input": orbit_of_input,
        }
        if not first.rest:
            ranks = np.argsort([orbit.seen for orbit in orbits], axis=2)
            tables["weight_of_pair"] = classes[ranks] + self._listed * np.arange(len(orbits))[:, None, None]
        #: seen [e, b, s]: inputs as outputs see them; class_of_seen [e]: the class of each.
        #: rest [r]: the orbits of inputs with a class that is not listed; beside [2, j]: the classes listed beside each.
        #: weight_of_pair [b, s, i]: the place of the weight of every pair, where all classes are listed.
        self._tables = Tables(tables)
        sizes = torch.tensor([*first.sizes, *_rest_sizes(first, orbit_of_input)], dtype=torch.get_default_dtype())
        # Every class contributes alike. Features after a ReLU have mean² / mean square = 1 / π, so that of a sum of m is
        # m (1 + (m − 1) / π) times that of one.
        bound = scale * (6 / (in_channels * len(sizes) * sizes * (1 + (sizes - 1) / pi))).sqrt()
        weight = torch.empty(len(orbits), out_channels, in_channels, len(sizes)).uniform_(-1, 1, generator=generator)
        self.weight = nn.Parameter(bound * weight)
        self.bias = nn.Parameter(torch.zeros(len(orbits), out_channels)) if bias else None

    def forward(self, inputs: Tensor) -> Float[Tensor, "n d b s"]:
        weight_of_pair = self._tables.on(self.weight.device).get("weight_of_pair")
        if weight_of_pair is not None and len(inputs) > self.weight.shape[1]:
            # Weights spelled out for every pair are fewer numbers than the rows of so many data.
            spelled = self.weight.permute(1, 2, 0, 3).flatten(2).index_select(2, weight_of_pair.flatten())
            pairs = spelled.unflatten(2, weight_of_pair.shape)
            outputs = torch.einsum("nci,dcbsi->ndbs", inputs.flatten(2), pairs)
        else:
            outputs = torch.einsum("nckbs,bdck->ndbs", self._sums(inputs), self.weight)
        return outputs if self.bias is None else outputs + self.bias.T[:, :, None]

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        return self._sums(inputs).permute(0, 4, 3, 1, 2).flatten(3)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return outputs.permute(0, 3, 2, 1)

    def weight_rows(self) -> Float[Tensor, "block d_out d_in"]:
        return self.weight.flatten(2)

    def bias_rows(self) -> Float[Tensor, "block d_out"] | None:
        return self.bias

    def _sums(self, inputs: Tensor) -> Float[Tensor, "n c k b s"]:
        """The sums of features over every class, as each output sees it."""
        points, tables = inputs.flatten(2), self._tables.on(self.weight.device)
        seen, rest, beside = tables["seen"], tables["rest"], tables["beside"]
        sums = points.index_select(2, seen.flatten()).unflatten(2, seen.shape)
        if len(tables["class_of_seen"]) > self._listed:
            sums = _add(sums, tables["class_of_seen"], self._listed)
        if not len(rest):
            return sums
        totals = _add(points, tables["orbit_of_input"], self._orbits).index_select(2, rest)
        others = _add(sums.index_select(2, beside[0]), beside[1], len(rest))
        return torch.cat([sums, totals[..., None, None] - others], dim=2)

    def extra_repr(self) -> str:
        blocks, c_out, c_in, classes = self.weight.shape
        return f"{c_in} -> {c_out}, {blocks} orbits of {self._outputs} outputs, {classes} classes of inputs"


class OrbitPath(LinearMap):
    """y[c', o] = Σ_c Σ_i θ[c', c, orbit(o, i)] x[c, i] + b[c', orbit(o)], for any group of permutations.

    Equivariant whatever the weights: y(g x) = g y(x). All permutations of a set give the layer of DeepSets, cyclic shifts a
    convolution with a filter as large as its map, the trivial group a fully connected map. Only generators are used, so the
    group may be huge. Output orbits that are alike share an `OrbitRows` and lie side by side in it as blocks.

    Args:
        in_channels: Channels c of the input.
        out_channels: Channels c' of the output.
        group: And how it permutes inputs and outputs.
        in_shape: The grid of the inputs; its cells are the points that the group permutes. One axis of all points when None.
        out_shape: The grid of the outputs.
        bias: Whether to add b.
        scale: Standard deviation of the output relative to a map that keeps the variance of its input after a ReLU.
        generator: For the initial weights; the global one when None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        group: Permutations,
        *,
        in_shape: tuple[int, ...] | None = None,
        out_shape: tuple[int, ...] | None = None,
        bias: bool = True,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self._group = in_channels, group
        self.in_shape = _grid(in_shape, group.num_inputs, "in_shape")
        self.out_shape = _grid(out_shape, group.num_outputs, "out_shape")
        orbit_of_input, orbits = pair_orbits(group.inputs, group.outputs)
        alike: dict[object, list[OutputOrbit]] = {}
        for orbit in orbits:
            alike.setdefault((len(orbit.outputs), orbit.sizes, orbit.orbit_of, orbit.rest), []).append(orbit)
        self.parts = nn.ModuleList(
            OrbitRows(in_channels, out_channels, some, orbit_of_input, bias=bias, scale=scale, generator=generator)
            for some in alike.values()
        )
        order = np.concatenate([orbit.outputs for some in alike.values() for orbit in some])
        self._tables = Tables({"place": np.argsort(order)})

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1:] != (self.in_channels, *self.in_shape):
            wanted = ", ".join(map(str, (self.in_channels, *self.in_shape)))
            raise ValueError(f"OrbitPath expects inputs of shape (n, {wanted}), got {tuple(inputs.shape)}.")
        outputs = torch.cat([part(inputs).flatten(2) for part in self.parts], dim=2)
        return outputs.index_select(2, self._tables.on(outputs.device)["place"]).unflatten(2, self.out_shape)

    @property
    def group(self) -> Permutations:
        return self._group

    def act_on_outputs(self, element: tuple[int, ...], outputs: Tensor) -> Tensor:
        return self._group.act_on_outputs(element, outputs)


def _add(values: Tensor, index: Int[Tensor, " k"], size: int) -> Tensor:
    """Values added up along their third axis, each into its place."""
    return values.new_zeros(*values.shape[:2], size, *values.shape[3:]).index_add(2, index, values)


def _rest_sizes(orbit: OutputOrbit, orbit_of_input: Points) -> list[int]:
    """The sizes of the classes that are not listed."""
    listed = {rest: sum(m for m, of in zip(orbit.sizes, orbit.orbit_of, strict=True) if of == rest) for rest in orbit.rest}
    return [int((orbit_of_input == rest).sum()) - listed[rest] for rest in orbit.rest]


def _grid(shape: tuple[int, ...] | None, points: int, name: str) -> tuple[int, ...]:
    if shape is not None and prod(shape) != points:
        raise ValueError(f"{name} must have as many cells as the group permutes there, {points}; got {tuple(shape)}.")
    return (points,) if shape is None else tuple(shape)
