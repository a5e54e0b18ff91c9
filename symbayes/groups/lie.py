"""Lie groups: symmetries of which there can be more or less, given by generators.

An element is the exponential of a combination of generators, exp(Σ_i c_i G_i), on homogeneous coordinates; so amounts of
different generators are numbers on an equal footing, and everything is differentiable in them. How far each generator may go,
its *extent*, is learned elsewhere (`invariance/`); here is what its elements do to images, points, sequences and colours.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import degrees, exp, inf
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Matrix = tuple[tuple[float, ...], ...]
Unit = Literal["°", "px", "%", "log %", ""]
#: Coefficients of the generators: for s transformations, the same for all n data or different for each.
Coefficients = Float[Tensor, "n_or_1 s k"]


@dataclass(frozen=True)
class Generator:
    """One direction in a group, and how much of it there may be.

    Args:
        name: Such as "rotation".
        matrix: G, on homogeneous coordinates.
        unit: What people measure it in.
        bound: No extent is larger, in units of the generator (radians, half sides, logarithms of factors).
        one_sided: Whether transformations go from 0 to the extent, rather than to both sides.
        start: The first extent when it is learned.
        shares: The name of the extent; generators with the same name share it.
    """

    name: str
    matrix: Matrix
    unit: Unit
    bound: float = inf
    one_sided: bool = False
    start: float = 0.1
    shares: str = ""

    @property
    def extent(self) -> str:
        """The name of its extent, which other generators may share."""
        return self.shares or self.name

    @property
    def symbol(self) -> str:
        """Of its unit."""
        return "%" if self.unit == "log %" else self.unit

    def natural(self, amount: float, side: int) -> float:
        """An amount in the unit of people; pixels need the side of the image (or the length of the sequence)."""
        match self.unit:
            case "°":
                return degrees(amount)
            case "px":
                return amount * side / 2
            case "%":
                return 100 * amount
            case "log %":
                return 100 * (exp(amount) - 1)
            case _:
                return amount


@dataclass(frozen=True)
class LieGroup(ABC):
    """Generators, and how the elements they generate act on data."""

    generators: tuple[Generator, ...]

    @abstractmethod
    def transform(self, coefficients: Coefficients, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n s ..."]:
        """Every datum under s elements."""

    @abstractmethod
    def side(self, inputs: Float[Tensor, "n ..."]) -> int:
        """In pixels, of data of this shape: what half a side is measured against; 1 where there is none."""

    def elements(self, coefficients: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch d d"]:
        """exp(Σ_i c_i G_i)."""
        G = torch.tensor([g.matrix for g in self.generators], dtype=coefficients.dtype, device=coefficients.device)
        return torch.linalg.matrix_exp(torch.einsum("...k,kde->...de", coefficients, G))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the generators."""
        return tuple(generator.name for generator in self.generators)

    def only(self, *names: str) -> "LieGroup":
        """The subgroup of some generators; "scale" stands for "scale_x" and "scale_y", and so on."""
        chosen = self._find(names)
        if not chosen:
            raise ValueError(f"A subgroup needs at least one generator; there are {', '.join(self.names)}.")
        return replace(self, generators=tuple(g for g in self.generators if g.name in chosen))

    def bounded(self, **bounds: float) -> "LieGroup":
        """Other largest extents, in units of the generators."""
        for name, bound in bounds.items():
            if not bound > 0:
                raise ValueError(f"The bound of {name!r} must be positive, got {bound}.")
        return self._changed({name: {"bound": bound} for name, bound in bounds.items()})

    def one_sided(self, *names: str) -> "LieGroup":
        """Some generators from zero to their extent only, of whichever sign is learned."""
        return self._changed({name: {"one_sided": True} for name in names})

    def shared(self, *names: str) -> "LieGroup":
        """Some generators with one extent, which is called by what their names have in common."""
        chosen = sorted(self._find(names))
        common = names[0] if len(names) == 1 else "+".join(chosen)
        return self._changed({name: {"shares": common} for name in chosen})

    def starting(self, start: float | None = None, **starts: float) -> "LieGroup":
        """Other first extents: one for all, or by name."""
        everywhere: dict[str, dict[str, object]] = {} if start is None else {name: {"start": start} for name in self.names}
        return self._changed(everywhere)._changed({name: {"start": value} for name, value in starts.items()})

    def __mul__(self, other: "LieGroup") -> "Product":
        """Both, this one first."""
        return Product((*self.generators, *other.generators), self, other)

    def _changed(self, changes: dict[str, dict[str, object]]) -> "LieGroup":
        by_name: dict[str, dict[str, object]] = {}
        for name, change in changes.items():
            by_name |= dict.fromkeys(self._find([name]), change)
        return replace(self, generators=tuple(replace(g, **by_name.get(g.name, {})) for g in self.generators))  # type: ignore[arg-type]

    def _find(self, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            matching = {known for known in self.names if known == name or known.rpartition("_")[0] == name}
            if not matching:
                raise ValueError(f"There is no generator {name!r}; there are {', '.join(self.names)}.")
            found |= matching
        return found


@dataclass(frozen=True)
class Product(LieGroup):
    """The elements of two groups, one after the other."""

    first: LieGroup
    second: LieGroup

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError(f"The generators of a product must have different names, got {', '.join(names)}.")

    def transform(self, coefficients: Coefficients, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n s ..."]:
        of_first = [self.names.index(name) for name in self.first.names if name in self.names]
        of_second = [self.names.index(name) for name in self.second.names if name in self.names]
        n, s = len(inputs), coefficients.shape[1]
        moved = self.first.transform(coefficients[..., of_first], inputs).flatten(0, 1)
        each = coefficients[..., of_second].expand(n, -1, -1).reshape(n * s, 1, -1)
        return self.second.transform(each, moved).reshape(n, s, *inputs.shape[1:])

    def side(self, inputs: Float[Tensor, "n ..."]) -> int:
        return max(self.first.side(inputs), self.second.side(inputs))

    def elements(self, coefficients: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch d d"]:
        raise TypeError("An element of a product is a pair of matrices: ask each of its groups for one.")

    def only(self, *names: str) -> "Product":
        chosen = self._find(names)
        parts = []
        for part in (self.first, self.second):
            kept = [name for name in part.names if name in chosen]
            if not kept:
                raise ValueError(
                    f"A product keeps some of each group; nothing is left of {', '.join(part.names)}. Use the other."
                )
            parts.append(part.only(*kept))
        return parts[0] * parts[1]

    def _changed(self, changes: dict[str, dict[str, object]]) -> "Product":
        self._find(list(changes))
        parts = []
        for part in (self.first, self.second):
            mine = {
                name: c for name, c in changes.items() if any(n == name or n.rpartition("_")[0] == name for n in part.names)
            }
            parts.append(part._changed(mine))
        return parts[0] * parts[1]
