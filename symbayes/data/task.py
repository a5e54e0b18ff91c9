"""A task: data to train and to test on, and what a model must know of them."""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from symbayes.data.transform import Ranges, reading, resample

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, repr=False)
class Task:
    """Inputs [n, c, *grid] and targets for training and test."""

    name: str
    train: Pair
    test: Pair
    #: Or values, as many as a target has.
    classes: int
    #: The value of an empty pixel, after standardisation: one, or one for each channel.
    background: tuple[float, ...] = (0.0,)
    #: What classes are called; empty where they have no names.
    names: tuple[str, ...] = ()
    #: The standard deviation of targets in their own units, where they are values; None where they are classes.
    target_std: float | None = None
    #: Data to be watched in training, where some are set apart for that.
    validation: Pair | None = None

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Of one input: channels and grid."""
        return tuple(self.train[0].shape[1:])

    def transformed(
        self, *, rotation: float | int = 0.0, translation: float | int = 0.0, scale: float | int = 1.0, seed: int = 0
    ) -> "Task":
        """The task with every training and every test image turned and scaled about its centre, then shifted, at random.

        Each image is moved once, so the new data are as fixed as the old; targets stay. Images are read bilinearly, and what
        comes into them from outside is the background.

        Args:
            rotation: Angles are U(−rotation, rotation), in degrees.
            translation: Shifts along x and along y are U(−translation, translation), in pixels.
            scale: Sizes are exp U(−log scale, log scale): with 2, from half to double size.
            seed: Of what is drawn; training and test images get generators of their own from it.

        Raises:
            ValueError: If a bound is negative, scale is below 1, or inputs are not images [n, c, h, w].
        """
        spread = Ranges(float(rotation), float(translation), float(scale))
        if len(self.in_shape) != 3:
            raise ValueError(
                f"Only images [n, c, h, w] can be transformed; an input of {self.name!r} has shape {self.in_shape}. "
                "Choose a task of images, such as 'mnist' or 'upright-digits'."
            )
        if not spread.words:
            return self

        def moved(pair: Pair, own_seed: int) -> Pair:
            inputs, targets = pair
            maps = reading(spread.draw(len(inputs), Generator().manual_seed(own_seed)))
            return resample(inputs, maps.to(inputs.device), self.background), targets

        train, test = moved(self.train, 2 * seed + 1), moved(self.test, 2 * seed)
        watched = None if self.validation is None else moved(self.validation, -1 - seed)
        return replace(self, name=", ".join([self.name, *spread.words]), train=train, test=test, validation=watched)

    def subset(self, size: int, seed: int = 0) -> "Task":
        """The task with so many of its training data, drawn at random without repeats; the test data stay whole.

        Raises:
            ValueError: If there are not so many.
        """
        inputs, targets = self.train
        if not 1 <= size <= len(inputs):
            raise ValueError(
                f"A subset must have from 1 to {len(inputs)} training data, as many as {self.name!r} has; got {size}. "
                "Ask for fewer."
            )
        chosen = torch.randperm(len(inputs), generator=Generator().manual_seed(seed))[:size].to(inputs.device)
        return replace(self, train=(inputs[chosen], targets[chosen]))

    def __repr__(self) -> str:
        watched = "" if self.validation is None else f", {len(self.validation[0])} validation"
        counts = f"{len(self.train[0])} training{watched} and {len(self.test[0])} test inputs"
        return f"{self.name}: {counts} of shape {self.in_shape}, " + (
            f"{self.classes} classes" if self.target_std is None else "targets that are values"
        )
