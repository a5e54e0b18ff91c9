"""Quadratics that vary least along trajectories: against the truth, and against a search by brute force."""

import numpy as np
import pytest
import torch

from symbayes.dynamics.constant import by_variation, held_variations, least_varying, smoothed
from symbayes.dynamics.network import MEASURES, amount_std, random_amounts
from symbayes.dynamics.observables import Quadratics, euclidean, monomials, unitary
from symbayes.dynamics.quantity import generator_rows, parallelness, read_quadratics, span_of
from symbayes.dynamics.search import Search
from symbayes.dynamics.trajectories import Scaling, Trajectories, simulate


def watched(system: str, count: int, noise: float, steps: int = 50, step: float = 0.3, seed: int = 0) -> Trajectories:
    return simulate(system, trajectories=count, steps=steps, step=step, noise=noise, seed=seed)


def _values(data: Trajectories) -> torch.Tensor:
    states = smoothed(data).states
    return monomials(states.flatten(0, 1)).unflatten(0, states.shape[:2])


@pytest.mark.parametrize(("system", "count", "truth"), [("2-oscillators", 4, unitary(2)), ("3-oscillators", 9, unitary(3))])
def test_without_noise_they_are_those_that_are_conserved(system, count, truth):
    found = least_varying(watched(system, 30, 0.0, steps=20), count)
    assert float(parallelness(found, truth.double()).min()) > 1 - 1e-9


def test_they_are_found_in_noisy_observations_of_three_bodies():
    data = watched("3-body-2d", 60, 0.03)
    found = least_varying(data, 7)
    known = euclidean(3, 2).double()
    assert float(parallelness(known, found).min()) > 0.995


def test_what_is_watched_are_the_noisy_targets():
    data = watched("2-oscillators", 12, 0.1, steps=10)
    exact = Trajectories(data.states, data.step, data.names)
    one, other = (least_varying(each, 4) for each in (data, exact))
    assert float((generator_rows(one) - generator_rows(other)).abs().max()) > 1e-3


def test_each_is_of_norm_one_and_orthogonal_to_those_before_it():
    found = generator_rows(least_varying(watched("2-oscillators", 10, 0.0), 6))
    torch.testing.assert_close(found @ found.T, torch.eye(6, dtype=torch.float64))


def test_the_first_varies_less_than_any_other_sum():
    data = watched("pendulum", 20, 0.0, steps=15)
    states = data.states.double()
    values = monomials(states.flatten(0, 1)).unflatten(0, states.shape[:2])
    variations, rows = by_variation(torch.eye(values.shape[2], dtype=torch.float64), values)

    def variation(row):
        sums = values @ row
        return float((sums.var(1, correction=0).mean() / sums.flatten().var(correction=0)).sqrt())

    assert [variation(row) for row in rows] == pytest.approx(variations.tolist(), rel=1e-4)
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(2000, len(rows), generator=generator, dtype=torch.float64)
    assert min(variation(row) for row in others) >= float(variations[0])


def test_what_is_conserved_is_told_apart_from_what_is_not():
    data = watched("2-oscillators", 20, 0.0, steps=20)
    exact, generator = unitary(2).double(), torch.Generator().manual_seed(0)
    halves = torch.cat([exact.halves.detach(), torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)])
    mixed = torch.einsum("lk,kab->lab", torch.randn(6, 6, generator=generator, dtype=torch.float64), halves)
    both = Quadratics(mixed, torch.zeros(6, 4, dtype=torch.float64))
    found = read_quadratics(span_of(both, 1e-9), Scaling.none(data), data, data)
    confirmed = [one.formula for one in found if one.confirmed]
    assert sorted(confirmed) == ["q1 p2 − q2 p1", "q1 q2 + p1 p2", "q1² + p1²", "q2² + p2²"]
    assert len(found) == 6


