"""Hyper-steps: MacKay's fixed point for precisions and noise, with the curvature held; extents by gradients through it."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

import torch
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import evaluating, is_capturing
from symbayes.curvature.rule import Curvature
from symbayes.errors import NotFiniteError
from symbayes.evidence.evidence import gradient_through
from symbayes.invariance.extents import Amounts
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import hyperparameters
from symbayes.priors import LOG_PRECISION_RANGE, Prior
from symbayes.training.trainer import Problem

#: Effective parameters, or nats that the largest δ would cost, which are as good as none: of such γ / ‖θ‖² is noise.
_NEGLIGIBLE = 1e-12


@torch.no_grad()
def update_precisions(
    curvature: Curvature, model: nn.Module, prior: Prior, damping: float, squares_of: Mapping[str, Tensor] | None = None
) -> None:
    """log δ ← log δ + damping · (log(γ / ‖θ‖²) − log δ) for every learned group, within LOG_PRECISION_RANGE.

    At the fixed point ∂ log evidence / ∂ log δ = ½ (γ − δ‖θ‖²) vanishes (MacKay 1992). Where the data say nothing, γ ≈ 0, as of
    either factor of a path once the other is zero, δ stays: what is left of the weights is the prior's to take away. Once
    next to nothing is left, no larger δ costs anything; it moves to the largest, which says that they are off.

    Args:
        curvature: At the weights there are.
        model: Whose weights they are.
        prior: To be moved.
        damping: Share of the way.
        squares_of: ‖θ‖² by tensor; of the weights as they are when None.
    """
    if squares_of is None:
        squares_of = {name: weight.square().sum() for name, weight in model.named_parameters()}
    gamma = curvature.effective(prior.precisions())
    spent = torch.zeros_like(prior.log_precision)
    squares = torch.zeros_like(prior.log_precision)
    for name, group in prior.group_of.items():
        index = prior.groups.index(group)
        spent[index] += gamma[name]
        squares[index] += squares_of[name]
    tiny, most = torch.finfo(spent.dtype).tiny, LOG_PRECISION_RANGE[1]
    says_nothing = spent < _NEGLIGIBLE
    is_off = says_nothing & (squares * exp(most) < _NEGLIGIBLE)
    target = (spent / squares.clamp(min=tiny)).log().where(~is_off, most)
    moved = prior.log_precision.lerp(target.clamp(*LOG_PRECISION_RANGE), damping)
    stays = ~prior.learned | (says_nothing & ~is_off)
    prior.log_precision.copy_(torch.where(stays, prior.log_precision, moved))


@torch.no_grad()
def update_noise(curvature: Curvature, problem: Problem, batch_size: int, damping: float) -> bool:
    """Move a learned noise towards its fixed point under the effective parameters there are; whether there was one to move."""
    if not problem.likelihood.learns_noise:
        return False
    statistics: Tensor = torch.zeros(())
    with evaluating(problem.model):
        for inputs, targets in problem.data.own_batches(batch_size):
            statistics = statistics + problem.likelihood.noise_statistics(problem.model(inputs), targets)
    (statistics,) = problem.data.processes.sum([statistics])
    effective = sum(float(value) for value in curvature.effective(problem.prior.precisions()).values())
    problem.likelihood.update_noise(statistics, effective, problem.data.size, damping)
    return True


def refuse_still(model: nn.Module) -> None:
    """Refuse averages whose fixed transformations are all the identity: whatever their extents are, the evidence is the same.

    Raises:
        ValueError: Naming the first.
    """
    for name, module in model.named_modules():
        if isinstance(module, OrbitAverage | FilterBank) and module.orbit.value.requires_grad and module.samples == 1:
            raise ValueError(
                f"To learn extents by the evidence, an average needs at least two transformations; {name or 'the model'!r} "
                "has samples=1, and the one it is evaluated at changes nothing. Use more samples."
            )


class HyperAdam:
    """Adam for the hyperparameters of a model that are no precisions: extents of invariance, and whatever else there is."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters: list[Tensor] = list(hyperparameters(model).values())
        self.extents = [module for module in model.modules() if isinstance(module, Amounts)]
        self._adam = adam_over([{"params": self.parameters}]) if self.parameters else None

    def set(self, rate: float) -> None:
        """The learning rate, for the steps to come."""
        if self._adam is not None:
            set_rates(self._adam, [rate])

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Down a gradient, and back within the bounds of extents.

        Raises:
            NotFiniteError: If the gradient is not finite, unless the step is being captured.
        """
        if self._adam is None:
            return
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if not is_capturing(gradient) and not gradient.isfinite().all():
                raise NotFiniteError(
                    f"The gradient of hyperparameters must be finite, got {gradient.tolist()}. Use a smaller extent_rate, or "
                    "check that all the model computes can be differentiated twice."
                )
            parameter.grad = gradient
        self._adam.step()
        self._adam.zero_grad()
        for module in self.extents:
            module.clamp()

    def state_dict(self) -> dict[str, Any]:
        """What Adam remembers."""
        return {} if self._adam is None else adam_state(self._adam)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` gave."""
        if self._adam is not None:
            load_adam(self._adam, state)


