"""What is left in float32, the precision of training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.families import Categorical, Gaussian, NormalWishart


def in_double(function, *arguments):
    """Evaluate with the very same numbers in double precision."""
    jax.config.update("jax_enable_x64", True)
    try:
        exact = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), arguments)
        return jax.tree.map(np.asarray, jax.jit(function)(*exact))
    finally:
        jax.config.update("jax_enable_x64", False)


@jax.jit
def merge(p, weights):
    return p.merge(weights)


@jax.jit
def kl(p, q):
    return p.kl(q)


def single(*leaves):
    return (jnp.asarray(leaf, jnp.float32) for leaf in leaves)


def normal_wisharts(d, n=4):
    """Members with ν from D to 1e5 and axes from 1e-4 to 1e4."""
    rng = np.random.default_rng(d)
    batch = (n, 4)
    axes = np.geomspace(1e-4, 1e4, d)[rng.permutation(d)]
    root = np.tril(0.3 * rng.normal(size=(*batch, d, d)), -1)
    root[..., range(d), range(d)] = np.exp(0.3 * rng.normal(size=(*batch, d)))
    df = np.array([d, d + 3, 1e3, 1e5]) * np.exp(0.1 * rng.random(size=batch))
    mean = rng.normal(size=(*batch, d)) / axes
    return NormalWishart(*single(mean, axes[:, None] * root, df, np.exp(rng.normal(size=batch))))


def answers(p, weights):
    prior = p.merge(weights)
    return p.kl(prior), p.entropy(), prior.entropy(), prior.df, prior.strength


@pytest.mark.parametrize("d", [1, 20])
def test_normal_wishart_keeps_four_digits_at_any_df_and_scale(d):
    p, weights = normal_wisharts(d), jnp.array([0.5, 0.2, 0.2, 0.1])
    got = jax.jit(answers)(p, weights)
    for single_answer, exact in zip(got, in_double(answers, p, weights), strict=True):
        assert single_answer.dtype == jnp.float32
        np.testing.assert_allclose(single_answer, exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("d", [1, 20])
def test_gradients_of_the_normal_wishart_are_finite(d):
    p = normal_wisharts(d)
    loss = jax.jit(jax.grad(lambda p, q: jnp.sum(p.kl(q) + p.entropy()), argnums=(0, 1)))
    slopes = loss(p, jax.tree.map(lambda leaf: leaf[0], p))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_predictions_keep_their_digits_at_large_df():
    p = normal_wisharts(5)
    x = p.mean + p.mean[::-1]

    def log_prob(p, x):
        return p.predictive().log_prob(x)

    expected = in_double(log_prob, p, x)
    np.testing.assert_allclose(jax.jit(log_prob)(p, x), expected, rtol=1e-5, atol=1e-4)


def test_merge_of_gaussians_far_from_zero_loses_no_digits():
    # Around 1e6 float32 resolves 1/16; the means are exact, and so must be their spread.
    shifts, weights = np.array([-1.5, -0.25, 0.0, 1.0]), np.array([0.25, 0.25, 0.375, 0.125])
    mean, log_scale = single(1e6 + shifts[:, None], np.zeros((4, 1)))
    merged = merge(Gaussian(mean, log_scale), *single(weights))
    centre = weights @ shifts
    assert abs(float(merged.mean[0]) - (1e6 + centre)) <= 1 / 32
    np.testing.assert_allclose(
        merged.scale[0] ** 2, 1 + weights @ (shifts - centre) ** 2, rtol=1e-6
    )


def test_merge_of_normal_wisharts_far_from_zero_loses_no_digits():
    shifts, weights = np.array([-1.5, -0.25, 0.0, 1.0]), np.array([0.25, 0.25, 0.375, 0.125])
    df, strength = np.full(4, 5.0), np.full(4, 2.0)
    mean = 1e6 + shifts[:, None] * np.array([1.0, 0.5])
    root = np.broadcast_to([[1.0, 0.0], [0.5, 2.0]], (4, 2, 2))
    far = merge(NormalWishart(*single(mean, root, df, strength)), *single(weights))
    near = merge(NormalWishart(*single(mean - 1e6, root, df, strength)), *single(weights))
    assert np.abs(np.asarray(far.mean, np.float64) - 1e6 - np.asarray(near.mean)).max() <= 1 / 32
    for name in ("scale_cholesky", "df", "strength"):
        np.testing.assert_allclose(getattr(far, name), getattr(near, name), rtol=1e-5)


def test_a_running_prior_of_equal_posteriors_does_not_drift():
    one = jax.tree.map(lambda leaf: leaf[0, 2], normal_wisharts(3))
    step = jax.jit(
        lambda prior: jax.tree.map(lambda *leaves: jnp.stack(leaves), prior, one).merge(
            jnp.array([0.99, 0.01])
        )
    )
    prior = one
    for _ in range(300):
        prior = step(prior)
    assert float(kl(one, prior)) < 1e-4


def test_many_categoricals_merge_to_a_distribution():
    logits = 30 * np.random.default_rng(0).normal(size=(1000, 8))
    members = Categorical.from_logits(*single(logits))
    prior = merge(members, jnp.full(1000, 1e-3))
    np.testing.assert_allclose(prior.probs.sum(), 1.0, rtol=1e-5)
    cost = jnp.mean(kl(members, prior))
    np.testing.assert_allclose(cost, prior.entropy() - jnp.mean(members.entropy()), rtol=1e-4)
