"""Augmentation of images: random flips and crops, drawn for every image on its own.

What is drawn is a small table of whole numbers, made where the generator is; images are moved where they are. So a seed means
the same on every device, and a step on a GPU reads its part of the table without waiting for the CPU.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional


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
