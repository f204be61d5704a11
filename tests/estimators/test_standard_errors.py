"""Standard errors of weights, against those of least squares and of logistic regression."""

import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor

# One model, at the best line from the beginning, and nothing held out.
SETTINGS = {
    **{"n_experts": 1, "max_iter": 200, "random_state": 0},
    **{"start": "tree", "early_stopping": False},
}
N_ROWS, N_COLUMNS = 60, 10


@pytest.fixture(scope="module")
def noise():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(N_ROWS, N_COLUMNS)))
    return frame.rename(columns=str), random.normal(size=N_ROWS)


def errors(committee):
    (rule,) = committee.rules()
    found = {weight.column: weight.error for weight in rule.weights}
    return np.asarray([found[str(i)] for i in range(N_COLUMNS)])


def covariance(X, curvature=1.0):
    design = np.column_stack([X, np.ones(len(X))])
    return design, np.linalg.inv(design.T @ design * curvature)


def test_errors_of_weights_that_say_nothing_are_those_of_least_squares(noise):
    X, y = noise
    design, inverse = covariance(X)
    residual = y - design @ (inverse @ design.T @ y)
    square = residual @ residual / (N_ROWS - N_COLUMNS - 1)
    expected = np.sqrt(np.diag(inverse) * square)[:-1]
    found = errors(SpecialistRegressor(**SETTINGS).fit(X, y))
    np.testing.assert_allclose(found, expected, rtol=0.06)


def test_errors_of_a_classifier_are_those_of_logistic_regression(noise):
    X, _ = noise
    y = np.arange(N_ROWS) % 2
    found = errors(SpecialistClassifier(**SETTINGS).fit(X, y))
    # Where nothing can be said, both classes have one half.
    _, inverse = covariance(X, 0.25)
    np.testing.assert_allclose(found, np.sqrt(np.diag(inverse))[:-1], rtol=0.25)


def test_rows_count_as_often_as_their_weight_says_and_others_not_at_all(noise):
    X, y = noise
    odd = np.arange(N_ROWS) % 2
    twice = SpecialistRegressor(**SETTINGS).fit(X, y, sample_weight=1.0 + odd)
    repeated = pd.concat([X, X[odd == 1]]), np.concatenate([y, y[odd == 1]])
    wanted = SpecialistRegressor(**SETTINGS).fit(*repeated)
    np.testing.assert_allclose(errors(twice), errors(wanted), rtol=0.01)
    assert twice.rules()[0].score == pytest.approx(wanted.rules()[0].score, abs=0.01)
    # A row of no weight, and one so far away that it is not learned from.
    far = pd.concat([X, X[:1] + 1.0, X[:1] + 1e4]), np.concatenate([y, [9.0, 9.0]])
    weight = np.r_[np.ones(N_ROWS), 0.0, 1.0]
    same = SpecialistRegressor(**SETTINGS).fit(*far, sample_weight=weight).rules()
    alone = SpecialistRegressor(**SETTINGS).fit(X, y).rules()
    assert same.n_rows == same[0].rows == N_ROWS
    assert same[0].score == pytest.approx(alone[0].score, abs=1e-6)
    found, expected = ([weight.error for weight in rules[0].weights] for rules in (same, alone))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_weights_that_only_compare_rows_have_no_unit(noise):
    X, y = noise
    weight = np.random.default_rng(1).uniform(0.5, 1.5, N_ROWS)
    found, same = (
        errors(SpecialistRegressor(**SETTINGS).fit(X, y, sample_weight=unit * weight))
        for unit in (1.0, 1e-3)
    )
    np.testing.assert_allclose(found, same, rtol=1e-6)
    alike = errors(SpecialistRegressor(**SETTINGS).fit(X, y))
    np.testing.assert_allclose(found, alike, rtol=0.4)
