"""Adam for the likelihood, with the prior as an implicit step in Adam's own metric.

A prior of precision δ pulls θ towards 0 with force δθ/N. Added to the gradient, that diverges once lr · δ/N is large, and
precisions of paths that are switched off reach 10⁷. Taken implicitly, after the step on the likelihood, as

    θ ← θ / (1 + lr · δ / (N · D)),      D = √v̂ + ε,

it is stable for every δ; and because it uses the metric D of the step before it, a fixed point satisfies
∇(−log p(D|θ)) + δθ = 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Steps after which a tensor that never had a gradient is taken to be without use; the prior then takes it to zero.
PATIENCE = 10


class ProximalAdam:
    """Adam (Kingma and Ba 2015) whose quadratic penalty is applied implicitly.

    Args:
        parameters: What to optimise.
        betas: Decay of the running means of gradients and of their squares.
        epsilon: Added to the root of the latter.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.betas, self.epsilon = betas, epsilon
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], learning_rate: float, penalties: Sequence[float]) -> None:
        """One step: gradients of the mean negative log-likelihood, and δ/N for each parameter."""
        self.steps += 1
        first, second = self.betas
        torch._foreach_lerp_(self.means, gradients, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - second)
        metric = list(torch._foreach_div(self.squares, 1 - second**self.steps))
        torch._foreach_sqrt_(metric)
        if self.steps <= PATIENCE:
            # Behind weights that begin at zero, whole tensors have no gradient and no metric yet: shrunk gently, not away.
            for root in metric:
                root.add_((root.amax() == 0).to(root.dtype))
        torch._foreach_add_(metric, self.epsilon)
        torch._foreach_addcdiv_(self.parameters, self.means, metric, -learning_rate / (1 - first**self.steps))
        # θ / (1 + lr δ / (N D)) = θ D / (D + lr δ / N)
        torch._foreach_mul_(self.parameters, metric)
        torch._foreach_add_(metric, [learning_rate * penalty for penalty in penalties])
        torch._foreach_div_(self.parameters, metric)
