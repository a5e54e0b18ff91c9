"""What a step of the evidence lower bound costs, forward and backward, in gradients of the same network."""

from collections.abc import Callable

import torch

from benchmarks.networks import NETWORKS
from benchmarks.timing import Timing, interleaved
from symbayes.likelihoods.classes import Categorical
from symbayes.posterior.families import Family, MatrixNormal, MeanField
from symbayes.priors import TensorwisePrior
from symbayes.training.elbo import Elbo

#: By what they are called in the table: a family, draws of weights, and whether noise is local.
CASES: dict[str, tuple[Family, int, bool]] = {
    "mean-field, 1 draw": (MeanField(), 1, True),
    "mean-field, 1 draw, not local": (MeanField(), 1, False),
    "mean-field, 4 draws": (MeanField(), 4, True),
    "matrix-normal with diagonal factors, 1 draw": (MatrixNormal(diagonal=True), 1, True),
    "matrix-normal, 1 draw": (MatrixNormal(), 1, True),
}


def measure_variational(batch_size: int, repeats: int) -> dict[str, dict[str, Timing]]:
    """By network and case: a step with one batch, in units of the gradient of that batch."""
    return {name: _measure(name, batch_size, repeats) for name in NETWORKS}


def _measure(name: str, batch_size: int, repeats: int) -> dict[str, Timing]:
    generator = torch.Generator().manual_seed(0)
    network = NETWORKS[name]
    model, likelihood = network.build(), Categorical()
    batch = (torch.randn(batch_size, *network.in_shape, generator=generator), torch.arange(batch_size) % 10)
    prior, weights = TensorwisePrior(model), list(model.parameters())

    def gradient() -> None:
        torch.autograd.grad(-likelihood.log_prob(model(batch[0]), batch[1]).mean(), weights)

    def step(family: Family, draws: int, local: bool) -> Callable[[], object]:
        objective, variational = Elbo(family, samples=draws, draws="random", local=local), family.over(model)
        learned = [*weights, *variational.parameters()]

        def run() -> None:
            evidence = objective.evidence(model, variational, batch, likelihood, prior, generator=generator)
            torch.autograd.grad(-evidence.total, learned)

        return run

    cases: dict[str, Callable[[], object]] = {"gradient": gradient}
    return interleaved(cases | {case: step(*settings) for case, settings in CASES.items()}, "gradient", repeats)
