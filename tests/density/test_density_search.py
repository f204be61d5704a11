"""How experts are found: restarts, blocks, mergers, departures and divisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import entr

from pinfactory import density
from pinfactory.core.families import NormalWishart
from pinfactory.density.ascent import CACHE_SIZE
from pinfactory.density.merging import (
    best_pairs,
    bic_penalty,
    fitted_statistics,
    may_remove,
    merged,
    removed,
)
from pinfactory.estimators import SpecialistMixture

CENTRES = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])


def four_gaussians(n: int, seed: int) -> np.ndarray:
    """The paper's data (Section 4.2), with the fourth mean it intends."""
    random = np.random.default_rng(seed)
    return random.normal(CENTRES[random.integers(4, size=n)], np.sqrt(0.15))


def search_on(
    data: np.ndarray, n_experts: int, n_init: int = 1, seed: int = 0
) -> tuple[density.Search, list[density.HostStatistics]]:
    rows = np.arange(len(data)), np.ones(len(data))
    whitening = density.Whitening.of(data, rows)
    samples = density.Samples.of(whitening, data, rows)
    starts = density.starts(samples, whitening, np.random.RandomState(seed), n_experts, n_init)
    prior = density.common_prior(starts, float(data.shape[1]))
    hyper = density.Hyperparameters(prior, np.float32(1.0), np.float32(1.0))
    search = density.Search(
        samples, hyper, tol=1e-4, max_iter=200, report=lambda n_iter, objective: None
    )
    return search, starts


@pytest.mark.parametrize(("n", "n_experts"), [(200, 3), (1000, 6)])
def test_restarts_as_replicas_find_what_restarts_one_by_one_find(n: int, n_experts: int) -> None:
    """The small set runs side by side, the large one spills the cache and runs in parts."""
    search, starts = search_on(four_gaussians(n, 0), n_experts, n_init=4)
    columns = search.samples.blocks.x.shape[-1]
    assert (4 * n_experts * 2 * columns <= CACHE_SIZE) == (n == 200)
    alone, hyper = [], search.hyper
    for start in starts:
        search.hyper = hyper
        search.ascend(density.to_device(start))
        alone.append(search.best)
    best = max(alone, key=lambda ascent: float(ascent.objective))
    n_iter = search.n_iter
    search.n_iter, search.hyper = 0, hyper
    search.start(starts)
    assert search.n_iter == pytest.approx(n_iter, abs=4)
    assert search.converged
    for ours, theirs in zip(jax.tree.leaves(search.best), jax.tree.leaves(best), strict=True):
        if ours.dtype != np.int32 and ours.ndim > 0:
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)
    assert float(search.best.objective) == pytest.approx(float(best.objective), abs=1e-5)


def test_more_restarts_never_end_lower() -> None:
    for seed in range(5):
        search, starts = search_on(four_gaussians(200, 1) ** 3, 3, n_init=4, seed=seed)
        hyper = search.hyper
        search.start(starts)
        best = float(search.best.objective)
        for start in starts:
            search.hyper = hyper
            search.start([start])
            assert best >= float(search.best.objective) - 1e-5


def test_replicas_that_are_cut_short_go_on_with_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    search, starts = search_on(four_gaussians(200, 0), 3, n_init=4)
    search.start(starts)
    monkeypatch.setattr("pinfactory.density.search.BLOCKS_PER_CALL", 2)
    short, _ = search_on(four_gaussians(200, 0), 3, n_init=4)
    short.start(starts)
    assert short.converged
    assert float(short.best.objective) == pytest.approx(float(search.best.objective), abs=0.02)


def test_more_samples_than_a_block_give_the_same_as_one_block() -> None:
    """Statistics summed block by block are those of NumPy over all samples at once."""
    data = four_gaussians(30_000, 5)
    mixture = SpecialistMixture(4, random_state=0, tol=1e-6, strength_prior=1e-6).fit(data)
    probs = mixture.predict_proba(data)
    mass = probs.sum(axis=0)
    np.testing.assert_allclose(mixture.weights_, mass / mass.sum(), atol=1e-3)
    np.testing.assert_allclose(mixture.means_, probs.T @ data / mass[:, None], atol=1e-3)
    for m in range(4):
        expected = np.cov(data.T, aweights=probs[:, m], ddof=0)
        np.testing.assert_allclose(mixture.covariances_[m], expected, atol=1e-3)


def test_an_expert_between_two_clusters_is_divided() -> None:
    """From a start in which two experts share a cluster and one has two, all four are found."""
    data = four_gaussians(1000, 11) * 4
    label = np.where(data[:, 1] > 0, np.where(data[:, 0] > 0, 2, 3), data[:, 0] > 4).astype(int)
    search, _ = search_on(data, 4)
    search.start([density.partition_statistics(*search.samples.first(), label, 4)])
    search.grow(np.random.RandomState(0))
    np.testing.assert_allclose(np.exp(search.best.experts.log_weight), 0.25, atol=0.05)


