"""Counts: y ~ Poisson(exp f), for each output on its own."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from symbayes.likelihoods import Columns, Likelihood, ManyOutputs, Outputs, random_signs, register
from symbayes.scores import CalibrationScores, score_intervals


@register
class Poisson(Likelihood):
    """c independent counts; outputs are logarithms of their rates, targets [n, c] of whole numbers."""

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        counts = targets.to(outputs)
        return (counts * outputs - outputs.exp() - torch.lgamma(counts + 1)).sum(1)

    def fisher_columns(self, outputs: Outputs) -> Columns:
        return torch.diag_embed((outputs / 2).exp()).movedim(1, 0)[None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        return (random_signs((samples, *outputs.shape), outputs, generator) * (outputs / 2).exp() / samples**0.5)[None]

    def product(self, outputs: Outputs, vectors: Outputs) -> Outputs:
        return outputs.exp() * vectors

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        return targets.to(outputs) - outputs.exp()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        rates = outputs.exp()
        on = rates if generator is None else rates.to(generator.device)
        return torch.poisson(on, generator=generator).to(rates)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        if targets.shape != outputs.shape:
            raise ValueError(
                f"Poisson targets must be counts of shape {tuple(outputs.shape)}, as the outputs are; got "
                f"{tuple(targets.shape)}. Reshape them: for one output, targets[:, None]."
            )
        values = targets.double()
        if not (values.isfinite() & (values >= 0) & (values == values.round())).all():
            raise ValueError(
                f"Poisson targets must be whole numbers from 0 on, got values from {float(values.min()):.3g} to "
                f"{float(values.max()):.3g}. Rates are no counts: use Gaussian() for them."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """The deviance, 2 (y log(y / μ) − y + μ): 0 where μ = y, and about 1 where counts are as scattered as they say."""
        counts, rates = targets.to(outputs), outputs.exp()
        return {"deviance": 2 * (torch.xlogy(counts, counts) - counts * outputs - counts + rates).mean(1)}

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
