"""Calibration by hand on a few data, and on many that are drawn from what is predicted."""

from dataclasses import asdict

import pytest
import torch
from torch.testing import assert_close

import symbayes as sb
from symbayes.posterior.predict import Calibration, NormalOutputs, calibration, of_draws, of_normal
from symbayes.scores import LEVELS
from tests.small import Arrivals

P = torch.tensor([[0.9, 0.1], [0.65, 0.35], [0.2, 0.8], [0.05, 0.95]], dtype=torch.float64)


def classes(p=P):
    return of_draws(p.log()[None], sb.Categorical(), "by hand")


def values(mean, variance, noise=0.5):
    return of_normal(NormalOutputs(mean, torch.diag_embed(variance)), sb.Gaussian(noise).double(), "by hand")


def test_a_few_classes_by_hand():
    found = calibration(classes(), torch.tensor([0, 1, 1, 0]), bins=5)
    rows = [(row.low, row.high, row.count, row.confidence, row.accuracy) for row in found.rows]
    assert rows == [
        pytest.approx((0.6, 0.8, 2, (0.65 + 0.8) / 2, 0.5)),
        pytest.approx((0.8, 1.0, 2, (0.9 + 0.95) / 2, 0.5)),
    ]
    assert found.accuracy == 0.5
    assert found.ece == pytest.approx((2 * 0.225 + 2 * 0.425) / 4)
    assert found.brier == pytest.approx((2 * 0.1**2 + 2 * 0.65**2 + 2 * 0.2**2 + 2 * 0.95**2) / 4)
    assert found.nll == pytest.approx(-float(torch.tensor([0.9, 0.35, 0.8, 0.05]).log().mean()))
    assert (found.of, found.num_data, found.rmse) == ("classes", 4, None)


def test_labels_are_predictions_of_their_own():
    prediction = of_draws(P.logit()[None], sb.Bernoulli(), "by hand")
    found = calibration(prediction, torch.tensor([[1.0, 0], [1, 1], [0, 0], [1, 1]]), bins=1)
    ((low, high, count, confidence, accuracy),) = (tuple(asdict(row).values()) for row in found.rows)
    assert (low, high, count) == (0.0, 1.0, 8)
    assert confidence == pytest.approx((2 * 0.9 + 2 * 0.65 + 2 * 0.8 + 2 * 0.95) / 8)
    assert accuracy == found.accuracy == pytest.approx(5 / 8)
    assert found.brier == pytest.approx((0.01 * 2 + 0.35**2 + 0.65**2 + 0.04 + 0.64 + 0.95**2 + 0.05**2) / 8)


def test_sure_predictions_are_in_the_last_bin():
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    ((row),) = calibration(classes(sure), torch.zeros(2, dtype=torch.long)).rows
    assert (row.low, row.high, row.count, row.accuracy) == (0.9, 1.0, 2, 1.0)


def test_targets_that_are_drawn_from_the_prediction_are_calibrated(generator):
    logits = 2 * torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    likelihood = sb.Categorical()
    prediction = of_draws(logits[None], likelihood, "by hand")
    found = calibration(prediction, likelihood.sample(logits, generator=generator))
    for row in found.rows:
        assert abs(row.accuracy - row.confidence) < 4 * (row.confidence * (1 - row.confidence) / row.count) ** 0.5
    assert found.ece < 0.02
    overconfident = calibration(
        of_draws(3 * logits[None], likelihood, "by hand"), likelihood.sample(logits, generator=generator)
    )
    assert overconfident.ece > 0.1


