"""Controls are what they are called: mixtures that learn, a balanced load, as many weights."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import make_moons

from pinfactory.experiments.controls import (
    DenseNetwork,
    EMMixture,
    SoftmaxMixture,
    gradient_mixtures,
)
from pinfactory.experiments.controls.agents import agent_control, n_agent_parameters
from pinfactory.experiments.controls.curves import InformedNetwork, curve_control
from pinfactory.experiments.controls.sizes import n_parameters
from pinfactory.meta import MetaSpecialistRegressor
from pinfactory.meta.tasks import Sinusoids

KINDS = [SoftmaxMixture, EMMixture]


def bent_line():
    x = np.random.default_rng(0).uniform(-1, 1, size=(600, 2))
    return x, 10.0 + 5.0 * np.abs(x[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_two_lines_learn_what_one_line_cannot(kind):
    x, y = bent_line()
    model = kind(2, False, 0).fit(x, y)
    explained = 1 - np.mean((model.predict(x) - y) ** 2) / np.var(y)
    assert explained > 0.7  # one line explains nothing
    assert model.effective_experts_ > 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one_and_probabilities_sum_to_one(kind):
    x, y = bent_line()
    model = kind(2, False, 0).fit(x, y)
    # Far beyond all deviations, and finer than the smallest of them.
    grid = np.linspace(-20.0, 50.0, 70_001)
    row = np.repeat(x[:1], len(grid), axis=0)
    assert np.trapezoid(np.exp(model.score_samples(row, grid)), grid) == pytest.approx(1, abs=1e-3)

    X, labels = make_moons(300, noise=0.1, random_state=0)
    model = kind(4, True, 0).fit(X, labels)
    probs = model.predict_proba(X)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-5)
    expected = np.log(probs[np.arange(300), labels])
    np.testing.assert_allclose(model.score_samples(X, labels), expected, rtol=1e-4, atol=1e-5)
    assert np.mean(model.predict(X) == labels) > 0.8


def test_em_climbs_the_likelihood():
    x, y = bent_line()
    model = EMMixture(4, False, 0)
    seen = []
    maximise = model._maximise

    def noted(*arguments):
        maximise(*arguments)
        seen.append(model._log_gates(arguments[0]) + model._log_densities(*arguments[:2]))

    model._maximise = noted
    model.fit(x, y)
    means = [np.mean(np.logaddexp.reduce(joint, axis=1)) for joint in seen]
    assert len(means) > 2
    # Penalties are climbed too, so that a step may cost a little of the likelihood.
    assert np.all(np.diff(means) > -0.01)
    assert means[-1] > means[0] + 0.1


def test_gates_of_a_tree_are_those_of_its_path():
    model = EMMixture(4, False, 0)
    model.gates_ = np.array([[1.0], [2.0], [-1.0]])
    x = np.array([[0.7]])
    right = [1 / (1 + np.exp(-float(weight[0]) * 0.7)) for weight in model.gates_]
    expected = [
        (1 - right[0]) * (1 - right[1]),
        (1 - right[0]) * right[1],
        right[0] * (1 - right[2]),
        right[0] * right[2],
    ]
    np.testing.assert_allclose(np.exp(model._log_gates(x))[0], expected, rtol=1e-6)


def test_the_balancing_loss_is_one_where_all_experts_get_the_same_and_m_where_one_gets_all():
    x, y = bent_line()
    model = SoftmaxMixture(4, False, 0).fit(x, y)
    rows = (jax.numpy.asarray(model._columns(x)), jax.numpy.zeros(len(x)))

    def load(bias):
        weights = jax.tree.map(lambda leaf: 0.0 * leaf, eqx.filter(model.weights_, eqx.is_array))
        weights = eqx.combine(weights, model.weights_)
        last = weights.gate.layers[-1]
        weights = eqx.tree_at(lambda w: w.gate.layers[-1].bias, weights, last.bias + bias)
        return float(
            gradient_mixtures._loss(weights, rows, 1.0)
            - gradient_mixtures._loss(weights, rows, 0.0)
        )

    assert load(np.zeros(4)) == pytest.approx(1.0, abs=1e-4)
    assert load(np.array([30.0, 0.0, 0.0, 0.0])) == pytest.approx(4.0, abs=1e-4)


@pytest.mark.parametrize("classify", [False, True])
def test_the_dense_network_has_as_many_weights_as_a_mixture_and_learns(classify):
    x, y = bent_line()
    y = y > np.median(y) if classify else y
    dense, mixture = (kind(4, classify, 0).fit(x, y) for kind in (DenseNetwork, SoftmaxMixture))
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model.weights_, eqx.is_inexact_array)))
        for model in (dense, mixture)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.03)
    assert dense.effective_experts_ == pytest.approx(1.0)
    answer = dense.predict(x)
    wrong = np.mean(answer != y) if classify else np.mean((answer - y) ** 2) / np.var(y)
    assert wrong < 0.1


def test_standardised_targets_are_told_in_their_own_unit():
    x, y = bent_line()
    model = EMMixture(1, False, 0).fit(x, y)
    line = np.linalg.lstsq(np.column_stack([x, np.ones(600)]), y, rcond=None)[0]
    answer = np.column_stack([x, np.ones(600)]) @ line
    expected = stats.norm.logpdf(y, answer, np.std(y - answer)).mean()
    assert model.score_samples(x, y).mean() == pytest.approx(expected, abs=0.01)


# A selector of 3 → 32 → 32 → 5, and 5 experts of 3 → 2: mean and deviation of a torque.
_SELECTOR = 4 * 32 + 33 * 32 + 33 * 5


@pytest.mark.parametrize(
    ("name", "n_weights"),
    [
        ("constant experts", _SELECTOR + 5 * 2),
        ("linear selector", 4 * 5 + 5 * 8),
        ("without prices", _SELECTOR + 5 * 8),
        # 3 → w → w → 2 has w² + 7 w + 2, of which 1396 is the first that is not less than 1389.
        ("dense network", 1396),
    ],
)
def test_controls_of_agents_have_the_parameters_that_they_should(name, n_weights):
    settings = agent_control(name, "Pendulum-v1", {"n_experts": 5, "capacity": 5})
    assert n_agent_parameters("Pendulum-v1", settings) == n_weights


def test_a_network_that_sees_the_points_of_a_curve_beats_one_answer_to_all():
    tasks = Sinusoids(shots=10)
    network = InformedNetwork(3000, 300, 64, 0).fit(tasks)
    weights = sum(w.size for w in (*network.network.coefs_, *network.network.intercepts_))
    assert 3000 <= weights < 3000 + 35  # of one more hidden unit
    # One answer to all curves has the error E[a²]/2.
    assert 0.0 < network.mean_error(tasks, 200) < 0.7 * (5.0**3 - 0.1**3) / (3 * 4.9) / 2


def test_a_dense_network_that_adapts_has_the_parameters_of_the_committee(monkeypatch):
    built = []
    fit = MetaSpecialistRegressor.fit

    def noted(self, tasks):
        built.append(fit(self, tasks))
        return self

    monkeypatch.setattr(MetaSpecialistRegressor, "fit", noted)
    make = partial(MetaSpecialistRegressor, adaptation="last_layer", max_iter=1)
    error = curve_control("dense network", make, 2, Sinusoids(shots=5), 10, None, 0)
    assert np.isfinite(error)
    committee, dense = (n_parameters(model.state_.model.experts) for model in built)
    selector = n_parameters(built[0].state_.model.selector)
    assert dense == pytest.approx(committee + selector, rel=0.03)