def test_what_varies_where_it_was_not_chosen_is_told_from_what_does_not():
    """With few trajectories many quadratics are nearly constant along them; along others only those that are conserved."""
    data = watched("3-body-2d", 60, 0.03)
    found = held_variations(data, 10)
    assert float(found[:7].max()) < 1 / 3
    assert float(found[7:].min()) > 0.5
    few = watched("3-body-2d", 8, 0.03)
    _, rows = by_variation(torch.eye(90, dtype=torch.float64), _values(few))
    within = torch.stack([(_values(few) @ row).var(1).mean() / (_values(few) @ row).var() for row in rows[:7]]).sqrt()
    assert float(within.max()) < 0.05
    assert float(held_variations(few, 7).min()) > 0.5


def test_one_is_what_monomials_vary_by():
    data = watched("2-oscillators", 20, 0.0, steps=20)
    values = _values(data)
    usual = (values.var(1, correction=0).mean(0) / values.flatten(0, 1).var(0, correction=0)).mean().sqrt()
    rows = by_variation(torch.eye(14, dtype=torch.float64), values)[1]
    along = values @ rows[-1]
    alone = (along.var(1, correction=0).mean() / along.var(correction=0)).sqrt() / usual
    assert float(held_variations(data, 14)[-1]) == pytest.approx(float(alone), rel=0.15)  # one that moves as much as any


def test_a_search_begins_in_full_with_what_is_constant():
    data = watched("2-oscillators", 20, 0.0, steps=20)
    search, units = Search(quantities=6, start=0.3), Scaling.none(data)
    many = search.model(data, units, "quadratic", 0).observables
    assert generator_rows(many).norm(dim=1).tolist() == pytest.approx([8**0.5] * 4 + [2**0.5 * 0.3] * 2, rel=1e-5)
    assert float(parallelness(many, unitary(2).double())[:4].min()) > 1 - 1e-6


def test_a_search_begins_at_random_where_there_is_one_trajectory():
    data = watched("2-oscillators", 1, 0.0, steps=20)
    alone = Search(quantities=6).model(data, Scaling.none(data), "quadratic", 0).observables
    assert float(parallelness(alone, unitary(2).double()).max()) < 0.9


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_std_of_amounts_is_that_of_draws(measure, count):
    drawn = random_amounts(measure, 40_000, count, np.random.default_rng(0))
    assert (drawn.std(0) / torch.pi).tolist() == pytest.approx([amount_std(measure, count)] * count, rel=0.02)


def test_more_are_asked_for_than_there_are_monomials():
    data = watched("oscillator", 5, 0.0)
    model = Search(quantities=8).model(data, Scaling.none(data), "quadratic", 0)
    assert model.observables.count == 8


def test_a_coordinate_at_rest_is_no_start():
    data = watched("oscillator", 20, 0.0, steps=20)
    states = torch.zeros(*data.states.shape[:2], 4, dtype=torch.float64)
    states[..., [0, 2]] = data.states.double()
    moving = Quadratics(torch.diag(torch.tensor([1.0, 0, 1, 0], dtype=torch.float64))[None], torch.zeros(1, 4).double())
    found = least_varying(Trajectories(states, data.step), 4)
    assert float(parallelness(moving, found)) > 1 - 1e-6


@pytest.mark.parametrize("moving", [0, 2, 5])
def test_a_coordinate_that_moves_along_one_trajectory_alone_is_no_law(moving):
    """Where that one is left out nothing moves there."""
    data = watched("oscillator", 6, 0.0, steps=20)
    states = torch.zeros(6, 21, 4, dtype=torch.float64)
    states[..., [0, 2]] = data.states.double()
    states[moving, :, 1], states[moving, :, 3] = torch.linspace(0, 1, 21), torch.linspace(1, 0, 21)
    found = held_variations(Trajectories(states, data.step), 8)
    assert not found.isnan().any()
    assert float(found[0]) < 1 / 3
    model = Search(quantities=8).model(Trajectories(states, data.step), Scaling.none(data), "quadratic", 0)
    assert generator_rows(model.observables).isfinite().all()


def test_two_trajectories_cannot_tell():
    data = watched("oscillator", 2, 0.0)
    assert held_variations(data, 3).isinf().all()
    sizes = generator_rows(Search(quantities=3).model(data, Scaling.none(data), "quadratic", 0).observables).norm(dim=1)
    assert sizes.tolist() == pytest.approx([2**0.5 * 0.2] * 3, rel=1e-5)