def test_intervals_hold_as_often_as_they_say(generator):
    mean = torch.randn(10_000, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(10_000, 2, generator=generator, dtype=torch.float64)
    offset = (variance + 0.25).sqrt() * torch.randn(10_000, 2, generator=generator, dtype=torch.float64)
    found = calibration(values(mean, variance), mean + offset)
    assert [row.level for row in found.rows] == list(LEVELS)
    for row in found.rows:
        assert abs(row.coverage - row.level) < 4 * (row.level * (1 - row.level) / 20_000) ** 0.5
    assert found.rmse == pytest.approx(float(offset.square().mean().sqrt()))
    wanted = torch.distributions.Normal(mean, (variance + 0.25).sqrt()).log_prob(mean + offset).sum(1).mean()
    assert found.nll == pytest.approx(-float(wanted), rel=1e-6)
    timid = calibration(values(mean, variance, 2.0), mean + offset)
    assert all(row.coverage > row.level for row in timid.rows)
    assert (found.of, found.accuracy, found.ece, found.brier) == ("values", None, None, None)


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_it_prints_as_a_table(kind):
    zero = torch.zeros(4, 2, dtype=torch.float64)
    prediction, targets = (classes(), torch.tensor([0, 1, 1, 0])) if kind == "classes" else (values(zero, zero), zero)
    text = str(calibration(prediction, targets))
    assert "4 data, by hand" in text
    lines = text.splitlines()
    if kind == "classes":
        assert "accuracy 0.5, expected calibration error" in lines[0]
        assert lines[-1].split() == ["90–100", "%", "1", "95.0", "%", "0.0", "%"]
    else:
        assert "root mean squared error 0, nll" in lines[0]
        assert lines[-1].split() == ["95", "%", "100.0", "%"]


def test_its_plain_form_is_of_numbers_and_words():
    found = asdict(calibration(classes(), torch.tensor([0, 1, 1, 0])))
    assert set(found) == {"of", "by", "num_data", "rows", "nll", "accuracy", "ece", "brier", "rmse", "nll_plug_in"}
    assert found["rows"][0] == {
        "low": 0.6, "high": 0.7, "count": 1, "confidence": pytest.approx(0.65), "accuracy": 0.0,
    }  # fmt: skip
    assert isinstance(calibration(classes(), torch.zeros(4, dtype=torch.long)), Calibration)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least one bin of confidence, got 0"):
        calibration(classes(), torch.zeros(4, dtype=torch.long), bins=0)
    with pytest.raises(ValueError, match=r"must be class numbers.*shape \(4,\)"):
        calibration(classes(), torch.zeros(4, 1))


def test_probabilities_of_a_mixture_are_what_counts():
    draws = torch.stack([P.log(), P.flip(1).log()])  # on average nobody knows
    found = calibration(of_draws(draws, sb.Categorical(), "two"), torch.zeros(4, dtype=torch.long))
    assert [row.count for row in found.rows] == [4]
    assert found.rows[0].confidence == pytest.approx(0.5)
    assert_close(torch.tensor(found.nll), torch.tensor(0.5).log().neg())


@pytest.mark.parametrize("kind", [Arrivals, type("Counts", (Arrivals, sb.Bernoulli), {})])
def test_a_likelihood_whose_confidence_is_not_known_is_refused(kind):
    """It was taken for labels, with a mean confidence of 104.7 %; by its name, or by means that are no probabilities."""
    counts = torch.tensor([[1.0], [2.0], [0.0]])
    prediction = of_draws(torch.tensor([[[0.1], [0.5], [-2.0]]]), kind(), "by hand")
    message = rf"of classes or labels \(Categorical, Bernoulli\) .* this is {kind.__name__}.*Use prediction.metrics\(targets\)"
    with pytest.raises(ValueError, match=message):
        calibration(prediction, counts)
    assert prediction.metrics(counts)["nll"].shape == (3,)
    with pytest.raises(ValueError, match=rf"this is {kind.__name__}. Use `mean`.* and `std`"):
        prediction.interval()


def test_a_likelihood_that_is_one_of_the_known_is_taken_for_it():
    weighted = type("Weighted", (sb.Categorical,), {})
    targets = torch.tensor([0, 1, 1, 0])
    assert calibration(of_draws(P.log()[None], weighted(), "by hand"), targets) == calibration(classes(), targets)


def test_labels_may_be_true_or_false_and_classes_one_hot_but_not_probabilities():
    outputs = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.5, -0.5]])
    labels = torch.tensor([[True, False, True], [False, False, True]])
    by_labels = of_draws(outputs[None], sb.Bernoulli(), "plug-in")
    assert calibration(by_labels, labels) == calibration(by_labels, labels.float())
    by_classes = of_draws(outputs[None], sb.Categorical(), "plug-in")
    classes = torch.tensor([2, 1])
    assert calibration(by_classes, torch.nn.functional.one_hot(classes, 3).float()) == calibration(by_classes, classes)
    for prediction, soft in ((by_labels, labels * 0.8 + 0.1), (by_classes, outputs.softmax(1))):
        with pytest.raises(ValueError, match=r"what was observed.*got targets that are probabilities"):
            calibration(prediction, soft)
