"""Training by the evidence lower bound: weights, spreads and hyperparameters by one gradient, precisions in closed form."""

import time
from dataclasses import replace

import torch
from torch import Generator, Tensor

from symbayes.curvature.evaluate import evaluating
from symbayes.errors import NotFiniteError
from symbayes.evidence.elbo import Elbo, log_precisions, second_moments
from symbayes.evidence.terms import Evidence
from symbayes.invariance.extents import all_extents
from symbayes.layers.structure import hyperparameters, weights
from symbayes.training.hyper import HyperAdam
from symbayes.training.problem import Problem
from symbayes.training.record import Record
from symbayes.training.schedule import Schedule, Training


def train_variational(problem: Problem, objective: Elbo, schedule: Schedule, generator: Generator) -> Training:
    """`train` where the posterior is learned.

    The evidence of an epoch is that of its steps, while everything moves; that of the last is of what was learned.
    """
    _refuse_too_short(problem, objective, schedule)
    learner = _Learner(problem, objective, schedule, generator)
    started = time.perf_counter()
    for epoch in range(1, schedule.epochs + 1):
        rate_share = schedule.rate_share(epoch)
        loss, evidence = learner.epoch(rate_share, objective.weight_at(epoch, schedule.epochs))
        if problem.likelihood.learns_noise and objective.noise == "closed form":
            learner.settle_noise()
        if epoch == schedule.epochs:
            evidence = learner.evidence()
        seconds = time.perf_counter() - started
        rate = schedule.learning_rate * rate_share
        extents = all_extents(problem.model)
        yield Record(epoch, schedule.epochs, seconds, rate, loss, extents, problem.described(evidence))
    posterior = learner.variational().detached()
    return lambda: posterior


def _refuse_too_short(problem: Problem, objective: Elbo, schedule: Schedule) -> None:
    """Refuse a schedule under which extents and other hyperparameters would not move once.

    Raises:
        ValueError: Saying how many epochs there must be.
    """
    left = sum(objective.weight_at(epoch, schedule.epochs) == 1 for epoch in range(1, schedule.epochs + 1))
    if hyperparameters(problem.model) and left < objective.frequency:
        raise ValueError(
            f"Hyperparameters move every frequency={objective.frequency} epochs after the warm-up, so there must be as many; "
            f"there are {left} of {schedule.epochs}. Train longer, or lower frequency or warm_up of Elbo."
        )


