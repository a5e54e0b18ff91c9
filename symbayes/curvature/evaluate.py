"""A model as curvature wants it: evaluating, with outputs and targets that were checked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from symbayes.data.source import check_finite
from symbayes.errors import NotFiniteError
from symbayes.likelihoods import Likelihood


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout, fixed norms, and attention and norms by paths that can be differentiated; modules are left as they were."""
    training = {module: module.training for module in model.modules()}
    norms = {m: f for m in training if (f := _in_two_steps(m)) is not None and "forward" not in m.__dict__}
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    for norm, forward in norms.items():
        norm.forward = forward
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivatives
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for norm in norms:
            del norm.forward
        for module, mode in training.items():
            module.training = mode


def _in_two_steps(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """What a layer norm or an instance norm does, first without its affine part; None for other modules.

    In one step, torch.func holds mean and deviation when it differentiates in the weight: the Jacobian is right, its own
    derivatives are not.
    """
    if type(module) is nn.LayerNorm and module.elementwise_affine:
        norm = partial(functional.layer_norm, normalized_shape=module.normalized_shape, eps=module.eps)
        return lambda inputs: _affine(norm(inputs), module.weight, module.bias)
    if isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d) and module.affine:
        if module.track_running_stats:
            return None
        apart = partial(functional.instance_norm, eps=module.eps)
        one = (-1, *(1,) * (1 if isinstance(module, nn.InstanceNorm1d) else 2 if isinstance(module, nn.InstanceNorm2d) else 3))
        return lambda inputs: _affine(apart(inputs), module.weight.view(one), module.bias.view(one))
    return None


def _affine(normalised: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return normalised * weight if bias is None else normalised * weight + bias


def log_likelihood(
    likelihood: Likelihood, inputs: Tensor, outputs: Tensor, targets: Tensor, start: int = 0
) -> Float[Tensor, ""]:
    """log p(y | f) of a batch whose first datum is number `start`, differentiable in the noise.

    Raises:
        NotFiniteError: If inputs or log-probabilities are not finite.
    """
    check_finite(inputs, start)
    likelihood.check(outputs, targets)
    log_prob = likelihood.log_prob(outputs, targets)
    if not log_prob.isfinite().all():
        bad = int((~log_prob.isfinite()).sum())
        raise NotFiniteError(
            f"The log-likelihood must be finite, got NaN or infinity for {bad} of {len(log_prob)} data. The weights have "
            "probably diverged: use a smaller learning rate, or check the scale of inputs and targets."
        )
    return log_prob.sum()
