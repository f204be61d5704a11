"""Possible numbers from committees whatever the resources and the units of their data."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from pinfactory import SpecialistClassifier, SpecialistMixture, SpecialistRegressor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(200, 2))
Y = np.abs(X[:, 0]) + 0.1 * RANDOM.normal(size=200)
N_EXPERTS = 3
SETTINGS = {
    "max_iter": 1000,
    "start": "random",
    "objective": "free_energy",
    "early_stopping": False,
    "random_state": 0,
}


def fitted(kind, X=X, Y=Y, n_experts=N_EXPERTS, **settings):
    targets = Y if kind is SpecialistRegressor else np.median(Y) < Y
    return kind(n_experts, **(SETTINGS | settings)).fit(X, targets)


def assert_possible(committee, X):
    """Check that every KL ≥ 0, 0 ≤ I(X;M) ≤ log₂ M, and probabilities sum to one."""
    told = committee.information_
    n_experts = committee.n_experts
    assert 0.0 <= told.selector <= np.log2(n_experts) + 1e-5
    assert told.experts >= 0.0
    assert (np.asarray(told.per_expert) >= 0.0).all()
    assert np.isfinite([told.selector, told.experts, *told.per_expert]).all()
    assert 1.0 <= told.effective_experts <= n_experts * (1 + 1e-4)
    shares = committee.responsibilities(X)
    assert (shares >= 0.0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(committee.predict(X)).all()
    if isinstance(committee, SpecialistClassifier):
        np.testing.assert_allclose(committee.predict_proba(X).sum(axis=1), 1.0, rtol=1e-5)


# Prices at which no division can pay are among the extremes.
pytestmark = pytest.mark.filterwarnings("ignore:`beta_selector`=")
both = pytest.mark.parametrize("kind", [SpecialistClassifier, SpecialistRegressor])


@both
@pytest.mark.parametrize("name", ["beta_selector", "beta_expert"])
def test_extreme_resources_give_possible_numbers_and_order_the_bits(kind, name):
    bits = []
    for beta in (1e-6, 1e-3, 1e3, 1e6):
        committee = fitted(kind, **{name: beta})
        assert_possible(committee, X)
        told = committee.information_
        bits.append(told.selector if name == "beta_selector" else told.experts)
    assert max(bits[:2]) < min(bits[2:])


@both
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_possible_numbers_in_any_units_of_the_features(kind, scale):
    committee = fitted(kind, scale * X)
    assert_possible(committee, scale * X)
    assert committee.score(scale * X, Y if kind is SpecialistRegressor else np.median(Y) < Y) > 0.2


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("utility", ["likelihood", "squared_error"])
def test_possible_numbers_in_any_units_of_the_targets(utility, scale):
    committee = fitted(SpecialistRegressor, Y=scale * Y, utility=utility)
    assert_possible(committee, X)
    assert committee.score(X, scale * Y) > 0.2


@pytest.mark.slow
@pytest.mark.optimised
@both
def test_possible_numbers_from_a_thousand_experts(kind):
    for beta in (1e-6, 1e6):
        resources = {"beta_selector": beta, "beta_expert": beta}
        for dtype in (np.float32, np.float64):
            few = {"n_experts": 1000, "max_iter": 5, "n_init": 1}
            committee = fitted(kind, X.astype(dtype), **few, **resources)
            assert_possible(committee, X.astype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("beta", [1e-6, 1e6])
def test_possible_numbers_from_a_mixture_of_a_thousand_experts(beta):
    for dtype in (np.float32, np.float64):
        many = np.random.default_rng(1).normal(size=(1200, 2)).astype(dtype)
        # All of them stay, so that all are measured.
        settings = {"max_iter": 2, "neglect": False, "random_state": 0}
        mixture = SpecialistMixture(1000, beta_selector=beta, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(many)
        told = mixture.information_
        assert 0.0 <= told.selector <= np.log2(1000) + 1e-5
        assert min(told.experts, *told.per_expert) >= 0.0
        np.testing.assert_allclose(mixture.responsibilities(many).sum(axis=1), 1.0, rtol=1e-5)
        assert np.isfinite(mixture.score_samples(many)).all()


@both
def test_answers_do_not_depend_on_the_units_of_features_and_targets(kind):
    # Which rows make a batch depends on a hash of the data; a batch of all rows does not.
    settings = {"max_iter": 50, "batch_size": len(X)}
    usual = fitted(kind, **settings)
    for scale in (2.0**20, 1e8, 1e-8):
        other = fitted(kind, scale * X, scale * Y, **settings)
        close = {"rtol": 0, "atol": 1e-4}
        shares = usual.responsibilities(X), other.responsibilities(scale * X)
        np.testing.assert_allclose(*shares, **close)
        if kind is SpecialistRegressor:
            answers = usual.predict(X), other.predict(scale * X) / scale
        else:
            answers = usual.predict_proba(X), other.predict_proba(scale * X)
        np.testing.assert_allclose(*answers, **close)
        told = usual.information_.selector, other.information_.selector
        np.testing.assert_allclose(*told, **close)