def test_what_a_merger_is_said_to_gain_is_what_it_gains() -> None:
    """The free energy after merging a pair, computed anew, rises by what the survey says."""
    search, starts = search_on(four_gaussians(1000, 2), 6)
    search.start(starts)
    before, known = search.best, fitted_statistics(search.best)
    pairs = best_pairs(known, search.hyper)
    surveyed = search.merge_effects(before, pairs)
    fewer = merged(known, before, search.hyper, surveyed, pairs)
    assert fewer is not None
    changed = np.flatnonzero(np.asarray(fewer.mass) != known.mass.astype(np.float32))
    chosen = [i for i in range(len(pairs.a)) if {pairs.a[i], pairs.b[i]} <= set(changed)]
    one = chosen[0]
    alone = density.HostStatistics(*(leaf.copy() for leaf in known))
    for leaf, part in zip(alone, pairs.joint, strict=True):
        leaf[pairs.a[one]], leaf[pairs.b[one]] = part[one], 0.0
    after = search.single_step(density.to_device(alone))
    divergence = np.asarray(before.divergence, float)
    predicted = float(surveyed.change[one]) - float(surveyed.divergence[one])
    predicted += divergence[pairs.a[one]] + divergence[pairs.b[one]]
    actual = 1000 * (float(after.objective) - float(before.objective))
    assert predicted == pytest.approx(actual, abs=0.05)
    assert predicted + bic_penalty(1000.0) > 0


def test_the_bound_on_departures_holds_for_every_responsibility() -> None:
    r = np.linspace(1e-9, 1 - 1e-9, 100_001)
    assert np.all(-np.log1p(-r) >= 2 * r - 0.45 * (entr(r) + entr(1 - r)))


@pytest.mark.parametrize("spread", [1.0, 0.5, 0.1])
def test_nobody_departs_who_may_not(spread: float) -> None:
    for seed in range(5):
        data = spread * CENTRES[np.arange(1000) % 4] + 0.4 * four_gaussians(1000, seed)
        search, starts = search_on(data, 6, seed=seed)
        search.start(starts)
        known = fitted_statistics(search.best)
        surveyed = search.merge_effects(search.best, best_pairs(known, search.hyper))
        if removed(known, search.best, search.hyper, surveyed) is not None:
            assert may_remove(known, search.best, search.hyper)


def test_the_prior_is_the_one_that_experts_pay_least_for() -> None:
    """Checked with SciPy: no other Wishart with the same ν₀ has a lower Σ KL(q_m‖p₀)."""
    random = np.random.default_rng(0)
    data = np.vstack([random.normal(8 * m, [1.0, 0.2 + m], (80, 2)) for m in range(3)])
    search, starts = search_on(data, 3)
    search.start(starts)
    best = search.best
    experts, prior = best.experts.posterior, best.prior

    def price(change: np.ndarray) -> float:
        """Return Σ KL(q_m‖p₀) with the Cholesky factor of W₀ changed."""
        root = np.array(prior.scale_cholesky)
        root[np.tril_indices(2)] += change
        other = NormalWishart(prior.mean, jnp.asarray(root, jnp.float32), prior.df, prior.strength)
        return float(np.sum(np.asarray(experts.kl(other), float)))

    lowest = minimize(price, np.zeros(3), method="Nelder-Mead")
    assert price(np.zeros(3)) == pytest.approx(np.sum(np.asarray(best.divergence)), abs=1e-3)
    # What keeps it from running after repeated samples costs a little.
    assert price(np.zeros(3)) <= lowest.fun + 5e-3


def test_repeated_samples_do_not_carry_the_prior_away() -> None:
    """A third of the samples are one point: the others' experts still expect what they see."""
    random = np.random.default_rng(1)
    data = np.vstack([random.normal(size=(200, 2)), np.full((100, 2), 9.0)])
    search, starts = search_on(data, 2)
    search.start(starts)
    assert np.isfinite(np.asarray(search.best.objective))
    wide = np.argmax(np.asarray(search.best.statistics.mass))
    root = np.asarray(search.best.experts.posterior.scale_cholesky, float)[wide]
    df = float(search.best.experts.posterior.df[wide])
    inverse = np.linalg.inv(data[:200].std(axis=0) * np.eye(2))
    whitening = density.Whitening.of(data, (np.arange(300), np.ones(300)))
    covariance = whitening.inverse @ np.linalg.inv(df * root @ root.T) @ whitening.inverse.T
    np.testing.assert_allclose(inverse @ covariance @ inverse, np.eye(2), atol=0.2)
