"""Adam with an implicit prior, in the eigenbasis of the curvature or not.

Adam scales every coordinate on its own. In the coordinates Uᵀ W V, with H ≈ G ⊗ A, G = U Λ Uᵀ and A = V M Vᵀ, that is nearly a
natural gradient; and a prior of one precision looks the same in all coordinates, so its implicit step stays exact. (Adam in the
eigenbasis of a Kronecker-factored preconditioner is known from George et al. 2018 and, as SOAP, from Vyas et al. 2024.)

A prior of precision δ pulls θ towards 0 with force δθ/N. Added to the gradient, that diverges once lr · δ/N is large, and
precisions of paths that are switched off reach 10⁷. Taken implicitly, after the step on the likelihood, as

    θ ← θ / (1 + lr · δ / (N · D)),      D = √v̂ + ε,

it is stable for every δ; and because it uses the metric D of the step before it, a fixed point satisfies
∇(−log p(D|θ)) + δθ = 0.

Weights may be seen in other coordinates, in which their curvature is nearly diagonal (`Rotation`).

All that changes from step to step lies in tensors, on a GPU beside the parameters: so a step can be captured once and replayed.
Tensors of one type go through an operation together: on a GPU that is one kernel instead of one for each of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.curvature.blocks import Block, DenseBlock, Factor, KroneckerBlock

#: Sides of more features than this are left as they are: to rotate them would cost more than the step.
LARGEST = 1000
#: Matrices with more features than this on both sides, far too many for an eigenbasis, move at a share of the learning rate:
#: at the first, or where they are slow anyway, because others come before them, at the second.
WIDE, SHARES_OF_WIDE = 2 * LARGEST, (1 / 3, 0.1)
#: Of a rotation.
SIDES = ("left", "right")


class Rotation:
    """W ↦ Uᵀ W V for every block of a weight, and back. Its matrices may change, their memory stays.

    Args:
        shape: Of the weight as rows, (blocks, d_out, d_in).
        left: U, one for all blocks or one for each; None for the identity.
        right: V, likewise.
    """

    def __init__(self, shape: tuple[int, int, int], left: Tensor | None, right: Tensor | None) -> None:
        self.shape, self.left, self.right = shape, left, right

    def into(self, weight: Tensor) -> Tensor:
        """The new coordinates, in the shape of the weight."""
        rows = weight.reshape(self.shape)
        rows = rows if self.left is None else self.left.mT @ rows
        return (rows if self.right is None else rows @ self.right).view_as(weight)

    def back(self, coordinates: Tensor) -> Tensor:
        """The weight."""
        rows = coordinates.reshape(self.shape)
        rows = rows if self.left is None else self.left @ rows
        return (rows if self.right is None else rows @ self.right.mT).view_as(coordinates)

    def variances(self, old: "Rotation | None", variances: Tensor) -> Tensor:
        """Variances in these coordinates of what is independent in the old ones; in those of the weight itself when None."""
        sides = (self.left, self.right) if old is None else (_between(old.left, self.left), _between(old.right, self.right))
        squared = (None if side is None else side.square() for side in sides)
        return Rotation(self.shape, *squared).into(variances)

    def sides(self) -> dict[str, Tensor]:
        """The matrices there are, by side."""
        return {name: side for name, side in zip(SIDES, (self.left, self.right), strict=True) if side is not None}

    def copy_(self, other: "Rotation") -> None:
        """Become another rotation of the same weight."""
        for own, new in ((self.left, other.left), (self.right, other.right)):
            if own is not None and new is not None:
                own.copy_(new)


def _between(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """From old coordinates to new ones, uᵀ ↦ uᵀ (Oᵀ N)."""
    if old is None or new is None:
        return new if old is None else old.mT
    return old.mT @ new


def rotation(block: Block, size: int) -> Rotation | None:
    """The rotation that makes a block of the curvature of a weight nearly diagonal; None where there is none to be had."""
    match block:
        case KroneckerBlock():
            left, right = _vectors(block.G), _vectors(block.A)
            d_out, d_in = block.G.matrices.shape[1], block.A.matrices.shape[1]
            if block.transposed:
                left, right, d_out, d_in = right, left, d_in, d_out
        case DenseBlock():
            left, right, d_out, d_in = _vectors(block.H), None, block.H.matrices.shape[1], 1
        case _:
            return None
    if left is None and right is None:
        return None
    return Rotation((size // (d_out * d_in), d_out, d_in), left, right)


def _is_wide(weight: Tensor) -> bool:
    """Whether a weight is a matrix with very many features on both sides."""
    return weight.ndim == 2 and min(weight.shape) > WIDE


def _vectors(factor: Factor) -> Float[Tensor, "block d d"] | None:
    if factor.diagonal or factor.matrices.shape[1] > LARGEST:
        return None
    return factor.eigenvectors.clone()


@dataclass(frozen=True)
class Optimiser:
    """How weights are moved, and what of the curvature is collected on the way: Adam under the prior, in an eigenbasis.

    Args:
        running: Steps from one training batch whose Kronecker factors are collected to the next. Their running mean gives the
            curvature of all hyper-steps but the last; 0 for a pass over all data for each of them.
        memory: Batches that count in that mean.
        eigenbasis: Weights are moved in the eigenbasis of the curvature, found again after every so many epochs: nearly a
            natural gradient; 0 for the coordinates of the weights themselves.
    """

    running: int = 10
    memory: int = 20
    eigenbasis: int = 2

    def __post_init__(self) -> None:
        if self.running < 0 or self.memory < 1 or self.eigenbasis < 0:
            raise ValueError(
                "running and eigenbasis must be 0 or more and memory at least 1; "
                f"got {self.running}, {self.eigenbasis}, {self.memory}."
            )

    def over(self, parameters: Sequence[nn.Parameter]) -> "Descent":
        """What moves these parameters; another optimiser gives another here."""
        # In an eigenbasis that changes, squares of gradients are remembered less long.
        return ProximalAdam(parameters, (0.9, 0.99 if self.eigenbasis else 0.999))


#: Adam in the coordinates of the weights, and curvature by passes over all data.
PLAIN = Optimiser(running=0, eigenbasis=0)


class Descent(ABC):
    """What moves parameters down gradients of the mean loss, under a Gaussian prior; an `Optimiser` gives it.

    Args:
        parameters: What to move.
    """

    #: Whether `rotate` can change the coordinates in which parameters are moved.
    has_eigenbasis = False

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        #: The coordinates in which each parameter is moved; its own where None.
        self.rotations: list[Rotation | None] = [None] * len(self.parameters)
        #: Which parameters move slowly, chosen before the first step, and at which share of the learning rate from `set` on.
        self.slow: list[bool] = [False] * len(self.parameters)
        self.share = 1.0

    @property
    def settled(self) -> bool:
        """Whether every step is like the next one, so that it can be captured as a CUDA graph."""
        return False

    @abstractmethod
    def set(self, learning_rate: float, penalties: Sequence[float] | Tensor) -> None:
        """For the steps to come: the learning rate, and δ/N for each parameter.

        Parameters that are `slow` have `share` times the learning rate. An optimiser of another kind may leave that out.
        """

    @abstractmethod
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """One step down gradients of the mean negative log-likelihood, and towards zero by the prior."""

    def rotate(self, rotations: Sequence[Rotation | None]) -> None:
        """Move parameters in these coordinates from now on, or as before where None.

        Raises:
            ValueError: If there are coordinates, and it has no eigenbasis.
        """
        if any(rotation is not None for rotation in rotations):
            self.refuse_eigenbasis()

    def refuse_eigenbasis(self) -> None:
        """Refuse to be asked for steps in an eigenbasis, if there are none.

        Raises:
            ValueError: Saying what to ask for.
        """
        if not self.has_eigenbasis:
            raise ValueError(f"{type(self).__name__} has no steps in an eigenbasis. Use eigenbasis=0.")

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that it remembers, as tensors and plain values by name."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` gave."""


