"""Tests of whether something is conserved: how often they are wrong, and what they refuse to tell."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control

from symbayes.dynamics import Trajectories, Verdict, simulate
from symbayes.dynamics.denoising import as_seen, denoised
from symbayes.dynamics.systems import Start
from symbayes.dynamics.verdict import _slack, controlled, judge, judge_either_way


def level(states):
    return states[:, 0] - states[:, 1]


def motion(rng, count=20, times=40, along=0.0, trend=0.0, noise=0.0):
    """Two coordinates that swing, and a difference of them that varies along trajectories by so much of its spread."""
    levels = rng.standard_normal((count, 1))
    phase, at = rng.uniform(0, 7, (count, 1)), np.linspace(0, 20, times)
    sizes = along * np.sqrt(rng.exponential(1, (count, 1)))
    values = levels + sizes * np.sqrt(2) * np.sin(at + phase) - trend * levels * at / 20
    swing = np.cos(at + phase)
    states = np.stack([values + swing, swing], -1)
    return Trajectories(torch.from_numpy(states + noise * rng.standard_normal(states.shape)), 0.5)


def rejected(tolerance, along, repeats=200):
    rng = np.random.default_rng(0)
    return np.mean([judge(level, as_seen(motion(rng, along=along)), tolerance).p_value < 0.05 for _ in range(repeats)])


def test_at_the_edge_of_the_tolerance_few_are_said_to_be_conserved():
    """Values are compressed, by which the variation in units of the spread becomes larger, not smaller."""
    assert rejected(0.1, 0.1) <= 0.05
    assert rejected(0.1, 0.03) > 0.95


def test_what_noise_may_add_depends_on_how_much_of_it_is_left():
    """What stays where it is keeps a mean of its noise, which is a single number; what swings keeps much of it."""
    rng, at = np.random.default_rng(0), np.linspace(0, 20, 120)
    states = np.stack([np.repeat(rng.standard_normal((20, 1)), 120, 1), np.cos(3 * at + rng.uniform(0, 7, (20, 1)))], -1)
    seen = denoised(Trajectories(torch.from_numpy(states + 0.05 * rng.standard_normal(states.shape)), 20 / 119))
    along = torch.eye(2, dtype=torch.float64)[:, None].expand(2, 20 * 120, 2)
    still, fast = (_slack(slopes, seen) for slopes in along)
    assert 2 < still <= 3
    assert 1 < fast < 1.8
    assert judge(lambda x: x[:, 0], seen).holds


def test_noise_is_no_variation_and_a_variation_is_no_noise():
    rng = np.random.default_rng(1)
    kept, moved = (judge(level, denoised(motion(rng, times=120, along=along, noise=0.1))) for along in (0.0, 0.4))
    assert kept.holds
    assert kept.tolerance > 0.03
    assert not moved.holds
    assert moved.variation == pytest.approx(0.4, rel=0.4)


def test_a_trend_is_seen_before_a_variation():
    rng = np.random.default_rng(2)
    found = judge(level, as_seen(motion(rng, trend=0.03)))
    assert found.p_value < 0.05
    assert found.has_trend
    assert not found.holds
    assert controlled([found])[0].probability < 0.01
    assert not judge(level, as_seen(motion(rng, along=0.005))).has_trend
    assert not judge(level, as_seen(motion(rng, trend=0.04)), 0.1).has_trend  # as little as it may vary


def test_a_slight_trend_counts_where_it_is_clear():
    rng = np.random.default_rng(3)
    found = judge(level, as_seen(motion(rng, trend=0.01)))
    assert 1e-3 < found.trend < 0.01
    assert found.variation < 0.005
    assert not found.holds
    unclear = judge(level, denoised(motion(rng, trend=0.01, noise=0.1)))
    assert not unclear.has_trend


def test_what_moves_little_is_not_conserved_for_that():
    """A coordinate that swings by 0.3 % of how far trajectories are apart, beside one that is conserved up to rounding."""
    rng = np.random.default_rng(4)
    seen = motion(rng)
    for size, holds in ((0.003, False), (1e-8, True)):
        states = seen.states.clone()
        states[..., 0] = (states[:, :1, 0] - states[:, :1, 1]) + size * seen.states[..., 1]
        found = judge(lambda x: x[:, 0], as_seen(Trajectories(states, 0.5)))
        assert found.variation < 0.01
        assert found.holds is holds


def test_noise_that_may_be_motion_proves_nothing():
    """Steps of more than a radian: evidence has them as noise, unless noise is known."""
    rng = np.random.default_rng(5)
    phase, at = rng.uniform(0, 7, (40, 1)), 1.1 * np.arange(12)
    values = np.stack([np.cos(at + phase), np.sin(1.2 * at + phase)], -1) * rng.uniform(0.5, 2, (40, 1, 1))
    seen = denoised(Trajectories(torch.from_numpy(values), 1.1))
    assert seen.is_coarse
    assert not denoised(Trajectories(torch.from_numpy(values), 1.1), torch.full((2,), 1e-3)).is_coarse
    doubted = replace(seen, left=torch.full_like(seen.left, 1e-3))
    assert judge(level, doubted).reason == "steps are too long, or angles wrap, to tell motion from noise"
    assert judge(level, replace(doubted, is_coarse=False)).reason == ""


def test_what_is_constant_as_it_was_seen_needs_no_smoothing():
    """Bodies seen at long steps: motion is taken for noise, beside which nothing could be told."""
    given = simulate("3-body-2d", trajectories=30, steps=20, step=1.0, start=Start(1.0, 0.2), seed=1)
    seen = denoised(given)
    law, other = (lambda x: x[:, 6] + x[:, 8] + x[:, 10]), (lambda x: x[:, 6] + x[:, 8])  # of momenta along the first axis
    assert seen.is_coarse
    assert judge(law, seen).reason
    assert judge_either_way(law, given, seen).holds
    assert not judge_either_way(other, given, seen).holds
    noisy = replace(
        given, states=given.states + 0.3 * torch.randn(given.states.shape, generator=torch.Generator().manual_seed(0))
    )
    assert not judge_either_way(law, noisy, denoised(noisy)).holds


def test_noise_of_others_confirms_nothing_that_hardly_moves():
    """What is seen well and moves little would pass beside noise of other coordinates, along states as they were given."""
    for seed in range(4):
        given = simulate("2-oscillators", trajectories=20, steps=40, step=0.0015, seed=seed)
        noise = 0.25 * given.states.flatten(0, 1).std(0)
        noise = noise * torch.randn(given.states.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        noise[..., 0] = 0
        noisy = replace(given, states=given.states + noise)
        assert not judge_either_way(lambda x: x[:, 0], noisy, denoised(noisy), inf).holds


def test_what_cannot_be_told_is_not_said():
    rng = np.random.default_rng(3)
    assert judge(level, as_seen(motion(rng, count=7))).reason == "trajectories are too few"
    assert judge(lambda x: 0 * x[:, 0] + 1, as_seen(motion(rng))).reason == "it is the same for all trajectories"
    short = motion(rng)
    slow = Trajectories(short.states[:, :1] + 0.01 * short.states, 0.5)
    assert judge(level, as_seen(slow)).reason == "trajectories are too short"
    loud = denoised(motion(rng, noise=0.8))
    assert judge(level, loud).reason == "noise is too large"
    for one in controlled([judge(level, loud), judge(level, as_seen(short))]):
        assert one.is_sure == (not one.reason)


def test_one_trajectory_far_from_others_is_no_spread():
    rng = np.random.default_rng(4)
    seen = motion(rng, along=0.5)
    seen.states[0, :, 0] += 1000
    assert not judge(level, as_seen(seen)).holds


def test_false_discoveries_are_controlled_as_by_benjamini_and_hochberg():
    p_values = np.random.default_rng(5).uniform(0, 0.2, 12) ** 2
    given = [Verdict(1 - p, p, 0.0, 0.0, 0.01, 0.0, 1.0, 1.0, 20) for p in p_values]
    found = [one.probability for one in controlled(given)]
    np.testing.assert_allclose(found, 1 - false_discovery_control(p_values, method="bh"), rtol=1e-12)
    assert controlled([]) == []


def test_words_never_round_up():
    assert "varies by 100 % of its spread (at most 120 %)" in str(Verdict(0.0, 1.0, 0.999, 1.2, 0.01, 0.0, 1.0, 1.0, 20))
    assert Verdict(0.99999, 1e-5, 0.001, 0.002, 0.01, 0.0, 1.0, 1.0, 20).sureness() == "99.9 %"
    assert "not confirmed (94 % sure)" in str(Verdict(0.949, 0.05, 0.001, 0.002, 0.01, 0.0, 1.0, 1.0, 20)).replace(".9", "")
