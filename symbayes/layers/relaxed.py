"""A relaxed layer: a sum of paths of different symmetry, each with its own prior, so that data can choose."""

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn


class RelaxedLayer(nn.Module):
    """y = Σ_path path(x).

    A path that keeps a symmetry and one that breaks it are added; the prior precision of each, learned from the
    evidence, says how much of either is used (ELLA, eq. 4). In the limit of infinite precision a path is switched off.

    Args:
        paths: By name. Their outputs must have the same shape.
    """

    def __init__(self, paths: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if not paths:
            raise ValueError("A RelaxedLayer needs at least one path, got none.")
        self.paths = nn.ModuleDict(paths)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor | None = None
        for name, path in self.paths.items():
            term = cast(Tensor, path(inputs))
            if outputs is not None and term.shape != outputs.shape:
                raise ValueError(
                    f"The paths of a RelaxedLayer must agree in the shape of their output; path {name!r} gives "
                    f"{tuple(term.shape[1:])} where those before it give {tuple(outputs.shape[1:])}."
                )
            outputs = term if outputs is None else outputs + term
        return cast(Tensor, outputs)

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))
