"""Verdicts on training: what speaks against convergence, and when two evidences cannot be told apart."""

from dataclasses import replace
from math import exp, log

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.training.convergence import below_map, difference, judge
from tests.report.samples import sample_history
from tests.small import load_few


def history(losses, steps=()):
    """With a hyper-step after each epoch, by which the precisions of all tensors move by these logarithms."""
    found, moved = [], 0.0
    for record, loss, step in zip(sample_history([-900.0] * len(losses)), losses, [*steps, *[0.0] * len(losses)], strict=False):
        moved += step
        precision = {name: value * exp(moved) for name, value in record.evidence.precision.items()}
        found.append(replace(record, loss=loss, evidence=replace(record.evidence, precision=precision)))
    return found


FLAT = [2.0, 1.0, 0.51, 0.5, 0.5]


def test_training_that_rests_has_converged():
    found = judge(history(FLAT), 1000, floor=-2.3)
    assert found
    assert str(found) == "Training has converged."


def test_weights_that_move_are_told_by_the_loss():
    found = judge(history([2.0, 1.0, 0.7, 0.5]), 1000)
    assert not found
    assert found.reasons == ("weights are still moving (in the last epoch the loss fell from 0.7 to 0.5 per datum)",)
    # A network that a search tried and gave up says nothing.
    assert judge(history([2.0, 0.5, 3.0, 0.5]), 1000)
    # In nats nothing is gained, though the loss is halved.
    assert judge(history([2.0, 1e-3, 5e-4]), 1000)
    assert "a single epoch" in str(judge(history([1.0]), 1000))


def test_precisions_that_move_are_told_by_the_last_hyper_step():
    steps = [0.0, 0.5, 0.5, 0.25, 0.0]
    found = judge(history(FLAT, steps), 1000)
    assert found.reasons == ("precisions are still moving (the last hyper-step changed them by 25 % on average)",)
    assert judge(history(FLAT, [0.5, 0.5, 0.5, 0.01, 3.0]), 1000)  # the last is of a search
    once = judge(history([0.5, 0.5]), 1000)
    assert once.reasons == ("precisions may still be moving (they were updated once)",)


def test_evidence_below_outputs_of_zero_and_partial_results_are_no_success():
    found = judge(history(FLAT), 1000, is_partial=True, floor=-0.8)
    assert found.reasons == (
        "it was stopped after 5 of 5 epochs",
        "the log evidence, −0.900 per datum, is below that of outputs that are zero, −0.800",
    )


def test_training_under_a_fixed_prior_does_not_aim_at_the_evidence():
    once = [replace(record, evidence=None) for record in history(FLAT)[:-1]] + history(FLAT)[-1:]
    assert judge(once, 1000, floor=-0.8)


def evidence(total, error=None, estimator="KFAC (expand)", slack=None):
    return replace(sample_history([total])[0].evidence, standard_error=error, estimator=estimator, slack=slack)


def test_evidences_are_told_apart_by_their_errors():
    found = difference(evidence(-900, 3.0), evidence(-920, 4.0))
    assert found
    assert (found.value, found.standard_error) == (20, 5)
    assert str(found) == "20.0 ± 5.0 nats"
    close = difference(evidence(-900, 3.0), evidence(-909, 4.0))
    assert not close
    assert str(close) == "9.0 ± 5.0 nats: the error of the estimator, up to 10.0, is larger than the difference"
    assert not difference(evidence(-900, 3.0, slack=15.0), evidence(-920, 4.0))
    assert not difference(evidence(-900), evidence(-920, estimator="full GGN"))
    assert below_map(evidence(-920, 3.0), evidence(-900, 4.0))
    assert not below_map(evidence(-909, 3.0), evidence(-900, 4.0))


def test_fit_warns_of_a_result_that_has_not_converged_and_the_floor_is_that_of_zeros(tmp_path):
    task = load_few("upright-digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    with pytest.warns(UserWarning, match=r"Training has not converged: weights are still moving .* Train for longer"):
        result = sb.fit(model, task.train, epochs=2, progress=False)
    assert not result.converged
    assert result.floor == pytest.approx(-log(10))
    result.save(tmp_path)
    assert sb.load_result(tmp_path).converged == result.converged
    assert not result.compare(result)
    with pytest.raises(ValueError, match="must be of the same data; they are of 100 and 99"):
        result.compare(replace(result, num_data=99))


def test_values_have_no_floor():
    inputs = torch.linspace(-1, 1, 40)[:, None]
    result = sb.fit(nn.Linear(1, 1), (inputs, inputs), likelihood=sb.Gaussian(), epochs=1, progress=False)
    assert result.floor is None
