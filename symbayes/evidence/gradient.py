"""The gradient of the evidence in what a model depends on beside its weights, at the memory of one batch."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import without_autocast
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Curvature, Rule
from symbayes.data.source import Data, DataSource, as_source
from symbayes.layers.structure import hyperparameters
from symbayes.likelihoods import Likelihood
from symbayes.priors import Prior


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
