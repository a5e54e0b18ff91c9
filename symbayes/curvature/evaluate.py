"""A model as curvature wants it: evaluating, with outputs and targets that were checked."""

from collections.abc import Iterator
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
    norms = [m for m in training if type(m) is nn.LayerNorm and m.elementwise_affine and "forward" not in m.__dict__]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    for norm in norms:
        norm.forward = partial(_layer_norm, norm)  # type: ignore[method-assign]
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivatives
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for norm in norms:
            del norm.forward
        for module, mode in training.items():
            module.training = mode


def _layer_norm(module: nn.LayerNorm, inputs: Tensor) -> Tensor:
    """What the module does, in two steps.

    In one, torch.func holds mean and deviation when it differentiates in the weight: the Jacobian is right, its own derivatives
    are not.
    """
    scaled = functional.layer_norm(inputs, module.normalized_shape, eps=module.eps) * module.weight
    return scaled if module.bias is None else scaled + module.bias


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
