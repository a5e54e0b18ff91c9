"""Simulated motion against exact solutions and conservation laws."""

from dataclasses import replace
from math import cos, inf, pi, sin

import pytest
import torch
from scipy.special import ellipk
from torch.testing import assert_close

from symbayes.dynamics.systems import TESTS, Start, System, bodies, kepler, oscillators, pendulum, system
from symbayes.dynamics.trajectories import simulate
from symbayes.errors import NotFiniteError


def starting(found, *states):
    """The system, from these states."""
    return replace(found, draw=lambda count, generator: torch.tensor(states, dtype=torch.float64))


def test_oscillators_turn_in_phase_space():
    found = simulate("2-oscillators", trajectories=50, steps=10, step=0.5)
    q, p = found.states[:, 0].chunk(2, 1)
    for k in range(11):
        c, s = cos(0.5 * k), sin(0.5 * k)
        assert_close(found.states[:, k], torch.cat([c * q + s * p, c * p - s * q], 1), atol=1e-8, rtol=0.0)
    assert found.states.dtype == torch.float64
    assert (found.step, found.names, found.targets) == (0.5, ("q1", "q2", "p1", "p2"), None)


@pytest.mark.parametrize(
    ("name", "time"),
    [
        *(("oscillator", 20), ("3-oscillators", 20), ("3-body-2d", 20), ("3-body-3d", 20)),
        *(("pendulum", 5), ("double-pendulum", 5), ("kepler", 5)),
    ],
)
def test_energy_stays_the_same_for_long(name, time):
    found = simulate(name, trajectories=2, steps=time, step=1.0)
    energies = torch.stack([system(name).hamiltonian(states) for states in found.states.unbind(1)], 1)
    scale = energies[:, :1].abs().clamp_min(0.1)
    assert ((energies - energies[:, :1]).abs() / scale).max() < 1e-8


@pytest.mark.parametrize("start", [None, TESTS["wider"]], ids=["usual", "wider"])
def test_many_trajectories_are_as_exact_as_each_alone(start):
    found = bodies(3, 2, softening=0.5)
    together = simulate(found, trajectories=40, steps=2, step=1.0, start=start)
    for which in (0, 39):
        alone = simulate(starting(found, together.states[which, 0].tolist()), trajectories=1, steps=2, step=1.0)
        assert_close(together.states[which], alone.states[0], atol=1e-9, rtol=0.0)


def test_one_that_moves_among_many_at_rest_is_as_exact():
    found = simulate(starting(oscillators(), [1.0, 0.0], *[[0.0, 0.0]] * 999), trajectories=1000, steps=1, step=5.0)
    assert_close(found.states[0, 1], torch.tensor([cos(5), -sin(5)], dtype=torch.float64), atol=2e-10, rtol=0.0)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_bodies_keep_momentum_and_angular_momentum(dimensions):
    found = simulate(bodies(3, dimensions), trajectories=10, steps=5, step=1.0)
    q, p = found.states.view(10, 6, 2, 3, dimensions).unbind(2)
    turning = (q[..., :, None] * p[..., None, :] - p[..., :, None] * q[..., None, :]).sum(2)
    for conserved in (p.sum(2), turning):
        assert_close(conserved, conserved[:, :1].expand_as(conserved), atol=1e-8, rtol=0.0)


def test_a_pendulum_swings_as_slowly_as_the_elliptic_integral_says():
    for angle in (1e-3, 3.0):
        period = float(4 * ellipk(sin(angle / 2) ** 2))
        found = simulate(starting(pendulum(), [angle, 0.0]), trajectories=1, steps=4, step=period / 4)
        places = torch.tensor([angle, 0.0, -angle, 0.0, angle], dtype=torch.float64)
        assert_close(found.states[0, :, 0], places, atol=1e-7, rtol=0.0)
    small = simulate(starting(pendulum(), [1e-4, 0.0]), trajectories=1, steps=1, step=2 * pi)
    assert_close(small.states[0, 1], small.states[0, 0], atol=1e-9, rtol=0.0)


def test_planets_come_back_after_keplers_period():
    generator = torch.Generator().manual_seed(3)
    for state in kepler().initial(2, generator):
        half_axis = -0.5 / kepler().hamiltonian(state[None]).item()
        found = simulate(starting(kepler(), state.tolist()), trajectories=1, steps=2, step=pi * half_axis**1.5)
        assert_close(found.states[0, 2], state, atol=1e-7, rtol=0.0)
        assert (found.states[0, 1] - state).norm() > 0.5


def test_noise_is_added_to_targets_alone():
    clean = simulate("oscillator", trajectories=400, steps=20, seed=5)
    noisy = simulate("oscillator", trajectories=400, steps=20, seed=5, noise=0.1)
    assert_close(noisy.states, clean.states, atol=0.0, rtol=0.0)
    added = noisy.targets - clean.states[:, 1:]
    assert abs(added.std().item() - 0.1) < 0.002
    assert abs(added.mean().item()) < 0.003


def test_the_same_seed_gives_the_same_data_and_another_one_others():
    first, second, third = (simulate("3-body-2d", trajectories=3, steps=2, noise=0.1, seed=seed) for seed in (1, 1, 2))
    assert_close(first.states, second.states, atol=0.0, rtol=0.0)
    assert_close(first.targets, second.targets, atol=0.0, rtol=0.0)
    assert not torch.equal(first.states, third.states)


def test_a_start_may_be_given():
    found = simulate("oscillator", trajectories=4, steps=1, start=Start(0.0, 0.0, moved=1.0))
    assert_close(found.states[:, 0], torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(4, 2))


def test_an_energy_with_learned_weights_can_be_simulated():
    stiffness = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    found = simulate(System(lambda q, p: (p**2 + stiffness * q**2).sum(-1) / 2, 1), trajectories=3, steps=2)
    assert not found.states.requires_grad
    assert_close(found.states, simulate(oscillators(), trajectories=3, steps=2).states)


def test_motion_that_ends_in_a_singularity_is_refused():
    edge = System(lambda q, p: (p.square() / 2 + (1 - q) ** 2.5).sum(-1), 1, name="edge")
    with pytest.raises(RuntimeError, match=r"edge could be followed to time 0.6 of 5 only: .*singularity"):
        simulate(starting(edge, [0.0, 1.0]), trajectories=1, steps=50, step=0.1)


def test_a_start_in_a_singularity_is_refused():
    with pytest.raises(NotFiniteError, match="velocity of kepler must be finite at its initial states"):
        simulate(replace(kepler(), draw=None), start=Start(0.0, 0.0))


def test_numbers_that_make_no_trajectories_are_refused():
    with pytest.raises(ValueError, match="trajectories must be 1 or more, got 0"):
        simulate("oscillator", trajectories=0)
    with pytest.raises(ValueError, match="steps must be 1 or more, got 0"):
        simulate("oscillator", steps=0)
    with pytest.raises(ValueError, match="step must be above 0 and finite, got 0"):
        simulate("oscillator", step=0.0)
    with pytest.raises(ValueError, match="noise must be 0 or more and finite, got inf"):
        simulate("oscillator", noise=inf)
    with pytest.raises(ValueError, match="There is no system 'springs'"):
        simulate("springs")
