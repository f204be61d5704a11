"""The paper's density estimation, against SciPy and a hand computation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import psi
from scipy.stats import multivariate_normal, wishart

from pinfactory import load, paper
from pinfactory.core.constraints import Constraints, Fixed, Prior, Priors
from pinfactory.core.families import NormalWishart
from pinfactory.experiments.synthetic_data import four_gaussians
from pinfactory.paper.density import (
    MixtureLoss,
    expected_log_likelihood,
    sampled_log_likelihood,
)

DF, STRENGTH, BETA_SELECTOR, BETA_EXPERT = 6.0, 2.0, 3.0, 1.5
X = np.array([[0.3, -0.7], [1.1, 0.4], [-0.6, 0.2]])


@pytest.fixture(scope="module")
def state():
    """The state of a tiny mixture."""
    learner = paper.mixture(
        2, df=DF, strength=STRENGTH, prior="fixed", selector_hidden=(3,), random_state=0
    )
    learner.n_features_in_ = 2
    state = learner._start(0)
    lower = 0.2 * jnp.arange(8.0).reshape(2, 2, 2)
    state = eqx.tree_at(lambda s: s.model.experts.lower, state, lower)
    selector, expert = state.constraints.priors.stages
    uniform = jnp.log(jnp.asarray([0.3, 0.7]))
    fixed = Prior.fixed(eqx.tree_at(lambda f: f.log_probs, selector.family, uniform))
    resources = (Fixed(BETA_SELECTOR), Fixed(BETA_EXPERT))
    constraints = Constraints(Priors((fixed, expert)), resources)
    return eqx.tree_at(lambda s: s.constraints, state, constraints)


def test_closed_form_and_sampled_likelihood_agree_with_scipy():
    root = np.array([[0.5, 0.0], [0.2, 0.4]])
    answer = NormalWishart(
        jnp.asarray([0.1, -0.3]), jnp.asarray(root), jnp.asarray(DF), jnp.asarray(STRENGTH)
    )
    random = np.random.default_rng(0)
    precision = STRENGTH * wishart(DF, root @ root.T).rvs(4_000, random_state=random)
    noise = random.normal(size=(4_000, 2, 1))
    mean = np.linalg.solve(np.linalg.cholesky(precision).swapaxes(1, 2), noise)[..., 0]
    standard = np.einsum("nji,nj->ni", np.linalg.cholesky(precision), X[0] - [0.1, -0.3] - mean)
    log_root = 0.5 * np.linalg.slogdet(precision)[1]
    values = multivariate_normal(np.zeros(2)).logpdf(standard) + log_root
    error = np.std(values) / np.sqrt(len(values))
    exact = float(eqx.filter_jit(expected_log_likelihood)(answer, jnp.asarray(X[0])))
    assert abs(exact - np.mean(values)) < 4 * error
    keys = jax.random.split(jax.random.key(0), 4_000)
    draw = eqx.filter_jit(jax.vmap(sampled_log_likelihood, in_axes=(0, None, None)))
    sampled = draw(keys, answer, jnp.asarray(X[0]))
    assert abs(exact - float(jnp.mean(sampled))) < 4 * error


def j_by_hand(parameters, share_logits):
    """Return J in double precision from ω and L of two experts, with the prior N(0, I)."""
    prior_m, prior_w = np.array([0.3, 0.7]), np.eye(2) / (DF * STRENGTH)
    share = np.exp(share_logits) / np.exp(share_logits).sum(axis=1, keepdims=True)
    value = 0.0
    for m, (mean, root) in enumerate(parameters):
        w = root @ root.T
        log_det = psi(0.5 * (DF - np.arange(2))).sum() + 2 * np.log(2) + np.log(np.linalg.det(w))
        ratio = np.linalg.solve(prior_w, w)
        # Appendix B; ν and λ are the same, so that C is zero.
        kl = 0.5 * STRENGTH * DF * mean @ w @ mean - 0.5 * DF * np.log(np.linalg.det(ratio))
        kl += 0.5 * DF * (np.trace(ratio) - 2)
        for n, x in enumerate(X):
            form = STRENGTH * DF * (x - mean) @ w @ (x - mean) + 2
            utility = 0.5 * (2 * np.log(STRENGTH) + log_det - form - 2 * np.log(2 * np.pi))
            cost = np.log(share[n, m] / prior_m[m]) / BETA_SELECTOR
            value += share[n, m] * (utility - kl / BETA_EXPERT - cost) / len(X)
    return value


def test_gradient_is_that_of_a_hand_computation(state):
    loss = MixtureLoss("exact")
    batch, key = jnp.asarray(X, jnp.float32), jax.random.key(0)
    compiled = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    (value, _), found = compiled(state.model, state, batch, key)
    logits = np.asarray(jax.vmap(state.model.selector)(batch), float)
    answers = jax.vmap(lambda expert: expert(None))(state.model.experts)
    means, roots = (np.asarray(a, float) for a in (answers.mean, answers.scale_cholesky))
    here = list(zip(means, roots, strict=True))
    assert float(value) == pytest.approx(-j_by_hand(here, logits), abs=1e-5)
    for m in range(2):
        for i in range(2):
            change = np.zeros_like(means)
            change[m, i] = 1e-5
            ahead, behind = (
                j_by_hand(list(zip(means + sign * change, roots, strict=True)), logits)
                for sign in (1, -1)
            )
            by_hand = -(ahead - behind) / 2e-5
            assert float(found.experts.mean[m, i]) == pytest.approx(by_hand, abs=1e-4)
        change = np.zeros_like(roots)
        change[m, 1, 0] = 1e-5
        ahead, behind = (
            j_by_hand(list(zip(means, roots + sign * change, strict=True)), logits)
            for sign in (1, -1)
        )
        by_hand = -(ahead - behind) / 2e-5
        assert float(found.experts.lower[m, 1, 0]) == pytest.approx(by_hand, abs=1e-4)


def test_sampled_gradient_is_unbiased(state):
    exact, sampled = MixtureLoss("exact"), MixtureLoss("sampled")
    batch = jnp.asarray(X, jnp.float32)
    gradient = eqx.filter_jit(
        lambda loss, key: eqx.filter_grad(loss, has_aux=True)(state.model, state, batch, key)[0]
    )
    keys = jax.random.split(jax.random.key(1), 2000)
    many = eqx.filter_vmap(gradient, in_axes=(None, 0))(sampled, keys)
    wanted = gradient(exact, keys[0])
    for one, true in zip(jax.tree.leaves(many), jax.tree.leaves(wanted), strict=True):
        error = np.std(one, axis=0) / np.sqrt(len(keys)) + 1e-6
        assert np.all(np.abs(np.mean(one, axis=0) - true) < 5 * error)


@pytest.mark.slow
@pytest.mark.optimised
def test_a_fixed_prior_at_beta_one_draws_means_half_way_to_zero():
    X = np.random.default_rng(0).normal([2.0, -1.0], 0.3, (200, 2))
    fixed = paper.mixture(
        1, prior="fixed", expectation="exact", learning_rate=0.03, max_iter=500, random_state=0
    ).fit(X)
    np.testing.assert_allclose(fixed.means_[0], X.mean(axis=0) / 2, atol=0.03)


@pytest.mark.slow
@pytest.mark.optimised
def test_one_expert_finds_the_gaussian_of_the_data(tmp_path):
    X = four_gaussians(500, 0)
    learner = paper.mixture(
        1,
        expectation="exact",
        # A prior that follows at once, and batches of all samples: no lag and no noise.
        momentum_expert=0.0,
        batch_size=500,
        learning_rate=0.03,
        max_iter=500,
        random_state=0,
    ).fit(X)
    np.testing.assert_allclose(learner.means_[0], X.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(learner.covariances_[0], np.cov(X.T), atol=0.03)
    truth = multivariate_normal(X.mean(axis=0), np.cov(X.T)).logpdf(X)
    np.testing.assert_allclose(learner.score_samples(X).mean(), truth.mean(), atol=1e-3)
    learner.save(tmp_path / "mixture.pin")
    again = load(tmp_path / "mixture.pin")
    np.testing.assert_array_equal(again.score_samples(X), learner.score_samples(X))


def test_a_budget_that_is_missed_is_told():
    X = four_gaussians(200, 0)
    with pytest.warns(UserWarning, match=r"`selector_bits` is 1\.5, but"):
        paper.GradientMixture(4, selector_bits=1.5, max_iter=2, random_state=0).fit(X)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`df` must be a number above 1"):
        paper.mixture(2, df=1.0).fit(four_gaussians(20, 0))
