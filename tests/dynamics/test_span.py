"""What quadratics span: strengths, directions, parallelness, and short rows."""

import pytest
import torch
from torch.testing import assert_close

from symbayes.dynamics.observables import Quadratics, unitary
from symbayes.dynamics.quantity import echelon, generator_rows, parallelness, span_of


def mixed(quadratics: Quadratics, factors: torch.Tensor) -> Quadratics:
    """Combinations of quadratics."""
    halves = torch.einsum("lk,kab->lab", factors, quadratics.halves.detach())
    return Quadratics(halves, factors @ quadratics.linear.detach())


def test_singular_values_are_those_of_the_generators():
    quadratics = Quadratics.random(3, 4, 0.5, generator=torch.Generator().manual_seed(0)).double()
    span = span_of(quadratics, 0.05)
    assert_close(span.strengths, torch.linalg.svdvals(quadratics.generators().detach().flatten(1)))
    gram = generator_rows(span.directions) @ generator_rows(span.directions).T
    assert_close(gram, torch.eye(3, dtype=torch.float64))
    assert_close(span.strength(generator_rows(span.directions)), span.strengths)


def test_what_is_weaker_than_the_threshold_does_not_count():
    four = unitary(2).double()
    factors = torch.zeros(6, 4, dtype=torch.float64)
    factors[:4] = torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.01], dtype=torch.float64))
    span = span_of(mixed(four, factors), 0.05)
    assert span.count == span.kept().count == 3
    assert_close(parallelness(span.kept(), four), torch.ones(3, dtype=torch.float64))


def test_parallelness_is_the_part_within_the_truth():
    inside, outside = (
        unitary(1).double(),
        Quadratics(torch.tensor([[[0.5, 0.0], [0.0, -0.5]]]).double(), torch.zeros(1, 2).double()),
    )
    both = Quadratics(inside.halves.detach() * 0.6 + outside.halves.detach() * 0.8, inside.linear.detach())
    assert_close(parallelness(both, inside), torch.tensor([0.6], dtype=torch.float64))
    assert_close(parallelness(outside, inside), torch.zeros(1, dtype=torch.float64))


def test_rows_of_a_span_are_short_again_however_they_were_mixed():
    short = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    mixture = torch.tensor([[0.3, 0.8], [-0.9, 0.4]], dtype=torch.float64)
    rows, pivots = echelon(mixture @ short)
    for row, pivot in zip(rows, pivots, strict=True):
        assert row[pivot] == 1.0
        assert any(torch.allclose(row.abs(), other.abs(), atol=1e-12) for other in short)
    assert rows[0, pivots[1]] == pytest.approx(0, abs=1e-12)
