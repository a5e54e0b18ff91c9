"""Laplace's estimate of the evidence: a normal posterior around the weights, with the curvature of a rule."""

from math import log, pi

import torch
from torch import Generator, nn

from symbayes.curvature.evaluate import without_autocast
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Curvature, Rule
from symbayes.data.source import Data, DataSource, as_source
from symbayes.evidence.terms import Evidence
from symbayes.layers.structure import weight_tensors, weights
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
        {name: (tensor.layer, tensor.path) for name, tensor in weight_tensors(model).items()},
        num_data,
        curvature.estimator,
    )
