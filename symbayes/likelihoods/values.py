"""Values with normal noise: learned, or given by the network."""

from collections.abc import Mapping
from math import log, pi

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.likelihoods.likelihood import (
    Columns,
    DiagonalLikelihood,
    Likelihood,
    ManyOutputs,
    ManyValues,
    Outputs,
    Setting,
    check_values,
    random_signs,
    register,
)
from symbayes.scores import CalibrationScores, normal_interval, score_intervals


@register
class Gaussian(Likelihood):
    """y = f + σε, with the noise σ learned from the evidence.

    Args:
        noise: The first value of σ.
        outputs: The number of outputs, for a σ of its own for each; None for one σ that they share.
    """

    is_normal = True
    has_scale = True

    def __init__(self, noise: float = 1.0, outputs: int | None = None) -> None:
        super().__init__()
        if not noise > 0:
            raise ValueError(f"noise must be positive, got {noise}.")
        self.shared = outputs is None
        self.log_noise = nn.Parameter(torch.full((outputs or 1,), log(noise)))

    @property
    def learns_noise(self) -> bool:
        return self.log_noise.requires_grad

    def noise(self) -> Float[Tensor, " k"]:
        """σ, one for each output or one for all."""
        return self.log_noise.exp()

    def noise_statistics(self, outputs: Float[Tensor, "*batch n c"], targets: Tensor) -> Float[Tensor, "*batch c"]:
        """Σ_n (y − f)² by output."""
        return (outputs - targets).square().sum(-2)

    @torch.no_grad()
    def update_noise(self, statistics: Float[Tensor, " c"], effective: float, num_data: int, damping: float) -> None:
        """σ² ← Σ (y − f)² / (N − γ); with a noise for each output, each is charged an equal part of γ."""
        squares = statistics
        total, count = (squares.sum()[None], num_data * len(squares)) if self.shared else (squares, num_data)
        free = max(count - effective / len(total), 1e-3 * count)
        target = (total / free).clamp(min=1e-12).log() / 2
        self.log_noise.lerp_(target.to(self.log_noise), damping)

    def settings(self) -> Mapping[str, Setting]:
        return {"outputs": None if self.shared else len(self.log_noise)}

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        log_noise = self.log_noise.to(outputs)
        residual = (targets - outputs) / log_noise.exp()
        return -(residual.square() / 2 + log_noise + log(2 * pi) / 2).sum(1)

    def scales(self) -> Float[Tensor, " k"]:
        return (-2 * self.log_noise).exp()

    def fisher_columns(self, outputs: Outputs) -> Columns:
        n, c = outputs.shape
        columns = torch.eye(c, dtype=outputs.dtype, device=outputs.device)[:, None].expand(c, n, c)
        return columns[None] if self.shared else columns[:, None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        if not self.shared:  # outputs of different noise stay apart, so there is nothing to gain by sampling
            return self.fisher_columns(outputs)
        return random_signs((1, samples, *outputs.shape), outputs, generator) / samples**0.5

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        return (targets - outputs) / self.noise().to(outputs).square()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        device = generator.device if generator is not None else outputs.device
        drawn = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=device)
        return outputs + self.noise().to(outputs) * drawn.to(outputs.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        check_values(type(self).__name__, outputs, targets)
        if not self.shared and len(self.log_noise) != outputs.shape[1]:
            raise ValueError(
                f"Gaussian(outputs={len(self.log_noise)}) has a noise for each of {len(self.log_noise)} outputs; "
                f"the model has {outputs.shape[1]}. Give it as many, or leave outputs out for a shared noise."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        return {"squared error": (outputs - targets).square().mean(1)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        return outputs, self.noise().to(outputs).square().expand_as(outputs)

    def link(self, mean: ManyOutputs) -> ManyOutputs:
        return mean

    def interval(self, mean: Outputs, std: Outputs, level: float) -> tuple[Outputs, Outputs]:
        """Of the normal distribution with this mean and standard deviation."""
        return normal_interval(mean, std, level)

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        return score_intervals(lambda level: self.interval(mean, std, level), mean, targets)


@register
class Heteroscedastic(DiagonalLikelihood):
    """y = m + exp(s / 2) ε, with normal ε; outputs [n, 2c] are c means m, then c log-variances s; targets are [n, c].

    The Fisher information of m is exp(−s), that of s is ½, and there is none between them. Variances begin at about 1, where s
    is 0: scale targets to a standard deviation of 1. In single precision information is finite while s > −88.
    """

    has_scale = True

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        log_variance = _halves(outputs)[1]
        return -(self._residual(outputs, targets).square() + log_variance + log(2 * pi)).sum(1) / 2

    def fisher_root(self, outputs: Outputs) -> Outputs:
        precision = (-_halves(outputs)[1] / 2).exp()
        return torch.cat([precision, torch.full_like(precision, 0.5**0.5)], 1)

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        residual = self._residual(outputs, targets)
        return torch.cat([residual * (-_halves(outputs)[1] / 2).exp(), (residual.square() - 1) / 2], 1)

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        mean, log_variance = _halves(outputs)
        device = generator.device if generator is not None else outputs.device
        drawn = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=device)
        return mean + (log_variance / 2).exp() * drawn.to(mean.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        if outputs.shape[1] % 2:
            raise ValueError(
                f"Heteroscedastic needs two outputs for each value, its mean and its log-variance; the model has "
                f"{outputs.shape[1]}. Give its last layer twice as many outputs as targets have values."
            )
        check_values("Heteroscedastic", _halves(outputs)[0], targets)

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        return {"squared error": (_halves(outputs)[0] - targets).square().mean(1)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyValues, ManyValues]:
        mean, log_variance = _halves(outputs)
        return mean, log_variance.exp()

    def link(self, mean: ManyValues) -> ManyOutputs:
        """With variances of 1, of which a mean says nothing."""
        return torch.cat([mean, torch.zeros_like(mean)], -1)

    def interval(self, mean: Outputs, std: Outputs, level: float) -> tuple[Outputs, Outputs]:
        """Of the normal distribution with this mean and standard deviation."""
        return normal_interval(mean, std, level)

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        return score_intervals(lambda level: self.interval(mean, std, level), mean, targets)

    def _residual(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n v"]:
        """(y − m) exp(−s / 2): by half of s at a time, numbers stay finite for longer."""
        mean, log_variance = _halves(outputs)
        return (targets - mean) * (-log_variance / 2).exp()


def _halves(outputs: ManyOutputs) -> tuple[ManyValues, ManyValues]:
    """Means and log-variances."""
    count = outputs.shape[-1] // 2
    return outputs[..., :count], outputs[..., count:]
