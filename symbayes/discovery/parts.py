"""Parts of a Hamiltonian network as modules of their own, to be evaluated under many weights."""

from jaxtyping import Float
from torch import Tensor, nn

from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.phase import States


class Motion(nn.Module):
    """J ∇H of a network."""

    def __init__(self, model: HamiltonianNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: States) -> States:
        return self.model.motion()(states)


class Energy(nn.Module):
    """H of a network."""

    def __init__(self, model: HamiltonianNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: States) -> Float[Tensor, "n 1"]:
        return self.model.energy()(states)[:, None]
