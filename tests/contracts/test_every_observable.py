"""The contract of all observables: transformations are flows of their sums, keep them, are symplectic and differentiable."""

import copy

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.testing import assert_close

from symbayes.dynamics.network import HamiltonianNetwork, Perceptron
from symbayes.dynamics.observables import NeuralObservables, Observables, Quadratics
from symbayes.dynamics.phase import ImplicitMidpoint, Midpoint, RungeKutta, rotated, velocity
from symbayes.layout import hyperparameters, weights


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _quadratics(count: int, size: int) -> Observables:
    return Quadratics.random(count, size, 0.3, generator=_seeded()).double()


def _neural(count: int, size: int, integrator: object = RungeKutta(16)) -> Observables:
    return NeuralObservables(count, size, 8, std=1.0, integrator=integrator, generator=_seeded()).double()


#: Observables, how far they may be from the exact flow, and how far from symplectic.
KINDS = {
    "one quadratic": (lambda: _quadratics(1, 2), 1e-9, 1e-12),
    "quadratics": (lambda: _quadratics(3, 4), 1e-9, 1e-12),
    "one neural": (lambda: _neural(1, 2), 1e-6, 1e-6),
    "neural": (lambda: _neural(3, 4), 1e-6, 1e-6),
    "neural, implicit midpoint": (lambda: _neural(2, 4, ImplicitMidpoint(8, repetitions=12)), 1e-3, 1e-12),
}


@pytest.fixture(params=KINDS)
def case(request, generator):
    """Observables, states, amounts, and the two tolerances."""
    make, accuracy, symplectic = KINDS[request.param]
    observables = make()
    states = torch.randn(5, observables.size, generator=generator, dtype=torch.float64)
    amounts = torch.randn(3, observables.count, generator=generator, dtype=torch.float64)
    return observables, states, amounts, accuracy, symplectic


class Moved(nn.Module):
    """States under transformations, as a module."""

    def __init__(self, observables, amounts):
        super().__init__()
        self.observables, self.amounts = observables, amounts

    def forward(self, states):
        return self.observables.transformations(self.amounts)(states)


def test_no_kind_is_missing():
    def kinds(cls: type) -> set[type]:
        return {cls, *(kind for sub in cls.__subclasses__() for kind in kinds(sub))}

    package = {kind for kind in kinds(Observables) - {Observables} if kind.__module__.startswith("symbayes.")}
    assert {type(make()) for make, *_ in KINDS.values()} == package == {Quadratics, NeuralObservables}


def test_there_is_a_value_of_each(case):
    observables, states, *_ = case
    assert observables(states).shape == (5, observables.count)


def test_states_do_move(case):
    observables, states, amounts, *_ = case
    moved = observables.transformations(amounts)(states)
    assert moved.shape == (5, 3, observables.size)
    assert (moved - states[:, None]).norm(dim=-1).min() > 0.01


def test_no_amount_moves_nothing(case):
    observables, states, amounts, *_ = case
    moved = observables.transformations(torch.zeros_like(amounts))(states)
    assert torch.equal(moved, states[:, None].expand_as(moved))


def test_a_transformation_keeps_the_sum_that_generates_it(case):
    observables, states, amounts, accuracy, _ = case
    moved = observables.transformations(amounts)(states)
    before = observables(states) @ amounts.T
    after = (observables(moved.flatten(0, 1)).unflatten(0, (5, 3)) * amounts).sum(-1)
    assert_close(after, before, atol=accuracy, rtol=accuracy)


def test_a_transformation_is_symplectic(case):
    observables, states, amounts, _, symplectic = case
    maps = observables.transformations(amounts)
    P = vmap(jacrev(lambda state: maps(state[None])[0]))(states)
    J = rotated(torch.eye(observables.size, dtype=torch.float64)).T
    assert_close(P.mT @ J @ P, J.expand_as(P), atol=symplectic, rtol=0.0)


def test_twice_the_amount_is_to_flow_twice(case):
    observables, states, amounts, accuracy, _ = case
    for amount in amounts.split(1):
        once = observables.transformations(amount)
        twice = once(once(states)[:, 0])
        assert_close(twice, observables.transformations(2 * amount)(states), atol=10 * accuracy, rtol=accuracy)
        back = observables.transformations(-amount)
        assert_close(back(once(states)[:, 0])[:, 0], states, atol=accuracy, rtol=accuracy)


def test_a_transformation_is_the_flow_of_the_sum(case):
    observables, states, amounts, accuracy, _ = case
    moved = observables.transformations(amounts)(states)

    def speed(_, flat):
        at = torch.from_numpy(flat).view(15, -1)
        return velocity(lambda x: (observables(x).unflatten(0, (5, 3)) * amounts).sum(-1).flatten(), at).detach().flatten()

    start = states[:, None].expand_as(moved).flatten().numpy()
    found = solve_ivp(speed, (0, 1), start, method="DOP853", rtol=1e-11, atol=1e-11)
    assert_close(moved.flatten(), torch.from_numpy(found.y[:, -1]), atol=accuracy, rtol=accuracy)


def test_everything_is_learned_and_nothing_is_a_weight(case):
    observables, *_ = case
    assert set(hyperparameters(observables)) == {name for name, _ in observables.named_parameters()}
    assert not weights(observables)
    assert set(hyperparameters(copy.deepcopy(observables))) == set(hyperparameters(observables))


def test_gradients_of_transformations_are_finite_differences(case):
    observables, states, amounts, *_ = case
    module = Moved(observables, amounts)
    names = list(hyperparameters(module))

    def moved(*values):
        return functional_call(module, dict(zip(names, values, strict=True)), (states[:2],))

    assert torch.autograd.gradcheck(moved, tuple(hyperparameters(module).values()), fast_mode=True)


@pytest.mark.parametrize("net", ["perceptron", "module"])
def test_gradients_of_motion_are_finite_differences(case, net):
    observables, states, *_ = case
    size = observables.size
    energy = Perceptron(size, 4, 1) if net == "perceptron" else nn.Sequential(nn.Linear(size, 4), nn.Tanh(), nn.Linear(4, 1))
    model = HamiltonianNetwork(energy.double(), 0.3, observables, samples=2, integrator=Midpoint(1)).eval()
    names = list(hyperparameters(model))

    def after(*values):
        return functional_call(model, dict(zip(names, values, strict=True)), (states[:2],))

    assert torch.autograd.gradcheck(after, tuple(hyperparameters(model).values()), fast_mode=True)


def test_many_weights_at_once_are_as_one_by_one(case):
    observables, states, *_ = case
    model = HamiltonianNetwork(Perceptron(observables.size, 4, 1).double(), 0.3, observables, samples=2).eval()
    many = {name: torch.stack([value, 2 * value, -value]) for name, value in weights(model).items()}
    found = vmap(lambda of: functional_call(model, of, (states,)))(many)
    found.square().sum().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in hyperparameters(model).values())
    for index in range(3):
        alone = functional_call(model, {name: value[index] for name, value in many.items()}, (states,))
        assert_close(found[index], alone)
