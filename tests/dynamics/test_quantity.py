"""Formulas, constancy and fits of conserved quantities, where they are known exactly."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics.observables import (
    NeuralObservables,
    Quadratics,
    coefficients,
    euclidean,
    monomials,
    unitary,
    with_coefficients,
)
from symbayes.dynamics.quantity import Term, constancy, fitted, formula, read_observables, read_quadratics, span_of, typical
from symbayes.dynamics.systems import TESTS, System
from symbayes.dynamics.trajectories import Scaling, Trajectories, simulate

DATA = simulate("2-oscillators", trajectories=12, steps=15, seed=3)


def known(noise: float = 0.0) -> Quadratics:
    """U(2), mixed, with something else in it."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    exact = unitary(2).double()
    halves = torch.einsum("lk,kab->lab", factors, exact.halves.detach())
    return Quadratics(
        halves + noise * torch.randn(5, 4, 4, generator=generator, dtype=torch.float64), torch.zeros(5, 4).double()
    )


def test_formulas_are_short_and_exact_where_the_span_is():
    units = Scaling.of(DATA)
    found = read_quadratics(span_of(units.taken_in(known()), 0.05), units, DATA, DATA)
    assert sorted(one.formula for one in found) == ["q1 p2 − q2 p1", "q1 q2 + p1 p2", "q1² + p1²", "q2² + p2²"]
    for one in found:
        assert one.variation < 1e-8
        first, second = one.terms
        assert abs(first.learned) == pytest.approx(1)
        assert second.fitted == pytest.approx(second.learned, abs=1e-6)
        assert float(one(DATA.states[0]).std()) < 1e-8
        assert one.confirmed
        assert "varies by" in str(one)


def test_a_fit_corrects_what_was_learned_and_says_how_exactly():
    units = Scaling.of(DATA)
    found = read_quadratics(span_of(units.taken_in(known(0.01)), 0.1), units, DATA, DATA)
    assert len(found) == 4
    for one in found:
        assert one.variation > 1e-4
        for term in one.terms:
            assert term.fitted == pytest.approx(round(term.learned), abs=1e-6)
            assert term.error < 1e-6


