"""What it costs to average an energy over transformations, in its own arithmetic: the plain network on as many states."""

from collections.abc import Callable

import torch

from benchmarks.timing import Timing, interleaved
from symbayes.dynamics.network import HamiltonianNetwork, Perceptron
from symbayes.dynamics.observables import Observables, Quadratics
from symbayes.dynamics.phase import Midpoint

#: Transformations, observables, numbers of a state (those of three bodies in a plane), width and hidden layers.
SAMPLES, COUNT, SIZE, WIDTH, HIDDEN = 100, 10, 12, 200, 2
PLAIN, AVERAGED = "plain, 100 times the states", "averaged over 100"


def measure_symmetrised(states: int, repeats: int) -> dict[str, Timing]:
    """A prediction and its gradient in all that is learned; the unit is the plain network on 100 times the states."""
    generator = torch.Generator().manual_seed(0)
    few = torch.randn(states, SIZE, generator=generator)
    many = torch.randn(states * SAMPLES, SIZE, generator=generator)
    learned = Quadratics.random(COUNT, SIZE, 0.01, generator=generator)
    return interleaved({PLAIN: _step(None, many), AVERAGED: _step(learned, few)}, PLAIN, repeats)


def _step(observables: Observables | None, states: torch.Tensor) -> Callable[[], object]:
    net = Perceptron(SIZE, WIDTH, HIDDEN, generator=torch.Generator().manual_seed(0))
    model = HamiltonianNetwork(net, 0.1, observables, integrator=Midpoint(1), samples=SAMPLES)

    def run() -> None:
        torch.autograd.grad(model(states).square().mean(), list(model.parameters()))

    return run
