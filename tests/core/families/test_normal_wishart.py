"""NormalWishart against SciPy, the paper's own formula and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats

from pinfactory.core.families import NormalWishart

pytestmark = pytest.mark.usefixtures("float64")

# The scales of the axes run from 1/spread to spread within one matrix; means lie near the offset.
SPREADS = np.array([1.0, 1e4, 1.0])
OFFSETS = np.array([0.0, 0.0, 1e6])
EACH_DIMENSION = pytest.mark.parametrize("d", [1, 2, 20])


def random_members(d, n, spreads=SPREADS, offsets=OFFSETS, seed=0):
    """Return n members for each of the scales, which they share so that KLs are moderate."""
    rng = np.random.default_rng(seed)
    batch = (n, len(spreads))
    axes = np.stack([np.geomspace(1 / s, s, d)[rng.permutation(d)] for s in spreads])
    root = np.tril(0.3 * rng.normal(size=(*batch, d, d)), -1)
    root[..., range(d), range(d)] = np.exp(0.3 * rng.normal(size=(*batch, d)))
    mean = offsets[:, None] + rng.normal(size=(*batch, d)) / axes
    df = d - 1 + np.exp(rng.normal(1.0, 1.0, size=batch))
    strength = np.exp(rng.normal(size=batch))
    leaves = mean, axes[..., None] * root, df, strength
    return NormalWishart(*(jnp.asarray(leaf) for leaf in leaves))


def pick(members, *index):
    return jax.tree.map(lambda leaf: leaf[index], members)


def as_numpy(p):
    """Return ω, W, ν, λ."""
    mean, root, df, strength = (np.asarray(leaf) for leaf in jax.tree.leaves(p))
    return mean, root @ root.T, float(df), float(strength)


def scipy_sample(p, rng):
    mean, scale, df, strength = as_numpy(p)
    d = len(mean)
    precision = scipy.stats.wishart(df, scale).rvs(random_state=rng).reshape(d, d)
    root = np.linalg.cholesky(strength * precision)
    shift = scipy.linalg.solve_triangular(root.T, rng.normal(size=d))
    return np.column_stack([mean + shift, precision])


def scipy_log_prob(p, value):
    mean, scale, df, strength = as_numpy(p)
    precision = value[:, 1:]
    # The Cholesky factor of (λΛ)⁻¹ comes from that of the reversed matrix.
    reverse = np.linalg.cholesky(strength * precision[::-1, ::-1])[::-1, ::-1]
    covariance = scipy.stats.Covariance.from_cholesky(np.linalg.inv(reverse).T)
    normal = scipy.stats.multivariate_normal(mean, covariance).logpdf(value[:, 0])
    return normal + scipy.stats.wishart(df, scale).logpdf(precision)


def mean_log_det(p):
    """E[log|Λ|] as textbooks have it."""
    mean, scale, df, _ = as_numpy(p)
    d = len(mean)
    digammas = scipy.special.psi(0.5 * (df - np.arange(d))).sum()
    return digammas + d * np.log(2) + np.linalg.slogdet(scale)[1]


def paper_kl(p, q):
    """The last equation of Appendix B, with the constant C."""
    (mean_p, scale_p, df_p, strength_p), (mean_q, scale_q, df_q, strength_q) = map(as_numpy, (p, q))
    d = len(mean_p)
    shift, ratio = mean_q - mean_p, strength_q / strength_p
    product = np.linalg.solve(scale_q, scale_p)
    log_det = np.linalg.slogdet(scale_p)[1] - np.linalg.slogdet(scale_q)[1]
    digammas = scipy.special.psi(0.5 * (df_p - np.arange(d))).sum()
    constant = (
        0.5 * d * (ratio - np.log(ratio) - 1)
        + scipy.special.multigammaln(0.5 * df_q, d)
        - scipy.special.multigammaln(0.5 * df_p, d)
        + 0.5 * (df_p - df_q) * digammas
    )
    return (
        0.5 * strength_q * df_p * shift @ scale_p @ shift
        - 0.5 * df_q * log_det
        + 0.5 * df_p * (np.trace(product) - d)
        + constant
    )


@EACH_DIMENSION
def test_density_and_entropy_agree_with_scipy(d):
    p = random_members(d, n=1)
    rng = np.random.default_rng(1)
    members = [pick(p, 0, i) for i in range(3)]
    values = np.stack([scipy_sample(member, rng) for member in members])
    log_prob, entropy, log_det = jax.jit(
        lambda p, x: (p.log_prob(x), p.entropy(), p.mean_log_det())
    )(p, jnp.asarray(values))

    for i, (member, value) in enumerate(zip(members, values, strict=True)):
        np.testing.assert_allclose(log_prob[0, i], scipy_log_prob(member, value), rtol=1e-7)
        _, scale, df, strength = as_numpy(member)
        # H(μ, Λ) = H(Λ) + E[H(μ | Λ)]
        conditional = 0.5 * (d * (1 + np.log(2 * np.pi / strength)) - mean_log_det(member))
        expected = scipy.stats.wishart(df, scale).entropy() + conditional
        np.testing.assert_allclose(entropy[0, i], expected, rtol=1e-8)
        np.testing.assert_allclose(log_det[0, i], mean_log_det(member), rtol=1e-8, atol=1e-8)


@EACH_DIMENSION
def test_kl_is_that_of_the_appendix_with_its_constant(d):
    members = random_members(d, n=2)
    kl = jax.jit(lambda p, q: p.kl(q))(pick(members, 0), pick(members, 1))
    expected = [paper_kl(pick(members, 0, i), pick(members, 1, i)) for i in range(3)]
    np.testing.assert_allclose(kl, expected, rtol=1e-6)


@pytest.mark.parametrize("d", [1, 10])
def test_kl_and_entropy_are_the_expected_log_ratios_of_scipy(d):
    members = random_members(d, n=2)
    p, q = pick(members, 0, 0), pick(members, 1, 0)
    rng = np.random.default_rng(0)
    values = [scipy_sample(p, rng) for _ in range(1000)]
    log_p = np.array([scipy_log_prob(p, value) for value in values])
    log_q = np.array([scipy_log_prob(q, value) for value in values])
    kl, entropy = jax.jit(lambda p, q: (p.kl(q), p.entropy()))(p, q)
    for estimate, exact in [(log_p - log_q, kl), (-log_p, entropy)]:
        error = estimate.std() / np.sqrt(len(estimate))
        assert abs(estimate.mean() - float(exact)) < 4 * error


def test_answers_do_not_depend_on_the_units_of_an_axis():
    members = random_members(6, n=2)
    p, q = pick(members, 0, 0), pick(members, 1, 0)
    units = jnp.asarray(np.geomspace(1e-4, 1e4, 6))

    def scaled(m):
        return NormalWishart(m.mean * units, m.scale_cholesky / units[:, None], m.df, m.strength)

    answers = jax.jit(lambda p, q: (p.kl(q), p.predictive().log_prob(q.mean)))
    (kl, density), (scaled_kl, scaled_density) = answers(p, q), answers(scaled(p), scaled(q))
    np.testing.assert_allclose(scaled_kl, kl, rtol=1e-9)
    np.testing.assert_allclose(scaled_density, density - jnp.sum(jnp.log(units)), rtol=1e-9)


@pytest.mark.parametrize("d", [1, 20])
def test_samples_follow_the_stated_distribution(d):
    p = pick(random_members(d, n=1, spreads=[1e2], offsets=np.zeros(1)), 0, 0)
    mean, scale, df, strength = as_numpy(p)
    values = np.asarray(jax.jit(lambda p, key: p.sample(key, (5000,)))(p, jax.random.key(0)))
    assert values.shape == (5000, d, d + 1)
    shifts, precisions = values[..., 0] - mean, values[..., 1:]
    # aᵀΛa/aᵀWa is χ²(ν) for any a; given Λ, λ(μ − ω)ᵀΛ(μ − ω) is χ²(D).
    a = np.random.default_rng(0).normal(size=d) / np.sqrt(np.diag(scale))
    quadratic = np.einsum("i,nij,j->n", a, precisions, a) / (a @ scale @ a)
    distance = strength * np.einsum("ni,nij,nj->n", shifts, precisions, shifts)
    log_dets = np.linalg.slogdet(precisions)[1]
    assert scipy.stats.kstest(quadratic, scipy.stats.chi2(df).cdf).pvalue > 1e-3
    assert scipy.stats.kstest(distance, scipy.stats.chi2(d).cdf).pvalue > 1e-3
    assert abs(log_dets.mean() - mean_log_det(p)) < 4 * log_dets.std() / np.sqrt(len(log_dets))


@pytest.mark.parametrize("d", [1, 3, 20])
def test_merge_matches_the_four_expected_statistics(d):
    members = random_members(d, n=7)
    weights = np.random.default_rng(0).dirichlet(np.ones(7))
    merged = jax.jit(lambda p, w: p.merge(w))(members, jnp.asarray(weights))

    def statistics(p, offset, units):
        """E[Λ], E[Λ(μ − c)], E[(μ − c)ᵀΛ(μ − c)], E[log|Λ|] about c, in the axes' own units."""
        mean, scale, df, strength = as_numpy(p)
        shift, precision = (mean - offset) / units, units[:, None] * df * scale * units
        moment = d / strength + shift @ precision @ shift
        return np.concatenate([precision.ravel(), precision @ shift, [moment, mean_log_det(p)]])

    for i, offset in enumerate(OFFSETS):
        prior = pick(merged, i)
        units = 1 / np.sqrt(np.diag(as_numpy(prior)[1]))
        each = [statistics(pick(members, n, i), offset, units) for n in range(7)]
        got = statistics(prior, offset, units)
        np.testing.assert_allclose(got, weights @ each, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("d", [1, 4])
def test_merge_of_equals_is_the_same_distribution(d):
    one = pick(random_members(d, n=1), 0, 0)
    df = jnp.array([d - 0.9, d + 2.0, 1e3, 1e6])
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (3, 4, *leaf.shape)), one)
    same = NormalWishart(
        same.mean, same.scale_cholesky, jnp.broadcast_to(df, (3, 4)), same.strength
    )
    merged = jax.jit(lambda p, w: p.merge(w))(same, jnp.array([0.2, 0.3, 0.5]))
    for got, expected in zip(jax.tree.leaves(merged), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(got, expected[0], rtol=1e-8)


def test_merge_survives_nearly_singular_precisions():
    # The condition of W is 1e16 in a rotated frame: its Cholesky factor exists, W itself is
    # singular to the last digit.
    rng = np.random.default_rng(0)
    rotations = np.linalg.qr(rng.normal(size=(3, 4, 4)))[0]
    upper = np.linalg.qr(np.geomspace(1e-4, 1e4, 4)[:, None] * rotations)[1]
    roots = np.swapaxes(upper, -1, -2) * np.sign(np.einsum("nii->ni", upper))[:, None, :]
    members = NormalWishart(
        jnp.asarray(rng.normal(size=(3, 4))), jnp.asarray(roots), jnp.full(3, 6.0), jnp.ones(3)
    )
    weights = jnp.array([0.5, 0.25, 0.25])

    @jax.jit
    def cost_and_gap(p, w):
        prior = p.merge(w)
        return w @ p.kl(prior), prior.entropy() - w @ p.entropy()

    np.testing.assert_allclose(*cost_and_gap(members, weights), rtol=1e-6)
