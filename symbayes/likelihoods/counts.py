"""Counts, for each output on its own: y ~ Poisson(exp f), or a negative binomial, which scatters more."""

from collections.abc import Mapping
from math import inf, lgamma, log

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional

from symbayes.likelihoods.likelihood import DiagonalLikelihood, ManyOutputs, Outputs, Setting, register
from symbayes.scores import CalibrationScores, score_intervals


@register
class Poisson(DiagonalLikelihood):
    """c independent counts; outputs are logarithms of their rates, targets [n, c] of whole numbers."""

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        counts = targets.to(outputs)
        return (self._log_prob_of(outputs, counts) + self._constant(counts)).sum(1)

    def fisher_root(self, outputs: Outputs) -> Outputs:
        return (outputs / 2).exp()

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        return targets.to(outputs) - outputs.exp()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        rates = outputs.exp()
        on = rates if generator is None else rates.to(generator.device)
        return torch.poisson(on, generator=generator).to(rates)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        name = type(self).__name__
        if targets.shape != outputs.shape:
            raise ValueError(
                f"{name} targets must be counts of shape {tuple(outputs.shape)}, as the outputs are; got "
                f"{tuple(targets.shape)}. Reshape them: for one output, targets[:, None]."
            )
        values = targets.double()
        if not (values.isfinite() & (values >= 0) & (values == values.round())).all():
            raise ValueError(
                f"{name} targets must be whole numbers from 0 on, got values from {float(values.min()):.3g} to "
                f"{float(values.max()):.3g}. Rates are no counts: use Gaussian() for them."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """The deviance, 2 (log p(y | log y) − log p(y | f)): 0 where the rate is y, about 1 where counts scatter as said."""
        counts = targets.to(outputs)
        best = counts.clamp(min=torch.finfo(counts.dtype).tiny).log()
        return {"deviance": 2 * (self._log_prob_of(best, counts) - self._log_prob_of(outputs, counts)).mean(1)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        return outputs.exp(), outputs.exp()

    def link(self, mean: ManyOutputs) -> ManyOutputs:
        return mean.log()

    def interval(self, mean: Outputs, std: Outputs, level: float) -> tuple[Outputs, Outputs]:
        """Of the negative binomial with this mean and standard deviation: a Poisson whose rate has a Gamma distribution."""
        from scipy.stats import nbinom

        mu = mean.double().cpu()
        more = (std.double().cpu().square() - mu).clamp(min=1e-6 * mu.square() + 1e-12)  # what the rate varies
        size = (mu.square() / more).numpy()
        ends = (nbinom.ppf(share, size, (mu / (mu + more)).numpy()) for share in ((1 - level) / 2, (1 + level) / 2))
        low, high = (torch.as_tensor(end).to(mean) for end in ends)
        return low, high

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        return score_intervals(lambda level: self.interval(mean, std, level), mean, targets.to(mean))

    def _log_prob_of(self, outputs: Outputs, counts: Outputs) -> Outputs:
        """log p but for the constant, count by count."""
        return counts * outputs - outputs.exp()

    def _constant(self, counts: Outputs) -> Outputs:
        """What outputs do not change in log p."""
        return -torch.lgamma(counts + 1)


@register
class NegativeBinomial(Poisson):
    """c independent counts that scatter more than a Poisson's: outputs are logarithms of their means μ, variances μ + α μ².

    A Poisson whose rate has a Gamma distribution, of mean μ and shape 1 / α. The dispersion α is not learned: fit with several,
    and take that of the highest evidence.

    Args:
        dispersion: α.
    """

    def __init__(self, dispersion: float) -> None:
        super().__init__()
        if not 0 < dispersion < inf:
            raise ValueError(f"dispersion must be positive and finite, got {dispersion}. Where there is none, use Poisson().")
        self.dispersion = dispersion

    def settings(self) -> Mapping[str, Setting]:
        return {"dispersion": self.dispersion}

    def fisher_root(self, outputs: Outputs) -> Outputs:
        return (functional.logsigmoid(self._logit(outputs)) / 2).exp() / self.dispersion**0.5

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        logit = self._logit(outputs)
        return targets.to(outputs) * (-logit).sigmoid() - logit.sigmoid() / self.dispersion

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        shape = torch.full_like(outputs, 1 / self.dispersion, device=None if generator is None else generator.device)
        rates = torch._standard_gamma(shape, generator=generator).to(outputs).log() + log(self.dispersion)
        return super().sample(outputs + rates, generator=generator)

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        mean = outputs.exp()
        return mean, mean + self.dispersion * mean.square()

    def extra_repr(self) -> str:
        return f"dispersion={self.dispersion}"

    def _logit(self, outputs: ManyOutputs) -> ManyOutputs:
        """log α μ: that of α μ / (1 + α μ)."""
        return outputs + log(self.dispersion)

    def _log_prob_of(self, outputs: Outputs, counts: Outputs) -> Outputs:
        logit = self._logit(outputs)
        return counts * functional.logsigmoid(logit) - functional.softplus(logit) / self.dispersion

    def _constant(self, counts: Outputs) -> Outputs:
        y, shape = counts.double(), 1 / self.dispersion  # where that is large, nearly equal numbers are subtracted
        return (torch.lgamma(y + shape) - lgamma(shape) - torch.lgamma(y + 1)).to(counts)
