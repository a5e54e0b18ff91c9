"""Hamiltonian networks: plain where observables are zero, motion as the gradient of energy, exact averages over orbits."""

from math import pi, sin

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.dynamics.network import HamiltonianNetwork, Perceptron
from symbayes.dynamics.observables import NeuralObservables, Quadratics
from symbayes.dynamics.phase import ImplicitMidpoint, Midpoint, RungeKutta, velocity

NETS = {
    "perceptron": lambda: Perceptron(4, 6, 2).double(),
    "module": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double(),
}
OBSERVABLES = {
    "none": lambda: None,
    "quadratics": lambda: Quadratics.random(2, 4, 0.3).double(),
    "neural": lambda: NeuralObservables(2, 4, 5, std=0.5, integrator=RungeKutta(3)).double(),
}


class Polynomial(nn.Module):
    """A power of the first position."""

    def __init__(self, power: int):
        super().__init__()
        self.power = power

    def forward(self, states):
        return states[:, :1] ** self.power


def points(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(7, size, generator=generator, dtype=torch.float64)


def circle(radius: float = 1.0) -> Quadratics:
    """C = radius · (q² + p²) / 2, which turns by `radius` times the amount."""
    return Quadratics(radius * torch.eye(2, dtype=torch.float64)[None] / 2, torch.zeros(1, 2, dtype=torch.float64))


def zero(kind: str):
    if kind == "quadratics":
        return Quadratics(torch.zeros(2, 4, 4), torch.zeros(2, 4)).double()
    return NeuralObservables(2, 4, 5, std=0.0, integrator=RungeKutta(3)).double()


@pytest.mark.parametrize("samples", [1, 2, 16])
@pytest.mark.parametrize("kind", ["quadratics", "neural"])
@pytest.mark.parametrize("net", NETS)
def test_without_symmetry_it_is_the_plain_network(net, kind, samples, generator):
    inner, states = NETS[net](), points(4, generator)
    plain = HamiltonianNetwork(inner, 0.2)
    averaged = HamiltonianNetwork(inner, 0.2, zero(kind), samples=samples)
    for _ in range(2):
        # Sums over more rows, and a mean over equal numbers, are rounded in another order.
        assert_close(averaged.energy()(states), plain.energy()(states), rtol=1e-14, atol=1e-15)
        assert_close(averaged(states), plain(states), rtol=1e-14, atol=1e-15)
        averaged.eval()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", OBSERVABLES)
@pytest.mark.parametrize("net", NETS)
def test_motion_is_along_the_turned_gradient_of_energy(net, kind, training, generator):
    model = HamiltonianNetwork(NETS[net](), 0.2, OBSERVABLES[kind](), samples=5).train(training)
    again = HamiltonianNetwork(model.net, 0.2, model.observables, samples=5).train(training)
    states = points(4, generator)
    assert_close(model.motion()(states), velocity(again.energy(), states), rtol=1e-12, atol=1e-12)


def test_a_pass_follows_its_motion_by_its_integrator(generator):
    model = HamiltonianNetwork(Perceptron(4, 6).double(), 0.2, Quadratics.random(2, 4).double(), integrator=Midpoint(3)).eval()
    states = points(4, generator)
    assert torch.equal(model(states), Midpoint(3)(model.motion(), states, 0.2))


@pytest.mark.parametrize("measure", ["uniform", "ball"])
@pytest.mark.parametrize(("power", "mean"), [(1, 0.0), (2, 1 / 2), (3, 0.0), (4, 3 / 8), (6, 5 / 16)])
def test_averages_over_the_whole_circle_are_exact(power, mean, measure, generator):
    model = HamiltonianNetwork(Polynomial(power), 0.2, circle(), samples=8, measure=measure).eval()
    states = points(2, generator)
    assert_close(model.energy()(states), mean * states.norm(dim=1) ** power, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.75])
def test_averages_over_a_part_of_the_circle(share, generator):
    states, reach = points(2, generator), pi * share
    q, p = states.T
    for samples in (4, 400):
        model = HamiltonianNetwork(Polynomial(2), 0.2, circle(share), samples=samples).eval()
        even = sin(2 * reach) / (samples * sin(2 * reach / samples))  # of cos 2τ, over evenly spaced τ
        by_hand = (q**2 + p**2) / 2 + (q**2 - p**2) / 2 * even
        assert_close(model.energy()(states), by_hand, rtol=1e-11, atol=1e-11)
    assert even == pytest.approx(sin(2 * reach) / (2 * reach), abs=1e-4)


@pytest.mark.parametrize("samples", [16, 17])
def test_an_energy_averaged_over_rotations_is_invariant_and_conserves_them(samples, generator):
    model = HamiltonianNetwork(
        Perceptron(2, 8, 2).double(), 0.5, circle(), samples=samples, integrator=ImplicitMidpoint(4)
    ).eval()
    states = points(2, generator)
    turned = circle().transformations(torch.tensor([[0.8]], dtype=torch.float64))(states)[:, 0]
    plain = HamiltonianNetwork(model.net, 0.5).eval()
    # A sum over 16 even steps leaves out only waves of 16 turns and more.
    tolerance = 1e-6 if samples == 16 else 0.05
    assert_close(model.energy()(turned), model.energy()(states), atol=tolerance, rtol=0.0)
    assert_close(model(states).norm(dim=1), states.norm(dim=1), atol=tolerance, rtol=0.0)
    assert (plain(states).norm(dim=1) - states.norm(dim=1)).abs().max() > 0.02


def test_transformations_are_those_of_the_pass_and_others_in_the_next(generator):
    model = HamiltonianNetwork(Perceptron(4, 6).double(), 0.2, Quadratics.random(2, 4, 0.3).double(), samples=4)
    states = points(4, generator)
    energy, motion = model.energy(), model.motion()
    assert torch.equal(energy(states), energy(states))
    assert torch.equal(motion(states), motion(states))
    assert not torch.equal(model.energy()(states), energy(states))
    assert not torch.equal(model(states), model(states))
    model.eval()
    assert torch.equal(model(states), model(states))
    assert torch.equal(model.energy()(states), model.energy()(states))


def test_draws_follow_the_seed(generator):
    net, observables, states = Perceptron(4, 6).double(), Quadratics.random(2, 4, 0.3).double(), points(4, generator)
    first, same, other = (HamiltonianNetwork(net, 0.2, observables, samples=4, seed=seed)(states) for seed in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_another_measure_is_refused():
    with pytest.raises(ValueError, match="measure must be one of uniform, ball, gaussian; got 'sphere'"):
        HamiltonianNetwork(Perceptron(2), 0.2, measure="sphere")