def adam_over(groups: Sequence[dict[str, Any]]) -> torch.optim.Adam:
    """Torch's Adam, whose steps can be captured as a CUDA graph where its parameters are on a GPU: all it keeps is there."""
    device = groups[0]["params"][0].device
    if device.type != "cuda":
        return torch.optim.Adam(list(groups))
    rated = [{**group, "lr": torch.zeros((), device=device)} for group in groups]
    return torch.optim.Adam(rated, lr=torch.zeros((), device=device), capturable=True)


def set_rates(adam: torch.optim.Adam, rates: Sequence[float]) -> None:
    """Of every group; those of captured steps lie on the device, and are written there."""
    for group, rate in zip(adam.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def adam_state(adam: torch.optim.Adam) -> dict[str, Tensor]:
    """What torch's Adam remembers, by the number of the parameter and name."""
    return {f"{index}.{name}": value for index, own in enumerate(_memories(adam)) for name, value in own.items()}


@torch.no_grad()
def load_adam(adam: torch.optim.Adam, state: Mapping[str, Tensor]) -> None:
    """Become what `adam_state` gave."""
    parameters = [parameter for group in adam.param_groups for parameter in group["params"]]
    adam.state.clear()
    for key, value in state.items():
        index, _, name = key.partition(".")
        parameter = parameters[int(index)]
        # Torch counts steps in single precision, on the CPU unless they may be captured.
        device = parameter.device if adam.defaults["capturable"] else "cpu"
        adam.state[parameter][name] = value.to(device, copy=True) if name == "step" else value.to(parameter, copy=True)


def _memories(adam: torch.optim.Adam) -> list[dict[str, Tensor]]:
    return [adam.state.get(parameter, {}) for group in adam.param_groups for parameter in group["params"]]


@torch.no_grad()
def update_extents(
    curvature: Curvature, problem: Problem, adam: HyperAdam, rate: float, steps: int, share: float, generator: Generator
) -> None:
    """Steps up the gradient of the evidence in extents and other hyperparameters, through the curvature.

    Args:
        curvature: At the weights there are.
        problem: Whose evidence it is.
        adam: To be moved.
        rate: Of a step.
        steps: How many, each on other data.
        share: Of the data, that all of them together use.
        generator: For which.
    """
    if not adam.parameters:
        return
    for _ in range(steps):
        own = gradient_through(curvature, problem.prior, adam.parameters, share / steps, generator)
        gradients = problem.data.processes.sum(own)
        problem.data.processes.align(generator)  # processes have drawn for shares of different sizes
        adam.set(rate)
        adam.step([-gradient / problem.data.size for gradient in gradients])
