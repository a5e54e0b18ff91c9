"""Quadratic forms by Lanczos, beside the whole spectrum."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.curvature.krylov import _go_on, tridiagonalise


def forms(values, steps, generator):
    """From a random vector: what so many steps know, and zᵀ log(M) z."""
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    start = torch.randn(len(values), generator=generator, dtype=torch.float64)
    space = tridiagonalise(lambda v: basis @ (values * (basis.T @ v)), start, steps)
    return space, float((basis.T @ start).square() @ values.log())


def test_lanczos_recovers_the_spectrum_of_a_small_matrix(generator):
    root = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    matrix = root @ root.T
    space = tridiagonalise(lambda v: matrix @ v, torch.randn(12, generator=generator, dtype=torch.float64), 12)
    Q, T = space.Q, space.T
    assert_close(torch.linalg.eigvalsh(T), torch.linalg.eigvalsh(matrix), rtol=1e-6, atol=1e-8)
    assert_close(Q @ Q.T, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-8)


def test_lanczos_stops_where_the_krylov_space_ends():
    matrix = torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.float64))
    space = tridiagonalise(lambda v: matrix @ v, torch.ones(4, dtype=torch.float64), 4)
    Q, T = space.Q, space.T
    assert Q.shape == (2, 4)
    assert_close(torch.linalg.eigvalsh(T), torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_rounding_in_a_large_matrix_is_no_direction_of_its_own(generator):
    basis = torch.linalg.qr(torch.randn(9, 9, generator=generator)).Q
    matrix = basis @ torch.diag(1e6 * torch.tensor([1.0, 2.0, 3.0]).repeat(3)) @ basis.T
    assert len(tridiagonalise(lambda v: matrix @ v, torch.ones(9), 9).Q) == 3


def test_both_rules_bound_the_form_and_come_closer(generator):
    space, exact = forms(torch.logspace(-2, 2, 20, dtype=torch.float64), 12, generator)
    upper, lower = space.rules(0.9e-2)
    assert upper == sorted(upper, reverse=True)
    assert lower == sorted(lower)
    assert lower[-1] < exact < upper[-1]
    worse = space.rules(0.5e-2)
    assert worse[0] == pytest.approx(upper)
    assert all(low < known for low, known in zip(worse[1], lower, strict=True))  # a worse bound on the spectrum says less
    assert space.rules(0.9e-2, 8) == (upper[7:], lower[7:])


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 15])
def test_the_estimate_is_between_both_rules_and_says_how_far_off_it_may_be(steps, generator):
    space, exact = forms(torch.logspace(-2, 2, 20, dtype=torch.float64), steps, generator)
    (upper, lower), form = space.rules(0.9e-2, steps), space.log_form(0.9e-2)
    assert lower[0] <= form.value <= upper[0]
    assert abs(form.value - exact) <= form.slack
    assert 0 <= form.error <= form.slack


def test_of_a_whole_space_the_form_is_exact(generator):
    space, exact = forms(torch.logspace(-2, 2, 20, dtype=torch.float64), 20, generator)
    form = space.log_form(0.9e-2)
    assert form.value == pytest.approx(exact)
    assert form.error == pytest.approx(0, abs=1e-9)
    assert form.slack == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("steps", [15, 20, 25])
@pytest.mark.parametrize("range_", [(-3, 0.5), (0, 3.5)])
def test_the_estimate_is_closer_than_the_rule_that_steps_stop_at_and_says_how_close(steps, range_, generator):
    lowest = 0.9 * 10.0 ** range_[0]
    off, rule_off, said = [], [], []
    for _ in range(10):
        space, exact = forms(torch.logspace(*range_, 500, dtype=torch.float64), steps, generator)
        form = space.log_form(lowest)
        off.append(abs(form.value - exact))
        rule_off.append(space.rules(lowest, steps)[0][0] - exact)
        said.append(form.error)
    assert sum(off) < 0.6 * sum(rule_off)
    assert 0.5 * sum(off) < sum(said) < sum(rule_off)


@pytest.mark.parametrize("steps", [4, 6, 10])
def test_few_steps_never_add_more_than_the_last_of_them_took(steps, generator):
    """Where rules are far apart a line may lead anywhere."""
    values = torch.cat([torch.logspace(0, 5, 60, dtype=torch.float64), torch.logspace(-2, 0, 440, dtype=torch.float64)])
    space, exact = forms(values, steps, generator)
    upper, _ = space.rules(0.9e-2)
    form = space.log_form(0.9e-2)
    assert exact < form.value <= upper[-1]
    assert upper[-1] - form.value <= upper[steps - 1 - steps // 4] - upper[-1] + 1e-9
    assert form.error >= upper[-1] - form.value


def test_after_too_few_steps_to_go_on_from_nothing_is_known_but_the_bound(generator):
    for steps in (1, 2, 3):
        form = forms(torch.logspace(-2, 2, 20, dtype=torch.float64), steps, generator)[0].log_form(0.9e-2)
        assert form.error == form.slack > 0


def test_it_goes_on_along_the_line_or_by_quarters_whichever_is_less():
    steps = range(10, 21)
    distances = {k: 8.0 * 0.8**k for k in steps}
    line = {k: (5 + 0.2 * distance, 5 - 0.8 * distance) for k, distance in distances.items()}
    assert _go_on(line) == pytest.approx(5)  # by quarters it would go on to 5 as well
    distances_fall_faster = {k: (upper, upper - 400 * 0.7**k) for k, (upper, _) in line.items()}
    assert 5 < _go_on(distances_fall_faster) < line[20][0]  # by the line it is less
    near = {k: (upper, upper - 0.05 * distances[k]) for k, (upper, _) in line.items()}
    assert _go_on(near) == pytest.approx(line[20][0] - 0.05 * distances[20])  # and no further than the rule below
    fast = {k: (5 + 0.5**k, -1000.0 + k) for k in steps}  # by quarters alone: the line leads far below
    assert _go_on(fast) == pytest.approx(5, abs=1e-9)
    slow = {k: (5 - 0.01 * k, -1000.0 + 50 * k) for k in steps}
    assert _go_on(slow) >= slow[20][0] - 0.05 - 1e-12  # no more than the last quarter took
