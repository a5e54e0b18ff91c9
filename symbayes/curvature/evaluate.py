"""A model as curvature wants it: evaluating, with outputs and targets that were checked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from symbayes.data.source import check_finite, first_datum
from symbayes.errors import NotFiniteError
from symbayes.likelihoods import Likelihood

#: Kinds of device on which torch may compute at lower precision than weights have.
_AUTOCAST = ("cpu", "cuda")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout, fixed norms, no autocast, attention by a path that can be differentiated; modules are left as they were."""
    training = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), without_autocast():  # the other ways to attend have no second derivatives
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


#: Norms that are fused, and their arguments in order.
_LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
_INSTANCE = ("input", "weight", "bias", "running_mean", "running_var", "use_input_stats", "momentum", "eps")
_NORMS: dict[Callable[..., Any], tuple[str, ...]] = {
    functional.layer_norm: _LAYER,
    torch.layer_norm: _LAYER,
    torch.native_layer_norm: _LAYER,
    functional.instance_norm: tuple(signature(functional.instance_norm).parameters),
    torch.instance_norm: _INSTANCE,
    functional.batch_norm: tuple(signature(functional.batch_norm).parameters),
}


class NormsByParts(TorchFunctionMode):
    """A context in which norms are computed from means and variances: torch differentiates the fused ones wrongly at times.

    With torch.func, layer norms and instance norms hold mean and deviation when what it gave is differentiated again: Jacobians
    and products are right, their own derivatives are not. In a batch of one datum, gradients through batch norms and instance
    norms are wrong where they come in another order of memory.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _NORMS:
            return func(*args, **kwargs)
        given = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(_NORMS[func], args, strict=False)), **kwargs}
        inputs: Tensor = given["input"]
        channels = (-1, *(1,) * (inputs.ndim - 2))
        if "normalized_shape" in given:
            axes, shape = tuple(range(-len(given["normalized_shape"]), 0)), tuple(given["normalized_shape"])
            variance, mean = torch.var_mean(inputs, axes, correction=0, keepdim=True)
        elif given.get("training", False) or (func is functional.batch_norm and given["running_mean"] is None):
            return func(*args, **kwargs)
        elif given.get("use_input_stats", func is functional.instance_norm):
            shape = channels
            variance, mean = torch.var_mean(inputs, tuple(range(2, inputs.ndim)), correction=0, keepdim=True)
        else:
            shape = channels
            variance, mean = given["running_var"].view(shape), given["running_mean"].view(shape)
        root = (variance + given["eps"]).rsqrt()
        outputs = (inputs - mean) * root
        outputs = outputs if given["weight"] is None else outputs * given["weight"].view(shape)
        outputs = outputs if given["bias"] is None else outputs + given["bias"].view(shape)
        return (outputs, mean, root) if func is torch.native_layer_norm else outputs


def log_likelihood(
    likelihood: Likelihood, inputs: Tensor, outputs: Tensor, targets: Tensor, start: int | None
) -> Float[Tensor, ""]:
    """log p(y | f) of a batch whose first datum is number `start`, differentiable in the noise; None where data are shuffled.

    Raises:
        NotFiniteError: If inputs or log-probabilities are not finite.
    """
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