def test_fits_and_their_errors_are_those_of_a_regression_with_a_constant_for_each_trajectory():
    generator = torch.Generator().manual_seed(0)
    data = Trajectories(torch.randn(8, 9, 2, generator=generator, dtype=torch.float64), 0.1)
    rows = torch.tensor([[-2.5, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)  # the pivot is p²
    found, errors = fitted(rows, [2], data)
    phi = monomials(data.states.flatten(0, 1)).numpy()
    X = np.concatenate([phi[:, [0, 1, 3, 4]], np.kron(np.eye(8), np.ones((9, 1)))], 1)
    solved, squares = np.linalg.lstsq(X, -phi[:, 2], rcond=None)[:2]
    expected = np.sqrt(squares / (72 - 12) * np.diag(np.linalg.inv(X.T @ X)))
    assert_close(found[0, [0, 1, 3, 4]], torch.from_numpy(solved[:4]))
    assert_close(errors[0, [0, 1, 3, 4]], torch.from_numpy(expected[:4]))
    assert found[0, 2] == 1
    assert errors[0, 2] == 0


def test_a_fit_is_refused_where_more_is_conserved_than_was_found():
    rows = coefficients(unitary(2).double())[:1].detach()
    assert fitted(rows, [0], DATA) is None


def test_constancy_has_a_standard_error_over_trajectories():
    values = torch.tensor([[1.0, -1.0], [2.0, -2.0]], dtype=torch.float64)
    variation, error = constancy(values, 10.0)
    assert variation == pytest.approx((2.5**0.5) / 10)
    variances = torch.tensor([0.01, 0.04], dtype=torch.float64)
    assert error == pytest.approx(float(variances.std()) / 2**0.5 / (2 * variation))
    assert constancy(values[:1], 1.0) == (pytest.approx(1.0), None)


def test_a_single_trajectory_has_no_standard_error():
    alone = Trajectories(DATA.states[:1], DATA.step)
    units = Scaling.of(DATA)
    for one in read_quadratics(span_of(units.taken_in(known(0.01)), 0.1), units, DATA, alone):
        assert one.error is None
        assert "±" not in str(one)


def test_formulas_read_well():
    terms = [Term("q²", 1.0), Term("p²", -0.987), Term("q p", 0.0514)]
    assert formula(terms) == "q² − 0.99 p² + 0.051 q p"
    assert formula([Term("q", -1.0)]) == "−q"
    assert formula([Term("q²", 1.0), Term("p²", 1.0508e29)]) == "q² + 1.05e+29 p²"
    assert formula([Term("q²", 1.0), Term("p²", 12.345)]) == "q² + 12.35 p²"
    assert formula([Term(f"x{i}", 1.0) for i in range(20)]).endswith("+ … (2 more)")


def test_observables_of_any_form_are_quantities_where_they_move_states():
    observables = NeuralObservables(2, 4, 8, std=1.0, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        observables.outer[1].zero_()
        observables.linear[1].zero_()
        observables.inner.mul_(3)  # so that it is near no short sum
    units = Scaling.of(DATA)
    (only,) = read_observables(observables, units, DATA, DATA, 0.05)
    assert only.formula == "C1, a network"
    inside = observables.double()(DATA.states[0] / units.scale)[:, 0]
    assert_close(only(DATA.states[0]), units.action * inside)
    assert only.variation > 0.05  # it was not learned


def test_an_observable_of_any_form_says_of_which_sum_it_is_a_function():
    observables = NeuralObservables(1, 4, 8, std=1.0, generator=torch.Generator().manual_seed(0))
    units = Scaling.of(DATA)
    with torch.no_grad():  # all hidden units see q1 + 2 p2 alone, in coordinates of the data
        observables.inner[:] = torch.tensor([1.0, 0.0, 0.0, 2.0]) * units.scale
        observables.linear.zero_()
    (only,) = read_observables(observables, units, DATA, DATA, 0.05)
    assert only.formula == "C1, a function of q1 + 2.00 p2"


FREE = System(lambda q, p: p.square().sum(-1) / 2, 1, "free")
SLOW = System(lambda q, p: p.square().sum(-1) / 2 + (q * torch.tensor([0.1, 10.0])).square().sum(-1) / 2, 2, "slow and fast")


def one(row, data, followed=None):
    """The quantity of these coefficients of monomials."""
    units = Scaling.of(data)
    given = with_coefficients(torch.tensor([row], dtype=torch.float64), data.states.shape[2])
    (found,) = read_quadratics(span_of(units.taken_in(given), 1e-9), units, data, data, followed)
    return found


def moving(system, duration, trajectories=40, steps=40):
    return simulate(system, trajectories=trajectories, steps=steps, step=duration / steps, seed=1)


#: Coefficients of q², q p, p², q, p.
MOMENTUM, ENERGY, PRODUCT, NEARLY = [0, 0, 0, 0, 1.0], [0, 0, 1.0, 0, 0], [0, 1.0, 0, 0, 0], [0, 0.1, 1.0, 0, 0]


@pytest.mark.parametrize("duration", [2.0, 10.0, 50.0])
@pytest.mark.parametrize(("row", "conserved"), [(MOMENTUM, True), (ENERGY, True), (PRODUCT, False), (NEARLY, False)])
def test_a_free_particle_keeps_its_momentum_and_its_energy_however_short_the_time(row, conserved, duration):
    found = one(row, moving(FREE, duration))
    assert found.confirmed == conserved
    assert not found.too_short
    assert found.time == pytest.approx(duration)


def test_what_varies_by_a_tenth_because_little_time_passed_is_not_confirmed():
    """As it was, at 10 % of the size of terms; over ten time units it moves by tens of percent."""
    short, long = one(NEARLY, moving(FREE, 2.0)), one(NEARLY, moving(FREE, 10.0))
    assert short.variation < 0.1 < long.variation
    assert not short.confirmed
    assert str(short).endswith(" %: not confirmed")


@pytest.mark.parametrize("row", [MOMENTUM, ENERGY, PRODUCT])
def test_where_nothing_had_time_to_move_nothing_is_confirmed(row):
    found = one(row, moving(FREE, 0.4))
    assert found.too_short
    assert not found.confirmed
    assert str(found).endswith(" %: too short to tell (T = 0.4)")


def test_while_little_time_has_passed_drift_does_not_depend_on_it():
    drifts = [one(NEARLY, moving(FREE, duration)).drift for duration in (0.01, 0.1)]
    assert drifts[0] == pytest.approx(drifts[1], rel=0.1)


def test_over_a_long_time_a_tenth_of_the_terms_is_asked_for():
    references = [one([1.0, 0, 1.0, 0, 0], moving("oscillator", duration)).reference for duration in (0.1, 4.0, 40.0)]
    assert references[0] < 0.1
    assert references[1:] == pytest.approx([0.8, 0.85], abs=0.05)


@pytest.mark.parametrize(
    ("system", "known", "step"),
    [("oscillator", unitary(1), 0.2), ("2-oscillators", unitary(2), 0.2), ("3-body-2d", euclidean(3, 2), 0.3)],
)
def test_what_is_conserved_is_confirmed_on_the_data_of_the_experiments(system, known, step):
    data = simulate(system, trajectories=30, steps=20, step=step, start=TESTS["test"], seed=1000)
    units = Scaling.of(data)
    found = read_quadratics(span_of(units.taken_in(known), 1e-9), units, data, data)
    assert len(found) == len(known.halves)
    assert all(one.confirmed and one.drift < 1e-6 for one in found)
    assert all(one.reference > 0.7 for one in found)


def test_a_degree_of_freedom_is_judged_by_its_own_time():
    """The fast one has turned many times, the slow one has hardly begun to."""
    data, rows = moving(SLOW, 0.5), torch.eye(14).tolist()
    slow, fast = one(rows[0], data), one(rows[4], data)
    assert slow.too_short
    assert slow.variation < 0.1
    assert not fast.too_short
    assert not fast.confirmed


def test_a_reference_is_what_random_signs_give_on_average(generator):
    data = moving("2-oscillators", 1.0)
    values = monomials(data.states.flatten(0, 1)).unflatten(0, data.states.shape[:2])
    squares = values.square().mean((0, 1))
    signs = 1 - 2 * torch.randint(2, (4000, values.shape[2]), generator=generator, dtype=torch.float64)
    drawn = values @ (signs / squares.sqrt()).T
    mean = float((drawn.var(1, correction=0).mean(0) / values.shape[2]).mean().sqrt())
    assert typical(values, squares) == pytest.approx(mean, rel=0.02)


def test_drift_is_measured_over_all_of_a_trajectory_and_variation_on_what_was_held_out():
    whole = moving("oscillator", 20.0, trajectories=1, steps=100)
    _, rest = whole.split(0.1)
    found = one([1.0, 0, 0.9, 0, 0], rest, whole)
    assert found.time == pytest.approx(20.0)
    assert found.variation == pytest.approx(one([1.0, 0, 0.9, 0, 0], rest).variation)
    assert found.drift == pytest.approx(one([1.0, 0, 0.9, 0, 0], whole).drift)
    assert found.reference > one([1.0, 0, 0.9, 0, 0], rest).reference
