"""Networks of waves whose frequency is a hyperparameter, and points to fit them to: NN(x) = W₃ relu(W₂ cos(ω² W₁ x + π/4)).

W₁ is fixed, at the quantiles of a normal, so that ω scales a spectrum rather than a few waves: with random W₁ even the exact
evidence has maxima in ω that are of the waves and not of the data. The twin, in which weights of the waves are all there is,
f = wᵀ √(2/H) cos(ω² W₁ x + π/4) with w ~ N(0, I), has its evidence in closed form; its noise is that of the data.
"""

from dataclasses import dataclass
from math import log, pi
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.evidence.exact import Scalar, exact_evidence, posterior_mode
from symbayes.layout import Hyperparameter

Numbers = dict[str, Any]
#: Inputs and targets, [n, 1] each.
Pairs = tuple[Tensor, Tensor]

#: Data lie within ± this.
_REACH = 3.0
#: Waves that the function of the data is made of, and the twin.
_TERMS, _TWIN = 1000, 200
#: Of least squares in the twin: what is added to the squares of features so that there is one solution.
_RIDGE = 1e-10


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Args:
        data: Points to train on, within ±3.
        square: ω² of the function that they are of.
        noise: Standard deviation of the noise.
        test: Fresh points to test on.
        width: Waves, so rows of W₁.
        hidden: Rows of W₂.
        epochs: Steps, each with all the data.
        learning_rate: Of weights.
        samples: Draws of weights in a step.
        starts: First ω², where it is learned.
        scan: ω² that are fixed; with the first and the last there are panels.
        seed: For data and initial weights.
    """

    data: int = 60
    square: float = 1.5
    noise: float = 0.2
    test: int = 1000
    width: int = 48
    hidden: int = 8
    epochs: int = 3000
    learning_rate: float = 0.03
    samples: int = 8
    starts: tuple[float, ...] = (0.3, 1.0, 4.0, 10.0)
    scan: tuple[float, ...] = (0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.starts or len(self.scan) < 2 or min(*self.starts, *self.scan) <= 0:
            raise ValueError(
                "There must be a start and two squares to scan, all of them above 0; "
                f"got starts={self.starts} and scan={self.scan}."
            )


def points(settings: Settings, count: int, seed: int) -> Pairs:
    """So many points of the function, with noise. The function is the same for all seeds but that of the settings."""
    generator = torch.Generator().manual_seed(seed)
    inputs = _REACH * (2 * torch.rand(count, 1, generator=generator) - 1)
    return inputs, function(settings, inputs) + settings.noise * torch.randn(count, 1, generator=generator)


def both(settings: Settings) -> tuple[Pairs, Pairs]:
    """To train on, and to test on."""
    return points(settings, settings.data, settings.seed), points(settings, settings.test, settings.seed + 1_000_003)


def error(predicted: Tensor, targets: Tensor) -> float:
    """The mean square."""
    return (predicted - targets).square().mean().item()


def function(settings: Settings, inputs: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
    """A draw from the prior of the twin at the ω² of the data, with random waves: one that is smooth and has no period."""
    generator = torch.Generator().manual_seed(settings.seed + 100)
    rows = torch.randn(_TERMS, 1, generator=generator)
    phases = 2 * pi * torch.rand(_TERMS, generator=generator)
    weights = torch.randn(_TERMS, 1, generator=generator)
    return (2 / _TERMS) ** 0.5 * (settings.square * inputs @ rows.T + phases).cos() @ weights


def waves(inputs: Float[Tensor, "n 1"], square: Scalar, width: int) -> Float[Tensor, "n h"]:
    """cos(ω² W₁ x + π/4), with W₁ at the quantiles of N(0, 1): they come in pairs ±ν, so that there is every phase."""
    quantiles = (torch.arange(width, dtype=torch.float64, device=inputs.device) + 0.5) / width
    return (square * inputs * torch.special.ndtri(quantiles).to(inputs) + pi / 4).cos()


class WaveNetwork(nn.Module):
    """W₃ relu(W₂ cos(ω² W₁ x + π/4)), with log ω as a hyperparameter, and W₁ fixed.

    Args:
        width: Rows of W₁.
        hidden: Rows of W₂.
        square: ω² at the start.
        generator: For W₂ and W₃.
    """

    def __init__(self, width: int, hidden: int, square: float, *, generator: Generator | None = None) -> None:
        super().__init__()
        self.width = width
        self.log_omega = Hyperparameter(torch.tensor(log(square) / 2))
        self.second = nn.Linear(width, hidden, bias=False)
        self.third = nn.Linear(hidden, 1, bias=False)
        for linear in (self.second, self.third):
            nn.init.normal_(linear.weight, std=(2 / linear.in_features) ** 0.5, generator=generator)

    @property
    def square(self) -> float:
        """ω²."""
        return float(torch.exp(2 * self.log_omega.detach()))

    def forward(self, inputs: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
        found: Tensor = self.third(self.second(waves(inputs, (2 * self.log_omega).exp(), self.width)).relu())
        return found


def twin_features(inputs: Float[Tensor, "n 1"], square: Scalar, width: int = _TWIN) -> Float[Tensor, "n h"]:
    """φ(x) = √(2/H) cos(ω² W₁ x + π/4), in double precision."""
    return (2 / width) ** 0.5 * waves(inputs.double(), square, width)


def twin(settings: Settings, steps: int = 300) -> Numbers:
    """The exact evidence over ω² and by gradient from every start, with errors of its posterior mean and of least squares."""
    inputs, targets = points(settings, settings.data, settings.seed)
    squares = torch.logspace(log(0.1), log(20.0), 61, base=torch.e, dtype=torch.float64).tolist()
    return {
        "scan": [_twin_at(settings, square) for square in squares],
        "starts": [_twin_from(settings, start, inputs, targets.double(), steps) for start in settings.starts],
    }


def _twin_at(settings: Settings, square: float) -> Numbers:
    (inputs, targets), test = both(settings)
    seen, fresh = twin_features(inputs, square), twin_features(test[0], square)
    found: Numbers = {
        "square": square,
        "log_evidence": exact_evidence(seen, targets.double(), 1.0, settings.noise).total.item(),
    }
    for name, precision, noise in (("bayes", 1.0, settings.noise), ("least squares", _RIDGE, 1.0)):
        weights = posterior_mode(seen, targets.double(), precision, noise)
        found[name] = {"training": error(seen @ weights, targets), "test": error(fresh @ weights, test[1])}
    return found


def _twin_from(settings: Settings, start: float, inputs: Tensor, targets: Tensor, steps: int) -> Numbers:
    """Adam on the gradient of the exact evidence in log ω."""
    log_omega = torch.tensor(log(start) / 2, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([log_omega], lr=0.03)
    history = [start]
    for _ in range(steps):
        adam.zero_grad()
        features = twin_features(inputs, (2 * log_omega).exp())
        (-exact_evidence(features, targets, 1.0, settings.noise).total).backward()
        adam.step()
        history.append((2 * log_omega.detach()).exp().item())
    return {"start": start, "history": history, **_twin_at(settings, history[-1])}
