"""Actions of Lie groups: affine maps of the plane and of time, on images, points and sequences; and maps of colours."""

from dataclasses import dataclass, replace
from math import inf, log, pi, sqrt
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from symbayes.groups.lie import Coefficients, Generator, LieGroup, Matrix

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
    return _affine(names, on, {"images": Images(_PLANE, _padding(padding)), "points": Points(_unbounded(_PLANE))})


def affine1d(*names: str, on: str = "sequences", padding: str = "border") -> LieGroup:
    """Maps of time: shift and speed.

    Args:
        *names: Of the generators wanted; both when none is given.
        on: What they act on: "sequences" [n, c, length], or "points" [n, m, 1] or [n, 1].
        padding: As in `affine2d`.

    Raises:
        ValueError: If a name, a kind of data or a padding is not known.
    """
    return _affine(names, on, {"sequences": Sequences(_TIME, _padding(padding)), "points": Points(_unbounded(_TIME))})


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
        # The content moves by T where the image is read at T⁻¹ of every pixel.
        back = self.elements(-coefficients)[..., :2, :]
        sides = torch.tensor([w, h], dtype=back.dtype, device=back.device) / max(h, w)
        grid = pixels((w, h), inputs) * sides  # [h, w, 2]
        read = torch.einsum("...ij,hwj->...hwi", back[..., :2], grid) + back[..., None, None, :, 2]
        rows = (read / sides).flatten(1, 2).expand(n, -1, -1, -1)  # the s grids, one below the other
        moved = functional.grid_sample(inputs, rows, mode="bilinear", padding_mode=self.padding, align_corners=False)
        return moved.unflatten(2, (s, h)).transpose(1, 2)

    def side(self, inputs: Float[Tensor, "n c h w"]) -> int:
        return max(inputs.shape[2:])


@dataclass(frozen=True)
class Sequences(LieGroup):
    """Affine maps of time, moving the content of sequences [n, c, length]; linear between steps."""

    padding: Padding = "border"

    def transform(self, coefficients: Coefficients, inputs: Tensor) -> Float[Tensor, "n s c t"]:
        _check(inputs.ndim == 3, "sequences [n, c, length]", inputs)
        back = self.elements(-coefficients)[..., 0, :]
        times = pixels((inputs.shape[2], 1), inputs)[0, :, 0]
        read = back[..., :1] * times + back[..., 1:]
        grid = torch.stack([read, torch.zeros_like(read)], -1).expand(len(inputs), -1, -1, -1)
        moved = functional.grid_sample(
            inputs[:, :, None], grid, mode="bilinear", padding_mode=self.padding, align_corners=False
        )
        return moved.transpose(1, 2)

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
                f"Use sb.colours(channels={inputs.shape[1]})."
            )
        mixed = torch.einsum("nsij,njp->nsip", T[..., :-1].expand(len(inputs), -1, -1, -1), inputs.flatten(2))
        return (mixed + T[..., -1:]).unflatten(3, inputs.shape[2:])

    def side(self, inputs: Float[Tensor, "n c *grid"]) -> int:
        return 1


def _check(holds: bool, wanted: str, inputs: Tensor) -> None:
    if not holds:
        raise ValueError(
            f"These maps act on {wanted}, got inputs of shape {tuple(inputs.shape)}. Reshape them, or choose what maps act on: "
            "sb.affine2d(on='images' or 'points'), sb.affine1d(on='sequences' or 'points'), sb.colours()."
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


def _padding(padding: str) -> Padding:
    if padding not in get_args(Padding):
        raise ValueError(f"padding must be one of {', '.join(get_args(Padding))}, got {padding!r}.")
    return cast(Padding, padding)
