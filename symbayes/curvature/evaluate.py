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
def naming_types(inputs: Tensor) -> Iterator[None]:
    """Say so where a model does not take inputs because they are no real numbers.

    Raises:
        TypeError: Naming their type.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if inputs.is_floating_point():
            raise
        raise TypeError(
            f"The model must take inputs of type {inputs.dtype}; it does not ({error}). Convert images of whole numbers to "
            "real ones of about size one, such as images.float() / 255, and complex numbers to pairs of real ones."
        ) from error


class NormsByParts(TorchFunctionMode):
    """A context for torch.func in which layer norms and instance norms are computed from means and variances.

    Of the fused ones it holds mean and deviation when what it gave is differentiated again: Jacobians and products are right,
    their own derivatives are not.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in (functional.layer_norm, functional.instance_norm):
            return func(*args, **kwargs)
        given = signature(func).bind(*args, **kwargs)
        given.apply_defaults()
        if not given.arguments.get("use_input_stats", True):
            return func(*args, **kwargs)
        inputs, weight, bias, eps = (given.arguments[name] for name in ("input", "weight", "bias", "eps"))
        by_channel = func is functional.instance_norm
        axes = range(2, inputs.ndim) if by_channel else range(-len(given.arguments["normalized_shape"]), 0)
        variance, mean = torch.var_mean(inputs, tuple(axes), correction=0, keepdim=True)
        outputs = (inputs - mean) * (variance + eps).rsqrt()
        shape = (-1, *(1,) * (inputs.ndim - 2)) if by_channel else tuple(given.arguments["normalized_shape"])
        outputs = outputs if weight is None else outputs * weight.view(shape)
        return outputs if bias is None else outputs + bias.view(shape)


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
