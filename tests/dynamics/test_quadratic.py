"""Quadratics by their coefficients, those that an energy conserves, and groups known beforehand."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics.observables import (
    Quadratics,
    coefficients,
    conserved_quadratics,
    euclidean,
    monomial_names,
    monomials,
    unitary,
    with_coefficients,
)
from symbayes.dynamics.phase import poisson, relative_bracket, velocity
from symbayes.dynamics.quantity import parallelness
from symbayes.dynamics.systems import system


def states_of(name: str, count: int = 600) -> torch.Tensor:
    return system(name).initial(count, torch.Generator().manual_seed(1))


def test_coefficients_are_of_monomials_in_the_order_of_their_names():
    quadratics = Quadratics.random(3, 4, 1.0, generator=torch.Generator().manual_seed(0)).double()
    states = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    c = coefficients(quadratics)
    assert_close(monomials(states) @ c.T, quadratics(states))
    assert_close(with_coefficients(c.detach(), 4)(states), quadratics(states))
    assert monomial_names(["q", "p"]) == ["q²", "q p", "p²", "q", "p"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("oscillator", 1),
        ("2-oscillators", 4),
        ("3-oscillators", 9),
        ("3-body-2d", 7),
        ("pendulum", 0),
        ("double-pendulum", 0),
        ("kepler", 1),
    ],
)
def test_a_known_energy_conserves_so_many_quadratics(name, count):
    states, hamiltonian = states_of(name), system(name).hamiltonian
    found = conserved_quadratics(hamiltonian, states)
    assert found.count == count
    for index in range(count):
        gone = poisson(lambda x, index=index: found(x)[:, index], hamiltonian, states)
        assert_close(gone, torch.zeros_like(gone), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("oracle", "name"),
    [(unitary(1), "oscillator"), (unitary(3), "3-oscillators"), (euclidean(3, 2), "3-body-2d"), (euclidean(2, 3), "2-body-3d")],
)
def test_oracles_lie_among_what_is_conserved_and_are_independent(oracle, name):
    states, hamiltonian = states_of(name), system(name).hamiltonian
    exact = oracle.double()
    assert_close(parallelness(exact, conserved_quadratics(hamiltonian, states)), torch.ones(exact.count, dtype=torch.float64))
    assert torch.linalg.matrix_rank(coefficients(exact)) == exact.count


def test_oracles_have_the_elements_of_their_groups():
    turn = unitary(1).double().elements(torch.tensor([[torch.pi / 2]], dtype=torch.float64))[0]
    assert_close(turn[:2, :2], torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64))
    shift = euclidean(2, 2).double().transformations(torch.tensor([[0.5, 0.0, 0.0]], dtype=torch.float64))
    moved = shift(torch.zeros(1, 8, dtype=torch.float64))[0, 0]
    assert_close(moved, torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64))


def test_too_few_states_do_not_say_what_is_conserved():
    with pytest.raises(ValueError, match="at least as many states as monomials, 14; got 10"):
        conserved_quadratics(system("2-oscillators").hamiltonian, states_of("2-oscillators", 10))


def test_the_relative_bracket_is_the_rate_over_slope_and_speed():
    states = states_of("oscillator", 50)
    moved = velocity(system("oscillator").hamiltonian, states)
    assert relative_bracket(states, moved) < 1e-15  # q² + p² has the gradient x
    assert relative_bracket(moved, moved) == pytest.approx(
        float(moved.square().sum(1).square().mean().sqrt() / moved.square().sum(1).mean())
    )
