"""Networks as estimators of scikit-learn: its own checks, pipelines, cross-validation, pickling, images."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import symbayes as sb

KINDS = (sb.SymmetryClassifier, sb.SymmetryRegressor)


def small(kind, **settings):
    return kind(**{"width": 8, "epochs": 6, "objective": sb.Laplace(), **settings})


@pytest.fixture(scope="module")
def digits():
    images, classes = load_digits(return_X_y=True)
    return images[:120], classes[:120]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_scikit_learn_finds_nothing_wrong(kind):
    found = check_estimator(small(kind, epochs=20), on_skip=None)
    assert len(found) > 40


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_is_pickled(kind, digits):
    X, y = digits
    estimator = small(kind, epochs=2).fit(X, y)
    again = pickle.loads(pickle.dumps(estimator))
    assert_array_equal(again.predict(X), estimator.predict(X))
    assert again.log_evidence_ == estimator.log_evidence_
    assert_allclose(again.result_.predict(again._read(X[:3])).mean, estimator.result_.predict(estimator._read(X[:3])).mean)


def test_images_are_learned_by_a_network_whose_layers_choose(digits):
    X, y = digits
    pipeline = make_pipeline(MinMaxScaler(), small(sb.SymmetryClassifier, in_shape=(1, 8, 8), width=1, epochs=2))
    labels = np.array([f"digit {one}" for one in y])
    pipeline.fit(X, labels)
    learned = pipeline[-1]
    assert {row.path for row in learned.symmetries_.rows} >= {"factored", "conv"}
    assert set(pipeline.predict(X)) <= set(labels)
    assert_allclose(pipeline.predict_proba(X).sum(1), 1)
    assert len(cross_val_score(pipeline, X, labels, cv=2)) == 2


def test_values_come_back_in_their_own_units_with_a_standard_deviation(generator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = 5000 + 300 * X[:, 0] + 100 * rng.normal(size=200)
    regressor = sb.SymmetryRegressor(width=8, epochs=40).fit(X, y)
    mean, std = regressor.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert abs(mean - 5000 - 300 * X[:, 0]).mean() < 60
    assert 80 < std.mean() < 130
    several = small(sb.SymmetryRegressor).fit(X, np.stack([y, -y], 1))
    assert several.predict(X).shape == (200, 2)


def test_a_network_of_ones_own_is_made_for_the_data(digits):
    X, y = digits
    asked = []

    def network(shape, outputs):
        asked.append((shape, outputs))
        return nn.Linear(*shape, outputs)

    estimator = small(sb.SymmetryClassifier, network=network, epochs=1)
    assert clone(estimator).network is network
    estimator.fit(X, y)
    assert asked == [((64,), 10)]


def test_the_same_seed_gives_the_same_network_and_another_another(digits):
    X, y = digits
    first, second, third = (
        small(sb.SymmetryClassifier, epochs=1, random_state=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1)
    )
    assert_array_equal(first, second)
    assert abs(first - third).max() > 1e-4


def test_what_is_wrong_is_said(digits):
    X, y = digits
    with pytest.raises(ValueError, match=r"as many numbers as a row of X, 64; \(1, 7, 7\) has 49"):
        sb.SymmetryClassifier(in_shape=(1, 7, 7)).fit(X, y)
    with pytest.raises(ValueError, match="got one class"):
        sb.SymmetryClassifier().fit(X, np.zeros(len(X), int))
    with pytest.raises(NotFittedError):
        _ = sb.SymmetryClassifier().log_evidence_


def test_features_far_from_zero_are_told_apart():
    near = np.linspace(-1, 1, 40)[:, None]
    for shift in (0.0, 1.7e9):
        estimator = small(sb.SymmetryRegressor, epochs=1).fit(near + shift, near[:, 0])
        assert len(np.unique(estimator.predict(near + shift))) > 20
