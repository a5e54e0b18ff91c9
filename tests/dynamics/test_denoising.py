"""Noise that is learned and left, against dense solves and against the truth."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics import Trajectories
from symbayes.dynamics.denoising import _parts, _roughness, _usual_noise, _weights, denoised, unwrapped


def waves(count=12, times=80, uneven=False, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    at = np.linspace(0, 12, times) + (rng.uniform(-0.05, 0.05, (count, times)) if uneven else 0)
    at = np.broadcast_to(at, (count, times))
    phase = rng.uniform(0, 6, (count, 1))
    clean = np.stack([np.cos(at + phase), -np.sin(at + phase)], -1)
    when = torch.from_numpy(at.copy()) if uneven else None
    step = 12 / (times - 1)
    seen = clean + noise * rng.standard_normal(clean.shape)
    return Trajectories(torch.from_numpy(seen), step, when=when), torch.from_numpy(clean)


@pytest.mark.parametrize("uneven", [False, True])
def test_noise_is_learned_and_what_is_left_is_known(uneven):
    seen, clean = waves(uneven=uneven)
    found = denoised(seen)
    assert_close(found.noise, torch.full((2,), 0.1, dtype=torch.float64), rtol=0.1, atol=0)
    error = (found.trajectories.states - clean).square().mean()
    assert error < 0.15 * 0.1**2
    assert 0.6 < found.left.mean() / error < 1.6


def test_states_without_noise_stay_as_they_are():
    seen, clean = waves(noise=0.0)
    found = denoised(seen)
    assert_close(found.trajectories.states, clean, rtol=0, atol=1e-5)
    assert found.noise.max() < 1e-4


def test_differences_of_high_order_bound_noise_where_motion_turns_often():
    at = np.linspace(0, 60, 400)[None]
    noise = 0.1 * np.random.default_rng(0).standard_normal(at.shape)
    bound = _usual_noise(np.stack([np.cos(5 * at), noise], -1), at)
    assert bound[0] < 2e-3  # by those of the fourth alone 0.03
    assert bound[1] == pytest.approx(0.1, rel=0.15)


def test_motion_that_is_fast_for_a_moment_is_no_noise():
    """Every trajectory has a jolt of two or three states, and nothing else that is rough."""
    seen, _ = waves(noise=0.0)
    times = torch.arange(80, dtype=torch.float64)
    jolts = torch.exp(-((times - torch.arange(12)[:, None] * 5 - 10) ** 2))
    states = seen.states.clone()
    states[..., 1] += 3 * jolts
    found = denoised(Trajectories(states, seen.step))
    assert found.noise.max() < 1e-3
    assert_close(found.trajectories.states, states, rtol=0, atol=1e-3)


def test_the_posterior_is_that_of_a_dense_solve():
    seen, _ = waves(count=2, times=30, uneven=True)
    found = denoised(seen, torch.tensor([0.1, 0.1], dtype=torch.float64))
    for k in range(2):
        rough = _roughness(seen.times[k].numpy())
        values, vectors = np.linalg.eigh(rough)
        values[values < 1e-12 * values.max()] = 0
        y = seen.states[k, :, 0].numpy()
        weight = _weights(values[None], (vectors.T @ y)[None], 0.1)[0]
        posterior = np.linalg.inv(np.eye(30) + weight * rough)
        assert_close(found.trajectories.states[k, :, 0], torch.from_numpy(posterior @ y), rtol=1e-6, atol=1e-8)
        assert_close(found.left[k, :, 0], torch.from_numpy(0.01 * np.diagonal(posterior).copy()), rtol=1e-6, atol=1e-10)


def test_cubics_are_smooth_at_any_times():
    times = np.sort(np.random.default_rng(0).uniform(0, 5, 20))
    cubic = 1 + times - 0.3 * times**3
    assert np.abs(_roughness(times) @ cubic).max() < 1e-6 * np.abs(_roughness(times)).max()
    assert np.abs(_roughness(times) @ times**4).max() > 1e-3


def test_long_trajectories_are_smoothed_in_parts():
    assert [(part.start, part.stop) for part in _parts(900)] == [(0, 300), (300, 600), (600, 900)]
    seen, clean = waves(count=3, times=900)
    assert (denoised(seen).trajectories.states - clean).square().mean() < 0.05 * 0.1**2


def test_angles_that_wrap_go_on():
    angle = 0.9 * torch.arange(40, dtype=torch.float64) - 5
    speed = torch.cos(angle)
    wrapped = torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi
    found, names = unwrapped(Trajectories(torch.stack([wrapped, speed], 1)[None], 0.1, ("θ", "p")))
    assert names == ("θ",)
    assert_close(found.states[0, :, 0].diff(), angle.diff())
    again, none = unwrapped(found)
    assert none == ()
    assert again is found
