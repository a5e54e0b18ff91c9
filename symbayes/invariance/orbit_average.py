"""A network averaged over transformations of its input, and what of them was learned."""

from base64 import b64encode
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from symbayes.groups.lie import LieGroup
from symbayes.invariance.ahead import DrawsByNumber
from symbayes.invariance.extents import Extents, check_samples
from symbayes.layers.path import Averaging


class OrbitAverage(nn.Module, Averaging, DrawsByNumber):
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
        self.passes = 0

    @property
    def extents(self) -> dict[str, float]:
        """How far the model is invariant, by generator: in degrees, pixels and percent."""
        return self.orbit.natural()

    @property
    def copies_inside(self) -> dict[str, int]:
        return {"net": self.samples}

    def forward(self, inputs: Tensor) -> Tensor:
        """The mean of the outputs of all transformed versions of each datum."""
        if self.training and self.stochastic:
            draws = self.draw(len(inputs))
        else:
            draws = self.orbit.even(self.samples, antithetic=self.antithetic)
        moved = self.orbit.transform(draws, inputs)
        outputs = cast(Tensor, self.net(moved.flatten(0, 1)))
        return outputs.unflatten(0, (len(inputs), self.samples)).mean(1)

    def drawn(self, number: int, count: int) -> Float[Tensor, "n s k"]:
        """Of the pass of this number, over so many data."""
        return self.orbit.drawn(self.samples, count=count, seed=self.seed, number=number, antithetic=self.antithetic)

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))


@dataclass(frozen=True)
class Image:
    """A small image: bytes row by row, channels (1 or 3) side by side, in base64."""

    width: int
    height: int
    channels: int
    pixels: str


@torch.no_grad()
def sample_orbits(model: nn.Module, examples: Tensor, transformations: int = 8) -> list[list[Image]]:
    """A row for each example: itself, and under transformations that are spread evenly over the extents of the model.

    Nothing, where examples are no images of one or three channels, or the model has no extents or several, or they are of
    something else than its inputs.
    """
    found = [module for module in model.modules() if isinstance(module, Extents)]
    if len(found) != 1 or examples.ndim != 4 or examples.shape[1] not in (1, 3) or found[0].shape != tuple(examples.shape[1:]):
        return []
    examples = examples.to(found[0].value)  # they may come from a file, and the model be elsewhere
    moved = found[0].transform(found[0].even(transformations), examples)
    rows = torch.cat([examples[:, None], moved], 1).cpu()
    low, high = examples.amin().cpu(), examples.amax().cpu()
    levels = (255 * (rows - low) / (high - low).clamp(min=1e-12)).clamp(0, 255).round().to(torch.uint8)
    return [[_image(image) for image in row] for row in levels]


def _image(levels: UInt8[Tensor, "c h w"]) -> Image:
    channels, height, width = levels.shape
    raw = levels.permute(1, 2, 0).contiguous().numpy().tobytes()
    return Image(width, height, channels, b64encode(raw).decode("ascii"))
