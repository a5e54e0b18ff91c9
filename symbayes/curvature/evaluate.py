"""A model as curvature wants it: evaluating, with outputs and targets that were checked."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.data.source import check_finite
from symbayes.errors import NotFiniteError
from symbayes.likelihoods import Likelihood


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout, fixed norms, and attention by the path that can be differentiated; every module is left as it was."""
    training = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in training.items():
            module.training = mode


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
