"""Steps at draws from Laplace's posterior, so that weights come to rest where the loss is low for all that the posterior holds.

Laplace's method takes the curvature where the weights are, and a plain step ignores it: nothing draws weights to where the
volume is large. The gradient at a draw from N(W, (H + Δ)⁻¹) is on average that of

    E log p(D | W + ε) ≈ log p(D | W) − ½ tr H (H + Δ)⁻¹,

which charges for curvature in the weights as the evidence does in the precisions.
"""

import torch
from torch import Generator, Tensor, nn

from symbayes.layers.structure import weights
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.spread import Spread


class Perturbation:
    """Draws ε of one posterior after another, always in the same memory; zero until there is one.

    Args:
        model: Whose weights are perturbed.
        generator: On the device of the model.
    """

    def __init__(self, model: nn.Module, generator: Generator) -> None:
        self.names, self.generator = list(weights(model)), generator
        self._spreads: dict[str, tuple[tuple[int, ...], Spread]] = {}

    @torch.no_grad()
    def set(self, posterior: Posterior) -> bool:
        """Draw from this posterior from now on; whether steps captured before must be captured anew."""
        first = not self._spreads
        for members, spread in posterior.parts:
            ((name, shape),) = members.shapes.items()
            if first:
                self._spreads[name] = (shape, spread)
            else:
                for field, value in vars(spread).items():
                    getattr(self._spreads[name][1], field).copy_(value)
        return first

    @torch.no_grad()
    def offsets(self) -> list[Tensor] | None:
        """ε for every weight, in the order of the model; None as long as there is no posterior."""
        if not self._spreads:
            return None
        found = []
        for name in self.names:
            shape, spread = self._spreads[name]
            noise = torch.randn(shape, generator=self.generator, device=self.generator.device).flatten()
            found.append(spread.root(noise).view(shape))
        return found
