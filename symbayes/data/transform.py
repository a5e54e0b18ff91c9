"""Images changed at random: turned, shifted and scaled once to make a task, or flipped and cropped anew in every epoch.

Places are in pixels from the centre of an image, x to the right and y down. A content that is turned by α counter-clockwise,
scaled by s and then shifted by t stands at p = s R q + t, where it stood at q. So the new image is read at

    q = Rᵀ (p − t) / s,        Rᵀ = [cos α, −sin α; sin α, cos α]

What an augmentation draws is a small table of whole numbers, made where the generator is; images are moved where they are. So a
seed means the same on every device, and a step on a GPU reads its part of the table without waiting for the CPU.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, log, radians

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional

#: Images are resampled so many at a time that they stay below this many numbers.
_BUDGET = 2**22


@dataclass(frozen=True)
class Ranges:
    """How far images are moved: every image on its own, each number uniformly within its bounds.

    Args:
        rotation: Of the angle, in degrees: U(−rotation, rotation).
        translation: Of the shifts along x and y, in pixels: U(−translation, translation).
        scale: Of the size: exp U(−log scale, log scale).

    Raises:
        ValueError: If a bound is negative or not finite, or scale is below 1.
    """

    rotation: float
    translation: float
    scale: float

    def __post_init__(self) -> None:
        if not 0 <= self.rotation < inf:
            raise ValueError(f"rotation must be 0 or more degrees, got {self.rotation:g}. It bounds the angle on both sides.")
        if not 0 <= self.translation < inf:
            raise ValueError(
                f"translation must be 0 or more pixels, got {self.translation:g}. It bounds the shifts on both sides."
            )
        if not 1 <= self.scale < inf:
            raise ValueError(
                f"scale must be 1 or more, got {self.scale:g}. It bounds the size on both sides: 2 is from half to double size."
            )

    @property
    def words(self) -> list[str]:
        """What is done, part by part; none when nothing is."""
        pixels = "pixel" if self.translation == 1 else "pixels"
        parts = [
            (self.rotation > 0, f"rotated by up to {self.rotation:g}°"),
            (self.translation > 0, f"shifted by up to {self.translation:g} {pixels}"),
            (self.scale > 1, f"scaled by up to {self.scale:g}"),
        ]
        return [words for done, words in parts if done]

    def draw(self, count: int, generator: Generator) -> Float[Tensor, "n 4"]:
        """For every image the angle in radians, the shifts along x and y, and the size; one does not depend on the others."""
        unit = 2 * torch.rand(count, 4, generator=generator, dtype=torch.float64) - 1
        drawn = unit * unit.new_tensor([radians(self.rotation), self.translation, self.translation, log(self.scale)])
        drawn[:, 3] = drawn[:, 3].exp()
        return drawn


def reading(drawn: Float[Tensor, "n 4"]) -> Float[Tensor, "n 2 3"]:
    """The maps q = A p + b of images with these angles, shifts and sizes, as [A, b]."""
    angle, shift, size = drawn[:, 0], drawn[:, 1:3, None], drawn[:, 3, None, None]
    cos, sin = angle.cos(), angle.sin()
    A = torch.stack([cos, -sin, sin, cos], 1).view(-1, 2, 2) / size
    return torch.cat([A, -A @ shift], 2)


def resample(
    images: Float[Tensor, "n c h w"], maps: Float[Tensor, "n 2 3"], background: tuple[float, ...]
) -> Float[Tensor, "n c h w"]:
    """Images whose pixel p is read at A p + b, bilinearly; outside of an image there is the background.

    Args:
        images: To be read.
        maps: [A, b] for every image, in pixels from the centre.
        background: One value, or one for each channel.

    Raises:
        ValueError: If the background is of another number of channels.
    """
    n, channels, height, width = images.shape
    if len(background) not in (1, channels):
        raise ValueError(
            f"The background must have one value, or one for each of the {channels} channels; got {len(background)}. "
            "Give Task(..., background=...) the value of an empty pixel."
        )
    empty = images.new_tensor(background).view(1, -1, 1, 1)
    # Torch counts from −1 to 1 along either side of an image, whatever its length.
    half = maps.new_tensor([width / 2, height / 2])
    units = torch.cat([half, half.new_ones(1)]) / half[:, None]
    grids = (maps * units).to(images)
    found = torch.empty_like(images)
    at_once = max(1, _BUDGET // max(1, channels * height * width))
    for start in range(0, n, at_once):
        part = slice(start, start + at_once)
        grid = functional.affine_grid(grids[part], list(images[part].shape), align_corners=False)
        moved = functional.grid_sample(images[part] - empty, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        found[part] = moved + empty
    return found


class Augmentation(ABC):
    """How training data are varied from pass to pass. Curvature and evidence are of the data as they are."""

    @abstractmethod
    def draw(self, count: int, generator: Generator) -> Int[Tensor, "n k"]:
        """What to do with each of so many data."""

    @abstractmethod
    def __call__(self, inputs: Tensor, drawn: Int[Tensor, "n k"]) -> Tensor:
        """The data, each varied as was drawn for it."""


@dataclass(frozen=True)
class FlipCrop(Augmentation):
    """Images mirrored left to right, half of them, and shifted by up to `padding` pixels each way; zeros come in from outside.

    Zero is the mean where images are standardised. ELLA's augmentation, but for every image on its own and in training only.

    Args:
        padding: Pixels of the widest shift.
        flip: Whether to mirror.
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more pixels, got {self.padding}.")

    def draw(self, count: int, generator: Generator) -> Int[Tensor, "n 3"]:
        """Shifts down and to the right, counted from the farthest, and whether to mirror."""
        shifts = torch.randint(2 * self.padding + 1, (count, 2), generator=generator)
        flips = torch.randint(1 + int(self.flip), (count, 1), generator=generator)
        return torch.cat([shifts, flips], 1)

    def __call__(self, inputs: Float[Tensor, "n c h w"], drawn: Int[Tensor, "n 3"]) -> Float[Tensor, "n c h w"]:
        if inputs.ndim != 4:
            raise ValueError(
                f"FlipCrop is for images [n, c, h, w], got inputs of shape {tuple(inputs.shape)}. Leave augment out, or write "
                "an Augmentation of your own."
            )
        height, width = inputs.shape[2:]
        padded = functional.pad(inputs, [self.padding] * 4)
        rows = torch.arange(height, device=inputs.device) + drawn[:, 0, None]
        columns = torch.arange(width, device=inputs.device)
        columns = torch.where(drawn[:, 2, None] > 0, width - 1 - columns, columns) + drawn[:, 1, None]
        source = (rows[:, :, None] * padded.shape[3] + columns[:, None]).flatten(1)  # one gather over the whole grid
        return padded.flatten(2).gather(2, source[:, None].expand(-1, inputs.shape[1], -1)).view_as(inputs)
