"""N(0, δ⁻¹) for every weight, with precisions δ learned from the evidence.

A prior ties tensors into groups that share a precision; its kinds differ only in how: all together, by layer, by path,
or each tensor on its own. A parameter of shape, such as a lengthscale, is no weight and always has its own. The amount of a
symmetry in a layer is the precision of the path that would break it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatch
from math import log, pi

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from symbayes.layout import Layout, WeightTensor

#: Precisions are kept within e^±: beyond, a tensor is as good as absent or as good as free.
LOG_PRECISION_RANGE = (-10.0, 20.0)

#: A path, by the name of its layer and its own.
_Place = tuple[str, str]


class Prior(nn.Module, ABC):
    """A normal prior with a learned precision for each group of weight tensors.

    Args:
        model: Whose trainable tensors the prior is over.
        precision: The first value of every δ.
        learn: Name patterns of the tensors whose precisions are learned, such as ["*omega"]; the others keep theirs. All are
            learned when None.
        symmetric_start: Whether paths that break a symmetry which another path of their layer keeps begin switched off: not at
            `precision`, but at that of their small initial weights, 1 / mean θ². From there the evidence lets a path in if the
            squared gradient of its weights exceeds the trace of their curvature. Or which of them, such as ("factored",).

    Raises:
        ValueError: If a pattern matches nothing, or only some of the tensors that share a precision; or if there is no path
            to begin switched off, or none of a name that is given.
    """

    #: Whether the precision of a group is learned.
    learned: Bool[Tensor, " group"]

    def __init__(
        self,
        model: nn.Module,
        precision: float = 1.0,
        learn: Sequence[str] | None = None,
        *,
        symmetric_start: bool | Sequence[str] = False,
    ) -> None:
        super().__init__()
        if not 0 < precision < float("inf"):
            raise ValueError(f"precision must be positive and finite, got {precision}.")
        #: The first value of every δ.
        self.precision = precision
        tensors = Layout.of(model).tensors
        self.group_of = {name: name if t.kind == "shape" else self.group_name(t) for name, t in tensors.items()}
        self.groups = list(dict.fromkeys(self.group_of.values()))
        self.sizes = {name: tensor.size for name, tensor in tensors.items()}
        example = next(p for p in model.parameters() if p.requires_grad)
        start = torch.full((len(self.groups),), log(precision), dtype=example.dtype, device=example.device)
        if symmetric_start:
            off = _relaxing(tensors, None if symmetric_start is True else symmetric_start)
            self._switch_off(off, start, tensors, dict(model.named_parameters()))
        self.log_precision = nn.Parameter(start)
        self.learn = None if learn is None else tuple(learn)
        self.register_buffer("learned", torch.tensor(self._learned(), device=example.device), persistent=False)

    @abstractmethod
    def group_name(self, tensor: WeightTensor) -> str:
        """The group that a tensor shares its precision with."""

    def _switch_off(
        self, off: Set[_Place], start: Tensor, tensors: Mapping[str, WeightTensor], values: Mapping[str, Tensor]
    ) -> None:
        """Raise the precision of groups in which all tensors are of paths to begin off to that of their initial weights."""
        kept_on = set(off)
        for index, group in enumerate(self.groups):
            members = [tensors[name] for name, of in self.group_of.items() if of == group]
            if not all((tensor.layer, tensor.path) in off and tensor.kind != "shape" for tensor in members):
                continue
            # Biases begin at zero: they are given the precision of the weights beside them.
            places = {(tensor.layer, tensor.path) for tensor in members}
            weights = [tensor for tensor in members if tensor.kind == "weight"] or [
                tensor for tensor in tensors.values() if tensor.kind == "weight" and (tensor.layer, tensor.path) in places
            ]
            begin = log_precision_of([values[tensor.name] for tensor in weights])
            if begin is not None and begin > start[index]:
                start[index] = begin
                kept_on -= places
        if kept_on:
            layer, path = min(kept_on)
            raise ValueError(
                "symmetric_start needs small initial weights in all paths that break a symmetry, with precisions of their own; "
                f"path {path!r} of layer {layer!r} would not begin switched off with {type(self).__name__}. Give it a smaller "
                "scale that is not zero, trainable weights, and a PathwisePrior or TensorwisePrior."
            )

    def _learned(self) -> list[bool]:
        names = list(self.group_of)
        if self.learn is None:
            return [True] * len(self.groups)
        for pattern in self.learn:
            if not any(fnmatch(name, pattern) for name in names):
                raise ValueError(f"learn must name tensors of the model; {pattern!r} matches none of {', '.join(names)}.")
        chosen = {name for name in names if any(fnmatch(name, pattern) for pattern in self.learn)}
        groups = {self.group_of[name] for name in chosen}
        for name in names:
            if self.group_of[name] in groups and name not in chosen:
                raise ValueError(
                    f"learn must match all tensors that share a precision, or none; {name!r} is left out of the group "
                    f"{self.group_of[name]!r}. Match it too, or use TensorwisePrior."
                )
        return [group in groups for group in self.groups]

    def check(self, model: nn.Module) -> None:
        """Refuse a model with other trainable tensors than those the prior was made for.

        Raises:
            ValueError: Naming those that do not match.
        """
        odd = sorted(Layout.of(model).tensors.keys() ^ self.group_of.keys())
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
        log_precision = torch.where(self.learned, self.log_precision, self.log_precision.detach())
        by_group = dict(zip(self.groups, log_precision.exp(), strict=True))
        return {name: by_group[group] for name, group in self.group_of.items()}

    def log_prob(self, weights: dict[str, Tensor]) -> Float[Tensor, ""]:
        """Σ ½ (p log δ − p log 2π − δ‖θ‖²), over tensors."""
        total = torch.zeros_like(self.log_precision[0], dtype=torch.float64)  # large terms cancel those of the volume
        for name, precision in self.precisions().items():
            size = self.sizes[name]
            total = total + (size * (precision.double().log() - log(2 * pi)) - precision * weights[name].square().sum()) / 2
        return total


def log_precision_of(weights: Sequence[Tensor]) -> float | None:
    """log(1 / mean θ²): that of a prior as narrow as some weights are; None where they are zero, or there are none."""
    squares = sum(float(weight.detach().square().sum()) for weight in weights)
    return log(sum(weight.numel() for weight in weights) / squares) if squares > 0 else None


def _relaxing(tensors: Mapping[str, WeightTensor], names: Sequence[str] | None) -> Set[_Place]:
    """Paths that break a symmetry which another of their layer keeps: those of given names, or all."""
    places = {(tensor.layer, tensor.path) for tensor in tensors.values() if tensor.relaxes}
    if not places:
        raise ValueError(
            "symmetric_start needs a RelaxedLayer in which one path keeps a symmetry that another breaks; there is none."
        )
    if names is None:
        return places
    known = {path for _, path in places}
    for name in names:
        if name not in known:
            raise ValueError(
                f"symmetric_start must name paths that break a symmetry ({', '.join(sorted(known))}), got {name!r}. True is "
                "for all of them."
            )
    return {(layer, path) for layer, path in places if path in names}


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
