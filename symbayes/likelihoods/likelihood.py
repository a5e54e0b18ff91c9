"""p(y | f): what the outputs of a network mean. The only owner of the scale of a loss.

A likelihood gives log-probabilities, summed over outputs and *not* averaged over data, and square roots of its Fisher
information: columns m with Σ_v m_v m_vᵀ = −E ∂² log p / ∂f². Columns come in k parts at unit scale, and `scales` says by
what each part is to be multiplied; so a learned noise enters the curvature exactly, and stays differentiable.

It owns everything that depends on its kind: moments of a prediction, intervals, classes, calibration, the statistics from
which its noise is learned, and the name under which results are saved (`register`). No other file asks which one it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from symbayes.scores import CalibrationScores

Outputs = Float[Tensor, "n c"]
#: For several draws of the weights, or the like.
ManyOutputs = Float[Tensor, "*batch c"]
#: Of a target: mostly as many as outputs.
ManyValues = Float[Tensor, "*batch v"]
Columns = Float[Tensor, "k v n c"]
#: What a constructor is given, as JSON has it.
Setting = bool | int | float | str | None

#: How far probabilities may exceed 1.
_ROUNDING = 1e-3
#: What a likelihood with a noise has.
_TOGETHER = "Override learns_noise and noise_statistics together, with update_noise."


class Likelihood(nn.Module, ABC):
    """The distribution of targets given outputs [n, c].

    A subclass implements what is abstract; what it leaves out of the rest (noise, intervals, classes, calibration) is refused
    by name where it is asked for. `register` lets results with it be loaded.
    """

    #: Whether y = f + ε with normal noise ε that does not depend on f: normal outputs then make normal targets, and
    #: predictions need no draws.
    is_normal: ClassVar[bool] = False
    #: Whether targets may be class numbers, one for each datum.
    has_classes: ClassVar[bool] = False
    #: Whether targets are real numbers, which come in all scales.
    has_scale: ClassVar[bool] = False
    #: Whether a datum has targets at many positions: exact columns are then so many that they are better sampled.
    has_positions: ClassVar[bool] = False

    @property
    def bears_rounding(self) -> bool:
        """Whether log-probabilities change by no more than outputs do, so that a GPU may round these to TF32."""
        return self.has_classes

    @abstractmethod
    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        """log p(y_n | f_n), for each datum."""

    @abstractmethod
    def fisher_columns(self, outputs: Outputs) -> Columns:
        """The exact square root of the Fisher information, at unit scale."""

    @abstractmethod
    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        """Random columns, at unit scale, whose outer products are on average those of the exact ones.

        Exact columns are added up with random signs. That has far less variance than the usual scores of targets drawn from
        the model, which for a datum that is fitted well are nearly always zero, and now and then large.
        """

    @abstractmethod
    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        """∂ log p(y | f) / ∂f at the targets observed."""

    @abstractmethod
    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        """Targets drawn from p(y | f)."""

    @abstractmethod
    def check(self, outputs: Outputs, targets: Tensor) -> None:
        """Refuse targets that cannot be: wrong shape, kind or range."""

    @abstractmethod
    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """What a person wants to know of a prediction, by name, for each datum."""

    @abstractmethod
    def moments(self, outputs: ManyOutputs) -> tuple[ManyValues, ManyValues]:
        """E[y | f] and Var[y | f], value by value; a class counts as the indicators of all classes."""

    @abstractmethod
    def link(self, mean: ManyValues) -> ManyOutputs:
        """Outputs f with this E[y | f]: the inverse of the first of the moments."""

    def at(self, targets: Tensor) -> "Likelihood":
        """The same for data with these targets, for what is asked without them: where some are missing, it is of the others."""
        return self

    def product(self, outputs: Outputs, vectors: Outputs) -> Outputs:
        """F v for each datum, with the Fisher information F."""
        columns = self.fisher_columns(outputs) * self.scales().sqrt()[:, None, None, None].to(outputs)
        return torch.einsum("kvnc,kvn->nc", columns, torch.einsum("kvnc,nc->kvn", columns, vectors))

    def scales(self) -> Float[Tensor, " k"]:
        """What each part of the columns' outer product is multiplied by."""
        return torch.ones(1)

    @property
    def learns_noise(self) -> bool:
        """Whether there is a noise to learn with the precisions."""
        return False

    def noise(self) -> Float[Tensor, " k"]:
        """σ, where there is one; else nothing."""
        return torch.ones(0)

    def noise_statistics(self, outputs: Float[Tensor, "*batch n c"], targets: Tensor) -> Float[Tensor, "*batch _"]:
        """What `update_noise` needs to know of data, summed over them.

        Raises:
            ValueError: If no noise is learned.
        """
        raise ValueError(f"{type(self).__name__} learns no noise. {_TOGETHER}")

    def update_noise(self, statistics: Float[Tensor, " _"], effective: float, num_data: int, damping: float) -> None:
        """Move a learned noise towards MacKay's fixed point, given its statistics and the effective parameters.

        Raises:
            ValueError: If no noise is learned.
        """
        raise ValueError(f"{type(self).__name__} learns no noise. {_TOGETHER}")

    def check_noise(self) -> None:
        """Refuse to learn a noise in closed form without the methods for it, before time is spent.

        Raises:
            ValueError: Naming what is left out.
        """
        needed = ("noise_statistics", "update_noise")
        left_out = [name for name in needed if getattr(type(self), name) is getattr(Likelihood, name)]
        if self.learns_noise and left_out:
            raise ValueError(
                f"A likelihood that learns its noise must have {' and '.join(needed)}; {type(self).__name__} has no "
                f"{' and no '.join(left_out)}. Write them, or learn it by gradient: Elbo(noise='gradient')."
            )

    def settings(self) -> Mapping[str, Setting]:
        """What the constructor needs to make another of this kind."""
        return {}

    def interval(self, mean: Outputs, std: Outputs, level: float) -> tuple[Outputs, Outputs]:
        """Low and high ends between which a new y lies with this probability, for each output on its own.

        Args:
            mean: Of a new y.
            std: Its standard deviation.
            level: Between 0 and 1.

        Raises:
            ValueError: If targets of this kind have no intervals.
        """
        raise ValueError(
            f"Intervals are of values, so of a Gaussian likelihood; this is {type(self).__name__}. Use `mean`, which for "
            "classes and labels are probabilities and say it all, and `std`."
        )

    def classes(self, mean: Outputs) -> Int[Tensor, "..."]:
        """The most probable class of each datum, or position, given E[y].

        Raises:
            ValueError: If there are no classes to choose from.
        """
        raise ValueError(
            f"Classes are of a Categorical likelihood; this is {type(self).__name__}. Use `mean`: for labels (Bernoulli), "
            "mean > 0.5."
        )

    def check_calibration(self) -> None:
        """Refuse a likelihood without a calibration, before anything is predicted.

        Raises:
            ValueError: Naming it.
        """
        if type(self).calibrate is Likelihood.calibrate:
            raise self._uncalibrated()

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        """Compare how sure predictions are with how often they hold.

        Args:
            mean: E[y].
            std: The standard deviation of a new y.
            targets: That were observed; `check` has seen them.
            bins: Of confidence, equally wide.

        Raises:
            ValueError: If it is not known what confidence or an interval is for targets of this kind.
        """
        raise self._uncalibrated()

    def _uncalibrated(self, why: str = "") -> ValueError:
        return ValueError(
            "Calibration is of probabilities of classes or labels (Categorical, Bernoulli) or of intervals of values "
            f"(Gaussian); this is {type(self).__name__}{why}. Use prediction.metrics(targets), whose 'nll' scores any "
            "likelihood."
        )

    def _check_probabilities(self, mean: Outputs, targets: Tensor) -> Outputs:
        """Means in double precision; those that are no probabilities are refused, and targets that were smoothed."""
        mean = mean.double()
        if float(mean.min()) < 0 or float(mean.max()) > 1 + _ROUNDING:
            raise self._uncalibrated(f"; its means, from {float(mean.min()):.3g} to {float(mean.max()):.3g}, are none")
        if targets.is_floating_point() and not ((targets == 0) | (targets == 1)).all():
            raise ValueError(
                "Calibration compares predictions with what was observed: class numbers, or labels of zeros and ones; got "
                "targets that are probabilities. Use those from before they were smoothed or mixed."
            )
        return mean


