"""Formulas, constancy and fits of conserved quantities, where they are known exactly."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from symbayes.discovery.quantity import Term, constancy, fitted, formula, read_observables, read_quadratics
from symbayes.discovery.span import span_of
from symbayes.discovery.units import Units
from symbayes.dynamics.neural import NeuralObservables
from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.quadratic import coefficients, monomials, unitary
from symbayes.dynamics.simulate import simulate
from symbayes.dynamics.trajectories import Trajectories

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
    units = Units.of(DATA)
    found = read_quadratics(span_of(units.taken_in(known()), 0.05), units, DATA)
    assert sorted(one.formula for one in found) == ["q1 p2 − q2 p1", "q1 q2 + p1 p2", "q1² + p1²", "q2² + p2²"]
    for one in found:
        assert one.variation < 1e-8
        first, second = one.terms
        assert abs(first.learned) == pytest.approx(1)
        assert second.fitted == pytest.approx(second.learned, abs=1e-6)
        assert float(one(DATA.states[0]).std()) < 1e-8
        assert "constant within" in str(one)


def test_a_fit_corrects_what_was_learned_and_says_how_exactly():
    units = Units.of(DATA)
    found = read_quadratics(span_of(units.taken_in(known(0.01)), 0.1), units, DATA)
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
    units = Units.of(DATA)
    for one in read_quadratics(span_of(units.taken_in(known(0.01)), 0.1), units, alone):
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
    observables = NeuralObservables(2, 4, 8, deviation=1.0, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        observables.outer[1].zero_()
        observables.linear[1].zero_()
    units = Units.of(DATA)
    (only,) = read_observables(observables, units, DATA, DATA, 0.05)
    assert only.formula == "C1, a network"
    inside = observables.double()(DATA.states[0] / units.scale)[:, 0]
    assert_close(only(DATA.states[0]), units.action * inside)
    assert only.variation > 0.05  # it was not learned
