"""Training by the evidence lower bound, E_q log p(D | W) − KL(q ‖ p): weights, spreads and hyperparameters by one gradient.

Precisions are the best in closed form. The terms are those of every other estimate: log p(D | W) and log p(W), on average under
the posterior q, and its volume, which is the entropy of q. Nothing is weighted: minibatches stand for all the data, and the
divergence counts as what it is.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.data.source import Batch
from symbayes.errors import NotFiniteError
from symbayes.evidence.evidence import Evidence, effective, expected_log_prior, log_precisions, prior_precisions, second_moments
from symbayes.invariance.extents import all_extents
from symbayes.layout import hyperparameters, weights
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.posterior.families import Family, MatrixNormal, Variational
from symbayes.posterior.functional import outputs_under, sampled_outputs
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.units import HiddenUnits, mutual_information
from symbayes.priors import Prior
from symbayes.training.hyper import HyperAdam, adam_over, adam_state, load_adam, set_rates
from symbayes.training.optimiser import PLAIN, Optimiser
from symbayes.training.record import EvidenceRecord, Record
from symbayes.training.steps import Steps, steps_for
from symbayes.training.trainer import Objective, Part, Problem, Schedule, State, StateDict, Trainer

DRAWS = ("random", "antithetic", "cubature")
NOISES = ("closed form", "gradient")
#: The weight of the divergence at the start of its annealing.
ANNEALED_FROM = 1e-3


@dataclass(frozen=True)
class Elbo(Objective):
    """The evidence lower bound: weights, spreads, extents and other hyperparameters by gradient, precisions in closed form.

    Args:
        family: Of posteriors.
        samples: Draws of weights in a step.
        final_samples: Draws of weights for the evidence of the result.
        draws: "random"; "antithetic", in pairs that lie opposite to each other; or "cubature", a fixed set of twice as many
            as there are weights, whatever `samples` say, whose average is exact where log p(D | W) is quadratic in W.
        local: Whether noise is drawn behind maps whose weights meet each datum once (see `posterior/functional.py`).
        collapsed: Whether learned precisions are always the best for the posterior there is, δ = p / E‖θ‖²; otherwise they are
            those of the prior, which a user may learn by gradient.
        noise: How a noise that is learned is: in "closed form" after every epoch, the mean squared error under the posterior;
            or by "gradient".
        permutations: How many random permutations of hidden units the volume is corrected with (`posterior/units.py`);
            none when 0.
        units: The hidden units that may change places; found in the model when None.
        annealing: Share of the epochs over which the divergence is let into the gradient, in equal factors from a thousandth.
            Extents and other hyperparameters rest until then. At full weight from the start, weights that do not fit anything
            yet are given up: the bound has a maximum where the network is off. Evidence is always reported in full.
        spread_rate: Learning rate of the spread, relative to that of the weights.
        extent_rate: Learning rate of extents and other hyperparameters.
        hyper_every: Epochs from one step of extents and other hyperparameters to the next; at 1 there is one with every batch.
            Otherwise weights and spreads follow a step before the next is chosen, by the mean gradient of the second half of
            the epochs between. Where the posterior is tight, weights that fit what hyperparameters were hold them back.
    """

    family: Family = field(default_factory=MatrixNormal)
    samples: int = 2
    final_samples: int = 32
    draws: str = "antithetic"
    local: bool = True
    collapsed: bool = True
    noise: str = "closed form"
    permutations: int = 0
    units: tuple[HiddenUnits, ...] | None = None
    annealing: float = 0.5
    spread_rate: float = 3.0
    extent_rate: float = 0.02
    hyper_every: int = 1

    def __post_init__(self) -> None:
        if self.draws not in DRAWS or self.noise not in NOISES:
            raise ValueError(
                f"draws must be one of {', '.join(DRAWS)}, and noise one of {', '.join(NOISES)}; "
                f"got {self.draws!r} and {self.noise!r}."
            )
        if self.samples < 1 or self.final_samples < 1 or self.permutations < 0:
            raise ValueError(
                "samples and final_samples must be at least 1, and permutations not negative; "
                f"got {self.samples}, {self.final_samples} and {self.permutations}."
            )
        if self.draws == "antithetic" and (self.samples % 2 or self.final_samples % 2):
            raise ValueError(
                f"Antithetic draws come in pairs, so samples and final_samples must be even; got {self.samples} and "
                f"{self.final_samples}. Or draws='random'."
            )
        if not 0 <= self.annealing < 1 or not self.spread_rate > 0 or not self.extent_rate > 0:
            raise ValueError(
                "annealing must be a share of the epochs below 1, and spread_rate and extent_rate positive; "
                f"got {self.annealing}, {self.spread_rate} and {self.extent_rate}."
            )
        if self.hyper_every < 1:
            raise ValueError(
                f"hyper_every must be at least 1, a step of hyperparameters with every batch; got {self.hyper_every}."
            )

    def weight_at(self, epoch: int, epochs: int) -> float:
        """What the divergence counts for in the gradient of an epoch, counted from 1; one after the annealing."""
        annealed = self.annealing * epochs
        return ANNEALED_FROM ** (1 - epoch / annealed) if epoch < annealed else 1.0

    def evidence(
        self,
        model: nn.Module,
        variational: Variational,
        batch: Batch,
        likelihood: Likelihood,
        prior: Prior,
        *,
        num_data: int | None = None,
        samples: int | None = None,
        collapsed: bool | None = None,
        generator: Generator | None = None,
    ) -> Evidence:
        """An unbiased estimate of the bound, from a batch; `.total.backward()` gives the gradients of everything learned.

        In the weights of the model, which are the means, in the spread, in extents and other hyperparameters, and in the noise
        of the likelihood; in precisions, too, where they are not collapsed.

        Args:
            model: In the mode it is to be used in: `model.train()` draws other transformations in every pass.
            variational: What `family.over(model)` gave.
            batch: Inputs and targets, drawn at random from all the data.
            likelihood: Of targets given outputs.
            prior: Over the weights.
            num_data: Of all the data, which the batch stands for; the batch is all when None.
            samples: Draws of weights, if not as in the settings.
            collapsed: If not as in the settings.
            generator: For the draws.

        Raises:
            ValueError: If prior or `variational` are of another model, or shapes and numbers do not fit.
            NotFiniteError: If inputs or log-probabilities are not finite.
        """
        inputs, targets = batch
        variational.check(model, inputs)
        if prior.group_of.keys() != variational.places.keys():
            prior.check(model)  # which says what does not fit
        drawn = self.samples if samples is None else samples
        posterior = variational()
        outputs = self.outputs(model, variational, posterior, inputs, drawn, generator)
        m, n = len(outputs), len(inputs)
        size = n if num_data is None else num_data
        if outputs.shape[1] != n or len(targets) != n or size < n:
            raise ValueError(
                f"Each of the {n} inputs must have a row of outputs and a target, and num_data counts them, too; got "
                f"{outputs.shape[1]} rows, {len(targets)} targets and num_data={size}."
            )
        repeated = targets.repeat(m, *(1,) * (targets.ndim - 1))
        fit = log_likelihood(likelihood, inputs, outputs.flatten(0, 1), repeated, None) * (size / (m * n))
        variances = posterior.variances()
        moments = second_moments(posterior, variances)
        chosen = self.collapsed if collapsed is None else collapsed
        precisions = prior_precisions(prior, moments, variational.deterministic) if chosen else prior.precisions()
        return Evidence(
            fit,
            expected_log_prior(prior, moments, precisions, variational.deterministic),
            posterior.entropy() + self._information(variational, posterior, inputs, drawn, generator),
            effective(prior, variances, precisions),
            variational.places,
            size,
            self._estimator(posterior, m),
        )

    def _estimator(self, posterior: Posterior, draws: int) -> str:
        corrected = f", hidden units in {self.permutations + 1} orders" if self.permutations else ""
        return (
            f"evidence lower bound ({posterior.kind}, {draws} {'points' if self.draws == 'cubature' else 'draws'}{corrected})"
        )

    def _information(
        self, variational: Variational, posterior: Posterior, inputs: Tensor, samples: int, generator: Generator | None
    ) -> Float[Tensor, ""]:
        """What the volume gains when hidden units need no order."""
        if not self.permutations:
            return torch.zeros(())
        units = variational.units(self.units, inputs)
        drawn = posterior.sample(samples, generator=generator)
        return mutual_information(posterior, drawn, units, self.permutations, generator=generator)

    def outputs(
        self,
        model: nn.Module,
        variational: Variational,
        posterior: Posterior,
        inputs: Tensor,
        samples: int,
        generator: Generator | None,
    ) -> Float[Tensor, "m n c"]:
        """Outputs under the posterior, drawn as these settings say."""
        if self.draws == "cubature":
            return outputs_under(model, posterior.cubature(), inputs)
        local = variational.local(inputs) if self.local else {}
        return sampled_outputs(
            model, posterior, inputs, samples, local=local, antithetic=self.draws == "antithetic", generator=generator
        )

    def trainer(self, problem: Problem, schedule: Schedule, optimiser: Optimiser | None = None) -> "ElboTrainer":
        return ElboTrainer(self, problem, schedule, optimiser or self.usual_optimiser(problem))


class BoundAdam:
    """Torch's Adam over means and spreads, at relative rates; and the gradients in hyperparameters that wait for their step.

    Args:
        means: The weights of the model.
        others: What is learned beside them.
        relative: Learning rate of the others, relative to that of the means.
    """

    def __init__(self, means: list[nn.Parameter], others: list[nn.Parameter], relative: float) -> None:
        self.adam = adam_over([{"params": means}, {"params": others}] if others else [{"params": means}])
        self.relative = (1.0, relative)[: len(self.adam.param_groups)]
        self.parameters: list[Tensor] = [parameter for group in self.adam.param_groups for parameter in group["params"]]
        #: Epochs since hyperparameters were moved, the one at hand included, and the gradients in them since.
        self.age, self.collected = 0, list[tuple[Tensor, ...]]()

    def set(self, rate: float) -> None:
        """The learning rate of the means, for the steps to come."""
        set_rates(self.adam, [rate * relative for relative in self.relative])

    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """One step down gradients, of which there may be more than of parameters."""
        for parameter, gradient in zip(self.parameters, gradients, strict=False):
            parameter.grad = gradient
        self.adam.step()
        self.adam.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "age": self.age,
            "collected": (len(self.collected), len(self.collected[0]) if self.collected else 0),
        }
        found |= {f"collected.{i}.{j}": one for i, of_one in enumerate(self.collected) for j, one in enumerate(of_one)}
        return found | {f"adam.{name}": value for name, value in adam_state(self.adam).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.age = int(state["age"])
        device = self.parameters[0].device
        steps, each = state["collected"]
        self.collected = [tuple(state[f"collected.{i}.{j}"].to(device) for j in range(each)) for i in range(steps)]
        load_adam(self.adam, {n.removeprefix("adam."): value for n, value in state.items() if n.startswith("adam.")})


@dataclass
class ElboState(State):
    """The state of training by the bound."""

    variational: Variational
    adam: BoundAdam
    hyper: HyperAdam
    #: From which weights are drawn, on the device of the model.
    draws: Generator
    #: Of the divergence in the gradient, on that device.
    weight: Tensor
    #: Made with the rest, whose steps they take.
    steps: Steps = field(init=False)
    #: Of the last step.
    evidence: Evidence | None = None

    def generators(self) -> dict[str, Generator]:
        own = {} if self.draws is self.generator else {"draws": self.draws}
        return {**super().generators(), **own}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.steps.forget()  # what they read lies in other memory now

    def parts(self) -> dict[str, Part]:
        return {**super().parts(), "variational": self.variational, "adam": self.adam, "hyper": self.hyper}


class ElboTrainer(Trainer[ElboState]):
    """The bound. The evidence of an epoch is that of its steps, while everything moves; of the last, of what was learned."""

    def __init__(self, objective: Elbo, problem: Problem, schedule: Schedule, optimiser: Optimiser) -> None:
        super().__init__(objective, problem, schedule, optimiser)
        self.objective = objective
        if optimiser != PLAIN:
            raise ValueError(
                "Elbo moves means and spreads by Adam on the bound, without running factors or an eigenbasis; got "
                f"{optimiser}. Leave the optimiser out, or use Optimiser(running=0, eigenbasis=0)."
            )
        if objective.noise == "closed form":
            problem.likelihood.check_noise()
        _refuse_too_short(problem, objective, schedule)

    def check(self) -> float:
        return self.problem.check(self.schedule.batch_size, curvature=False)

    def init(self, generator: Generator) -> ElboState:
        problem, objective = self.problem, self.objective
        variational = objective.family.over(problem.model)
        if objective.permutations:  # before time is spent
            variational.units(objective.units, problem.examples())
        means, others = list(weights(problem.model).values()), list(variational.parameters())
        if not objective.collapsed:
            others.append(problem.prior.log_precision)
        if problem.likelihood.learns_noise and objective.noise == "gradient":
            others.extend(parameter for parameter in problem.likelihood.parameters() if parameter.requires_grad)
        adam = BoundAdam(means, others, objective.spread_rate)
        weight = torch.ones((), dtype=torch.float64, device=means[0].device)
        draws = generator
        if means[0].is_cuda:
            draws = torch.Generator(means[0].device)
            draws.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        state = ElboState(problem, generator, variational, adam, HyperAdam(problem.model), draws, weight)
        batch_size, step, alike = self.schedule.batch_size, partial(self._step, state), objective.hyper_every == 1
        state.steps = steps_for(problem.data, batch_size, step, None, lambda: alike, [draws], problem.model)
        return state

    def epoch(self, state: ElboState) -> Record:
        started = time.perf_counter()
        epoch, epochs = state.epoch + 1, self.schedule.epochs
        rate_share = self.schedule.rate_share(epoch)
        loss, evidence = self._pass(state, rate_share, self.objective.weight_at(epoch, epochs))
        if self.problem.likelihood.learns_noise and self.objective.noise == "closed form":
            self._settle_noise(state)
        if epoch == epochs:
            evidence = self._evidence(state)
        state.epoch = epoch
        state.seconds += time.perf_counter() - started
        rate, extents = self.schedule.learning_rate * rate_share, all_extents(self.problem.model)
        return Record(epoch, epochs, state.seconds, rate, loss, extents, self.problem.described(evidence))

    def conclude(self, state: ElboState) -> EvidenceRecord:
        return self.problem.described(self._evidence(state))

    def finish(self, state: ElboState) -> Callable[[], Posterior]:
        posterior = state.variational().detached()
        return lambda: posterior

    def _pass(self, state: ElboState, rate_share: float, weight: float) -> tuple[float, Evidence]:
        """One pass of Adam over the data: the mean loss, and the evidence along the way, with the divergence in full.

        Args:
            state: To be moved.
            rate_share: The share of learning rates that is left.
            weight: Of the divergence, in the gradient.
        """
        adam, period = state.adam, self.objective.hyper_every
        adam.set(self.schedule.learning_rate * rate_share)
        state.hyper.set(self.objective.extent_rate * rate_share)
        state.weight.fill_(weight)
        if weight == 1:
            if not adam.age:
                state.steps.forget()  # hyperparameters move from now on
            adam.age = adam.age % period + 1
        self.problem.model.train()
        fit = state.steps.epoch(state.generator)
        if adam.age == period > 1:
            self._move(state)
        if self.objective.collapsed:
            self._settle_precisions(state)
        if state.evidence is None or not fit.isfinite():
            raise NotFiniteError(
                f"The loss must be finite, got {float(fit) / self.problem.data.size} per datum with a learning rate of "
                f"{self.schedule.learning_rate:.3g}. Use a smaller one, or check the scale of inputs and targets."
            )
        return -float(fit) / self.problem.data.size, replace(state.evidence, log_likelihood=fit)

    def _step(self, state: ElboState, batch: Batch) -> Tensor:
        """Weights and spreads down the gradient on a batch, and hyperparameters; its part of the log-likelihood of all data.

        Where hyperparameters do not move with every batch, their gradient is kept where it counts.
        """
        problem, size, adam = self.problem, self.problem.data.size, state.adam
        own = (problem.model, state.variational, batch, problem.likelihood, problem.prior)
        evidence = self.objective.evidence(*own, num_data=size, generator=state.draws)
        loss = (-state.weight * (evidence.log_prior + evidence.log_volume) - evidence.log_likelihood) / size
        learned = [*adam.parameters, *state.hyper.parameters]
        gradients = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)  # layers may be left out
        adam.step(gradients)
        of_hyper = gradients[len(adam.parameters) :]
        if adam.age and self.objective.hyper_every == 1:
            state.hyper.step(of_hyper)
        elif 2 * adam.age > self.objective.hyper_every:
            adam.collected.append(of_hyper)
        state.evidence = evidence.detached()
        return state.evidence.log_likelihood * (len(batch[0]) / size)

    def _move(self, state: ElboState) -> None:
        """Hyperparameters down the mean of the gradients that were kept."""
        if state.adam.collected:
            state.hyper.step([torch.stack(of_one).mean(0) for of_one in zip(*state.adam.collected, strict=True)])
            state.adam.collected.clear()

    @torch.no_grad()
    def _settle_precisions(self, state: ElboState) -> None:
        """The prior takes the precisions that are best for the posterior there is."""
        prior, posterior = self.problem.prior, state.variational()
        moments = second_moments(posterior, posterior.variances())
        prior.log_precision.copy_(log_precisions(prior, moments, state.variational.deterministic))

    @torch.no_grad()
    def _settle_noise(self, state: ElboState) -> None:
        """The noise goes half the way to what its statistics say under the posterior there is, which few draws estimate."""
        model, posterior, count = self.problem.model, state.variational(), self.objective.samples
        statistics: Tensor = torch.zeros(())
        with evaluating(model):
            for inputs, targets in self.problem.data.batches(self.schedule.batch_size):
                outputs = self.objective.outputs(model, state.variational, posterior, inputs, count, state.draws)
                statistics = statistics + self.problem.likelihood.noise_statistics(outputs, targets).mean(0)
        self.problem.likelihood.update_noise(statistics, 0.0, self.problem.data.size, damping=0.5)

    @torch.no_grad()
    def _evidence(self, state: ElboState) -> Evidence:
        """Of the posterior as it is, with all the data, the model evaluating."""
        problem, objective = self.problem, self.objective
        fit: Tensor = torch.zeros(())
        evidence: Evidence | None = None
        with evaluating(problem.model):
            for batch in problem.data.batches(self.schedule.batch_size):
                evidence = objective.evidence(
                    problem.model,
                    state.variational,
                    batch,
                    problem.likelihood,
                    problem.prior,
                    samples=objective.final_samples,
                    collapsed=False,
                    generator=state.draws,
                )
                fit = fit + evidence.log_likelihood
        if evidence is None or not fit.isfinite():
            raise NotFiniteError(f"The log evidence must be finite, got {evidence}. Check the scale of inputs and precisions.")
        return replace(evidence, log_likelihood=fit, num_data=problem.data.size)


def _refuse_too_short(problem: Problem, objective: Elbo, schedule: Schedule) -> None:
    """Refuse a schedule under which extents and other hyperparameters would not move once.

    Raises:
        ValueError: Saying how many epochs there must be.
    """
    left = sum(objective.weight_at(epoch, schedule.epochs) == 1 for epoch in range(1, schedule.epochs + 1))
    if hyperparameters(problem.model) and left < objective.hyper_every:
        raise ValueError(
            f"Hyperparameters move every {objective.hyper_every} epochs after the annealing, so there must be as many; "
            f"there are {left} of {schedule.epochs}. Train longer, or lower hyper_every or annealing of Elbo."
        )
