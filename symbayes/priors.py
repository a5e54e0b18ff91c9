"""N(0, δ⁻¹) for every weight, with precisions δ learned from the evidence.

A prior ties tensors into groups that share a precision; its kinds differ only in how: all together, by layer, by path,
or each tensor on its own. The amount of a symmetry in a layer is the precision of the path that would break it.
"""

from abc import ABC, abstractmethod
from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.layers.structure import WeightTensor, weight_tensors

#: Precisions are kept within e^±: beyond, a tensor is as good as absent or as good as free.
LOG_PRECISION_RANGE = (-10.0, 20.0)


class Prior(nn.Module, ABC):
    """A normal prior with a learned precision for each group of weight tensors.

    Args:
        model: Whose trainable tensors the prior is over.
        precision: The first value of every δ.
    """

    def __init__(self, model: nn.Module, precision: float = 1.0) -> None:
        super().__init__()
        if not 0 < precision < float("inf"):
            raise ValueError(f"precision must be positive and finite, got {precision}.")
        tensors = weight_tensors(model)
        self.group_of = {name: self.group_name(tensor) for name, tensor in tensors.items()}
        self.groups = list(dict.fromkeys(self.group_of.values()))
        self.sizes = {name: tensor.size for name, tensor in tensors.items()}
        example = next(p for p in model.parameters() if p.requires_grad)
        start = torch.full((len(self.groups),), log(precision), dtype=example.dtype, device=example.device)
        self.log_precision = nn.Parameter(start)

    @abstractmethod
    def group_name(self, tensor: WeightTensor) -> str:
        """The group that a tensor shares its precision with."""

    def check(self, model: nn.Module) -> None:
        """Refuse a model with other trainable tensors than those the prior was made for.

        Raises:
            ValueError: Naming those that do not match.
        """
        odd = sorted(weight_tensors(model).keys() ^ self.group_of.keys())
        if odd:
            raise ValueError(
                f"The prior and the model must have the same trainable tensors; unmatched={odd}. Make a prior for this model, "
                "after freezing what is not to be learned."
            )

    def precisions(self) -> dict[str, Float[Tensor, ""]]:
        """δ by tensor.

        Raises:
            ValueError: If a precision left the range in which arithmetic with it means something.
        """
        # Not clamped here, so that gradients stay true; training clamps what it sets.
        if not self.log_precision.isfinite().all() or (self.log_precision.abs() > 80).any():
            worst = self.groups[int(self.log_precision.detach().abs().nan_to_num(torch.inf).argmax())]
            raise ValueError(
                f"Log-precisions must be finite and within ±80 so that δ can be represented; that of {worst!r} is not. "
                "Lower the step size of the precisions, or clamp them."
            )
        by_group = dict(zip(self.groups, self.log_precision.exp(), strict=True))
        return {name: by_group[group] for name, group in self.group_of.items()}

    def log_prob(self, weights: dict[str, Tensor]) -> Float[Tensor, ""]:
        """Σ ½ (p log δ − p log 2π − δ‖θ‖²), over tensors."""
        total = torch.zeros_like(self.log_precision[0], dtype=torch.float64)  # large terms cancel those of the volume
        for name, precision in self.precisions().items():
            size = self.sizes[name]
            total = total + (size * (precision.double().log() - log(2 * pi)) - precision * weights[name].square().sum()) / 2
        return total


class ScalarPrior(Prior):
    """One precision for all weights."""

    def group_name(self, tensor: WeightTensor) -> str:
        return "all"


class LayerwisePrior(Prior):
    """One precision for each layer."""

    def group_name(self, tensor: WeightTensor) -> str:
        return tensor.layer


class PathwisePrior(Prior):
    """One precision for each path of each layer: the two factors of a factored path share theirs."""

    def group_name(self, tensor: WeightTensor) -> str:
        return f"{tensor.layer}/{tensor.path}"


class TensorwisePrior(Prior):
    """A precision for every weight tensor, biases included: what the paper uses."""

    def group_name(self, tensor: WeightTensor) -> str:
        return tensor.name
