"""The evidence from below, by variational inference: E_q log p(D | W) − KL(q ‖ p), with the best precisions in closed form.

The terms are those of every other estimate: log p(D | W) and log p(W), on average under the posterior q, and its volume, which
is the entropy of q. Nothing is weighted: minibatches stand for all the data, and the divergence counts as what it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, pi

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import log_likelihood
from symbayes.data.source import Batch
from symbayes.evidence.objective import Objective
from symbayes.evidence.terms import Evidence
from symbayes.likelihoods import Likelihood
from symbayes.posterior.families import Family, MatrixNormal, Variational
from symbayes.posterior.functional import outputs_under, sampled_outputs
from symbayes.posterior.permutations import HiddenUnits, mutual_information
from symbayes.posterior.posterior import Posterior, Weights
from symbayes.priors import LOG_PRECISION_RANGE, Prior

DRAWS = ("random", "antithetic", "cubature")
NOISES = ("closed form", "gradient")
#: The weight of the divergence at the start of a warm-up.
WARM_FROM = 1e-3


@dataclass(frozen=True)
class Elbo(Objective):
    """The evidence lower bound: weights, spreads, extents and other hyperparameters by gradient, precisions in closed form.

    Args:
        family: Of posteriors.
        samples: Draws of weights in a step.
        final_samples: Draws of weights for the evidence of the result.
        draws: "random"; "antithetic", in pairs that lie opposite to each other; or "cubature", a fixed set of twice as many
            as there are weights, whatever `samples` say, whose average is exact where log p(D | W) is quadratic in W.
        local: Whether noise is drawn behind maps whose weights meet each datum once (see `posterior/functional.py`).
        collapsed: Whether learned precisions are always the best for the posterior there is, δ = p / E‖θ‖²; otherwise they are
            those of the prior, which a user may learn by gradient.
        noise: How a noise that is learned is: in "closed form" after every epoch, the mean squared error under the posterior;
            or by "gradient".
        permutations: How many random permutations of hidden units the volume is corrected with (`posterior/permutations.py`);
            none when 0.
        units: The hidden units that may change places; found in the model when None.
        warm_up: Share of the epochs over which the divergence is let into the gradient, in equal factors from a thousandth on.
            Extents and other hyperparameters rest until then. At full weight from the start, weights that do not fit anything
            yet are given up: the bound has a maximum where the network is off. Evidence is always reported in full.
        spread_rate: Learning rate of the spread, relative to that of the weights.
        extent_rate: Learning rate of extents and other hyperparameters.
        frequency: Epochs from one step of extents and other hyperparameters to the next; at 1 there is one with every batch.
            Otherwise weights and spreads follow a step before the next is chosen, by the mean gradient of the second half of
            the epochs between. Where the posterior is tight, weights that fit what hyperparameters were hold them back.
    """

    family: Family = field(default_factory=MatrixNormal)
    samples: int = 2
    final_samples: int = 32
    draws: str = "antithetic"
    local: bool = True
    collapsed: bool = True
    noise: str = "closed form"
    permutations: int = 0
    units: tuple[HiddenUnits, ...] | None = None
    warm_up: float = 0.5
    spread_rate: float = 3.0
    extent_rate: float = 0.02
    frequency: int = 1

    def __post_init__(self) -> None:
        if self.draws not in DRAWS or self.noise not in NOISES:
            raise ValueError(
                f"draws must be one of {', '.join(DRAWS)}, and noise one of {', '.join(NOISES)}; "
                f"got {self.draws!r} and {self.noise!r}."
            )
        if self.samples < 1 or self.final_samples < 1 or self.permutations < 0:
            raise ValueError(
                "samples and final_samples must be at least 1, and permutations not negative; "
                f"got {self.samples}, {self.final_samples} and {self.permutations}."
            )
        if self.draws == "antithetic" and (self.samples % 2 or self.final_samples % 2):
            raise ValueError(
                f"Antithetic draws come in pairs, so samples and final_samples must be even; got {self.samples} and "
                f"{self.final_samples}. Or draws='random'."
            )
        if not 0 <= self.warm_up < 1 or not self.spread_rate > 0 or not self.extent_rate > 0:
            raise ValueError(
                "warm_up must be a share of the epochs below 1, and spread_rate and extent_rate positive; "
                f"got {self.warm_up}, {self.spread_rate} and {self.extent_rate}."
            )
        if self.frequency < 1:
            raise ValueError(f"frequency must be at least 1, a step of hyperparameters with every batch; got {self.frequency}.")

    def weight_at(self, epoch: int, epochs: int) -> float:
        """What the divergence counts for in the gradient of an epoch, counted from 1; one after the warm-up."""
        warm = self.warm_up * epochs
        return WARM_FROM ** (1 - epoch / warm) if epoch < warm else 1.0

    def evidence(
        self,
        model: nn.Module,
        variational: Variational,
        batch: Batch,
        likelihood: Likelihood,
        prior: Prior,
        *,
        num_data: int | None = None,
        samples: int | None = None,
        collapsed: bool | None = None,
        generator: Generator | None = None,
    ) -> Evidence:
        """An unbiased estimate of the bound, from a batch; `.total.backward()` gives the gradients of everything learned.

        In the weights of the model, which are the means, in the spread, in extents and other hyperparameters, and in the noise
        of the likelihood; in precisions, too, where they are not collapsed.

        Args:
            model: In the mode it is to be used in: `model.train()` draws other transformations in every pass.
            variational: What `family.over(model)` gave.
            batch: Inputs and targets, drawn at random from all the data.
            likelihood: Of targets given outputs.
            prior: Over the weights.
            num_data: Of all the data, which the batch stands for; the batch is all when None.
            samples: Draws of weights, if not as in the settings.
            collapsed: If not as in the settings.
            generator: For the draws.

        Raises:
            ValueError: If prior or `variational` are of another model, or shapes and numbers do not fit.
            NotFiniteError: If inputs or log-probabilities are not finite.
        """
        inputs, targets = batch
        variational.check(model, inputs)
        if prior.group_of.keys() != variational.places.keys():
            prior.check(model)  # which says what does not fit
        drawn = self.samples if samples is None else samples
        posterior = variational()
        outputs = self.outputs(model, variational, posterior, inputs, drawn, generator)
        m, n = len(outputs), len(inputs)
        size = n if num_data is None else num_data
        if outputs.shape[1] != n or len(targets) != n or size < n:
            raise ValueError(
                f"Each of the {n} inputs must have a row of outputs and a target, and num_data counts them, too; got "
                f"{outputs.shape[1]} rows, {len(targets)} targets and num_data={size}."
            )
        repeated = targets.repeat(m, *(1,) * (targets.ndim - 1))
        fit = log_likelihood(likelihood, inputs, outputs.flatten(0, 1), repeated, None) * (size / (m * n))
        variances = posterior.variances()
        moments = second_moments(posterior, variances)
        chosen = self.collapsed if collapsed is None else collapsed
        precisions = prior_precisions(prior, moments, variational.deterministic) if chosen else prior.precisions()
        return Evidence(
            fit,
            expected_log_prior(prior, moments, precisions, variational.deterministic),
            posterior.entropy() + self._information(variational, posterior, inputs, drawn, generator),
            effective(prior, variances, precisions),
            variational.places,
            size,
            self._estimator(posterior, m),
        )

    def _estimator(self, posterior: Posterior, draws: int) -> str:
        corrected = f", hidden units in {self.permutations + 1} orders" if self.permutations else ""
        return (
            f"evidence lower bound ({posterior.kind}, {draws} {'points' if self.draws == 'cubature' else 'draws'}{corrected})"
        )

    def _information(
        self, variational: Variational, posterior: Posterior, inputs: Tensor, samples: int, generator: Generator | None
    ) -> Float[Tensor, ""]:
        """What the volume gains when hidden units need no order."""
        if not self.permutations:
            return torch.zeros(())
        units = variational.units(self.units, inputs)
        drawn = posterior.sample(samples, generator=generator)
        return mutual_information(posterior, drawn, units, self.permutations, generator=generator)

    def outputs(
        self,
        model: nn.Module,
        variational: Variational,
        posterior: Posterior,
        inputs: Tensor,
        samples: int,
        generator: Generator | None,
    ) -> Float[Tensor, "m n c"]:
        """Outputs under the posterior, drawn as these settings say."""
        if self.draws == "cubature":
            return outputs_under(model, posterior.cubature(), inputs)
        local = variational.local(inputs) if self.local else {}
        return sampled_outputs(
            model, posterior, inputs, samples, local=local, antithetic=self.draws == "antithetic", generator=generator
        )


def second_moments(posterior: Posterior, variances: Weights) -> dict[str, Float[Tensor, ""]]:
    """E‖θ‖² by tensor: ‖mean‖² + tr Σ, with the variances of the posterior."""
    return {name: (mean.square() + variances[name]).sum(dtype=torch.float64) for name, mean in posterior.mean.items()}


@torch.no_grad()
def log_precisions(prior: Prior, moments: Mapping[str, Tensor], deterministic: frozenset[str]) -> Float[Tensor, " group"]:
    """The logarithm of the best precisions, δ = p / E‖θ‖² for every group; as they are for groups that are not learned."""
    squares, sizes = torch.zeros_like(prior.log_precision), torch.zeros_like(prior.log_precision)
    for name in prior.group_of.keys() - deterministic:
        index = prior.groups.index(prior.group_of[name])
        squares[index] += moments[name]
        sizes[index] += prior.sizes[name]
    best = (sizes / squares.clamp(min=torch.finfo(squares.dtype).tiny)).log().clamp(*LOG_PRECISION_RANGE)
    return torch.where(prior.learned & (sizes > 0), best, prior.log_precision)


def prior_precisions(prior: Prior, moments: Mapping[str, Tensor], deterministic: frozenset[str]) -> dict[str, Tensor]:
    """The best precisions by tensor, as numbers: at the best, the gradient of the bound through them is zero."""
    by_group = dict(zip(prior.groups, log_precisions(prior, moments, deterministic).exp(), strict=True))
    return {name: by_group[group] for name, group in prior.group_of.items()}


def expected_log_prior(
    prior: Prior, moments: Mapping[str, Tensor], precisions: Mapping[str, Tensor], deterministic: frozenset[str]
) -> Float[Tensor, ""]:
    """E_q log p(W) = Σ ½ (p log δ − p log 2π − δ E‖θ‖²), over tensors that have a prior."""
    total: Tensor = torch.zeros((), dtype=torch.float64)
    for name in prior.group_of.keys() - deterministic:
        size, precision = prior.sizes[name], precisions[name]
        total = total + (size * (precision.double().log() - log(2 * pi)) - precision * moments[name]) / 2
    return total


@torch.no_grad()
def effective(prior: Prior, variances: Weights, precisions: Mapping[str, Tensor]) -> dict[str, Float[Tensor, ""]]:
    """γ by tensor: p − δ tr Σ, which is what Laplace's method has with Σ = (H + Δ)⁻¹."""
    return {name: prior.sizes[name] - precisions[name] * variances[name].sum() for name in prior.group_of}
