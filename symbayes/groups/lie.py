"""Lie groups: generators of any amount, affine maps and colours, and images resampled by them.

An element is the exponential of a combination of generators, exp(Σ_i c_i G_i), on homogeneous coordinates; so amounts of
different generators are numbers on an equal footing, and everything is differentiable in them. How far each generator may go,
its *extent*, is learned elsewhere (`invariance/`); here is what its elements do to images, points, sequences and colours.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import degrees, exp, inf, log, pi, sqrt
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Matrix = tuple[tuple[float, ...], ...]
Unit = Literal["°", "px", "%", "log %", ""]
#: Coefficients of the generators: for s transformations, the same for all n data or different for each.
Coefficients = Float[Tensor, "n_or_1 s k"]


#: Halvings of a matrix before its series, and terms of that by precision: exact to rounding up to a norm of 60.
_HALVINGS, _TERMS = 6, {torch.float32: 10, torch.float64: 18}
#: Rows of a small matrix.
_SMALL = 8


def exponential(matrices: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """exp of every matrix. On a GPU by a fixed number of products: torch waits for the device there, to choose how many."""
    return fixed_exponential(matrices) if matrices.is_cuda else torch.linalg.matrix_exp(matrices)


def constant(numbers: Sequence[Any], like: Tensor) -> Tensor:
    """Numbers in the precision and on the device of a tensor; on a GPU entry by entry, since a copy would wait for the CPU."""
    found = torch.tensor(numbers, dtype=like.dtype)
    if not like.is_cuda:
        return found.to(like.device)
    there = torch.zeros(found.shape, dtype=like.dtype, device=like.device)
    for place in map(tuple, found.nonzero().tolist()):
        there[place].fill_(float(found[place]))  # an assignment would copy the number
    return there


def fixed_exponential(matrices: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """exp(A) = exp(A / 2ˢ)^(2ˢ), with the first terms of the series of exp; in float32 at least, whatever autocast says.

    Kept as X = exp − I throughout, since I would hide what is small: X ← 2 X + X² where exp is squared.
    """
    precise = matrices if matrices.dtype in _TERMS else matrices.float()
    with torch.autocast(matrices.device.type, enabled=False):
        small = precise / 2**_HALVINGS
        found = small / _TERMS[small.dtype]
        for term in range(_TERMS[small.dtype] - 1, 0, -1):
            found = (small + _product(small, found)) / term
        for _ in range(_HALVINGS):
            found = 2 * found + _product(found, found)
        return (torch.eye(found.shape[-1], dtype=found.dtype, device=found.device) + found).to(matrices.dtype)


def _product(left: Float[Tensor, "*batch d d"], right: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """Of small matrices entry by entry: a GPU would round those of a product of matrices to ten bits, if it may (TF32)."""
    small = left.shape[-1] <= _SMALL
    return (left[..., :, :, None] * right[..., None, :, :]).sum(-2) if small else left @ right


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
        G = constant([g.matrix for g in self.generators], coefficients)
        return exponential(torch.einsum("...k,kde->...de", coefficients, G))

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
        return self._change({name: {"bound": bound} for name, bound in bounds.items()})

    def one_sided(self, *names: str) -> "LieGroup":
        """Some generators from zero to their extent only, of whichever sign is learned."""
        return self._change({name: {"one_sided": True} for name in names})

    def shared(self, *names: str) -> "LieGroup":
        """Some generators with one extent, which is called by what their names have in common."""
        chosen = sorted(self._find(names))
        common = names[0] if len(names) == 1 else "+".join(chosen)
        return self._change({name: {"shares": common} for name in chosen})

    def starting(self, start: float | None = None, **starts: float) -> "LieGroup":
        """Other first extents: one for all, or by name."""
        everywhere: dict[str, dict[str, object]] = {} if start is None else {name: {"start": start} for name in self.names}
        return self._change(everywhere)._change({name: {"start": value} for name, value in starts.items()})

    def __mul__(self, other: "LieGroup") -> "Product":
        """Both, this one first."""
        return Product((*self.generators, *other.generators), self, other)

    def _change(self, changes: dict[str, dict[str, object]]) -> "LieGroup":
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

    def _change(self, changes: dict[str, dict[str, object]]) -> "Product":
        self._find(list(changes))
        parts = []
        for part in (self.first, self.second):
            mine = {
                name: c for name, c in changes.items() if any(n == name or n.rpartition("_")[0] == name for n in part.names)
            }
            parts.append(part._change(mine))
        return parts[0] * parts[1]


#: What is beyond the edge of an image: what is at the edge, nothing, or the image mirrored.
Padding = Literal["border", "zeros", "reflection"]


def _matrix(size: int, entries: dict[tuple[int, int], float | int]) -> Matrix:
    return tuple(tuple(float(entries.get((row, column), 0)) for column in range(size)) for row in range(size))


_PLANE = (
    Generator("translation_x", _matrix(3, {(0, 2): 1}), "px", bound=1.0),
    Generator("translation_y", _matrix(3, {(1, 2): 1}), "px", bound=1.0),
    Generator("rotation", _matrix(3, {(0, 1): -1, (1, 0): 1}), "°", bound=pi),
    Generator("scale_x", _matrix(3, {(0, 0): 1}), "log %", bound=log(4)),
    Generator("scale_y", _matrix(3, {(1, 1): 1}), "log %", bound=log(4)),
    Generator("shear", _matrix(3, {(0, 1): 1, (1, 0): 1}), "%", bound=1.0),
)
_TIME = (
    Generator("shift", _matrix(2, {(0, 1): 1}), "px", bound=1.0),
    Generator("speed", _matrix(2, {(0, 0): 1}), "log %", bound=log(4)),
)


def affine2d(*names: str, on: str = "images", padding: str = "border") -> LieGroup:
    """The affine maps of the plane, or some of them: translation_x, translation_y, rotation, scale_x, scale_y and shear.

    Units of extents are half the larger side of an image, radians, and logarithms of factors; of points, their own unit.

    Args:
        *names: Of the generators wanted, such as "rotation", or "scale" for both scales; all when none is given.
        on: What they act on: "images" [n, c, h, w], or "points" [n, m, 2] or [n, 2].
        padding: What is beyond the edge of an image: what is at the edge ("border"), "zeros", or its "reflection".

    Raises:
        ValueError: If a name, a kind of data or a padding is not known.
    """
    return _affine(names, on, {"images": Images(_PLANE, padding_named(padding)), "points": Points(_unbounded(_PLANE))})


def affine1d(*names: str, on: str = "sequences", padding: str = "border") -> LieGroup:
    """Maps of time: shift and speed.

    Args:
        *names: Of the generators wanted; both when none is given.
        on: What they act on: "sequences" [n, c, length], or "points" [n, m, 1] or [n, 1].
        padding: As in `affine2d`.

    Raises:
        ValueError: If a name, a kind of data or a padding is not known.
    """
    return _affine(names, on, {"sequences": Sequences(_TIME, padding_named(padding)), "points": Points(_unbounded(_TIME))})


def colours(*names: str, channels: int = 3) -> LieGroup:
    """Maps of the values of pixels: brightness, contrast and, of three channels, saturation and hue.

    Brightness is added, contrast is a factor about zero (so about the mean of standardised images), hue turns colours about
    the grey axis, saturation scales their distance from it. They act on [n, channels, *grid].

    Args:
        *names: Of the generators wanted; all when none is given.
        channels: 3 for colours; with any other number only brightness and contrast are there.
    """
    size = channels + 1
    every = range(channels)
    found = [
        Generator("brightness", _matrix(size, {(c, channels): 1 for c in every}), "%", bound=2.0),
        Generator("contrast", _matrix(size, {(c, c): 1 for c in every}), "log %", bound=log(4)),
    ]
    if channels == 3:
        chroma = {(a, b): (a == b) - 1 / 3 for a in every for b in every}
        turn = {((c + 1) % 3, c): 1 / sqrt(3) for c in every} | {(c, (c + 1) % 3): -1 / sqrt(3) for c in every}
        found.append(Generator("saturation", _matrix(size, chroma), "log %", bound=log(4)))
        found.append(Generator("hue", _matrix(size, turn), "°", bound=pi))
    group = Colours(tuple(found))
    return group.only(*names) if names else group


@dataclass(frozen=True)
class Images(LieGroup):
    """Affine maps of the plane, moving the content of images [n, c, h, w]; bilinear between pixels.

    Coordinates have their origin in the middle, x to the right and y down; half the larger side is 1, so that a rotation is one
    on rectangular images, too.
    """

    padding: Padding = "border"

    def transform(self, coefficients: Coefficients, inputs: Tensor) -> Float[Tensor, "n s c h w"]:
        _check(inputs.ndim == 4, "images [n, c, h, w]", inputs)
        n, _, h, w = inputs.shape
        s = coefficients.shape[1]
        rows = self.places(coefficients, (h, w)).flatten(1, 2).expand(n, -1, -1, -1)  # the s grids, one below the other
        moved = functional.grid_sample(inputs, rows, mode="bilinear", padding_mode=self.padding, align_corners=False)
        return moved.unflatten(2, (s, h)).transpose(1, 2)

    def places(self, coefficients: Float[Tensor, "*batch k"], shape: tuple[int, int]) -> Float[Tensor, "*batch h w 2"]:
        """Where every pixel of T x is read in x: at T⁻¹ of itself; x and y, from −1 at one edge to 1 at the other."""
        h, w = shape
        back = self.elements(-coefficients)[..., :2, :]
        sides = constant([w, h], back) / max(h, w)
        grid = pixels((w, h), back) * sides
        return (torch.einsum("...ij,hwj->...hwi", back[..., :2], grid) + back[..., None, None, :, 2]) / sides

    def side(self, inputs: Float[Tensor, "n c h w"]) -> int:
        return max(inputs.shape[2:])


@dataclass(frozen=True)
class Sequences(LieGroup):
    """Affine maps of time, moving the content of sequences [n, c, length]; linear between steps."""

    padding: Padding = "border"

    def transform(self, coefficients: Coefficients, inputs: Tensor) -> Float[Tensor, "n s c t"]:
        _check(inputs.ndim == 3, "sequences [n, c, length]", inputs)
        grid = self.places(coefficients, inputs.shape[2]).expand(len(inputs), -1, -1, -1)
        moved = functional.grid_sample(
            inputs[:, :, None], grid, mode="bilinear", padding_mode=self.padding, align_corners=False
        )
        return moved.transpose(1, 2)

    def places(self, coefficients: Float[Tensor, "*batch k"], length: int) -> Float[Tensor, "*batch t 2"]:
        """Where every step of T x is read in x, from −1 at one end to 1 at the other; beside a zero, as torch reads images."""
        back = self.elements(-coefficients)[..., 0, :]
        read = back[..., :1] * pixels((length, 1), back)[0, :, 0] + back[..., 1:]
        return torch.stack([read, torch.zeros_like(read)], -1)

    def side(self, inputs: Float[Tensor, "n c t"]) -> int:
        return inputs.shape[2]


@dataclass(frozen=True)
class Points(LieGroup):
    """Affine maps, moving points [n, m, d] or [n, d] themselves."""

    def transform(self, coefficients: Coefficients, inputs: Tensor) -> Float[Tensor, "n s *m d"]:
        T = self.elements(coefficients)[..., :-1, :]
        d = T.shape[-2]
        _check(inputs.ndim in (2, 3) and inputs.shape[-1] == d, f"points [n, m, {d}] or [n, {d}]", inputs)
        points = inputs if inputs.ndim == 3 else inputs[:, None]
        moved = torch.einsum("nsij,nmj->nsmi", T[..., :-1].expand(len(inputs), -1, -1, -1), points) + T[..., None, :, -1]
        return moved if inputs.ndim == 3 else moved[:, :, 0]

    def side(self, inputs: Float[Tensor, "n *m d"]) -> int:
        return 1


@dataclass(frozen=True)
class Colours(LieGroup):
    """Affine maps of the values of pixels [n, c, *grid]."""

    def transform(self, coefficients: Coefficients, inputs: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n s c *grid"]:
        T = self.elements(coefficients)[..., :-1, :]
        if T.shape[-1] != inputs.shape[1] + 1:
            raise ValueError(
                f"These maps of colours are for {T.shape[-1] - 1} channels, the inputs have {inputs.shape[1]}. "
                f"Use sb.groups.colours(channels={inputs.shape[1]})."
            )
        mixed = torch.einsum("nsij,njp->nsip", T[..., :-1].expand(len(inputs), -1, -1, -1), inputs.flatten(2))
        return (mixed + T[..., -1:]).unflatten(3, inputs.shape[2:])

    def side(self, inputs: Float[Tensor, "n c *grid"]) -> int:
        return 1


def _check(holds: bool, wanted: str, inputs: Tensor) -> None:
    if not holds:
        raise ValueError(
            f"These maps act on {wanted}, got inputs of shape {tuple(inputs.shape)}. Reshape them, or choose what maps act on: "
            "sb.affine2d(on='images' or 'points'), sb.groups.affine1d(on='sequences' or 'points'), sb.groups.colours()."
        )


def pixels(shape: tuple[int, int], like: Tensor) -> Float[Tensor, "h w 2"]:
    """Where the middles of w × h pixels are: x and y, from −1 at one edge to 1 at the other."""
    sides = [(torch.arange(size, dtype=like.dtype, device=like.device) * 2 + 1) / size - 1 for size in shape]
    return torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)


def _affine(names: tuple[str, ...], on: str, kinds: dict[str, LieGroup]) -> LieGroup:
    if on not in kinds:
        raise ValueError(f"on must be one of {', '.join(kinds)}, got {on!r}.")
    return kinds[on].only(*names) if names else kinds[on]


def _unbounded(generators: tuple[Generator, ...]) -> tuple[Generator, ...]:
    """Points have no edge: shifts are in their own unit, and only turns have a bound."""
    return tuple(replace(g, unit="" if g.unit == "px" else g.unit, bound=g.bound if g.unit == "°" else inf) for g in generators)


def padding_named(padding: str) -> Padding:
    """What is called so.

    Raises:
        ValueError: If nothing is.
    """
    if padding not in get_args(Padding):
        raise ValueError(f"padding must be one of {', '.join(get_args(Padding))}, got {padding!r}.")
    return cast(Padding, padding)


def resampling(group: Images, coefficients: Float[Tensor, "s k"], shape: tuple[int, int]) -> Float[Tensor, "s q p"]:
    """R_s with vec(T_s x) = R_s vec(x), for images of a height and a width; what `Images.transform` does, as matrices.

    A pixel q of T x is read at T⁻¹ q, between pixels, where pixel p counts by a product of hats, (1 − |Δx|)₊ (1 − |Δy|)₊. The
    transpose is what the map does to a gradient, or to the other side of a scalar product: ⟨T W, x⟩ = ⟨W, Tᵀ x⟩. Torch's own
    resampling, by which `Images.transform` reads, has no second derivatives; this has, at the price of h·w × h·w numbers for
    every transformation.
    """
    h, w = shape
    places = _pixel_places(group, coefficients, shape)
    hats = [
        (1 - (places[..., axis, None] - torch.arange(size, dtype=places.dtype, device=places.device)).abs()).relu()
        for axis, size in enumerate((w, h))
    ]
    return (hats[1][..., :, None] * hats[0][..., None, :]).flatten(2)


def resample(group: Images, coefficients: Float[Tensor, "s k"], images: Float[Tensor, "o c h w"]) -> Float[Tensor, "s o c h w"]:
    """Images under s maps: what `resampling` gives times images, by the four pixels around each place.

    It costs four products for every number, where the matrices cost h·w; so it is the way to move many images. Derivatives are
    those of the matrices, except at places that are pixels: there they are to the right and below.
    """
    o, c, h, w = images.shape
    places = _pixel_places(group, coefficients, (h, w))
    first = places.detach().floor()
    beyond = places - first
    pixels_first = images.flatten(2).flatten(0, 1).T  # [p, o · c], so that what is read lies side by side
    moved: Tensor = torch.zeros((), dtype=images.dtype, device=images.device)
    for right, below in product((0, 1), (0, 1)):
        x, y = first[..., 0] + right, first[..., 1] + below
        share = _share(beyond[..., 0], right) * _share(beyond[..., 1], below)
        inside = (x >= 0) & (x < w) & (y >= 0) & (y < h)
        index = (y.clamp(0, h - 1) * w + x.clamp(0, w - 1)).long()
        part = pixels_first.index_select(0, index.flatten()).unflatten(0, index.shape)
        moved = moved + part * (share * inside)[..., None]
    return moved.unflatten(2, (o, c)).permute(0, 2, 3, 1).unflatten(3, (h, w))


def _share(beyond: Tensor, second: int) -> Tensor:
    """Of a pixel in what is read between two of them."""
    return beyond if second else 1 - beyond


def _pixel_places(group: Images, coefficients: Float[Tensor, "s k"], shape: tuple[int, int]) -> Float[Tensor, "s q 2"]:
    """The places of a group in pixels from the middle of the first, inside the image where there is padding."""
    read = group.places(coefficients, shape).flatten(1, 2)
    sides = torch.tensor(shape[::-1], dtype=read.dtype, device=read.device)
    places = ((read + 1) * sides - 1) / 2
    if group.padding == "reflection":
        # The image and its mirror image follow each other with period 2 · side; both begin half a pixel before a middle.
        places = sides - ((places + 0.5) % (2 * sides) - sides).abs() - 0.5
    if group.padding != "zeros":
        places = torch.minimum(places.clamp(min=0), sides - 1)
    return places
