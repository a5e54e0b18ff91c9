"""What a fit will need before it starts: memory by what takes it, and time in gradients."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from symbayes.curvature.decompositions import decompose
from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.kfac import Kfac, RunningCurvature
from symbayes.curvature.lanczos import Preconditioned
from symbayes.curvature.memory import bytes_of_datum, factor_numbers
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.layout import Layout, weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Laplace
from symbayes.training.fit import preset
from symbayes.training.optimiser import LARGEST
from symbayes.training.trainer import Problem

#: Data that time is measured on, at most, and how often.
_MEASURED, _TIMES = 32, 3
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class Plan:
    """What `fit` will need by its preset.

    Args:
        parameters: Weights that are learned.
        memory: Bytes by what takes them, each at its most.
        batch_size: Data in a step.
        epochs: Passes over the data.
        gradient: Seconds for the gradient of all data, once.
        factors: What factors by one column cost, in gradients of the same data.
        decomposition: Seconds for the eigenvectors of all factors that have a basis, and the eigenvalues of others.
        running: Steps from one batch whose factors are collected to the next.
        hyper_every: Epochs from one decomposition to the next.
        products: Products with the full GGN for evidences, of a search and at the end, each of about two gradients of all data.
    """

    parameters: int
    memory: dict[str, int]
    batch_size: int
    epochs: int
    gradient: float
    factors: float
    decomposition: float
    running: int
    hyper_every: int
    products: float

    @property
    def epoch(self) -> float:
        """What an epoch costs, in gradients of all data."""
        running = self.factors / self.running if self.running else 0.0
        return 1 + running + self.decomposition / self.gradient / self.hyper_every

    @property
    def total(self) -> float:
        """What all of it costs, in gradients of all data."""
        return self.epochs * self.epoch + 2 * self.products

    def table(self) -> tuple[list[str], list[list[str]]]:
        """What is needed, in words and numbers."""
        rows = [[what, f"{taken / _MIB:,.1f} MiB"] for what, taken in self.memory.items()]
        rows.append(["memory, together", f"{sum(self.memory.values()) / _GIB:,.2f} GiB"])
        rows.append(["a gradient of all data", f"{self.gradient:.3g} s"])
        rows.append(["factors of all data, by one column", f"{self.factors:.2f} gradients"])
        rows.append(["a decomposition of all factors", f"{self.decomposition:.3g} s"])
        rows.append(["an epoch", f"{self.epoch:.2f} gradients"])
        rows.append(["evidences by the full GGN", f"about {2 * self.products:.0f} gradients"])
        rows.append([f"{self.epochs} epochs and evidences", f"{self.total:.0f} gradients, {self.total * self.gradient:.3g} s"])
        return ["what", "needs"], rows


def plan(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    num_data: int,
    *,
    likelihood: Likelihood | None = None,
    epochs: int | None = None,
) -> Plan:
    """What `fit` will need for a model without settings; memory is counted, time is measured on some data, where the model is.

    Args:
        model: To be trained; it is left as it is.
        batch: Some data, such as a batch: the first 32 are measured.
        num_data: How many there will be.
        likelihood: Of targets given outputs; `Categorical()` when None.
        epochs: As in `fit`.
    """
    own = weights(model)
    device = next(iter(own.values())).device
    likelihood = (likelihood if likelihood is not None else Categorical()).to(device)
    inputs, targets = (part[:_MEASURED].to(device) for part in batch)
    # As large as the data will be, without holding them.
    whole = TensorSource(inputs, targets, device)
    whole.size = num_data
    usual = preset(Problem(model, whole, likelihood, TensorwisePrior(model)), epochs=epochs)
    objective, schedule, optimiser = usual.objective, usual.schedule, usual.optimiser
    assert isinstance(objective, Laplace)
    final = objective.final_rule
    products = 0.0
    if isinstance(final, Preconditioned):
        products += final.steps * (final.probes + (final.probes_of_gamma or final.probes))
    if objective.search is not None:
        products += (3 + objective.search.tries) * objective.search.steps * min(0.5, objective.search.data / num_data)
    bytes_of_weights, size = sum(weight.nbytes for weight in own.values()), next(iter(own.values())).element_size()
    memory = {
        "weights": bytes_of_weights,
        "gradients": bytes_of_weights,
        "optimiser": (4 if optimiser.eigenbasis else 3) * bytes_of_weights
        + (_basis(model) * size if optimiser.eigenbasis else 0),
        "factors, running and of a batch": 2 * factor_numbers(model) * size + bytes_of_weights,
        f"a batch of {schedule.batch_size}": schedule.batch_size * bytes_of_datum(model, inputs[:2]),
        "vectors for the evidence": (final.steps + 8 if isinstance(final, Preconditioned) else 0) * bytes_of_weights,
    }
    gradient, factors, decomposition = _times(model, likelihood, inputs, targets)
    return Plan(
        sum(weight.numel() for weight in own.values()),
        memory,
        schedule.batch_size,
        schedule.epochs,
        gradient * num_data / len(inputs),
        factors / gradient,
        decomposition,
        optimiser.running,
        objective.hyper_every,
        products,
    )


def _basis(model: nn.Module) -> int:
    """Numbers in the eigenvectors in which steps are taken."""
    numbers = 0
    for site in Layout.of(model).sites.values():
        if site.matrix is not None and site.form.structure != "diagonal":
            blocks, first, second = site.matrix
            d_out = second if site.form.transposed else first
            sides = [first, second] + ([d_out] if site.bias is not None else [])
            numbers += blocks * sum(side**2 for side in sides if side <= LARGEST)
    return numbers


def _times(model: nn.Module, likelihood: Likelihood, inputs: Tensor, targets: Tensor) -> Sequence[float]:
    """Seconds of a gradient, of factors by one column, and of their decomposition."""
    own = list(weights(model).values())
    draws = torch.Generator(inputs.device).manual_seed(0)
    running = RunningCurvature(model, likelihood, Kfac(MonteCarloFisher()), 1, draws)

    def gradient() -> None:
        with evaluating(model):
            torch.autograd.grad(-likelihood.log_prob(model(inputs), targets).mean(), own, allow_unused=True)

    def decomposed() -> None:
        blocks = running.curvature(len(inputs)).blocks.values()
        decompose(blocks, vectors=True, up_to=LARGEST)
        decompose(blocks)

    return [_seconds(work, inputs.device) for work in (gradient, lambda: running.add((inputs, targets)), decomposed)]


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """The median, after one time that does not count."""
    found = []
    for _ in range(1 + _TIMES):
        started = _now(device)
        work()
        found.append(_now(device) - started)
    return median(found[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
