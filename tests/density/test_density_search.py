"""How experts are found: restarts, blocks, merges and splits."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

from pinfactory import density
from pinfactory.core.families import NormalWishart
from pinfactory.core.growth import parameter_price
from pinfactory.density.ascent import CACHE_SIZE, Ascent
from pinfactory.density.merging import (
    best_pairs,
    fitted_statistics,
    merged,
)
from pinfactory.estimators import SpecialistMixture

CENTRES = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])


def four_gaussians(n: int, seed: int) -> np.ndarray:
    """The paper's data (Section 4.2), with the fourth mean it intends."""
    random = np.random.default_rng(seed)
    return random.normal(CENTRES[random.integers(4, size=n)], np.sqrt(0.15))


def search_on(
    data: np.ndarray, n_experts: int, n_init: int = 1, seed: int = 0, **settings: bool
) -> tuple[density.Search, density.SearchState]:
    """Return a search, and the state at its start."""
    rows = np.arange(len(data)), np.ones(len(data))
    whitening = density.Whitening.of(data, rows)
    samples = density.StoredSamples.of(whitening, data, rows)
    starts = density.starts(
        samples.first(), whitening, np.random.RandomState(seed), n_experts, n_init
    )
    search = density.Search(
        samples, density.to_device(starts), 1.0, 1.0, tol=1e-4, max_iter=200, **settings
    )
    return search, search.begin(density.common_prior(starts, float(data.shape[1])), seed)


def first_ascent(
    data: np.ndarray, n_experts: int, **settings: int
) -> tuple[density.Search, Ascent]:
    """Return a search, and the solution on the first block before experts are merged or split."""
    search, state = search_on(data, n_experts, neglect=False, **settings)
    return search, search.run(state).best


@pytest.mark.parametrize(("n", "n_experts"), [(200, 3), (1000, 6)])
def test_restarts_as_replicas_find_what_restarts_one_by_one_find(n: int, n_experts: int) -> None:
    """The small set runs side by side, the large one spills the cache and runs in parts."""
    search, start = search_on(four_gaussians(n, 0), n_experts, n_init=4, neglect=False)
    columns = search.samples.blocks.x.shape[-1]
    assert (4 * n_experts * 2 * columns <= CACHE_SIZE) == (n == 200)
    alone = []
    for i in range(4):
        one = replace(search, starts=jax.tree.map(lambda a, i=i: a[i : i + 1], search.starts))
        alone.append(one.run(one.begin(start.trial.prior, 0)))
    best = max((state.best for state in alone), key=lambda ascent: float(ascent.objective))
    found = search.run(start)
    assert found.n_iter == pytest.approx(sum(state.n_iter for state in alone), abs=4)
    assert found.converged
    for ours, theirs in zip(jax.tree.leaves(found.best), jax.tree.leaves(best), strict=True):
        if ours.dtype != np.int32 and ours.ndim > 0:
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)
    assert float(found.best.objective) == pytest.approx(float(best.objective), abs=1e-5)
    for state in alone:
        assert float(found.best.objective) >= float(state.best.objective) - 1e-5


def test_replicas_that_are_cut_short_go_on_with_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    search, start = search_on(four_gaussians(200, 0), 3, n_init=4, neglect=False)
    whole = search.run(start)
    monkeypatch.setattr("pinfactory.density.search.BLOCKS_PER_CALL", 2)
    short = search.run(start)
    assert short.converged
    assert float(short.best.objective) == pytest.approx(float(whole.best.objective), abs=0.02)


