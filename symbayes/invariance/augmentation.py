"""What was learned as an augmentation: random transformations of the learned extents, for any training pipeline."""

import torch
from torch import Generator, Tensor, nn

from symbayes.invariance.extents import Extents


class Augmentation:
    """A random transformation for each datum, drawn from U[−1, 1] · extent in every generator.

    Called with a batch or with a single datum, as transforms of data sets are; it has no gradient.

    Args:
        extents: What was learned.
        generator: For the draws; the global one when None, as loaders of data expect.
    """

    def __init__(self, extents: Extents, generator: Generator | None = None) -> None:
        self.group, self.shape = extents.group, extents.shape
        self.amounts = extents.coefficients(torch.ones(len(extents.group.generators)).to(extents.value)).detach().cpu()
        self.low = torch.tensor([0.0 if g.one_sided else -1.0 for g in extents.group.generators])
        self.generator = generator
        self._words = ", ".join(
            f"{e['name']} {'' if e['one_sided'] else '±'}{e['value']:.3g} {e['unit']}".rstrip() for e in extents.described()
        )

    def __call__(self, inputs: Tensor) -> Tensor:
        """Each datum under a transformation of its own.

        Raises:
            ValueError: If inputs are neither a batch nor a datum of the kind that was learned from.
        """
        if inputs.ndim not in (len(self.shape), len(self.shape) + 1):
            raise ValueError(
                f"Inputs must be a batch of data with as many axes as those learned from, of shape {self.shape}, or one of "
                f"them; got {tuple(inputs.shape)}."
            )
        batch = inputs if inputs.ndim == len(self.shape) + 1 else inputs[None]
        draws = torch.rand(len(batch), 1, len(self.amounts), generator=self.generator)
        coefficients = (self.low + (1 - self.low) * draws) * self.amounts
        with torch.no_grad():
            moved = self.group.transform(coefficients.to(inputs), batch)[:, 0]
        return moved if batch is inputs else moved[0]

    def __repr__(self) -> str:
        return f"Augmentation({self._words})"


def learned_augmentation(model: nn.Module) -> Augmentation:
    """The augmentation of a model that has extents once.

    Raises:
        ValueError: If it has none, or several.
    """
    found = [module for module in model.modules() if isinstance(module, Extents)]
    if len(found) != 1:
        raise ValueError(
            "An augmentation can be made of a model that has extents once, such as sb.OrbitAverage(net, sb.affine2d()); "
            f"this one has them {len(found)} times."
        )
    return Augmentation(found[0])
