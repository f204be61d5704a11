"""Categorical against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from pinfactory.core.families import Categorical

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("k", [1, 2, 7, 20])
@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e2])
def test_agrees_with_scipy(k, spread):
    p_logits, q_logits = spread * np.random.default_rng(k).normal(size=(2, k))
    p, q = (Categorical.from_logits(jnp.asarray(logits)) for logits in (p_logits, q_logits))
    p_probs, q_probs = (scipy.special.softmax(logits) for logits in (p_logits, q_logits))

    np.testing.assert_allclose(p.log_prob(jnp.arange(k)), scipy.special.log_softmax(p_logits))
    np.testing.assert_allclose(p.entropy(), scipy.stats.entropy(p_probs), atol=1e-12)
    np.testing.assert_allclose(p.kl(q), scipy.stats.entropy(p_probs, q_probs), atol=1e-12)


def test_samples_have_the_stated_frequencies():
    probs = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    samples = Categorical.from_probs(jnp.asarray(probs)).sample(jax.random.key(0), (20_000,))
    assert samples.shape == (20_000, 2)
    for column, expected in zip(samples.T, probs, strict=True):
        counts = np.bincount(column, minlength=3)
        assert counts[expected == 0].sum() == 0
        possible = expected > 0
        test = scipy.stats.chisquare(counts[possible], 20_000 * expected[possible])
        assert test.pvalue > 1e-3


def test_merge_is_the_mean_of_the_probabilities():
    probs = np.random.default_rng(0).dirichlet(np.ones(4), size=6)
    weights = np.random.default_rng(1).dirichlet(np.ones(6))
    merged = Categorical.from_probs(jnp.asarray(probs)).merge(jnp.asarray(weights))
    np.testing.assert_allclose(merged.probs, weights @ probs, rtol=1e-12)


def test_weights_may_differ_along_later_batch_axes():
    probs = np.random.default_rng(0).dirichlet(np.ones(4), size=(6, 2))
    weights = np.random.default_rng(1).dirichlet(np.ones(6), size=2).T
    merged = Categorical.from_probs(jnp.asarray(probs)).merge(jnp.asarray(weights))
    np.testing.assert_allclose(merged.probs, np.einsum("nm,nmk->mk", weights, probs), rtol=1e-12)


def test_uniform_has_the_largest_entropy():
    uniform = Categorical.uniform((2, 8))
    assert uniform.batch_shape == (2,)
    np.testing.assert_allclose(uniform.entropy(), np.log(8))


def test_log_prob_broadcasts_values_against_the_batch():
    p = Categorical.from_logits(jnp.asarray(np.random.default_rng(0).normal(size=(3, 4))))
    labels = jnp.array([[1], [0]])
    assert p.log_prob(labels).shape == (2, 3)
    np.testing.assert_array_equal(p.log_prob(labels)[0], p.log_probs[:, 1])
    np.testing.assert_array_equal(p.log_prob(jnp.uint8(2)), p.log_probs[:, 2])


@pytest.mark.parametrize("impossible", [-1e9, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_outcome_ruled_out_costs_nothing(impossible, dtype):
    logits = jnp.asarray([0.3, -0.2, impossible], dtype)
    masked = Categorical.from_logits(logits)
    short = Categorical.from_logits(logits[:2])
    prior = Categorical.from_logits(logits[None]).merge(jnp.ones((1,), dtype))

    np.testing.assert_allclose(masked.entropy(), short.entropy(), rtol=1e-6)
    np.testing.assert_allclose(masked.kl(prior), 0.0, atol=1e-6)
    flat = Categorical.from_logits(jnp.zeros(3, dtype))
    np.testing.assert_allclose(masked.kl(flat), np.log(3) - short.entropy(), rtol=1e-5)
    assert np.isfinite(flat.kl(masked))
    slopes = jax.grad(lambda x: Categorical.from_logits(x).kl(flat))(logits)
    assert np.isfinite(slopes).all()


def test_a_probability_of_zero_keeps_its_log_finite():
    merged = Categorical.from_probs(jnp.eye(3)).merge(jnp.array([0.5, 0.5, 0.0]))
    assert np.isfinite(merged.log_probs).all()
    np.testing.assert_allclose(merged.entropy(), np.log(2))
