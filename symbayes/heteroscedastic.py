"""Values whose noise depends on the input: y ~ N(m, exp s), with both m and s from the network."""

from math import log, pi

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from symbayes.diagonal import Diagonal
from symbayes.likelihoods import ManyOutputs, ManyValues, Outputs, check_values, register
from symbayes.scores import CalibrationScores, normal_interval, score_intervals


@register
class Heteroscedastic(Diagonal):
    """y = m + exp(s / 2) ε, with normal ε; outputs [n, 2c] are c means m, then c log-variances s; targets are [n, c].

    The Fisher information of m is exp(−s), that of s is ½, and there is none between them. Variances begin at about 1, where s
    is 0: scale targets to a standard deviation of 1. In single precision information is finite while s > −88.
    """

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
