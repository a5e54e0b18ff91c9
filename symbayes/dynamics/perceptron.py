"""A multilayer perceptron with its gradient written out, for energies: what is trained is the gradient, not the value."""

from typing import cast

from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from symbayes.dynamics.phase import States


class Perceptron(nn.Module):
    """F(x) = wᵀ softplus(… softplus(W₁ x + b₁) …), which is as smooth as motion; without a last bias, as an energy has no zero.

    Args:
        size: Numbers of a state.
        width: Of hidden layers.
        hidden: How many there are.
        generator: For initial weights.
    """

    def __init__(self, size: int, width: int = 50, hidden: int = 2, *, generator: Generator | None = None) -> None:
        super().__init__()
        if size < 1 or width < 1 or hidden < 1:
            raise ValueError(f"size, width and hidden must be at least 1; got {size}, {width} and {hidden}.")
        # Without initial values of torch's own, which would be drawn from the random state of the process.
        self.layers = nn.ModuleList(skip_init(nn.Linear, width if index else size, width) for index in range(hidden))
        self.last = skip_init(nn.Linear, width, 1, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
                if module.bias is not None:
                    nn.init.uniform_(module.bias, -1, 1, generator=generator)

    def forward(self, states: States) -> Float[Tensor, "n 1"]:
        for layer in self.layers:
            states = functional.softplus(layer(states))
        return cast(Tensor, self.last(states))

    def gradient(self, states: States) -> States:
        """∇F at every state, as `torch.func.grad` would give it."""
        slopes: list[Tensor] = []
        for layer in self.layers:
            before = layer(states)
            states = functional.softplus(before)  # not needed behind the last layer, and cheap
            slopes.append(before.sigmoid())
        back: Tensor = self.last.weight
        for layer, slope in zip(reversed(self.layers), reversed(slopes), strict=True):
            back = (back * slope) @ cast(nn.Linear, layer).weight
        return back

    def __call__(self, states: States) -> Float[Tensor, "n 1"]:
        return cast(Tensor, super().__call__(states))
