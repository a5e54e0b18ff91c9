"""Adam for the likelihood, with the prior as an implicit step in Adam's own metric.

A prior of precision δ pulls θ towards 0 with force δθ/N. Added to the gradient, that diverges once lr · δ/N is large, and
precisions of paths that are switched off reach 10⁷. Taken implicitly, after the step on the likelihood, as

    θ ← θ / (1 + lr · δ / (N · D)),      D = √v̂ + ε,

it is stable for every δ; and because it uses the metric D of the step before it, a fixed point satisfies
∇(−log p(D|θ)) + δθ = 0.

Weights may be seen in other coordinates, in which their curvature is nearly diagonal (`Rotation`).

All that changes from step to step lies in tensors, on a GPU beside the parameters: so a step can be captured once and replayed.
Tensors of one type go through an operation together: on a GPU that is one kernel instead of one for each of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from symbayes.training.rotation import Rotation

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
        device = self.parameters[0].device
        numbers = torch.zeros(2, dtype=torch.float64, device=device if device.type == "cuda" else "cpu")
        #: Steps taken, and the learning rate.
        self.steps, self.rate = numbers.unbind()
        self._numbers = numbers
        types = {p.dtype for p in self.parameters}
        self._type = types.pop() if len(types) == 1 else torch.float64
        #: lr · δ/N, entry by entry.
        self._pulls = [torch.zeros_like(p) for p in self.parameters]
        #: The coordinates in which each parameter is optimised; its own where None.
        self.rotations: list[Rotation | None] = [None] * len(self.parameters)
        #: The parameters in these coordinates: themselves where there are none.
        self._places = list(self.parameters)
        #: Steps from the host, which replayed ones are not.
        self._from_host = 0

    @property
    def settled(self) -> bool:
        """Whether every step is like the next one, so that it can be captured."""
        return self._from_host >= PATIENCE

    def set(self, learning_rate: float, penalties: Sequence[float] | Tensor) -> None:
        """For the steps to come: the learning rate, and δ/N for each parameter; nothing waits for a GPU."""
        self._numbers[1] = learning_rate
        for pull, penalty in zip(self._pulls, penalties, strict=True):
            pull.fill_(penalty).mul_(learning_rate)

    @torch.no_grad()
    def turn(self, rotations: Sequence[Rotation | None]) -> None:
        """See parameters in these coordinates from now on, or as before where None; what is known of gradients is carried over.

        From the first turn on, parameters are to be changed by steps alone.
        """
        for index, (old, new) in enumerate(zip(self.rotations, rotations, strict=True)):
            if new is None:
                continue
            means = self.means[index] if old is None else old.back(self.means[index])
            self.means[index].copy_(new.into(means))
            self.squares[index].copy_(new.variances(old, self.squares[index]))
            place = new.into(self.parameters[index])
            if old is None:
                self.rotations[index], self._places[index] = new, place
            else:
                old.copy_(new)
                self._places[index].copy_(place)

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """One step down gradients of the mean negative log-likelihood, and towards zero by the prior."""
        turned = [(i, rotation) for i, rotation in enumerate(self.rotations) if rotation is not None]
        slopes = list(gradients)
        for i, rotation in turned:
            slopes[i] = rotation.into(gradients[i])
        self._step(self._places, tuple(slopes))
        if turned:
            back = [rotation.back(self._places[i]) for i, rotation in turned]
            torch._foreach_copy_([self.parameters[i] for i, _ in turned], back)

    def _step(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self._from_host += 1
        self._numbers[0] += 1
        first, second = self.betas
        torch._foreach_lerp_(self.means, gradients, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - second)
        metric = list(torch._foreach_div(self.squares, self._number(1 - second**self.steps)))
        torch._foreach_sqrt_(metric)
        if self._from_host <= PATIENCE:
            # Behind weights that begin at zero, whole tensors have no gradient and no metric yet: shrunk gently, not away.
            for root in metric:
                root.add_((root.amax() == 0).to(root.dtype))
        torch._foreach_add_(metric, self.epsilon)
        # (θ − lr m / D) / (1 + lr δ / (N D)) = (θ D − lr m) / (D + lr δ / N)
        torch._foreach_mul_(parameters, metric)
        torch._foreach_add_(parameters, torch._foreach_mul(self.means, self._number(-self.rate / (1 - first**self.steps))))
        torch._foreach_add_(metric, self._pulls)
        torch._foreach_div_(parameters, metric)

    def _number(self, value: Tensor) -> Tensor:
        """In the type of the parameters, if they have one: numbers of another are applied tensor by tensor."""
        return value.to(self._type)
