"""Integrators: their orders, what they keep, and what is known of them on the oscillator."""

from functools import cache
from math import log2

import pytest
import torch
from torch.func import jacrev, vmap
from torch.testing import assert_close

from symbayes.dynamics.phase import (
    INTEGRATORS,
    Euler,
    ImplicitMidpoint,
    Integrator,
    Leapfrog,
    Midpoint,
    RungeKutta,
    rotated,
    velocity,
)
from symbayes.dynamics.systems import oscillators, pendulum

ORDERS = {Euler: 1, Midpoint: 2, RungeKutta: 4, ImplicitMidpoint: 2, Leapfrog: 2}
SEPARABLE = pendulum().hamiltonian


def tangled(x: torch.Tensor) -> torch.Tensor:
    """An energy that is no sum of kinetic and potential energy."""
    q, p = x.T
    return q.sin() * p.cos() + (q * p).square() / 4 + p.square() / 2


def states() -> torch.Tensor:
    return torch.tensor([[0.3, -0.8], [1.2, 0.4], [-0.5, 0.9]], dtype=torch.float64)


def after(integrator: Integrator, energy, time: float, start: torch.Tensor | None = None) -> torch.Tensor:
    return integrator(lambda x: velocity(energy, x), states() if start is None else start, time)


@cache
def as_good_as_exact() -> torch.Tensor:
    return after(RungeKutta(400), SEPARABLE, 1.0)


def test_every_integrator_is_here_and_has_a_name():
    assert set(ORDERS) == set(INTEGRATORS.values()) == set(Integrator.__subclasses__())


@pytest.mark.parametrize("kind", ORDERS)
def test_half_the_step_divides_the_error_by_two_to_the_order(kind):
    exact = as_good_as_exact()
    coarse, fine = ((after(kind(steps), SEPARABLE, 1.0) - exact).norm() for steps in (20, 40))
    assert log2(coarse / fine) == pytest.approx(ORDERS[kind], abs=0.15)


@pytest.mark.parametrize("kind", ORDERS)
def test_steps_divide_a_time(kind):
    third = after(kind(1), SEPARABLE, 0.2)
    assert_close(after(kind(2), SEPARABLE, 0.4, third), after(kind(3), SEPARABLE, 0.6))


@pytest.mark.parametrize(
    ("integrator", "energy"),
    [(Leapfrog(2), SEPARABLE), (ImplicitMidpoint(2, 40), tangled), (ImplicitMidpoint(2, 40), SEPARABLE)],
)
def test_it_is_symplectic(integrator, energy):
    P = vmap(jacrev(lambda x: after(integrator, energy, 0.5, x[None])[0]))(states())
    J = rotated(torch.eye(2, dtype=torch.float64)).T
    assert_close(P.mT @ J @ P, J.expand_as(P), atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("integrator", [Euler(2), Midpoint(2), RungeKutta(2), Leapfrog(2)])
def test_others_are_not_where_energies_are_tangled(integrator):
    P = vmap(jacrev(lambda x: after(integrator, tangled, 0.5, x[None])[0]))(states())
    J = rotated(torch.eye(2, dtype=torch.float64)).T
    assert (P.mT @ J @ P - J).abs().max() > 1e-6


@pytest.mark.parametrize("integrator", [Leapfrog(200), ImplicitMidpoint(200)])
def test_energy_does_not_drift(integrator):
    start = SEPARABLE(states())
    near, far = (SEPARABLE(after(integrator, SEPARABLE, time)) - start for time in (40.0, 39.0))
    assert max(near.abs().max(), far.abs().max()) < 0.01


def test_energy_grows_by_explicit_steps():
    energy = oscillators().hamiltonian
    start = energy(states())
    assert_close(energy(after(Euler(10), energy, 1.0)), start * 1.01**10)
    assert_close(energy(after(Midpoint(10), energy, 1.0)), start * (1 + 0.1**4 / 4) ** 10)
    assert (energy(after(RungeKutta(10), energy, 1.0)) < start).all()


def test_implicit_midpoint_keeps_the_energy_of_oscillators():
    energy = oscillators().hamiltonian
    assert_close(energy(after(ImplicitMidpoint(10, 40), energy, 5.0)), energy(states()), rtol=1e-12, atol=1e-12)


def test_a_step_of_the_oscillator_by_hand():
    energy, h = oscillators().hamiltonian, 0.3
    q, p = states().T
    by_hand = {
        Euler(): (q + h * p, p - h * q),
        Midpoint(): (q + h * p - h**2 / 2 * q, p - h * q - h**2 / 2 * p),
        RungeKutta(): (
            (1 - h**2 / 2 + h**4 / 24) * q + (h - h**3 / 6) * p,
            (1 - h**2 / 2 + h**4 / 24) * p - (h - h**3 / 6) * q,
        ),
        ImplicitMidpoint(repetitions=40): (
            ((1 - h**2 / 4) * q + h * p) / (1 + h**2 / 4),
            ((1 - h**2 / 4) * p - h * q) / (1 + h**2 / 4),
        ),
        Leapfrog(): ((1 - h**2 / 2) * q + h * p, (1 - h**2 / 2) * p - h * (1 - h**2 / 4) * q),
    }
    assert {type(integrator) for integrator in by_hand} == set(ORDERS)
    for integrator, (position, momentum) in by_hand.items():
        assert_close(after(integrator, energy, h), torch.stack([position, momentum], 1), rtol=1e-12, atol=1e-12)


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="at least one step, got 0"):
        Euler(0)
