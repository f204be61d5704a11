"""Gaussian against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from pinfactory.core.families import Gaussian

pytestmark = pytest.mark.usefixtures("float64")


def parameters(d, spread, offset, seed=0):
    """Means near `offset` and scales from 1/spread to spread, for two members."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.uniform(-1, 1, size=(2, d)) * np.log(spread))
    return offset + scale * rng.normal(size=(2, d)), scale


@pytest.mark.parametrize("d", [1, 2, 5, 20])
@pytest.mark.parametrize(("spread", "offset"), [(2.0, 0.0), (1e4, 0.0), (2.0, 1e6)])
def test_density_and_entropy_agree_with_scipy(d, spread, offset):
    mean, scale = parameters(d, spread, offset)
    p = Gaussian(jnp.asarray(mean[0]), jnp.asarray(np.log(scale[0])))
    reference = scipy.stats.norm(mean[0], scale[0])
    x = mean[0] + scale[0] * np.random.default_rng(1).normal(size=(7, d))
    np.testing.assert_allclose(p.log_prob(jnp.asarray(x)), reference.logpdf(x).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(p.entropy(), reference.entropy().sum(), rtol=1e-9)


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize(("spread", "offset"), [(2.0, 0.0), (30.0, 0.0), (2.0, 1e6)])
def test_kl_is_the_expected_log_ratio(d, spread, offset):
    mean, scale = parameters(d, spread, offset)
    p, q = (
        Gaussian(jnp.asarray(m), jnp.asarray(np.log(s))) for m, s in zip(mean, scale, strict=True)
    )

    def integral(i):
        # Integrate over the standardised variable, where the mass is always around zero.
        def integrand(z):
            x = mean[0, i] + scale[0, i] * z
            log_ratio = scipy.stats.norm.logpdf(x, mean[0, i], scale[0, i])
            log_ratio -= scipy.stats.norm.logpdf(x, mean[1, i], scale[1, i])
            return scipy.stats.norm.pdf(z) * log_ratio

        return scipy.integrate.quad(integrand, -12, 12)[0]

    np.testing.assert_allclose(p.kl(q), sum(integral(i) for i in range(d)), rtol=1e-6)


def test_kl_of_near_equals_keeps_its_digits():
    # KL = ½(e²ᵗ − 1 − 2t) = t² + ⅔t³ + … for scales with ratio eᵗ.
    p = Gaussian(jnp.zeros(1), jnp.array([1e-7]))
    np.testing.assert_allclose(p.kl(Gaussian(jnp.zeros(1), jnp.zeros(1))), 1e-14, rtol=1e-6)


def test_samples_follow_the_stated_distribution():
    p = Gaussian(jnp.array([[1e6], [-3.0]]), jnp.log(jnp.array([[1e-2], [5.0]])))
    samples = np.asarray(p.sample(jax.random.key(0), (10_000,)))
    assert samples.shape == (10_000, 2, 1)
    for column, mean, scale in zip(samples[..., 0].T, [1e6, -3.0], [1e-2, 5.0], strict=True):
        assert scipy.stats.kstest(column, scipy.stats.norm(mean, scale).cdf).pvalue > 1e-3


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_merge_matches_the_moments_of_the_mixture(offset):
    rng = np.random.default_rng(0)
    mean, scale = offset + rng.normal(size=(6, 3)), np.exp(rng.normal(size=(6, 3)))
    weights = rng.dirichlet(np.ones(6))
    merged = Gaussian(jnp.asarray(mean), jnp.asarray(np.log(scale))).merge(jnp.asarray(weights))
    expected = weights @ mean
    variance = weights @ (scale**2 + (mean - expected) ** 2)
    np.testing.assert_allclose(merged.mean, expected, rtol=1e-14)
    np.testing.assert_allclose(merged.scale**2, variance, rtol=1e-9)
