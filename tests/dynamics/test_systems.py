"""Energies against forces derived by hand, names, and where motion starts."""

from dataclasses import replace
from itertools import combinations
from math import inf, nan

import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics.phase import poisson, velocity
from symbayes.dynamics.systems import (
    TESTS,
    TRAIN,
    Start,
    System,
    bodies,
    double_pendulum,
    kepler,
    oscillators,
    pendulum,
    system,
)

NAMES = [
    "oscillator",
    "2-oscillators",
    "5-oscillators",
    "3-body-2d",
    "3-body-3d",
    "2-body-2d",
    "pendulum",
    "double-pendulum",
    "kepler",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_system_is_found_by_its_name_and_moves_from_its_start(name, generator):
    found = system(name)
    states = found.initial(7, generator)
    assert found.name == name
    assert states.shape == (7, len(found.names))
    assert states.dtype == torch.float64
    assert velocity(found.hamiltonian, states).isfinite().all()
    assert_close(
        poisson(found.hamiltonian, found.hamiltonian, states), torch.zeros(7, dtype=torch.float64), atol=1e-12, rtol=0.0
    )


def test_coordinates_have_names():
    assert oscillators().names == ("q", "p")
    assert oscillators(2).names == ("q1", "q2", "p1", "p2")
    assert bodies(2, 2).names == ("x1", "y1", "x2", "y2", "px1", "py1", "px2", "py2")
    assert bodies(2, 3).names[:4] == ("x1", "y1", "z1", "x2")
    assert pendulum().names == ("θ", "p")
    assert kepler().names == ("x", "y", "px", "py")


@pytest.mark.parametrize("name", ["springs", "3-body", "-oscillators", "3-body-2d ", "three-body-2d", ""])
def test_an_unknown_name_is_refused_with_examples(name):
    with pytest.raises(ValueError, match=r"There is no system .* pendulum, double-pendulum, kepler, 2-oscillators, 3-body-2d"):
        system(name)


def test_counts_that_make_no_system_are_refused():
    with pytest.raises(ValueError, match="1 or more oscillators, got 0"):
        system("0-oscillators")
    with pytest.raises(ValueError, match="2 or more bodies, got 1"):
        system("1-body-2d")
    with pytest.raises(ValueError, match="dimensions must be 2 or 3, got 4"):
        system("3-body-4d")
    with pytest.raises(ValueError, match="softening must be 0 or more and finite, got -1"):
        bodies(softening=-1.0)


def test_a_system_of_ones_own_is_one_function():
    own = System(lambda q, p: (p**2).sum(-1) / 2 + (q**4).sum(-1) / 4, degrees=2)
    states = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert own.names == ("q1", "q2", "p1", "p2")
    assert_close(own.hamiltonian(states), torch.tensor([12.5 + 17 / 4]))
    assert_close(velocity(own.hamiltonian, states), torch.tensor([[3.0, 4.0, -1.0, -8.0]]))


def test_parts_that_do_not_fit_are_refused(generator):
    with pytest.raises(ValueError, match="degrees must be 1 or more, got 0"):
        System(lambda q, p: p[:, 0], degrees=0)
    with pytest.raises(ValueError, match=r"names must be 2 different ones.*got q, p, r"):
        System(lambda q, p: p[:, 0], degrees=1, names=("q", "p", "r"))
    with pytest.raises(ValueError, match=r"names must be 2 different ones.*got q, q"):
        System(lambda q, p: p[:, 0], degrees=1, names=("q", "q"))
    with pytest.raises(ValueError, match=r"States of 2-oscillators must be 4 numbers \(q1, q2, p1, p2\), got 2"):
        oscillators(2).hamiltonian(torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"one number for each of 3 states, got the shape \(3, 2\). Sum over"):
        System(lambda q, p: q**2 + p**2, degrees=2).hamiltonian(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"draw of oscillator must return 3 states of 2 numbers, got the shape \(1, 2\)"):
        replace(oscillators(), draw=lambda count, generator: torch.ones(1, 2)).initial(3, generator)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("softening", [1.0, 0.3])
def test_bodies_attract_each_other_by_the_softened_law(dimensions, softening, generator):
    found = bodies(4, dimensions, softening)
    states = found.initial(2, generator)
    moved = velocity(found.hamiltonian, states)
    q, p = states.view(2, 2, 4, dimensions).unbind(1)
    forces = torch.zeros_like(q)
    energies = p.square().sum((1, 2)) / 2
    for i, j in combinations(range(4), 2):
        apart = q[:, j] - q[:, i]
        distance = (apart.square().sum(1, keepdim=True) + softening**2).sqrt()
        forces[:, i] += apart / distance**3
        forces[:, j] -= apart / distance**3
        energies -= 1 / distance[:, 0]
    assert_close(moved, torch.cat([p.flatten(1), forces.flatten(1)], 1))
    assert_close(found.hamiltonian(states), energies)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_momentum_and_angular_momentum_of_bodies_are_conserved(dimensions, generator):
    found = bodies(3, dimensions)
    states = found.initial(5, generator)

    def parts(x):
        return x.view(-1, 2, 3, dimensions).unbind(1)

    conserved = [lambda x, axis=axis: parts(x)[1].sum(1)[:, axis] for axis in range(dimensions)]
    conserved += [
        lambda x, a=a, b=b: (parts(x)[0][..., a] * parts(x)[1][..., b] - parts(x)[0][..., b] * parts(x)[1][..., a]).sum(1)
        for a, b in combinations(range(dimensions), 2)
    ]
    for observable in conserved:
        change = poisson(observable, found.hamiltonian, states)
        assert_close(change, torch.zeros(5, dtype=torch.float64), atol=1e-14, rtol=0.0)


def test_the_double_pendulum_moves_as_its_lagrangian_says(generator):
    """Angles θ and speeds ω obey M ω̇ = f with L = ω₁² + ω₂² / 2 + ω₁ ω₂ cos(θ₁ − θ₂) + 2 cos θ₁ + cos θ₂."""
    angles, speeds = torch.randn(2, 20, 2, generator=generator, dtype=torch.float64)
    between = angles[:, 0] - angles[:, 1]
    one = torch.ones_like(between)
    M = torch.stack([2 * one, between.cos(), between.cos(), one], 1).view(-1, 2, 2)
    forces = torch.stack(
        [
            -(speeds[:, 1] ** 2) * between.sin() - 2 * angles[:, 0].sin(),
            speeds[:, 0] ** 2 * between.sin() - angles[:, 1].sin(),
        ],
        1,
    )
    accelerations = torch.linalg.solve(M, forces)
    turning = -between.sin() * (speeds[:, 0] - speeds[:, 1])
    momenta = (M @ speeds[..., None])[..., 0]
    of_momenta = (M @ accelerations[..., None])[..., 0] + turning[:, None] * speeds.flip(1)

    moved = velocity(double_pendulum().hamiltonian, torch.cat([angles, momenta], 1))
    assert_close(moved, torch.cat([speeds, of_momenta], 1))


def test_the_energy_of_a_double_pendulum_is_kinetic_plus_potential(generator):
    angles, speeds = torch.randn(2, 20, 2, generator=generator, dtype=torch.float64)
    cos = (angles[:, 0] - angles[:, 1]).cos()
    momenta = torch.stack([2 * speeds[:, 0] + cos * speeds[:, 1], speeds[:, 1] + cos * speeds[:, 0]], 1)
    heights = -torch.stack([angles[:, 0].cos(), angles.cos().sum(1)], 1)
    sideways, upwards = (torch.cumsum(speeds * part, 1) for part in (angles.cos(), angles.sin()))
    expected = (sideways**2 + upwards**2).sum(1) / 2 + heights.sum(1)
    assert_close(double_pendulum().hamiltonian(torch.cat([angles, momenta], 1)), expected)


def test_planets_start_on_ellipses_away_from_the_sun(generator):
    states = kepler().initial(4000, generator)
    q, p = states.chunk(2, 1)
    half_axis = -0.5 / kepler().hamiltonian(states)
    momentum = q[:, 0] * p[:, 1] - q[:, 1] * p[:, 0]
    eccentricity = (1 - momentum**2 / half_axis).clamp_min(0).sqrt()
    assert half_axis.min() >= 0.5 - 1e-9
    assert half_axis.max() <= 1.5 + 1e-9
    assert eccentricity.max() <= 0.5 + 1e-9
    assert (half_axis * (1 - eccentricity)).min() > 0.25
    assert abs((momentum > 0).double().mean() - 0.5) < 0.03
    assert q.mean(0).abs().max() < 0.05


def test_starts_have_the_spread_they_say(generator):
    drawn = Start(2.0, 0.3, shift=4.0, moved=-1.0).draw(40_000, 2, generator)
    q, p = drawn.chunk(2, 1)
    assert_close(q.mean(0), torch.full((2,), -1.0, dtype=torch.float64), atol=0.1, rtol=0.0)
    assert_close(torch.cov(q.T), torch.tensor([[20.0, 16.0], [16.0, 20.0]], dtype=torch.float64), atol=0.0, rtol=0.03)
    assert_close(torch.cov(p.T), 0.09 * torch.eye(2, dtype=torch.float64), atol=0.003, rtol=0.0)
    assert_close(p.mean(0), torch.zeros(2, dtype=torch.float64), atol=0.01, rtol=0.0)


def test_the_sets_of_the_paper_differ_from_training_as_it_says():
    assert Start(1.0, 0.5, 0.0, 0.0) == TRAIN
    assert list(TESTS) == ["test", "moved", "wider"]
    assert [(start.positions, start.momenta, start.moved) for start in TESTS.values()] == [
        (1, 0.2, 0),
        (1, 0.2, 1),
        (3, 0.2, 0),
    ]


def test_a_start_replaces_that_of_a_system(generator):
    still = replace(oscillators(), start=Start(0.0, 0.0, moved=2.0))
    assert_close(still.initial(10, generator), torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(10, 2))
    moved = still.initial(10, generator, Start(0.0, 0.0, moved=3.0))
    assert_close(moved, torch.tensor([[3.0, 0.0]], dtype=torch.float64).expand(10, 2))


def test_a_system_that_draws_its_own_states_refuses_a_start(generator):
    with pytest.raises(ValueError, match="start must be left out for kepler, which draws initial states of its own"):
        kepler().initial(10, generator, TRAIN)
    assert replace(kepler(), draw=None).initial(10, generator, TRAIN).shape == (10, 4)


def test_spreads_that_are_none_are_refused():
    with pytest.raises(ValueError, match="positions must be 0 or more and finite, got -1"):
        Start(positions=-1.0)
    with pytest.raises(ValueError, match="momenta must be 0 or more and finite, got inf"):
        Start(momenta=inf)
    with pytest.raises(ValueError, match="shift must be 0 or more and finite, got nan"):
        Start(shift=nan)
    with pytest.raises(ValueError, match="moved must be finite, got inf"):
        Start(moved=inf)
