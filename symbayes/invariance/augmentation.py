"""What was learned of invariance, as an augmentation for any training pipeline."""

from copy import deepcopy
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from symbayes.groups.lie import Colours, LieGroup, Product
from symbayes.invariance.discrete_average import Probabilities
from symbayes.invariance.extents import Extents
from symbayes.invariance.orbit_average import OrbitAverage


class LearnedAugmentation:
    """A random transformation for each datum: discrete ones by their probabilities, then U[−1, 1] · extent of every generator.

    Called with a batch or with a single datum, as transforms of torchvision are; or with `image=`, an array [h, w, c] or
    [h, w], as those of albumentations are, and then it gives {"image": array}. It has no gradient. Whole numbers stay whole
    numbers.

    Args:
        extents: What was learned of continuous transformations; None where there is nothing.
        generator: For the draws; the global one when None, as loaders of data expect.
        discrete: What was learned of discrete transformations.
        discrete_last: Whether they come after the continuous ones, as inside of an `OrbitAverage`.
    """

    def __init__(
        self,
        extents: Extents | None,
        generator: Generator | None = None,
        discrete: Probabilities | None = None,
        *,
        discrete_last: bool = False,
    ) -> None:
        self.discrete_last = discrete_last
        # As they are now: they may be learned further.
        self.extents, self.generator = deepcopy(extents), generator
        self.discrete = deepcopy(discrete) if discrete is not None and discrete.generators else None
        if extents is not None:
            ones = torch.ones(len(extents.group.generators)).to(extents.value)
            self._amounts = extents.coefficients(ones).detach().cpu()
            self._changed = {g.name for g, amount in zip(extents.group.generators, self._amounts, strict=True) if amount}
            self._low = torch.tensor([0.0 if g.one_sided else -1.0 for g in extents.group.generators])

    @overload
    def __call__(self, inputs: Tensor) -> Tensor: ...

    @overload
    def __call__(self, *, image: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]: ...

    def __call__(
        self, inputs: Tensor | None = None, *, image: NDArray[np.generic] | None = None
    ) -> Tensor | dict[str, NDArray[np.generic]]:
        """Each datum under a transformation of its own.

        Raises:
            ValueError: If inputs are neither a batch nor a datum of the kind that was learned from, or whole numbers where
                colours are changed.
            TypeError: If there is not just one of inputs and image.
        """
        if (inputs is None) == (image is None):
            raise TypeError("Give one of two: a tensor, as augment(images), or an array by name, as augment(image=array).")
        if inputs is not None:
            return self._tensor(inputs)
        assert image is not None
        learned = self.extents is not None or self.discrete is not None
        if learned and self._axes() != 3:
            raise ValueError(
                f"image= is for what was learned of images [c, h, w]; this was of data with {self._axes()} axes. Give a tensor."
            )
        if image.ndim not in (2, 3):
            raise ValueError(f"image must be an array [h, w] or [h, w, c], got shape {image.shape}.")
        datum = torch.from_numpy(np.ascontiguousarray(image if image.ndim == 3 else image[:, :, None])).permute(2, 0, 1)
        moved = self._tensor(datum).permute(1, 2, 0).numpy()
        return {"image": np.ascontiguousarray(moved if image.ndim == 3 else moved[:, :, 0])}

    @torch.no_grad()
    def _tensor(self, inputs: Tensor) -> Tensor:
        if self.extents is None and self.discrete is None:
            return inputs
        axes = self._axes()
        if inputs.ndim not in (axes, axes + 1):
            shape = f"of shape {self.extents.shape}" if self.extents is not None else f"of {axes} axes"
            raise ValueError(
                f"Inputs must be a batch of data with as many axes as those learned from, {shape}, or one of them; got "
                f"{tuple(inputs.shape)}."
            )
        whole = not inputs.is_floating_point()
        if whole and self.extents is not None and self._changed & _of_colours(self.extents.group):
            raise ValueError(
                f"Colours were learned in the scale of the data that were learned from; got {inputs.dtype}. Convert and "
                "standardise images as for training, and augment them then."
            )
        batch = inputs if inputs.ndim == axes + 1 else inputs[None]
        moved = batch if self.discrete is None or self.discrete_last else self.discrete.draw(batch, self.generator)
        if self.extents is not None:
            draws = torch.rand(len(batch), 1, len(self._amounts), generator=self.generator)
            coefficients = (self._low + (1 - self._low) * draws) * self._amounts
            real = moved.float() if whole else moved
            moved = self.extents.group.transform(coefficients.to(real), real)[:, 0]
            moved = moved.round().to(inputs.dtype) if whole else moved
        if self.discrete is not None and self.discrete_last:
            moved = self.discrete.draw(moved, self.generator)
        return moved if batch is inputs else moved[0]

    def _axes(self) -> int:
        """Of a datum."""
        if self.discrete is not None:
            return 1 + len(self.discrete.generators[0].step.matrix)
        assert self.extents is not None
        return len(self.extents.shape)

    def __repr__(self) -> str:
        parts = [] if self.discrete is None else [f"{e.name} {e.value:.3g} {e.unit}" for e in self.discrete.described()]
        parts += [] if self.extents is None else [self.extents.words()]
        return f"LearnedAugmentation({', '.join(filter(None, parts)) or 'nothing'})"


def learned_augmentation(model: nn.Module) -> LearnedAugmentation:
    """The augmentation of a model that has extents, probabilities or both, each once.

    Raises:
        ValueError: If it has none, or several.
    """
    extents = [module for module in model.modules() if isinstance(module, Extents)]
    discrete = [module for module in model.modules() if isinstance(module, Probabilities) and module.generators]
    if max(len(extents), len(discrete)) != 1:
        raise ValueError(
            "An augmentation can be made of a model that has extents once, such as sb.OrbitAverage(net, sb.affine2d()), or "
            f"probabilities once; this one has them {len(extents)} times, and {len(discrete)} times."
        )
    orbits = [module for module in model.modules() if isinstance(module, OrbitAverage)]
    inside = {id(module) for orbit in orbits for module in orbit.net.modules()}
    last = any(id(module) in inside for module in discrete)
    return LearnedAugmentation(next(iter(extents), None), discrete=next(iter(discrete), None), discrete_last=last)


def _of_colours(group: LieGroup) -> set[str]:
    """The names of generators that change colours."""
    if isinstance(group, Product):
        return _of_colours(group.first) | _of_colours(group.second)
    return set(group.names) if isinstance(group, Colours) else set()
