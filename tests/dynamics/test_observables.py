"""Quadratic observables: rotations and translations by hand, their values and their flows; and new observables."""

from math import cos, pi, sin

import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

from symbayes.dynamics.observables import NeuralObservables, Quadratics
from symbayes.dynamics.phase import Midpoint, RungeKutta, gradient, poisson, velocity
from symbayes.layout import hyperparameters, weights


def rotation() -> Quadratics:
    """C = (q² + p²) / 2."""
    return Quadratics(torch.eye(2, dtype=torch.float64)[None] / 2, torch.zeros(1, 2, dtype=torch.float64))


def translation() -> Quadratics:
    """C = p."""
    return Quadratics(torch.zeros(1, 2, 2, dtype=torch.float64), torch.tensor([[0.0, 1.0]], dtype=torch.float64))


def amounts(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_generators_of_a_rotation_and_of_a_translation():
    assert_close(rotation().generators(), torch.tensor([[[0.0, 1, 0], [-1, 0, 0], [0, 0, 0]]], dtype=torch.float64))
    assert_close(translation().generators(), torch.tensor([[[0.0, 0, 1], [0, 0, 0], [0, 0, 0]]], dtype=torch.float64))


def test_generators_of_a_general_quadratic():
    W, b = torch.tensor([[[1.0, 2.0], [5.0, 3.0]]]), torch.tensor([[7.0, 8.0]])
    by_hand = torch.tensor([[[7.0, 6.0, 8.0], [-2.0, -7.0, -7.0], [0.0, 0.0, 0.0]]])
    assert_close(Quadratics(W, b).generators(), by_hand)


def test_a_rotation_turns_and_a_translation_shifts():
    state = torch.tensor([[0.6, -0.2]], dtype=torch.float64)
    a = 0.7
    turned = torch.tensor([[[0.6 * cos(a) - 0.2 * sin(a), -0.6 * sin(a) - 0.2 * cos(a)]]], dtype=torch.float64)
    assert_close(rotation().transformations(amounts([a]))(state), turned)
    assert_close(translation().transformations(amounts([a]))(state), torch.tensor([[[1.3, -0.2]]], dtype=torch.float64))
    whole = rotation().transformations(amounts([2 * pi]))(state)
    assert_close(whole[:, 0], state)


def test_the_value_is_half_x_a_x_plus_b_x(generator):
    found = Quadratics.random(3, 4, 1.0, generator=generator).double()
    states = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    A, b = found.matrices, found.linear
    assert torch.equal(A, A.mT)
    by_hand = torch.stack([torch.stack([x @ A[k] @ x / 2 + b[k] @ x for k in range(3)]) for x in states])
    assert_close(found(states), by_hand)
    assert_close(gradient(lambda x: found(x)[:, 1], states), states @ A[1] + b[1])


def test_flows_keep_their_observable_and_equal_the_solution_of_their_equation(generator):
    found = Quadratics.random(2, 4, 0.4, generator=generator).double()
    states = torch.randn(6, 4, generator=generator, dtype=torch.float64)

    def speed(_, flat, index):
        return velocity(lambda x: found(x)[:, index], torch.from_numpy(flat).view(6, 4)).detach().flatten()

    for index in range(2):
        moved = found.transformations(torch.eye(2, dtype=torch.float64)[index : index + 1])(states)[:, 0]
        assert_close(found(moved)[:, index], found(states)[:, index])
        exact = solve_ivp(speed, (0, 1), states.flatten(), method="DOP853", rtol=1e-12, atol=1e-12, args=(index,))
        assert_close(moved.flatten(), torch.from_numpy(exact.y[:, -1]), rtol=1e-9, atol=1e-9)


def test_brackets_of_quadratics_are_commutators_of_generators(generator):
    found = Quadratics.random(2, 4, 1.0, generator=generator).double()
    states = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    first, second = found.generators()
    field = velocity(lambda x: poisson(lambda y: found(y)[:, 0], lambda y: found(y)[:, 1], x), states)
    homogeneous = torch.cat([states, torch.ones(6, 1, dtype=torch.float64)], 1)
    assert_close(field, (homogeneous @ (first @ second - second @ first).T)[:, :4])


def test_fixed_quadratics_are_not_learned():
    fixed = Quadratics(torch.zeros(1, 2, 2), torch.zeros(1, 2), learned=False)
    assert not hyperparameters(fixed)
    assert not weights(fixed)


def test_states_without_halves_are_refused():
    with pytest.raises(ValueError, match="even count of numbers; got 3"):
        Quadratics(torch.zeros(1, 3, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="even count of numbers; got 3"):
        NeuralObservables(1, 3)


def test_neural_observables_by_hand():
    found = NeuralObservables(1, 2, 1).double()
    with torch.no_grad():
        found.inner.copy_(torch.tensor([[1.0, -2.0]]))
        found.offset.fill_(0.5)
        found.outer.fill_(3.0)
        found.linear.copy_(torch.tensor([[4.0, 5.0]]))
    state = torch.tensor([[0.3, 0.9]], dtype=torch.float64)
    before = torch.tensor(0.3 - 1.8 + 0.5, dtype=torch.float64)
    assert_close(found(state), (3 * before.cosh().log() + 1.2 + 4.5).view(1, 1))


@pytest.mark.parametrize(("steps", "error"), [(4, 0.008), (8, 0.0006)])
def test_how_far_steps_are_off_after_half_a_turn(steps, error):
    found = NeuralObservables(1, 2, 2, integrator=RungeKutta(steps)).double()
    small = 1e-3  # where log cosh is a parabola
    with torch.no_grad():
        found.inner.copy_(small * torch.eye(2))
        found.offset.zero_()
        found.outer.fill_(small**-2)
        found.linear.zero_()
    state = torch.tensor([[0.6, -0.8]], dtype=torch.float64)
    moved = found.transformations(amounts([pi]))(state)[:, 0]
    assert 0.5 * error < (moved + state).norm() < 1.5 * error


@pytest.mark.parametrize("far", [1e3, 1e6])
def test_neural_observables_do_not_run_away(far):
    found = NeuralObservables(2, 4, std=1.0).double()
    states = far * torch.randn(20, 4, dtype=torch.float64)
    tau = amounts([3.0, -1.0])
    speed = (
        tau.abs() @ (found.outer.abs() @ found.inner.norm(dim=1, keepdim=True) + found.linear.norm(dim=1, keepdim=True))
    ).item()
    moved = found.transformations(tau)(states)[:, 0]
    assert found(states).isfinite().all()
    assert ((moved - states).norm(dim=1) <= speed * (1 + 1e-9)).all()


def test_new_neural_observables_are_small_and_follow_their_generator():
    first, second = (NeuralObservables(3, 4, generator=torch.Generator().manual_seed(2)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    states = torch.randn(200, 4)
    sizes = [gradient(lambda x, i=i: first(x)[:, i], states).square().mean().sqrt().item() for i in range(3)]
    assert all(0.01 < size < 0.2 for size in sizes)


def test_fixed_neural_observables_are_not_learned():
    fixed = NeuralObservables(1, 2, learned=False, integrator=Midpoint(3))
    assert not hyperparameters(fixed)
    assert not weights(fixed)


def test_no_neural_observables_are_refused():
    with pytest.raises(ValueError, match="count and width must be at least 1; got 0 and 32"):
        NeuralObservables(0, 2)
    with pytest.raises(ValueError, match="count and width must be at least 1; got 1 and 0"):
        NeuralObservables(1, 2, 0)
