"""A network averaged over mirrors, quarter turns and other discrete transformations, to a degree that is learned."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.groups.discrete import DiscreteGenerator, elements_of
from symbayes.invariance.extents import Amounts, ExtentSummary
from symbayes.layers.path import Averaging
from symbayes.layout import Hyperparameter


class Probabilities(Amounts):
    """How probable it is that a generator moves a datum: p for each, from 0 (off) to 1 − 1/m (all m powers alike).

    The power k of a generator of order m has probability 1 − p for k = 0, and p / (m − 1) for each other. Generators are
    independent of each other and act one after the other.

    Args:
        generators: Whose powers they are.
        start: The first p, relative to the largest.
    """

    def __init__(self, generators: Sequence[DiscreteGenerator], start: float = 0.5) -> None:
        super().__init__()
        if not 0 <= start <= 1:
            raise ValueError(f"start must be from 0 (off) to 1 (all powers alike), got {start}.")
        self.generators = tuple(generators)
        self.names = tuple(generator.name for generator in self.generators)
        self.elements = elements_of(self.generators)
        self.value = Hyperparameter(start * self.largest(), requires_grad=bool(self.generators))

    def largest(self) -> Float[Tensor, " k"]:
        """1 − 1/m of every generator."""
        return torch.tensor([1 - 1 / generator.order for generator in self.generators], dtype=torch.float64)

    def weights(self) -> Float[Tensor, " element"]:
        """The probability of every element, in sum one; differentiable."""
        if not self.generators:
            return self.value.new_ones(1)
        orders = self.value.new_tensor([generator.order for generator in self.generators])
        powers = torch.tensor(self.elements.powers, device=self.value.device)
        each = torch.where(powers == 0, 1 - self.value, self.value / (orders - 1)).prod(1)
        numbers = torch.tensor(self.elements.element, device=self.value.device)
        return each.new_zeros(len(self.elements.rearrangements)).index_add(0, numbers, each)

    def moved(self, inputs: Tensor) -> Float[Tensor, "n element ..."]:
        """Every datum under every element."""
        if not self.generators:
            return inputs[:, None]
        return torch.stack([element.act(inputs) for element in self.elements.rearrangements], 1)

    @torch.no_grad()
    def clamp(self) -> None:
        self.value.copy_(torch.minimum(self.value.clamp(min=0), self.largest().to(self.value)))

    @torch.no_grad()
    def fix(self, shares: Mapping[str, float]) -> None:
        """Hold probabilities, from now on: of each generator a share of the largest, 0 for off and 1 for all powers alike.

        Raises:
            ValueError: If a name is not known, one is left out, or a share is not from 0 to 1.
        """
        if set(shares) != set(self.names) or not all(0 <= share <= 1 for share in shares.values()):
            raise ValueError(
                f"There must be a share from 0 to 1 for each of {', '.join(self.names) or 'no generators'}; got {dict(shares)}."
            )
        self.value.copy_(self.largest().to(self.value) * self.value.new_tensor([shares[name] for name in self.names]))
        self.value.requires_grad_(False)

    def described(self) -> list[ExtentSummary]:
        values, largest = self.value.detach().tolist(), self.largest().tolist()
        return [
            ExtentSummary(name, 100 * value, "%", 100 * most, True, self.value.requires_grad, is_probability=True)
            for name, value, most in zip(self.names, values, largest, strict=True)
        ]

    def draw(self, inputs: Tensor, generator: Generator | None) -> Tensor:
        """Every datum under an element of its own, drawn by these probabilities."""
        if not self.generators:
            return inputs
        if inputs.dtype == torch.uint16:  # torch moves none of them; what they are as numbers does not matter here
            return self.draw(inputs.view(torch.int16), generator).view(torch.uint16)
        numbers = torch.multinomial(self.weights().detach().cpu().double(), len(inputs), replacement=True, generator=generator)
        moved = inputs.clone()
        for number in numbers.unique().tolist():
            chosen = (numbers == number).nonzero()[:, 0].to(inputs.device)
            moved[chosen] = self.elements.rearrangements[number].act(inputs[chosen])
        return moved


class DiscreteAverage(nn.Module, Averaging):
    """f(x) = Σ_g p_g net(g x) over mirrors, turns and the like, with probabilities that are learned.

    Of a mirror, f = (1 − p) net(x) + p net(g x). What the mirror changes the sign of is scaled by 1 − 2p, and the rest stays:
    p = 0 is the plain network, p = ½ one that is invariant whatever its weights are, and between them lies a prior that
    prefers functions which the mirror changes little.

    Nothing is drawn: the network sees every element, in training, too, so that it costs as many times as much as there are.
    Continuous transformations may stand inside: `DiscreteAverage(OrbitAverage(net, sb.affine2d()), [mirror("x")])`.

    Args:
        net: Any module that maps a batch of inputs [n, c, *grid] to outputs.
        generators: Such as `sb.groups.mirror("x")`; with none it is the network itself.
        start: The first probabilities, relative to the largest.
    """

    def __init__(self, net: nn.Module, generators: Sequence[DiscreteGenerator], start: float = 0.5) -> None:
        super().__init__()
        wrong = next((g for g in generators if not isinstance(g, DiscreteGenerator)), None)
        if wrong is not None:
            raise TypeError(
                f"Generators must be discrete, as sb.groups.mirror('x') is; got {type(wrong).__name__}. For how far "
                "to turn, shift and scale there is sb.OrbitAverage."
            )
        self.net, self.discrete = net, Probabilities(generators, start)
        example = next((p for p in net.parameters() if p.is_floating_point()), None)
        self.discrete.to(example if example is not None else torch.empty(0))

    @property
    def probabilities(self) -> dict[str, float]:
        """How probable it is that a generator moves a datum, by its name."""
        return dict(zip(self.discrete.names, self.discrete.value.detach().tolist(), strict=True))

    @property
    def copies_inside(self) -> dict[str, int]:
        return {"net": max(1, len(self.discrete.elements.rearrangements))}

    def copy_weights(self) -> Float[Tensor, " copies"] | None:
        return self.discrete.weights() if self.discrete.generators else None

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for all rearrangements of each datum, averaged by their probabilities."""
        weights = self.discrete.weights()
        outputs = cast(Tensor, self.net(self.discrete.moved(inputs).flatten(0, 1)))
        return torch.einsum("g,ng...->n...", weights.to(outputs), outputs.unflatten(0, (len(inputs), len(weights))))

    def __call__(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, super().__call__(inputs))