class _Learner:
    """What is learned, and how it is moved."""

    def __init__(self, problem: Problem, objective: Elbo, schedule: Schedule, generator: Generator) -> None:
        self.problem, self.objective, self.schedule, self.generator = problem, objective, schedule, generator
        self.variational = objective.family.over(problem.model)
        if objective.permutations:  # before time is spent
            self.variational.units(objective.units, problem.examples())
        self.hyper = HyperAdam(problem.model)
        means, others = list(weights(problem.model).values()), list(self.variational.parameters())
        if not objective.collapsed:
            others.append(problem.prior.log_precision)
        if problem.likelihood.learns_noise and objective.noise == "gradient":
            others.extend(parameter for parameter in problem.likelihood.parameters() if parameter.requires_grad)
        relative = ((means, 1.0), (others, objective.spread_rate))
        self.adam = torch.optim.Adam([{"params": params, "relative": rate} for params, rate in relative])
        self.parameters: list[Tensor] = [parameter for group in self.adam.param_groups for parameter in group["params"]]
        #: Epochs since hyperparameters were moved, the one at hand included, and the gradients in them since.
        self.age, self.collected = 0, list[tuple[Tensor, ...]]()

    def epoch(self, rate_share: float, weight: float) -> tuple[float, Evidence]:
        """One pass of Adam over the data: the mean loss, and the evidence along the way, with the divergence in full.

        Args:
            rate_share: The share of learning rates that is left.
            weight: Of the divergence, in the gradient.
        """
        problem, size = self.problem, self.problem.data.size
        for group in self.adam.param_groups:
            group["lr"] = self.schedule.learning_rate * rate_share * group["relative"]
        problem.model.train()
        fit: Tensor = torch.zeros(())
        evidence: Evidence | None = None
        period = self.objective.frequency
        if weight == 1:
            self.age = self.age % period + 1
        for batch in problem.data.training_batches(self.schedule.batch_size, self.generator):
            evidence = self.objective.evidence(
                problem.model,
                self.variational,
                batch,
                problem.likelihood,
                problem.prior,
                num_data=size,
                generator=self.generator,
            )
            divergence = -(evidence.log_prior + evidence.log_volume)
            self._step((weight * divergence - evidence.log_likelihood) / size)
            if period == 1:
                self._move(rate_share)
            fit = fit + evidence.log_likelihood.detach() * (len(batch[0]) / size)
        if self.age == period > 1:
            self._move(rate_share)
        if self.objective.collapsed:
            self.settle_precisions()
        if evidence is None or not fit.isfinite():
            raise NotFiniteError(
                f"The loss must be finite, got {float(fit) / size} per datum with a learning rate of "
                f"{self.schedule.learning_rate:.3g}. Use a smaller one, or check the scale of inputs and targets."
            )
        return -float(fit) / size, replace(evidence, log_likelihood=fit)

    def _step(self, loss: Tensor) -> None:
        """Weights and spreads down the gradient; that of hyperparameters is kept where it counts."""
        learned = [*self.parameters, *self.hyper.parameters]
        gradients = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)  # layers may be left out
        for parameter, gradient in zip(self.parameters, gradients, strict=False):
            parameter.grad = gradient
        self.adam.step()
        self.adam.zero_grad()
        if 2 * self.age > self.objective.frequency:
            self.collected.append(gradients[len(self.parameters) :])

    def _move(self, rate_share: float) -> None:
        """Hyperparameters down the mean of the gradients that were kept."""
        if self.collected:
            means = [torch.stack(of_one).mean(0) for of_one in zip(*self.collected, strict=True)]
            self.hyper.step(means, self.objective.extent_rate * rate_share)
            self.collected.clear()

    @torch.no_grad()
    def settle_precisions(self) -> None:
        """The prior takes the precisions that are best for the posterior there is."""
        prior, posterior = self.problem.prior, self.variational()
        moments = second_moments(posterior, posterior.variances())
        prior.log_precision.copy_(log_precisions(prior, moments, self.variational.deterministic))

    @torch.no_grad()
    def settle_noise(self) -> None:
        """The noise goes half the way to the mean squared error under the posterior there is, which few draws estimate."""
        model, posterior, count = self.problem.model, self.variational(), self.objective.samples
        statistics: Tensor = torch.zeros(())
        with evaluating(model):
            for inputs, targets in self.problem.data.batches(self.schedule.batch_size):
                outputs = self.objective.outputs(model, self.variational, posterior, inputs, count, self.generator)
                statistics = statistics + self.problem.likelihood.noise_statistics(outputs, targets).mean(0)
        self.problem.likelihood.update_noise(statistics, 0.0, self.problem.data.size, damping=0.5)

    @torch.no_grad()
    def evidence(self) -> Evidence:
        """Of the posterior as it is, with all the data, the model evaluating."""
        problem, objective = self.problem, self.objective
        fit: Tensor = torch.zeros(())
        evidence: Evidence | None = None
        with evaluating(problem.model):
            for batch in problem.data.batches(self.schedule.batch_size):
                evidence = objective.evidence(
                    problem.model,
                    self.variational,
                    batch,
                    problem.likelihood,
                    problem.prior,
                    samples=objective.final_samples,
                    collapsed=False,
                    generator=self.generator,
                )
                fit = fit + evidence.log_likelihood
        if evidence is None or not fit.isfinite():
            raise NotFiniteError(f"The log evidence must be finite, got {evidence}. Check the scale of inputs and precisions.")
        return replace(evidence, log_likelihood=fit, num_data=problem.data.size)
