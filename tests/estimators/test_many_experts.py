"""Committees that ask the most probable experts only."""

import numpy as np
import pytest
from sklearn.datasets import make_friedman1, make_moons

from pinfactory import SpecialistClassifier, SpecialistRegressor, load


@pytest.fixture(scope="module")
def regressor():
    X, y = make_friedman1(200, random_state=0)
    settings = {"max_iter": 60, "early_stopping": False, "start": "random", "random_state": 0}
    return SpecialistRegressor(6, top_k=2, selector="linear", **settings).fit(X, y), X


def asked_shares(committee, X):
    share = committee.responsibilities(X)
    share[share < np.sort(share, axis=1)[:, -2:-1]] = 0.0
    return share / share.sum(axis=1, keepdims=True)


def test_predictions_are_the_mean_of_the_two_most_probable(regressor):
    committee, X = regressor
    answers = np.stack([committee.expert_predict(X, m) for m in range(6)], axis=1)
    expected = (asked_shares(committee, X) * answers).sum(axis=1)
    np.testing.assert_allclose(committee.predict(X), expected, rtol=1e-4, atol=1e-4)
    assert committee.responsibilities(X).min() > 0


def test_explanations_add_up_to_the_answers(regressor):
    committee, X = regressor
    told = committee.attributions(X)
    total = told.values.sum(axis=1) + told.base_values
    np.testing.assert_allclose(total, committee.predict(X), rtol=1e-3, atol=1e-3)
    at = committee.predict(X)
    np.testing.assert_array_less(0.0, np.exp(committee.score_samples(X, at)))


def test_a_file_keeps_how_many_are_asked(regressor, tmp_path):
    committee, X = regressor
    committee.save(tmp_path / "committee.pf")
    again = load(tmp_path / "committee.pf")
    assert again.top_k == 2
    np.testing.assert_array_equal(again.predict(X), committee.predict(X))
    with pytest.raises(ValueError, match="needs top_k=None"):
        committee.to_sql("table")


def test_a_division_of_labour_is_learned_with_one_expert_for_each_input():
    X, y = make_moons(300, noise=0.1, random_state=0)
    committee = SpecialistClassifier(4, top_k=1, max_iter=300, random_state=0).fit(X, y)
    assert committee.score(X, y) > 0.9
    np.testing.assert_allclose(
        committee.predict_proba(X), committee.predict_proba(X, routing="best"), atol=1e-5
    )


@pytest.mark.parametrize(
    "settings", [{"n_experts": (2, 2)}, {"selector_bits": 1.0}, {"expectation": "sampled"}]
)
def test_what_cannot_be_done_with_few_is_refused(settings):
    X, y = make_moons(60, random_state=0)
    with pytest.raises(ValueError, match="`top_k` must be None"):
        SpecialistClassifier(**({"n_experts": 4, "top_k": 2} | settings)).fit(X, y)
