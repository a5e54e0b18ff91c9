"""The evidence by Laplace's method, and its gradient at the memory of a batch."""

from collections.abc import Sequence
from math import log, pi

import torch
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import without_autocast
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Curvature, Rule
from symbayes.data.source import Data, DataSource, as_source
from symbayes.evidence.terms import Evidence
from symbayes.layout import Layout, hyperparameters, weights
from symbayes.likelihoods import Likelihood
from symbayes.priors import Prior


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
        model: Any module that maps a batch of inputs to outputs [n, c].
        data: A pair of tensors, a Dataset or a DataLoader; read once (by `Lanczos` more often).
        likelihood: Of targets given outputs.
        prior: Over the trainable tensors of the model.
        rule: How H is estimated; `Kfac()` with the exact Fisher when None.
        generator: For rules that sample.

    Returns:
        The terms of the estimate.

    Raises:
        ValueError: If the prior was made for another model.
    """
    prior.check(model)
    source = as_source(data, next(model.parameters()).device)
    with without_autocast():
        curvature = (rule or Kfac()).curvature(model, source, likelihood, generator=generator)
        return evidence_at(curvature, model, prior, source.size)


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
        model: Any module that maps a batch of inputs to outputs [n, c].
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
    chosen = list(tensors) if tensors is not None else list(hyperparameters(model).values())
    if not chosen:
        raise ValueError("There must be tensors to differentiate in: the model has no hyperparameters, and none were given.")
    source = as_source(data, next(model.parameters()).device)
    with without_autocast():
        with torch.no_grad():
            curvature = (rule or Kfac()).curvature(model, source, likelihood, generator=generator)
        return gradient_through(curvature, prior, chosen, share, generator)


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