def test_calls_of_any_length_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a search returns to Python changes neither its decisions nor its numbers."""
    search, start = search_on(four_gaussians(500, 3), 8)
    whole = search.run(start)
    monkeypatch.setattr("pinfactory.density.search.BLOCKS_PER_CALL", 3)
    parts = search.run(start)
    assert parts.n_iter == whole.n_iter
    for ours, theirs in zip(
        jax.tree.leaves(parts.best.experts), jax.tree.leaves(whole.best.experts), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


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
    search, start = search_on(data, 4)
    poor = density.to_device(density.partition_statistics(*search.samples.first(), label, 4))
    search = replace(search, starts=jax.tree.map(lambda leaf: leaf[None], poor))
    best = search.run(search.begin(start.trial.prior, 0)).best
    np.testing.assert_allclose(np.exp(best.experts.log_weight), 0.25, atol=0.05)


def test_what_a_merger_is_said_to_gain_is_what_it_gains() -> None:
    """The free energy after merging a pair, computed anew, rises by what the survey says."""
    search, before = first_ascent(four_gaussians(1000, 2), 6)
    known, hyper = fitted_statistics(before), search.hyper(before.prior, 1.0)
    pairs = best_pairs(known, hyper)
    surveyed = search.samples.merge_effects(before.experts, hyper, pairs, 1)
    fewer = merged(known, before, hyper, surveyed, pairs)
    assert fewer is not None
    changed = np.flatnonzero(np.asarray(fewer.mass) != known.mass.astype(np.float32))
    chosen = [i for i in range(len(pairs.a)) if {pairs.a[i], pairs.b[i]} <= set(changed)]
    one = chosen[0]
    alone = density.HostStatistics(*(leaf.copy() for leaf in known))
    for leaf, part in zip(alone, pairs.joint, strict=True):
        leaf[pairs.a[one]], leaf[pairs.b[one]] = part[one], 0.0
    after = search.single_step(density.to_device(alone), before.prior, 1.0)
    divergence = np.asarray(before.divergence, float)
    predicted = float(surveyed.change[one]) - float(surveyed.divergence[one])
    predicted += divergence[pairs.a[one]] + divergence[pairs.b[one]]
    actual = 1000 * (float(after.objective) - float(before.objective))
    assert predicted == pytest.approx(actual, abs=0.05)
    assert predicted + parameter_price(1000.0) > 0


def test_the_prior_is_the_one_that_experts_pay_least_for() -> None:
    """Checked with SciPy: no other Wishart with the same ν₀ has a lower Σ KL(q_m‖p₀)."""
    random = np.random.default_rng(0)
    data = np.vstack([random.normal(8 * m, [1.0, 0.2 + m], (80, 2)) for m in range(3)])
    _, best = first_ascent(data, 3)
    experts, prior = best.experts.posterior, best.prior

    @jax.jit
    def divergences(root: jax.Array) -> jax.Array:
        return experts.kl(NormalWishart(prior.mean, root, prior.df, prior.strength))

    def price(change: np.ndarray) -> float:
        """Return Σ KL(q_m‖p₀) with the Cholesky factor of W₀ changed."""
        root = np.array(prior.scale_cholesky)
        root[np.tril_indices(2)] += change
        return float(np.sum(np.asarray(divergences(root), float)))

    lowest = minimize(price, np.zeros(3), method="Nelder-Mead")
    assert price(np.zeros(3)) == pytest.approx(np.sum(np.asarray(best.divergence)), abs=1e-3)
    # What keeps it from running after repeated samples costs a little.
    assert price(np.zeros(3)) <= lowest.fun + 5e-3


def test_repeated_samples_do_not_carry_the_prior_away() -> None:
    """A third of the samples are one point: the others' experts still expect what they see."""
    random = np.random.default_rng(1)
    data = np.vstack([random.normal(size=(200, 2)), np.full((100, 2), 9.0)])
    _, best = first_ascent(data, 2)
    assert np.isfinite(np.asarray(best.objective))
    wide = np.argmax(np.asarray(best.statistics.mass))
    root = np.asarray(best.experts.posterior.scale_cholesky, float)[wide]
    df = float(best.experts.posterior.df[wide])
    inverse = np.linalg.inv(data[:200].std(axis=0) * np.eye(2))
    whitening = density.Whitening.of(data, (np.arange(300), np.ones(300)))
    covariance = whitening.inverse @ np.linalg.inv(df * root @ root.T) @ whitening.inverse.T
    np.testing.assert_allclose(inverse @ covariance @ inverse, np.eye(2), atol=0.2)
