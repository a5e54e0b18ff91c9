"""Scaling in which states are of size one: motion stays Hamiltonian, and observables have the same flows."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.phase import velocity
from symbayes.dynamics.trajectories import Scaling, Trajectories, simulate

UNITS = Scaling(torch.tensor([3.0, 3.0, 0.5, 0.5], dtype=torch.float64), 7.0)


def test_states_and_velocities_are_of_size_one():
    made = simulate("2-oscillators", trajectories=30, steps=5)
    large = Trajectories(made.states * torch.tensor([1e9, 1e9, 1e-3, 1e-3]), 86400.0)
    inside = Scaling.of(large).entered(large)
    for half in inside.states.chunk(2, -1):
        assert float(half.square().mean().sqrt()) == pytest.approx(1)
    assert float((inside.states.diff(dim=1) / inside.step).square().mean().sqrt()) == pytest.approx(1)


def test_motion_by_the_energy_in_units_is_the_same_motion():
    def energy(states):  # some energy inside
        return states.pow(4).sum(-1) + states[:, 0] * states[:, 3]

    outside = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = velocity(energy, outside / UNITS.scale)
    expected = velocity(lambda x: UNITS.energy * energy(x / UNITS.scale), outside)
    assert_close(inside * UNITS.scale / UNITS.time, expected)


def test_quadratics_have_the_same_flows_inside_and_outside():
    quadratics = Quadratics.random(2, 4, 0.3, generator=torch.Generator().manual_seed(0)).double()
    states = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    amounts = torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    outside = quadratics.transformations(amounts)(states)
    inside = UNITS.taken_in(quadratics).transformations(amounts)(states / UNITS.scale)
    assert_close(inside * UNITS.scale, outside)
    assert_close(UNITS.left(UNITS.taken_in(quadratics))(states), quadratics(states))


def test_what_does_not_move_has_no_units():
    with pytest.raises(ValueError, match="States must change"):
        Scaling.of(Trajectories(torch.ones(2, 3, 2, dtype=torch.float64), 0.1))
    with pytest.raises(ValueError, match="momenta of size 0"):
        Scaling.of(Trajectories(torch.tensor([[[1.0, 0.0], [2.0, 0.0]]]), 0.1))
    made = simulate("oscillator", trajectories=5)
    with pytest.raises(ValueError, match=r"q is about 1e\+03, where positions differ by .* Subtract a constant"):
        Scaling.of(Trajectories(made.states + torch.tensor([1000.0, 0.0]), 0.2))
