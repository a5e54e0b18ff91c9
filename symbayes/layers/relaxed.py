"""A relaxed layer: a sum of paths of different symmetry, each with its own prior, so that data can choose."""

from collections.abc import Mapping
from typing import cast

from jaxtyping import Int
from torch import Tensor, nn

from symbayes.layers.path import LinearMap
from symbayes.layers.subsample import align, centre


class RelaxedLayer(nn.Module):
    """y = Σ_path path(x).

    A path that keeps a symmetry and one that breaks it are added; the prior precision of each, learned from the
    evidence, says how much of either is used (ELLA, eq. 4). In the limit of infinite precision a path is switched off.

    Args:
        paths: By name. Their outputs must have the same shape.
        stride: Of the paths that have a symmetry.
        equivariant_stride: Whether the grid of cells that a stride keeps is anchored to the content of each datum, so that
            paths with a symmetry keep all of it (`subsample`), and their sum the symmetry that they share. Paths without one
            see the map where it is.
    """

    def __init__(self, paths: Mapping[str, nn.Module], *, stride: int = 1, equivariant_stride: bool = True) -> None:
        super().__init__()
        if not paths:
            raise ValueError("A RelaxedLayer needs at least one path, got none.")
        symmetric = {name: path for name, path in paths.items() if isinstance(path, LinearMap) and path.group is not None}
        for name, path in symmetric.items():
            if path.stride != stride:
                raise ValueError(
                    f"The stride of a RelaxedLayer must be that of its paths, got {stride}; {name!r} has {path.stride}."
                )
        self.paths = nn.ModuleDict(paths)
        self.stride, self.equivariant_stride = stride, equivariant_stride and stride > 1
        self._symmetric = set(symmetric)

    def forward(self, inputs: Tensor, cell: Int[Tensor, "n d"] | None = None) -> Tensor:
        """The sum of all paths.

        Args:
            inputs: Features [n, c, *grid].
            cell: Through which the kept grid goes, for each datum; the centre of the inputs when None.
        """
        aligned = inputs
        if self.equivariant_stride and self._symmetric:
            aligned = align(inputs, centre(inputs) if cell is None else cell, self.stride)
        outputs: Tensor | None = None
        for name, path in self.paths.items():
            term = cast(Tensor, path(aligned if name in self._symmetric else inputs))
            if outputs is not None and term.shape != outputs.shape:
                raise ValueError(
                    f"The paths of a RelaxedLayer must agree in the shape of their output; path {name!r} gives "
                    f"{tuple(term.shape[1:])} where those before it give {tuple(outputs.shape[1:])}."
                )
            outputs = term if outputs is None else outputs + term
        return cast(Tensor, outputs)

    def __call__(self, inputs: Tensor, cell: Tensor | None = None) -> Tensor:
        return cast(Tensor, super().__call__(inputs, cell))
