"""How weights move in an epoch, and what of the curvature is known after it."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Curvature
from symbayes.curvature.running import RunningCurvature
from symbayes.data.source import Batch
from symbayes.errors import NotFiniteError
from symbayes.evidence.objective import Augerino, ByCurvature, Laplace
from symbayes.layers.structure import weights
from symbayes.posterior.laplace import posterior_at
from symbayes.training.hyper import HyperAdam
from symbayes.training.optimiser import ProximalAdam
from symbayes.training.perturbation import Perturbation
from symbayes.training.problem import Problem
from symbayes.training.schedule import Schedule
from symbayes.training.steps import Steps, Watch, steps_for


class WeightSteps:
    """Steps of Adam on the likelihood under the prior; with the curvature in passing, and at draws of the weights, where asked.

    Args:
        problem: What is learned.
        objective: What is maximised.
        schedule: Batch size and learning rate.
        generator: What is drawn on the device follows from it.
    """

    def __init__(self, problem: Problem, objective: ByCurvature, schedule: Schedule, generator: Generator) -> None:
        self.problem, self.objective, self.schedule = problem, objective, schedule
        parameters = list(weights(problem.model).values())
        self.optimiser, self.hyper = ProximalAdam(parameters), HyperAdam(problem.model)
        self.running: RunningCurvature | None = None
        self.perturbation: Perturbation | None = None
        watch, draws = None, torch.Generator(parameters[0].device)
        if isinstance(objective, Laplace) and (objective.running or objective.perturbed):
            draws.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        if isinstance(objective, Laplace) and objective.running:
            if not isinstance(objective.rule, Kfac) or self.hyper.parameters:
                raise ValueError(
                    "The curvature is collected in passing (running) by Kfac, for models without hyperparameters of their own, "
                    f"whose gradient goes through all the data; got {objective.rule} and {len(self.hyper.parameters)} of them. "
                    "Use running=0."
                )
            self.running = RunningCurvature(problem.model, problem.likelihood, objective.rule, objective.memory, draws)
            watch = Watch(self.running.add, objective.running)
        if isinstance(objective, Laplace) and objective.perturbed:
            self.perturbation = Perturbation(problem.model, draws)
        self.steps: Steps
        if isinstance(objective, Augerino) and self.hyper.parameters:
            self.steps = Steps(problem.data, schedule.batch_size, self._step_with_extents)
        else:
            settled = self._settled
            self.steps = steps_for(problem.data, schedule.batch_size, self._step, watch, settled, [draws])
        self._falls_to = 1.0

    def _settled(self) -> bool:
        return self.optimiser.settled

    def epoch(self, falls_to: float, generator: Generator) -> float:
        """One pass over the data, at a share of the learning rate; the mean loss, fetched from the device once.

        Raises:
            NotFiniteError: If it is not finite.
        """
        problem, rate = self.problem, self.schedule.learning_rate * falls_to
        self._falls_to = falls_to
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
        """At the weights there are: as collected in passing, or by a pass over all the data, as at the end."""
        problem = self.problem
        if self.running is not None and not last:
            return self.running.curvature(problem.data.size)
        with torch.no_grad():
            return self.objective.rule.curvature(problem.model, problem.data, problem.likelihood, generator=generator)

    @torch.no_grad()
    def perturb(self, curvature: Curvature) -> None:
        """Take steps at draws from the posterior of this curvature from now on, if the objective asks for it."""
        if self.perturbation is not None:
            now = {name: parameter.detach() for name, parameter in weights(self.problem.model).items()}
            if self.perturbation.set(posterior_at(curvature, now, self.problem.prior.precisions())):
                self.steps.forget()

    def _step(self, batch: Batch) -> Tensor:
        inputs, targets = batch
        parameters = self.optimiser.parameters
        offsets = self.perturbation.offsets() if self.perturbation is not None else None
        _add(parameters, offsets, 1)
        loss = -self.problem.likelihood.log_prob(self.problem.model(inputs), targets).sum()
        gradients = torch.autograd.grad(loss / len(inputs), parameters)
        _add(parameters, offsets, -1)
        self.optimiser.step(gradients)
        return loss.detach()

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
        self.hyper.step(found[count:], self.objective.extent_rate * self._falls_to)
        self.optimiser.step(found[:count])
        return loss.detach()


@torch.no_grad()
def _add(parameters: Sequence[Tensor], offsets: Sequence[Tensor] | None, sign: int) -> None:
    if offsets is not None:
        torch._foreach_add_(list(parameters), list(offsets), alpha=sign)