#: Steps after which a tensor that never had a gradient is taken to be without use; the prior then takes it to zero.
PATIENCE = 10


class ProximalAdam(Descent):
    """Adam (Kingma and Ba 2015) whose quadratic penalty is applied implicitly.

    Args:
        parameters: What to optimise.
        betas: Decay of the running means of gradients and of their squares.
        epsilon: Added to the root of the latter.
    """

    has_eigenbasis = True

    def __init__(
        self, parameters: Sequence[nn.Parameter], betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        super().__init__(parameters)
        self.betas, self.epsilon = betas, epsilon
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        device = self.parameters[0].device
        numbers = torch.zeros(5, dtype=torch.float64, device=device if device.type == "cuda" else "cpu")
        #: Steps taken, and the learning rate: of most parameters, of slow ones, of wide ones, and of those that are both.
        self.steps, *self.rates = numbers.unbind()
        self._numbers = numbers
        types = {p.dtype for p in self.parameters}
        self._type = types.pop() if len(types) == 1 else torch.float64
        #: Each learning rate there is, and which parameters have it.
        self._movers: list[tuple[Tensor, list[int]]] = []
        #: lr · δ/N, entry by entry.
        self._pulls = [torch.zeros_like(p) for p in self.parameters]
        #: The parameters in these coordinates: themselves where there are none.
        self._places = list(self.parameters)
        #: Steps launched from the CPU, which replayed ones are not.
        self._launched = 0

    @property
    def settled(self) -> bool:
        return self._launched >= PATIENCE

    def set(self, learning_rate: float, penalties: Sequence[float] | Tensor) -> None:
        """As `Descent` says; nothing waits for a GPU."""
        shares = (1.0, self.share, SHARES_OF_WIDE[0], self.share * SHARES_OF_WIDE[1])
        rates = [learning_rate * share for share in shares]
        for place, rate in enumerate(rates, start=1):
            self._numbers[place] = rate
        kinds = [slow + 2 * _is_wide(p) for slow, p in zip(self.slow, self.parameters, strict=True)]
        chosen = ([index for index, kind in enumerate(kinds) if kind == wanted] for wanted in range(len(rates)))
        self._movers = [(rate, of) for rate, of in zip(self.rates, chosen, strict=True) if of]
        for pull, penalty, kind in zip(self._pulls, penalties, kinds, strict=True):
            pull.fill_(penalty).mul_(rates[kind])

    @torch.no_grad()
    def rotate(self, rotations: Sequence[Rotation | None]) -> None:
        """Move parameters in these coordinates from now on, or as before where None; means and squares are carried over.

        From the first rotation on, parameters are to be changed by steps alone.
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
        rotated = [(i, rotation) for i, rotation in enumerate(self.rotations) if rotation is not None]
        slopes = list(gradients)
        for i, rotation in rotated:
            slopes[i] = rotation.into(gradients[i])
        self._step(self._places, tuple(slopes))
        if rotated:
            back = [rotation.back(self._places[i]) for i, rotation in rotated]
            torch._foreach_copy_([self.parameters[i] for i, _ in rotated], back)

    def _step(self, parameters: list[Tensor], gradients: tuple[Tensor, ...]) -> None:
        self._launched += 1
        self._numbers[0] += 1
        first, second = self.betas
        torch._foreach_lerp_(self.means, gradients, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - second)
        metric = list(torch._foreach_div(self.squares, self._number(1 - second**self.steps)))
        torch._foreach_sqrt_(metric)
        if self._launched <= PATIENCE:
            # Behind weights that begin at zero, whole tensors have no gradient and no metric yet: shrunk gently, not away.
            for root in metric:
                root.add_((root.amax() == 0).to(root.dtype))
        torch._foreach_add_(metric, self.epsilon)
        # (θ − lr m / D) / (1 + lr δ / (N D)) = (θ D − lr m) / (D + lr δ / N)
        torch._foreach_mul_(parameters, metric)
        for rate, chosen in self._movers:
            number = self._number(-rate / (1 - first**self.steps))
            moves = torch._foreach_mul([self.means[index] for index in chosen], number)
            torch._foreach_add_([parameters[index] for index in chosen], moves)
        torch._foreach_add_(metric, self._pulls)
        torch._foreach_div_(parameters, metric)

    def _number(self, value: Tensor) -> Tensor:
        """In the type of the parameters, if they have one: numbers of another are applied tensor by tensor."""
        return value.to(self._type)

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"numbers": self._numbers, "launched": self._launched}
        for index, rotation in enumerate(self.rotations):
            found |= {f"mean.{index}": self.means[index], f"square.{index}": self.squares[index]}
            if rotation is not None:
                # Not the weights rotated anew: rounding would differ.
                found |= {f"shape.{index}": list(rotation.shape), f"place.{index}": self._places[index]}
                found |= {f"{side}.{index}": own for side, own in rotation.sides().items()}
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` gave. Rotations lie in other memory then: steps must be captured again."""
        numbers = state["numbers"]
        self._numbers[: len(numbers)].copy_(numbers)  # earlier there were fewer learning rates; they are set before every epoch
        self._launched = int(state["launched"])
        for index, parameter in enumerate(self.parameters):
            self.means[index].copy_(state[f"mean.{index}"])
            self.squares[index].copy_(state[f"square.{index}"])
            self.rotations[index], self._places[index] = None, parameter
            if f"shape.{index}" in state:
                blocks, d_out, d_in = state[f"shape.{index}"]
                sides = (state.get(f"{side}.{index}") for side in SIDES)
                left, right = (None if side is None else side.to(parameter) for side in sides)
                self.rotations[index] = Rotation((blocks, d_out, d_in), left, right)
                self._places[index] = state[f"place.{index}"].to(parameter)
