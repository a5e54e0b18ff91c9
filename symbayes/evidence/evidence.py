"""The evidence and its named terms; by Laplace's method, with its gradient at the memory of a batch; from below, as a bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import isnan, log, nan, pi

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.decompositions import decompose_under
from symbayes.curvature.evaluate import without_autocast
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import BlockCurvature, Curvature, Rule
from symbayes.data.source import Data, DataSource, source_for
from symbayes.invariance.extents import Amounts
from symbayes.layout import Hyperparameter, Layout, hyperparameters, weights
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.posterior.posterior import Posterior, Weights
from symbayes.priors import LOG_PRECISION_RANGE, Prior
from symbayes.processes import ALONE
from symbayes.sharded import gathered
from symbayes.text import html_table, number


@dataclass(frozen=True)
class Evidence:
    """log p(D) ≈ log p(D | W*) + log p(W*) + log volume of the posterior around W*."""

    log_likelihood: Float[Tensor, ""]
    log_prior: Float[Tensor, ""]
    log_volume: Float[Tensor, ""]
    #: γ by tensor: how many of its parameters the data determine.
    effective: Mapping[str, Float[Tensor, ""]]
    #: Layer and path of every tensor.
    places: Mapping[str, tuple[str, str]]
    num_data: int
    #: How the volume was estimated, in words; part of the answer.
    estimator: str
    #: Of the total, by what was drawn to estimate it and where that stopped; nan where that is not known.
    standard_error: float = nan
    #: How far the total may be off, at most, because the estimate stopped early; nan where that is not known.
    slack: float = nan

    @property
    def effective_by_path(self) -> dict[tuple[str, str], Float[Tensor, ""]]:
        """γ by layer and path: the sum over its tensors."""
        found: dict[tuple[str, str], Tensor] = {}
        for name, place in self.places.items():
            found[place] = found[place] + self.effective[name] if place in found else self.effective[name]
        return found

    @property
    def total(self) -> Float[Tensor, ""]:
        """The estimate of log p(D); `.backward()` gives gradients in precisions, noise and extents."""
        return self.log_likelihood + self.log_prior + self.log_volume

    def detached(self) -> "Evidence":
        """The same, cut off from autograd."""
        terms = {name: getattr(self, name).detach() for name in ("log_likelihood", "log_prior", "log_volume")}
        return replace(self, **terms)

    def __str__(self) -> str:
        per = self.total.item() / self.num_data
        error = "" if isnan(self.standard_error) else f" ± {self.standard_error:.1f}"
        return (
            f"log evidence {self.total.item():.1f}{error} ({per:.3f} per datum) = "
            f"log-likelihood {self.log_likelihood.item():.1f} + log-prior {self.log_prior.item():.1f} + "
            f"log-volume {self.log_volume.item():.1f}; {self.estimator}"
        )

    def _repr_html_(self) -> str:
        terms = {
            "log-likelihood of the data": self.log_likelihood.item(),
            "log-prior of the weights": self.log_prior.item(),
            "log-volume of the posterior": self.log_volume.item(),
            "log evidence": self.total.item(),
        }
        return evidence_html(terms, None if isnan(self.standard_error) else self.standard_error, self.estimator)


def evidence_html(terms: Mapping[str, float], standard_error: float | None, estimator: str) -> str:
    """An evidence for notebooks: its terms by name, the total last, and how it was estimated."""
    written = {name: number(value, 1) for name, value in terms.items()}
    if standard_error is not None:
        written["log evidence"] += f" ± {number(standard_error, 1)}"
    return html_table(("term", "nats"), list(written.items()), left=1) + f"<p>Estimator: {escape(estimator)}.</p>"


def laplace_evidence(
    model: nn.Module,
    data: Data | DataSource,
    likelihood: Likelihood,
    prior: Prior,
    *,
    rule: Rule | None = None,
    generator: Generator | None = None,
) -> Evidence:
    """log p(D) ≈ log p(D | W*) + log p(W*) + ½ (P log 2π − log|H + Δ|).

    W* are the weights the model has now, H the curvature of −log p(D | W) there. Differentiable in every prior precision, in
    the noise of the likelihood, and in whatever else the forward pass depends on (extents of invariance, inputs, other
    tensors): `.total.backward()`. That last gradient keeps a graph over all the data; for many there is `evidence_gradient`.
    The weights themselves get no gradient.

    Args:
        model: Any module that maps a batch of inputs to outputs [n, c]. Where `fully_shard` (FSDP2) has sharded it, all
            processes call this alike, with all the data, and have the same evidence: weights are whole meanwhile, and data are
            shared out; not where gradients in a noise or in hyperparameters may be asked for, unless under torch.no_grad().
        data: A pair of tensors, a Dataset or a DataLoader; read once (by `Lanczos` more often).
        likelihood: Of targets given outputs.
        prior: Over the trainable tensors of the model.
        rule: How H is estimated; `Kfac()` with the exact Fisher when None.
        generator: For rules that sample.

    Returns:
        The terms of the estimate.

    Raises:
        ValueError: If the prior was made for another model.
        TypeError: If the model is sharded in a way that cannot be undone.
    """
    prior.check(model)
    _refuse_sharded_extents(model)
    source = source_for(model, data)
    with without_autocast(), gathered(model, source, prior, likelihood) as processes:
        if processes.count > 1 and torch.is_grad_enabled() and _learns_more(model, likelihood):
            source.processes = ALONE  # sums over processes have no gradient
        curvature = (rule or Kfac()).curvature(model, source, likelihood, generator=processes.alike(generator))
        if isinstance(curvature, BlockCurvature):
            decompose_under(curvature.blocks, prior.precisions(), processes=source.processes)
        return evidence_at(curvature, model, prior, source.size)


def _learns_more(model: nn.Module, likelihood: Likelihood) -> bool:
    """Whether the evidence may be differentiated in more than precisions."""
    return bool(hyperparameters(model)) or any(parameter.requires_grad for parameter in likelihood.parameters())


def _refuse_sharded_extents(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, Amounts) and not isinstance(module.value, Hyperparameter):
            raise TypeError(
                f"Extents and probabilities must be hyperparameters, no weights with a prior; those of {name or 'the model'!r} "
                f"are a {type(module.value).__name__}, as fully_shard makes them. Leave them out of shards, by "
                "ignored_params=set(hyperparameters(model).values())."
            )


def evidence_at(curvature: Curvature, model: nn.Module, prior: Prior, num_data: int) -> Evidence:
    """The evidence for curvature that is known already: what hyper-steps use, since it needs no data."""
    values = {name: parameter.detach() for name, parameter in weights(model).items()}
    precisions = prior.precisions()
    # log|H + Δ| = log|I + HΔ⁻¹| + log|Δ|
    logs = (prior.sizes[name] * precision.double().log() for name, precision in precisions.items())
    log_det_prior = sum(logs, torch.zeros(()))
    log_det = curvature.log_det(precisions) + log_det_prior
    with torch.no_grad():
        effective = curvature.effective(precisions)
    return Evidence(
        curvature.log_likelihood,
        prior.log_prob(values),
        (sum(prior.sizes.values()) * log(2 * pi) - log_det) / 2,
        effective,
        {name: (tensor.layer, tensor.path) for name, tensor in Layout.of(model).tensors.items()},
        num_data,
        curvature.estimator,
        curvature.standard_error(precisions) / 2,
        curvature.slack(precisions) / 2,
    )


def evidence_gradient(
    model: nn.Module,
    data: Data | DataSource,
    likelihood: Likelihood,
    prior: Prior,
    tensors: Sequence[Tensor] | None = None,
    *,
    rule: Rule | None = None,
    share: float = 1.0,
    generator: Generator | None = None,
) -> tuple[Tensor, ...]:
    """∂ log p(D) / ∂η through the curvature, for extents of invariance or any tensors that the forward pass depends on.

    The same as `laplace_evidence(...).total.backward()`, which keeps the graph of all the data; this reads them twice and keeps
    that of one batch. The first pass collects curvature without a graph, the second differentiates it batch by batch.

    Args:
        model: Any module that maps a batch of inputs to outputs [n, c]; sharded over processes as `laplace_evidence` says. What
            is drawn for the second pass is then drawn for shares of the data.
        data: A pair of tensors, a Dataset or a DataLoader.
        likelihood: Of targets given outputs.
        prior: Over the weights of the model.
        tensors: What to differentiate in, no weights; the hyperparameters of the model when None.
        rule: How the curvature is estimated; `Kfac()` when None.
        share: Of the data that the second pass reads, drawn at random; below 1 the gradient is right on average.
        generator: For what is drawn.

    Returns:
        A gradient for each tensor.

    Raises:
        ValueError: If there is nothing to differentiate in, or it does not matter to the outputs.
    """
    prior.check(model)
    _refuse_sharded_extents(model)
    chosen = list(tensors) if tensors is not None else list(hyperparameters(model).values())
    if not chosen:
        raise ValueError("There must be tensors to differentiate in: the model has no hyperparameters, and none were given.")
    source = source_for(model, data)
    with without_autocast(), gathered(model, source, prior, likelihood) as processes:
        with torch.no_grad():
            curvature = (rule or Kfac()).curvature(model, source, likelihood, generator=processes.alike(generator))
        own = gradient_through(curvature, prior, chosen, share, generator)
        if generator is not None:
            source.processes.align(generator)  # processes have drawn for shares of different sizes
        return tuple(source.processes.sum(own))


def gradient_through(
    curvature: Curvature, prior: Prior, tensors: Sequence[Tensor], share: float, generator: Generator | None
) -> tuple[Tensor, ...]:
    """The same, for curvature that is known already."""
    totals = [torch.zeros_like(tensor) for tensor in tensors]
    precisions = {name: precision.detach() for name, precision in prior.precisions().items()}
    for surrogate in curvature.surrogates(precisions, share, generator):
        found = _gradients(surrogate, tensors)
        del surrogate  # and with it the graph, before the next is made
        totals = [total + gradient for total, gradient in zip(totals, found, strict=True)]
    return tuple(totals)


def _gradients(surrogate: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    needed = [tensor for tensor in tensors if tensor.requires_grad] if surrogate.requires_grad else []
    found = dict(zip(map(id, needed), torch.autograd.grad(surrogate, needed, allow_unused=True) if needed else (), strict=True))
    for index, tensor in enumerate(tensors):
        if found.get(id(tensor)) is None:
            raise ValueError(
                f"The outputs of the model must depend on every tensor to differentiate in; on number {index}, of shape "
                f"{tuple(tensor.shape)}, they do not. Weights have no gradient here: they are integrated over."
            )
    return [found[id(tensor)] for tensor in tensors]


def second_moments(posterior: Posterior, variances: Weights) -> dict[str, Float[Tensor, ""]]:
    """E‖θ‖² by tensor: ‖mean‖² + tr Σ, with the variances of the posterior."""
    return {name: (mean.square() + variances[name]).sum(dtype=torch.float64) for name, mean in posterior.mean.items()}


@torch.no_grad()
def log_precisions(prior: Prior, moments: Mapping[str, Tensor], deterministic: frozenset[str]) -> Float[Tensor, " group"]:
    """The logarithm of the best precisions, δ = p / E‖θ‖² for every group; as they are for groups that are not learned."""
    squares, sizes = torch.zeros_like(prior.log_precision), torch.zeros_like(prior.log_precision)
    for name in _uncertain(prior, deterministic):
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
    for name in _uncertain(prior, deterministic):
        size, precision = prior.sizes[name], precisions[name]
        total = total + (size * (precision.double().log() - log(2 * pi)) - precision * moments[name]) / 2
    return total


@torch.no_grad()
def effective(prior: Prior, variances: Weights, precisions: Mapping[str, Tensor]) -> dict[str, Float[Tensor, ""]]:
    """γ by tensor: p − δ tr Σ, which is what Laplace's method has with Σ = (H + Δ)⁻¹."""
    return {name: prior.sizes[name] - precisions[name] * variances[name].sum() for name in prior.group_of}


def _uncertain(prior: Prior, deterministic: frozenset[str]) -> list[str]:
    """Tensors that have a prior, always in one order: sums are rounded by it."""
    return [name for name in prior.group_of if name not in deterministic]
