"""What a posterior predicts: means, deviations and log-probabilities of targets, the uncertainty of the weights included."""

from dataclasses import dataclass, field
from math import log, pi
from statistics import NormalDist

import torch
from jaxtyping import Float, Int
from torch import Tensor

from symbayes.likelihoods import Categorical, Gaussian, Likelihood


@dataclass(frozen=True)
class DrawnOutputs:
    """Outputs f of a model under several weights, all equally likely; one where the weights are known for sure."""

    values: Float[Tensor, "s n c"]


@dataclass(frozen=True)
class NormalOutputs:
    """f ~ N(mean, covariance) for every datum; only kept as such where p(y | f) is normal, too."""

    mean: Float[Tensor, "n c"]
    covariance: Float[Tensor, "n c c"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """The distribution of the targets of n data.

    Args:
        mean: E[y]: probabilities of classes or labels, or values.
        deviation: Standard deviation of a new y, its noise included; of the indicator of a class.
        epistemic: Standard deviation of E[y | f] under the posterior: what more data could take away.
        by: How it was found, in words.
        likelihood: p(y | f), as it was then.
        outputs: The distribution of f.
    """

    mean: Float[Tensor, "n c"]
    deviation: Float[Tensor, "n c"]
    epistemic: Float[Tensor, "n c"]
    by: str
    likelihood: Likelihood = field(repr=False)
    outputs: DrawnOutputs | NormalOutputs = field(repr=False)

    def __len__(self) -> int:
        """The number of data."""
        return len(self.mean)

    def __str__(self) -> str:
        n, c = self.mean.shape
        many = f"{n} prediction{'' if n == 1 else 's'} of {c} output{'' if c == 1 else 's'}"
        return f"{many} ({type(self.likelihood).__name__}), {self.by}"

    @torch.no_grad()
    def log_prob(self, targets: Tensor) -> Float[Tensor, " n"]:
        """log E p(y | f), for each datum: outputs of a datum are taken together, with their correlations."""
        targets = self._checked(targets)
        if isinstance(self.outputs, DrawnOutputs):
            by_draw = torch.stack([self.likelihood.log_prob(outputs, targets) for outputs in self.outputs.values])
            return by_draw.logsumexp(0) - log(len(by_draw))
        noise = self.likelihood.moments(self.mean)[1].double()
        lower = torch.linalg.cholesky(self.outputs.covariance.double() + torch.diag_embed(noise))
        residual = (targets - self.mean).double()[:, :, None]
        squares = torch.linalg.solve_triangular(lower, residual, upper=False).square().sum((1, 2))
        logs = lower.diagonal(dim1=1, dim2=2).log().sum(1)
        return (-squares / 2 - logs - self.mean.shape[1] * log(2 * pi) / 2).to(self.mean)

    def metrics(self, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """Those of the likelihood, of the mean, and the negative log-probability ("nll"); for each datum."""
        targets = self._checked(targets)
        return {**self.likelihood.metrics(self.likelihood.link(self.mean), targets), "nll": -self.log_prob(targets)}

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
        """Low and high ends between which a new y lies with this probability, for each output on its own.

        Of the normal distribution with this mean and deviation: exact where the prediction is linearised; where it is an
        average over draws of the weights, a normal approximation of their mixture.

        Raises:
            ValueError: If targets are no values, or the level is no probability.
        """
        if not isinstance(self.likelihood, Gaussian):
            raise ValueError(
                f"Intervals are of values, so of a Gaussian likelihood; this is {type(self.likelihood).__name__}. Use `mean`, "
                "which for classes and labels are probabilities and say it all, and `deviation`."
            )
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, such as 0.95; got {level}.")
        reach = NormalDist().inv_cdf((1 + level) / 2) * self.deviation
        return self.mean - reach, self.mean + reach

    def classes(self) -> Int[Tensor, " n"]:
        """The most probable class of each datum.

        Raises:
            ValueError: If there are no classes to choose from.
        """
        if not isinstance(self.likelihood, Categorical):
            raise ValueError(
                f"Classes are of a Categorical likelihood; this is {type(self.likelihood).__name__}. Use `mean`: for labels "
                "(Bernoulli), mean > 0.5."
            )
        return self.mean.argmax(1)

    def _checked(self, targets: Tensor) -> Tensor:
        targets = targets.to(self.mean.device)
        self.likelihood.check(self.mean, targets)
        return targets


def of_draws(values: Float[Tensor, "s n c"], likelihood: Likelihood, by: str) -> Prediction:
    """The average over draws of the outputs."""
    means, variances = likelihood.moments(values)
    between = means.var(0, unbiased=False)
    deviation = (variances.mean(0) + between).sqrt()
    return Prediction(means.mean(0), deviation, between.sqrt(), by, likelihood, DrawnOutputs(values))


def of_normal(outputs: NormalOutputs, likelihood: Gaussian, by: str) -> Prediction:
    """In closed form, where the noise is normal, too."""
    mean, noise = likelihood.moments(outputs.mean)
    between = outputs.covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    return Prediction(mean, (noise + between).sqrt(), between.sqrt(), by, likelihood, outputs)
