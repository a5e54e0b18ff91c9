"""Tests of whether something is conserved: how often they are wrong, and what they refuse to tell."""

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control

from symbayes.dynamics import Trajectories, Verdict
from symbayes.dynamics.denoising import Denoised, denoised
from symbayes.dynamics.verdict import controlled, judge


def first(states):
    return states[:, 0]


def motion(rng, count=20, times=40, along=0.0, trend=0.0, noise=0.0):
    """A first coordinate that varies along trajectories by so much of its spread, and a second one that is all motion."""
    levels = rng.standard_normal((count, 1))
    phase, at = rng.uniform(0, 7, (count, 1)), np.linspace(0, 20, times)
    sizes = along * np.sqrt(rng.exponential(1, (count, 1)))
    values = levels + sizes * np.sqrt(2) * np.sin(at + phase) - trend * levels * at / 20
    states = np.stack([values, np.cos(at + phase)], -1)
    return Trajectories(torch.from_numpy(states + noise * rng.standard_normal(states.shape)), 0.5)


def exact(trajectories):
    zeros = torch.zeros_like(trajectories.states)
    return Denoised(trajectories, zeros[0, 0], zeros, 1.0)


def rejected(tolerance, along, repeats=200):
    rng = np.random.default_rng(0)
    return np.mean([judge(first, exact(motion(rng, along=along)), tolerance).p_value < 0.05 for _ in range(repeats)])


def test_at_the_edge_of_the_tolerance_few_are_said_to_be_conserved():
    """Values are compressed, by which the variation in units of the spread becomes larger, not smaller."""
    assert rejected(0.1, 0.1) <= 0.05
    assert rejected(0.1, 0.03) > 0.95


def test_noise_is_no_variation_and_a_variation_is_no_noise():
    rng = np.random.default_rng(1)
    kept, moved = (judge(first, denoised(motion(rng, times=120, along=along, noise=0.1))) for along in (0.0, 0.4))
    assert kept.holds
    assert kept.tolerance > 0.03
    assert not moved.holds
    assert moved.variation == pytest.approx(0.4, rel=0.4)


def test_a_trend_is_seen_before_a_variation():
    rng = np.random.default_rng(2)
    found = judge(first, exact(motion(rng, trend=0.03)))
    assert found.p_value < 0.05
    assert found.has_trend
    assert not found.holds
    assert controlled([found])[0].probability < 0.01
    assert not judge(first, exact(motion(rng, along=0.005))).has_trend
    assert not judge(first, exact(motion(rng, trend=0.04)), 0.1).has_trend  # as little as it may vary


def test_what_cannot_be_told_is_not_said():
    rng = np.random.default_rng(3)
    assert judge(first, exact(motion(rng, count=7))).reason == "trajectories are too few"
    assert judge(lambda x: 0 * x[:, 0] + 1, exact(motion(rng))).reason == "it is the same for all trajectories"
    short = motion(rng)
    slow = Trajectories(torch.cat([short.states[..., :1], short.states[:, :1, 1:] + 0 * short.states[..., 1:]], -1), 0.5)
    assert judge(first, exact(slow)).reason == "trajectories are too short"
    loud = denoised(motion(rng, noise=0.8))
    assert judge(first, loud).reason == "noise is too large"
    for one in controlled([judge(first, loud), judge(first, exact(short))]):
        assert one.is_sure == (not one.reason)


def test_one_trajectory_far_from_others_is_no_spread():
    rng = np.random.default_rng(4)
    seen = motion(rng, along=0.5)
    seen.states[0, :, 0] += 1000
    assert not judge(first, exact(seen)).holds


def test_false_discoveries_are_controlled_as_by_benjamini_and_hochberg():
    p_values = np.random.default_rng(5).uniform(0, 0.2, 12) ** 2
    given = [Verdict(1 - p, p, 0.0, 0.0, 0.01, 0.0, 1.0, 1.0, 20) for p in p_values]
    found = [one.probability for one in controlled(given)]
    np.testing.assert_allclose(found, 1 - false_discovery_control(p_values, method="bh"), rtol=1e-12)
    assert controlled([]) == []


def test_words_never_round_up():
    assert Verdict(0.99999, 1e-5, 0.001, 0.002, 0.01, 0.0, 1.0, 1.0, 20).sureness() == "99.9 %"
    assert "not confirmed (94 % sure)" in str(Verdict(0.949, 0.05, 0.001, 0.002, 0.01, 0.0, 1.0, 1.0, 20)).replace(".9", "")
