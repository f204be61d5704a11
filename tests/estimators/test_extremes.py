"""Possible numbers from committees whatever the resources and the units of their data."""

import numpy as np
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor

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


def fitted(kind, X=X, Y=Y, **settings):
    targets = Y if kind is SpecialistRegressor else np.median(Y) < Y
    return kind(N_EXPERTS, **(SETTINGS | settings)).fit(X, targets)


def assert_possible(committee, X):
    """Check that every KL ≥ 0, 0 ≤ I(X;M) ≤ log₂ M, and probabilities sum to one."""
    told = committee.information_
    assert 0.0 <= told.selector <= np.log2(N_EXPERTS) + 1e-5
    assert told.experts >= 0.0
    assert (np.asarray(told.per_expert) >= 0.0).all()
    assert np.isfinite([told.selector, told.experts, *told.per_expert]).all()
    assert 1.0 <= told.effective_experts <= N_EXPERTS + 1e-4
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
