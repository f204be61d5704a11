import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, softmax

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.networks import mlp, tanh

QUICK = {"n_experts": 2, "n_init": 1, "max_iter": 400, "learning_rate": 0.01, "random_state": 0}
NAMES = ["height", "mass"]


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(0)
    return random.normal([170.0, 0.02], [10.0, 0.005], size=(200, 2))


@pytest.fixture(scope="module")
def standard(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def linear(table, X, names=("x0", "x1")):
    """Return intercept + weights · x for every row of the table: rows × samples."""
    return table["intercept"].to_numpy()[:, None] + table[list(names)].to_numpy() @ X.T


def answers_of_the_best(committee, X):
    """Yield each expert with the samples it is most responsible for and its answers to them."""
    probs, chosen = committee.predict_proba(X, routing="best"), committee.assign(X)
    for m in range(2):
        assert (chosen == m).any()
        yield m, chosen == m, probs[chosen == m]


def test_two_classes_give_the_log_odds_of_the_second_in_the_datas_own_units(X, standard):
    y = np.where(standard[:, 0] * standard[:, 1] > 0, "yes", "no")
    frame = pd.DataFrame(X, columns=NAMES)
    committee = SpecialistClassifier(**QUICK).fit(frame, y)
    table = committee.explain()
    assert list(table.columns) == ["expert", "share", "bits", "intercept", *NAMES]
    assert table["expert"].tolist() == [0, 1]
    np.testing.assert_allclose(table["share"], committee.information_.responsibility)
    np.testing.assert_allclose(table["bits"], committee.information_.per_expert)
    log_odds = linear(table, X, NAMES)
    for m, mine, probs in answers_of_the_best(committee, frame):
        np.testing.assert_allclose(expit(log_odds[m, mine]), probs[:, 1], atol=1e-4)
        clear = np.abs(log_odds[m]) > 1e-3
        said = committee.expert_predict(frame, m)
        assert (said[clear] == np.where(log_odds[m] > 0, "yes", "no")[clear]).all()
    assert list(committee.explain(["a", "b"]).columns[-2:]) == ["a", "b"]
    with pytest.raises(ValueError, match="must name all 2 features, but got 3 names"):
        committee.explain(["a", "b", "c"])


def test_several_classes_give_a_row_of_logits_each(X, standard):
    y = np.digitize(np.abs(standard[:, 0]), [0.5, 1.2]) + 5
    committee = SpecialistClassifier(**QUICK).fit(X, y)
    table = committee.explain()
    assert table["class"].tolist() == [5, 6, 7] * 2
    for m, mine, probs in answers_of_the_best(committee, X):
        logits = linear(table[table["expert"] == m], X[mine])
        np.testing.assert_allclose(softmax(logits, axis=0).T, probs, atol=1e-4)
        np.testing.assert_allclose(logits.sum(axis=0), 0.0, atol=1e-8)


def test_a_regressors_rows_give_what_each_expert_predicts(X, standard):
    y = np.column_stack([1e4 + 300 * np.abs(standard[:, 0]), 0.01 * standard[:, 1]])
    committee = SpecialistRegressor(**QUICK).fit(X, y)
    table = committee.explain()
    assert table["output"].tolist() == [0, 1, 0, 1]
    for m in range(2):
        predicted = linear(table[table["expert"] == m], X).T
        error = (predicted - committee.expert_predict(X, m)) / y.std(axis=0)
        np.testing.assert_allclose(error, 0.0, atol=1e-4)


def test_experts_without_a_bias_have_none_at_the_mean_and_perceptrons_no_weights(X, standard):
    def factory(inputs, outputs, *, key):
        return eqx.nn.Linear(inputs, outputs, use_bias=False, key=key)

    settings = {"max_iter": 1, "start": "random", "early_stopping": False}
    committee = SpecialistClassifier(expert=factory, **QUICK | settings)
    table = committee.fit(X, standard[:, 0] > 0).explain()
    np.testing.assert_allclose(linear(table, X.mean(axis=0)[None]), 0.0, atol=1e-6)
    # A perceptron in their place.
    committee.set_params(expert="mlp")
    other = mlp(2, 2, (3,), tanh, key=jax.random.key(0))
    where = lambda state: state.model.experts.network  # noqa: E731
    committee.state_ = eqx.tree_at(where, committee.state_, other)
    with pytest.raises(ValueError, match=r"expert='mlp'.*`expert_predict`.*`plot_partition`"):
        committee.explain()
