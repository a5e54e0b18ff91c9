"""Invariance of the input: a network averaged over transformations of what it sees."""

from typing import cast

from torch import Tensor, nn

from symbayes.groups.lie import LieGroup
from symbayes.invariance.extents import Extents, check_samples


class OrbitAverage(nn.Module):
    """f(x) = mean over T of net(T x), with T = exp(Σ ε_i η_i G_i), ε uniform on [−1, 1] and extents η that are learned.

    At extent zero it is the plain network. The larger an extent, the less the function can change under that generator: a model
    that is averaged has less to be fitted with, which the evidence rewards where the data allow it, and which the training loss
    never does (van der Ouderaa and van der Wilk 2022; Immer et al. 2022).

    While it trains, transformations are drawn anew for every datum and pass; in evaluation they are a fixed set, spread evenly,
    so that predictions and the evidence are functions and not draws.

    Args:
        net: Any module that maps a batch of inputs to outputs.
        group: What transforms inputs, and the bounds and first values of extents.
        samples: Transformations of each datum; the cost grows with them.
        stochastic: Whether transformations are drawn while training; else they are the fixed set, there too.
        antithetic: Whether draws come in pairs of opposite sign.
        seed: For the draws.
    """

    def __init__(
        self,
        net: nn.Module,
        group: LieGroup,
        samples: int = 20,
        *,
        stochastic: bool = True,
        antithetic: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(group, LieGroup):
            raise TypeError(f"The group must have generators, as sb.affine2d() has; got {type(group).__name__}.")
        check_samples(samples, antithetic)
        self.net, self.orbit = net, Extents(group)
        self.samples, self.stochastic, self.antithetic, self.seed = samples, stochastic, antithetic, seed
        example = next((p for p in net.parameters() if p.is_floating_point()), None)
        if example is not None:
            self.orbit.to(example)
        self._passes = 0

    @property
    def extents(self) -> dict[str, float]:
        """How far the model is invariant, by generator: in degrees, pixels and percent."""
        return self.orbit.natural()

    def forward(self, inputs: Tensor) -> Tensor:
        """The mean of the outputs of all transformed versions of each datum."""
        if self.training and self.stochastic:
            self._passes += 1
            draws = self.orbit.drawn(
                self.samples, count=len(inputs), seed=self.seed, number=self._passes, antithetic=self.antithetic
            )
        else:
            draws = self.orbit.even(self.samples, antithetic=self.antithetic)
        moved = self.orbit.transform(draws, inputs)
        outputs = cast(Tensor, self.net(moved.flatten(0, 1)))
        return outputs.unflatten(0, (len(inputs), self.samples)).mean(1)

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))
