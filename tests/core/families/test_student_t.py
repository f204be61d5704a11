"""StudentT against SciPy, and as the prediction of a NormalWishart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from pinfactory.core.families import NormalWishart, StudentT

pytestmark = pytest.mark.usefixtures("float64")


def random_root(d, spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    root = np.tril(0.3 * rng.normal(size=(d, d)), -1) + np.diag(np.exp(0.3 * rng.normal(size=d)))
    return np.geomspace(1 / spread, spread, d)[:, None] * root


@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_density_agrees_with_scipy(d):
    df = np.array([0.5, 3.0, 40.0, 1e5])
    for spread, offset in [(1.0, 0.0), (1e2, 0.0), (1.0, 1e6)]:
        root, mean = random_root(d, spread), offset + np.arange(d, dtype=float)
        p = StudentT(
            jnp.broadcast_to(mean, (4, d)), jnp.broadcast_to(root, (4, d, d)), jnp.asarray(df)
        )
        x = mean + np.random.default_rng(1).normal(size=(6, d)) @ np.linalg.inv(root)
        log_prob = jax.jit(lambda p, x: p.log_prob(x))(p, jnp.asarray(x[:, None]))
        for i in range(4):
            reference = scipy.stats.multivariate_t(mean, np.linalg.inv(root @ root.T), df[i])
            np.testing.assert_allclose(log_prob[:, i], reference.logpdf(x), rtol=1e-7)


def test_samples_follow_the_stated_distribution():
    root, mean, df = random_root(3), np.array([1.0, -2.0, 3.0]), np.array([1.0, 6.0])
    p = StudentT(*(jnp.asarray(a) for a in (np.stack([mean] * 2), np.stack([root] * 2), df)))
    draw = jax.jit(lambda p, key: p.sample(key, (20_000,)))
    samples = np.asarray(draw(p, jax.random.key(0)))
    assert samples.shape == (20_000, 2, 3)
    shape = np.linalg.inv(root @ root.T)
    # Any projection of a multivariate t is a t; heavy tails make this sharper than moments.
    a = np.array([0.5, 1.0, -1.0])
    for column, degrees in zip(np.moveaxis(samples, 1, 0), df, strict=True):
        projected = scipy.stats.t(degrees, a @ mean, np.sqrt(a @ shape @ a))
        assert scipy.stats.kstest(column @ a, projected.cdf).pvalue > 1e-3
    light = samples[:, 1]
    np.testing.assert_allclose(light.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(np.cov(light.T), 6 / 4 * shape, atol=0.15)


@pytest.mark.parametrize("d", [1, 4])
def test_predictive_integrates_the_gaussian_over_its_parameters(d):
    p = NormalWishart(
        jnp.arange(d, dtype=float), jnp.asarray(random_root(d)), jnp.array(d + 4.0), jnp.array(2.5)
    )
    draw = jax.jit(lambda p, key: p.sample(key, (40_000,)))
    log_prob = jax.jit(lambda p, x: p.predictive().log_prob(x))
    values = np.asarray(draw(p, jax.random.key(0)))
    means, precisions = values[..., 0], values[..., 1:]
    for x in np.asarray(p.mean) + np.random.default_rng(0).normal(size=(3, d)):
        shift = x - means
        distance = np.einsum("ni,nij,nj->n", shift, precisions, shift)
        log_det = np.linalg.slogdet(precisions)[1]
        densities = np.exp(0.5 * (log_det - d * np.log(2 * np.pi) - distance))
        error = densities.std() / np.sqrt(len(densities))
        exact = np.exp(float(log_prob(p, x)))
        assert abs(densities.mean() - exact) < 4 * error