_Kind = TypeVar("_Kind", bound=type[Likelihood])
_REGISTERED: dict[str, type[Likelihood]] = {}


def register(kind: _Kind) -> _Kind:
    """Let results with a likelihood be saved and loaded, by the name of its class; a decorator.

    Raises:
        ValueError: If another class has that name.
    """
    known = _REGISTERED.setdefault(kind.__name__, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(
            f"Likelihoods are saved by name, and {kind.__name__} is that of {known.__module__}.{known.__qualname__}. Rename "
            f"{kind.__module__}.{kind.__qualname__}."
        )
    _REGISTERED[kind.__name__] = kind  # a module may be loaded again
    return kind


def registered(name: str) -> type[Likelihood]:
    """The likelihood of a name.

    Raises:
        ValueError: If there is none.
    """
    if name not in _REGISTERED:
        raise ValueError(
            f"a likelihood must be among {', '.join(_REGISTERED)}; got {name}. Import the module that defines it, and decorate "
            "it there with symbayes.likelihoods.register"
        )
    return _REGISTERED[name]


def is_registered(likelihood: Likelihood) -> bool:
    """Whether it can be made again from its name."""
    return _REGISTERED.get(type(likelihood).__name__) is type(likelihood)


class DiagonalLikelihood(Likelihood):
    """A likelihood that gives the root of its diagonal Fisher information, and has its columns from that."""

    @abstractmethod
    def fisher_root(self, outputs: Outputs) -> Outputs:
        """√(−E ∂² log p / ∂f²), output by output."""

    def fisher_columns(self, outputs: Outputs) -> Columns:
        return torch.diag_embed(self.fisher_root(outputs)).movedim(1, 0)[None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        signs = random_signs((samples, *outputs.shape), outputs, generator)
        return (signs * self.fisher_root(outputs) / samples**0.5)[None]

    def product(self, outputs: Outputs, vectors: Outputs) -> Outputs:
        root = self.fisher_root(outputs)
        return root * (root * vectors)


def random_signs(shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
    """Random ±1, drawn where the generator lives."""
    device = generator.device if generator is not None else like.device
    return torch.randint(0, 2, shape, generator=generator, device=device, dtype=like.dtype).mul_(2).sub_(1).to(like)


def check_values(name: str, means: Outputs, targets: Tensor) -> None:
    """Refuse targets that are no finite real numbers, one for each of the means that a likelihood of this name has of them."""
    check_outputs(means, targets)
    if targets.shape != means.shape or not targets.is_floating_point():
        raise ValueError(
            f"{name} targets must be real numbers of shape {tuple(means.shape)}, as their means are; got {targets.dtype} of "
            f"shape {tuple(targets.shape)}. Reshape them (for one mean, targets[:, None]) or call .float()."
        )
    if bad := int((~targets.isfinite()).sum()):
        raise ValueError(f"{name} targets must be finite, got {bad} that are not. Clean or drop them.")


def check_outputs(outputs: Tensor, targets: Tensor) -> None:
    """Refuse targets that are not as many as outputs."""
    if len(outputs) != len(targets):
        raise ValueError(f"There must be a target for each of the {len(outputs)} outputs, got {len(targets)}.")
