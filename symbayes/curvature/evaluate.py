"""A model as curvature wants it: evaluating, with outputs and targets that were checked."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from symbayes.adapters import replaced, stepwise_forwards
from symbayes.data.source import check_finite, first_datum
from symbayes.errors import NotFiniteError
from symbayes.layout import call_with, held
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.sharded import refuse_sharded

#: Kinds of device on which torch may compute at lower precision than weights have.
_AUTOCAST = ("cpu", "cuda")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout, fixed norms, no autocast, attention and recurrence by ways that can be differentiated twice.

    Modules are left as they were.

    Raises:
        TypeError: If the model is sharded over processes.
    """
    refuse_sharded(model)
    training = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as ways, sdpa_kernel(SDPBackend.MATH), without_autocast():
            for module, build in stepwise_forwards(model):
                ways.enter_context(replaced(module, build))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in training.items():
            module.training = mode


@contextmanager
def without_autocast() -> Iterator[None]:
    """In the precision of weights: curvature, evidence and steps of an optimiser are not for half of it."""
    with ExitStack() as stack:
        for device in _AUTOCAST:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def autocast_precision(device: torch.device) -> torch.dtype | None:
    """That of the autocast there is; None where there is none."""
    known = device.type in _AUTOCAST and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if known else None


@contextmanager
def naming_types(inputs: Tensor, precision: torch.dtype) -> Iterator[None]:
    """Say so where a model cannot be called, since its inputs are of another type than its weights, or of another shape.

    Raises:
        TypeError: If inputs are no real numbers.
        ValueError: If they are, and it cannot be called.
    """
    try:
        yield
    except (RuntimeError, TypeError, IndexError) as error:
        took = f"The model must take inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}; it does not ({error})"
        if not inputs.is_floating_point():
            raise TypeError(
                f"{took}. Convert images of whole numbers to real ones of about size one, such as images.float() / 255, and "
                "complex numbers to pairs of real ones."
            ) from error
        if inputs.dtype != precision:
            raise ValueError(f"{took}. Its weights are {precision}: convert one, inputs.float() or model.double().") from error
        raise ValueError(f"{took}. Give it batches that it was made for; called on one, it says where it stops.") from error


def is_differentiable(model: nn.Module, inputs: Tensor) -> bool:
    """Whether gradients are on and outputs depend on more than weights: on hyperparameters, inputs, other tensors of a user."""
    return torch.is_grad_enabled() and depends_on_more(model, inputs, hyperparameters=True)


@torch.enable_grad()
def depends_on_more(model: nn.Module, inputs: Tensor, *, hyperparameters: bool) -> bool:
    """Whether outputs depend on tensors that ask for gradients and are no weights; on hyperparameters, where these count."""
    with evaluating(model):
        outputs: Tensor = call_with(model, held(model, hyperparameters), inputs)
    return outputs.requires_grad


def log_likelihood(
    likelihood: Likelihood, inputs: Tensor, outputs: Tensor, targets: Tensor, start: int | None
) -> Float[Tensor, ""]:
    """log p(y | f) of a batch whose first datum is number `start`, differentiable in the noise; None where data are shuffled.

    Nothing is checked in a step that is being captured as a CUDA graph, which cannot wait for the device.

    Raises:
        NotFiniteError: If inputs or log-probabilities are not finite.
    """
    if is_capturing(outputs):
        return likelihood.log_prob(outputs, targets).sum()
    check_finite(inputs, start)
    likelihood.check(outputs, targets)
    log_prob = likelihood.log_prob(outputs, targets)
    if not log_prob.isfinite().all():
        bad = ~log_prob.isfinite()
        raise NotFiniteError(
            f"The log-likelihood must be finite, got NaN or infinity for {int(bad.sum())} of {len(log_prob)} data of a batch"
            f"{first_datum(bad, start)}. The weights have probably diverged: use a smaller learning rate, or check the scale "
            "of inputs and targets."
        )
    return log_prob.sum()


def is_capturing(tensor: Tensor) -> bool:
    """Whether what is done with a tensor is being captured as a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
