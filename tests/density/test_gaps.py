"""Missing values: expected, and integrated out, as conditional and marginal Gaussians are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_t

from pinfactory import density
from pinfactory.core.families import NormalWishart
from pinfactory.density.ascent import ascend, expectation, responsibility_sums
from pinfactory.density.experts import Experts, utility
from pinfactory.density.gaps import completed, patterns, projections
from pinfactory.density.marginals import Marginal


def two_experts(d: int = 3) -> NormalWishart:
    random = np.random.default_rng(1)
    roots = [np.linalg.cholesky(w @ w.T + np.eye(d)) for w in random.normal(size=(2, d, d))]
    return NormalWishart(
        jnp.asarray(random.normal(size=(2, d))),
        jnp.asarray(np.stack(roots) / 4.0),
        jnp.asarray([20.0, 35.0]),
        jnp.asarray([5.0, 9.0]),
    )


def expected_precision(posterior: NormalWishart) -> np.ndarray:
    scale = np.asarray(posterior.scale_cholesky, float)
    return np.asarray(posterior.df)[:, None, None] * scale @ scale.swapaxes(-1, -2)


MASKS = np.array([[False, True, False], [True, False, True], [False] * 3, [True] * 3])


def test_completions_are_conditional_gaussians():
    posterior, x = two_experts(), np.random.default_rng(2).normal(size=(4, 3))
    found = projections(posterior, MASKS)
    z, _, _ = completed(posterior, jnp.asarray(np.where(MASKS, 0.0, x).T), jnp.arange(4), found)
    for m, precision in enumerate(expected_precision(posterior)):
        root, mean = np.linalg.cholesky(precision), np.asarray(posterior.mean[m], float)
        covariance = np.linalg.inv(precision)
        for n, gone in enumerate(MASKS):
            o, u = ~gone, gone
            known = np.linalg.solve(covariance[np.ix_(o, o)], (x[n] - mean)[o])
            wanted = np.where(gone, 0.0, x[n])
            wanted[u] = mean[u] + covariance[np.ix_(u, o)] @ known
            back = mean + np.linalg.solve(root.T, np.asarray(z[m, :, n], float))
            np.testing.assert_allclose(back, wanted, atol=1e-4)
            spread = np.zeros((3, 3))
            spread[np.ix_(u, u)] = np.linalg.inv(precision[np.ix_(u, u)])
            inside = np.asarray(found.matrix[n, m], float)
            inverse = np.linalg.inv(root.T)
            np.testing.assert_allclose(inverse @ inside @ inverse.T, spread, atol=1e-4)


def test_the_utility_of_what_is_known_is_the_integral_over_what_is_not():
    posterior, x = two_experts(), np.array([0.3, -0.4, 0.8])
    found = projections(posterior, MASKS[:1])
    known = jnp.asarray(np.where(MASKS[0], 0.0, x)[:, None])
    z, remainder, _ = completed(posterior, known, jnp.zeros(1, int), found)
    value = utility(posterior, z) + remainder
    for m, precision in enumerate(expected_precision(posterior)):
        peak = float(utility(posterior, jnp.zeros((2, 3, 1)))[m, 0])
        mean = np.asarray(posterior.mean[m], float)

        def density_at(y, mean=mean, precision=precision, peak=peak):
            away = np.array([x[0], y, x[2]]) - mean
            return np.exp(peak - 0.5 * away @ precision @ away)

        integral = quad(density_at, -20, 20, points=[float(mean[1])])[0]
        assert float(value[m, 0]) == pytest.approx(np.log(integral), abs=1e-4)


def test_marginals_are_those_of_the_whole_family():
    """Samples of (μ, Λ) give the expected log-density of some features, and their density."""
    posterior, x = two_experts(), np.array([[0.3, 0.8]])
    whitening = density.Whitening(np.zeros(3), np.ones(3), np.eye(3))
    marginal = Marginal.of(posterior, whitening, [0, 2])
    drawn = np.asarray(posterior.sample(jax.random.key(0), (20_000,)), float)
    covariance = np.linalg.inv(drawn[..., 1:])[..., [0, 2], :][..., [0, 2]]
    away = x[0] - drawn[..., [0, 2], 0]
    square = np.einsum("smi,smi->sm", away, np.linalg.solve(covariance, away[..., None])[..., 0])
    logs = -0.5 * (square + np.linalg.slogdet(covariance)[1]) - np.log(2 * np.pi)
    error = 5.0 * logs.std(axis=0) / np.sqrt(len(logs))
    assert (np.abs(marginal.utilities(x)[:, 0] - logs.mean(axis=0)) < error).all()
    predictive = posterior.predictive()
    shape = np.linalg.inv(
        np.asarray(predictive.precision_cholesky @ predictive.precision_cholesky.swapaxes(-1, -2))
    )
    for m in range(2):
        wanted = multivariate_t(
            np.asarray(predictive.mean[m])[[0, 2]],
            shape[m][np.ix_([0, 2], [0, 2])],
            float(predictive.df[m]),
        ).logpdf(x[0])
        assert marginal.log_density(x)[m, 0] == pytest.approx(wanted, abs=1e-4)


def gappy(n: int = 400) -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3)) @ [[1.0, 0.8, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]
    x += 5.0 * random.integers(0, 2, n)[:, None]
    return np.where(random.random((n, 3)) < 0.3, np.nan, x)


def test_sums_add_what_is_expected_of_missing_values():
    posterior, x = two_experts(), gappy(50)
    experts = Experts(posterior, jnp.log(jnp.asarray([0.4, 0.6])))
    rows = np.arange(50), np.ones(50)
    whitening = density.Whitening(np.zeros(3), np.ones(3), np.eye(3))
    samples = density.StoredSamples.of(whitening, x, rows)
    sums = jax.jit(responsibility_sums)(experts, jnp.asarray(1.0), samples.blocks, jnp.asarray(1))
    found = expectation(experts, sums)
    mass, first, second = np.zeros(2), np.zeros((2, 3)), np.zeros((2, 3, 3))
    precisions = expected_precision(posterior)
    peak = np.asarray(utility(posterior, jnp.zeros((2, 3, 1))), float)[:, 0]
    value = 0.0
    for row in x:
        o, u = ~np.isnan(row), np.isnan(row)
        logits, moments = [], []
        for m, precision in enumerate(precisions):
            mean, covariance = np.asarray(posterior.mean[m], float), np.linalg.inv(precision)
            known = np.linalg.solve(covariance[np.ix_(o, o)], (row - mean)[o])
            full = np.where(u, 0.0, row)
            full[u] = mean[u] + covariance[np.ix_(u, o)] @ known
            spread = np.zeros((3, 3))
            spread[np.ix_(u, u)] = np.linalg.inv(precision[np.ix_(u, u)])
            away = full - mean
            log_det = np.linalg.slogdet(precision[np.ix_(u, u)])[1] if u.any() else 0.0
            gap = 0.5 * u.sum() * np.log(2 * np.pi) - 0.5 * log_det
            logits.append(np.log([0.4, 0.6][m]) + peak[m] - 0.5 * away @ precision @ away + gap)
            moments.append((full, np.outer(full, full) + spread))
        total = np.logaddexp(*logits)
        value += total
        for m, (full, square) in enumerate(moments):
            r = np.exp(logits[m] - total)
            mass[m] += r
            first[m] += r * full
            second[m] += r * square
    mean = first / mass[:, None]
    scatter = second - mass[:, None, None] * mean[:, :, None] * mean[:, None, :]
    np.testing.assert_allclose(found.statistics.mass, mass, rtol=1e-3)
    np.testing.assert_allclose(found.statistics.mean, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.statistics.scatter, scatter, rtol=1e-3, atol=0.05)
    assert float(found.value) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_no_iteration_lowers_the_objective(beta):
    x = gappy()
    rows = np.arange(len(x)), np.ones(len(x))
    whitening = density.Whitening.of(x, rows)
    samples = density.StoredSamples.of(whitening, x, rows)
    random = np.random.RandomState(0)
    start = density.starts(samples.first(), whitening, random, 3, 1)
    prior = density.common_prior(start, 3.0)
    hyper = density.Hyperparameters(prior, np.float32(beta), np.float32(1.0))
    statistics = density.to_device(density.HostStatistics(*(leaf[0] for leaf in start)))
    objective, found = np.float32(-np.inf), []
    for _ in range(15):
        ascent = ascend(
            statistics, objective, hyper, samples.blocks, np.int32(1), np.float32(0), np.int32(1)
        )
        statistics, hyper = ascent.statistics, hyper.with_prior(ascent.prior)
        found.append(float(ascent.objective))
        # What the selector processes is never negative.
        assert float(ascent.utility) >= float(ascent.value) - 1e-2
    assert np.diff(found).min() > -1e-4
    assert found[-1] > found[0] + 0.01


def test_every_block_knows_its_own_patterns():
    missing = np.array([[0, 0], [0, 1], [1, 0], [0, 1], [1, 1]], bool)
    gaps = patterns(missing, 2, 4)
    assert gaps.missing.shape == (4, 2, 2)
    told = np.take_along_axis(gaps.missing, gaps.pattern[..., None], axis=1).reshape(-1, 2)
    np.testing.assert_array_equal(told[:5], missing)
