"""How weights move in an epoch, and what of the curvature is known after it."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor

from symbayes.curvature.blocks import decompose, negligible
from symbayes.curvature.check import check_outputs
from symbayes.curvature.kfac import Kfac, RunningCurvature
from symbayes.curvature.rule import BlockCurvature, Curvature
from symbayes.data.source import Batch
from symbayes.errors import NotFiniteError
from symbayes.evidence.objective import Augerino, ByCurvature
from symbayes.layout import weights
from symbayes.training.hyper import HyperAdam
from symbayes.training.optimiser import LARGEST, ProximalAdam, rotation
from symbayes.training.problem import Problem
from symbayes.training.schedule import Schedule
from symbayes.training.steps import Steps, Watch, steps_for

#: Settings of torch are those of all threads.
_SETTING = threading.RLock()


class WeightSteps:
    """Steps of Adam on the likelihood under the prior; with the curvature in passing, where asked.

    Args:
        problem: What is learned.
        objective: What is maximised.
        schedule: Batch size and learning rate.
        generator: What is drawn on the device follows from it.
    """

    def __init__(self, problem: Problem, objective: ByCurvature, schedule: Schedule, generator: Generator) -> None:
        self.problem, self.objective, self.schedule = problem, objective, schedule
        parameters = list(weights(problem.model).values())
        # In coordinates that turn, squares of gradients are remembered less long.
        self.optimiser = ProximalAdam(parameters, (0.9, 0.99 if objective.turned else 0.999))
        self.hyper = HyperAdam(problem.model)
        self.running: RunningCurvature | None = None
        watch, draws = None, torch.Generator(parameters[0].device)
        if objective.running:
            if self.hyper.parameters:
                raise ValueError(
                    "The curvature is collected in passing (running) for models without hyperparameters of their own, whose "
                    f"gradient goes through all the data; this one has {len(self.hyper.parameters)}. Use running=0."
                )
            assert isinstance(objective.rule, Kfac)
            draws.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            self.running = RunningCurvature(problem.model, problem.likelihood, objective.rule, objective.memory, draws)
            watch = Watch(self.running.add, objective.running)
        self.steps: Steps
        if isinstance(objective, Augerino) and self.hyper.parameters:
            self.steps = Steps(problem.data, schedule.batch_size, self._step_with_extents)
        else:
            self.steps = steps_for(problem.data, schedule.batch_size, self.step, watch, lambda: self.optimiser.settled, [draws])
        self._rate_share = 1.0

    def epoch(self, rate_share: float, generator: Generator) -> float:
        """One pass over the data, at a share of the learning rate; the mean loss, fetched from the device once.

        Raises:
            NotFiniteError: If it is not finite.
        """
        problem, rate = self.problem, self.schedule.learning_rate * rate_share
        self._rate_share = rate_share
        with torch.no_grad():
            precisions = problem.prior.precisions()
            penalties = torch.stack([precisions[name].double() for name in weights(problem.model)]) / problem.data.size
            self.optimiser.set(rate, penalties)
        problem.model.train()
        mean = float(self.steps.epoch(generator)) / problem.data.size
        if mean != mean or mean in (float("inf"), float("-inf")):
            raise NotFiniteError(
                f"The loss must be finite, got {mean} per datum with a learning rate of {rate:.3g}. Use a smaller learning "
                "rate, or check the scale of inputs and targets."
            )
        return mean

    def curvature(self, last: bool, generator: Generator) -> Curvature:
        """At the weights there are: as collected in passing; at the end, and where data are few, by a pass over all of them."""
        problem = self.problem
        if self.running is not None and self.running.is_known and not last:
            return self.running.curvature(problem.data.size)
        with torch.no_grad():
            return self.objective.rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)

    def squares(self) -> dict[str, Tensor] | None:
        """‖W‖² by tensor, of the mean over what was seen in passing; None where nothing was."""
        return self.running.squares() if self.running is not None and self.running.is_known else None

    @torch.no_grad()
    def turn(self, curvature: Curvature) -> None:
        """Optimise weights in the eigenvectors of this curvature from now on; where it is negligible, as before."""
        assert isinstance(curvature, BlockCurvature)
        stay = negligible(curvature.blocks, self.problem.prior.precisions())
        decompose((block for name, block in curvature.blocks.items() if name not in stay), vectors=True, up_to=LARGEST)
        named = weights(self.problem.model)
        turns = [None if name in stay else rotation(curvature.blocks[name], named[name].numel()) for name in named]
        if any(old is None and new is not None for old, new in zip(self.optimiser.rotations, turns, strict=True)):
            self.steps.forget()
        self.optimiser.turn(turns)

    def step(self, batch: Batch) -> Tensor:
        """One step on a batch; its loss, summed over data."""
        inputs, targets = batch
        with _tensor_cores(inputs.device):
            with self._autocast(inputs.device):
                outputs = self.problem.model(inputs)
                check_outputs(outputs, len(inputs))
                loss = -self.problem.likelihood.log_prob(outputs, targets).sum()
            # In training some layers may be left out.
            found = torch.autograd.grad(
                loss / len(inputs), self.optimiser.parameters, allow_unused=True, materialize_grads=True
            )
        self.optimiser.step(tuple(gradient.to_dense() if gradient.is_sparse else gradient for gradient in found))
        return loss.detach()

    def _autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        precision = self.problem.precision
        # Without a cache, which would keep weights from before a step where steps are captured.
        return nullcontext() if precision is None else torch.autocast(device.type, precision, cache_enabled=False)

    def _step_with_extents(self, batch: Batch) -> Tensor:
        """Augerino's: the training loss in weights and extents, less a reward."""
        inputs, targets = batch
        assert isinstance(self.objective, Augerino)
        loss = -self.problem.likelihood.log_prob(self.problem.model(inputs), targets).sum()
        # There may be none, but hyperparameters of other kinds.
        extents = torch.cat([loss.new_zeros(0), *(extent.value for extent in self.hyper.extents)])
        reward = self.objective.strength * extents.norm()
        parameters = [*self.optimiser.parameters, *self.hyper.parameters]
        found = torch.autograd.grad(loss / len(inputs) - reward, parameters)
        count = len(self.optimiser.parameters)
        self.hyper.step(found[count:], self.objective.extent_rate * self._rate_share)
        self.optimiser.step(found[:count])
        return loss.detach()


@contextmanager
def _tensor_cores(device: torch.device) -> Iterator[None]:
    """Products of matrices on a GPU as precise as convolutions are by default, TF32; as they were, where a user has chosen.

    For gradients alone, whose noise is far above a mantissa of ten bits.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if device.type != "cuda" or not hasattr(matmul, "fp32_precision"):  # which torch has since 2.9
        yield
        return
    with _SETTING:
        if matmul.fp32_precision != "none" or cudnn.conv.fp32_precision != "tf32":  # type: ignore[attr-defined]
            yield
            return
        matmul.allow_tf32 = True  # the older of two ways to say it, which both understand
        try:
            yield
        finally:
            matmul.allow_tf32 = False
            matmul.fp32_precision = "none"
