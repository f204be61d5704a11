"""The paper's supervised committees, and one step of its learning rule by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory import networks, paper
from pinfactory.core.constraints import Constraints, Fixed, Priors
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, assemble
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.utilities import log_likelihood, squared_error
from pinfactory.experiments.synthetic_data import classification
from pinfactory.paper.algorithm_1 import gaussian_of_log_variance

BETA_SELECTOR, BETA_EXPERT = 4.0, 3.0


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_gradient_of_a_sampled_expert_is_that_of_a_hand_computation():
    x = np.random.default_rng(0).normal(size=(6, 2))
    y = np.array([0, 1, 1, 0, 1, 0])
    found, share, outputs, chosen = one_step(x, y, Categorical.from_logits, log_likelihood)
    # p(m|x), q = p(y|x,m), and their marginals: the first batch is all that priors have seen.
    q = softmax(outputs)
    prior_m = share.mean(axis=0)
    prior_y = np.einsum("nm,nmi->mi", share, q) / share.sum(axis=0)[:, None]
    to_selector, to_experts = np.zeros((6, 2)), np.zeros((6, 2, 2))
    for n, m in enumerate(chosen):
        ratio = np.log(q[n, m] / prior_y[m])
        kl = q[n, m] @ ratio
        log_ratio = np.log(share[n, m] / prior_m[m])
        gain = np.log(q[n, m, y[n]]) - kl / BETA_EXPERT - log_ratio / BETA_SELECTOR
        # ∇ log p(m|x) times J, and the gradient of the log-ratio in J itself.
        to_selector[n] = (np.eye(2)[m] - share[n]) * (gain - 1.0 / BETA_SELECTOR)
        to_experts[n, m] = np.eye(2)[y[n]] - q[n, m] - q[n, m] * (ratio - kl) / BETA_EXPERT
    assert len(set(chosen)) == 2
    check_gradient(found, x, to_selector, to_experts)


def test_gradient_of_a_sampled_line_is_that_of_a_hand_computation():
    x, y = np.random.default_rng(1).normal(size=(2, 6, 2))
    y = y[:, :1]
    found, share, outputs, chosen = one_step(x, y, gaussian_of_log_variance, squared_error)
    mean, variance = outputs[..., 0], np.exp(outputs[..., 1])
    prior_m = share.mean(axis=0)
    # p(y|m) is the Gaussian with the moments of the expert's answers.
    weight = share / share.sum(axis=0)
    centre = np.sum(weight * mean, axis=0)
    width = np.sum(weight * (variance + (mean - centre) ** 2), axis=0)
    to_selector, to_experts = np.zeros((6, 2)), np.zeros((6, 2, 2))
    for n, m in enumerate(chosen):
        error, apart = mean[n, m] - y[n, 0], mean[n, m] - centre[m]
        ratio = variance[n, m] / width[m]
        kl = 0.5 * (ratio + apart**2 / width[m] - 1.0 - np.log(ratio))
        log_ratio = np.log(share[n, m] / prior_m[m])
        # E(ŷ − y)² over the expert's Gaussian is the squared error of its mean and its variance.
        utility = -(error**2) - variance[n, m]
        gain = utility - kl / BETA_EXPERT - log_ratio / BETA_SELECTOR
        to_selector[n] = (np.eye(2)[m] - share[n]) * (gain - 1.0 / BETA_SELECTOR)
        to_mean = -2.0 * error - apart / width[m] / BETA_EXPERT
        to_log_variance = -variance[n, m] - 0.5 * (ratio - 1.0) / BETA_EXPERT
        to_experts[n, m] = to_mean, to_log_variance
    assert len(set(chosen)) == 2
    check_gradient(found, x, to_selector, to_experts)


def one_step(x, y, family, utility):
    """Return the gradient of two linear experts, their outputs, p(m|x), and who was sampled."""
    hierarchy = assemble(
        jax.random.key(0),
        lambda key: networks.linear(2, 2, key=key),
        lambda key: FamilyExpert(networks.linear(2, 2, key=key), family),
        2,
    )
    loss = CommitteeLoss(utility, "sampled")
    priors = Priors.running(hierarchy(jnp.zeros(2)), 0.99, 0.99)
    state = Learner(loss).init(
        hierarchy, Constraints(priors, (Fixed(BETA_SELECTOR), Fixed(BETA_EXPERT)))
    )
    key, batch = jax.random.key(7), Data(jnp.asarray(x), jnp.asarray(y), jnp.ones(6))
    gradient = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))
    found, _ = gradient(hierarchy, state, batch, key)
    selector, experts = hierarchy.selector, hierarchy.experts.network
    share = softmax(x @ np.asarray(selector.weight).T + np.asarray(selector.bias))
    outputs = np.einsum("mij,nj->nmi", experts.weight, x) + np.asarray(experts.bias)
    chosen = Categorical(jnp.log(share)).sample(jax.random.fold_in(jax.random.split(key)[1], 0))
    return found, share, outputs, np.asarray(chosen)


def check_gradient(found, x, to_selector, to_experts):
    np.testing.assert_allclose(found.selector.weight, -to_selector.T @ x / 6, atol=1e-5)
    np.testing.assert_allclose(found.selector.bias, -to_selector.mean(axis=0), atol=1e-5)
    by_hand = -np.einsum("nmi,nj->mij", to_experts, x) / 6
    np.testing.assert_allclose(found.experts.network.weight, by_hand, atol=1e-5)
    np.testing.assert_allclose(found.experts.network.bias, -to_experts.mean(axis=0), atol=1e-5)


@pytest.fixture(scope="module")
def circles():
    return classification("circles", 1024, 1)


def test_classifier_has_the_papers_settings_and_nothing_of_ours(circles):
    committee = paper.classifier(4, random_state=1).fit(circles.X, circles.y)
    assert committee.n_iter_ == 10_000
    assert committee.state_.average is None
    np.testing.assert_array_equal(committee.scaler_.scale_, 1.0)
    np.testing.assert_array_equal(committee.scaler_.mean_, 0.0)
    layers = committee.state_.model.selector.layers
    widths = [layer.out_features for layer in layers if hasattr(layer, "out_features")]
    assert widths == [10, 10, 4]
    assert not any(getattr(layer, "fn", None) is networks.limit for layer in layers)
    assert float(committee.state_.learning_rate(jnp.asarray(9_999))) == pytest.approx(3e-4)
    assert committee.score(circles.X_test, circles.y_test) > 0.9


def test_an_expert_without_intercept_is_silent_at_the_origin(circles):
    committee = paper.classifier(2, intercept=False, max_iter=50, random_state=0)
    committee.fit(circles.X, circles.y)
    for expert in range(2):
        answer = committee._ask_expert(np.zeros((1, 2)), expert)
        np.testing.assert_allclose(np.exp(answer.log_probs), 0.5, atol=1e-6)


def test_regressor_learns_raw_targets():
    x = np.linspace(-2.0, 2.0, 400)[:, None]
    committee = paper.regressor(4, max_iter=1_000, random_state=0)
    committee.fit(x, 3.0 * np.abs(x[:, 0]) + 50.0)
    np.testing.assert_array_equal(committee.target_scaler_.scale_, 1.0)
    assert committee.state_.average is None
    # At 3e-4 a step 1,000 steps move a weight by 0.3: a line of two cannot come near raw targets.
    assert committee.predict(x).max() < 13.0
