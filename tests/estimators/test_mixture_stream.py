"""`SpecialistMixture.partial_fit`: batches that are seen once."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pinfactory.estimators import SpecialistMixture

CENTRES = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])


def four_gaussians(n: int, seed: int) -> np.ndarray:
    """The paper's data (Section 4.2), with the fourth mean it intends."""
    random = np.random.default_rng(seed)
    return random.normal(CENTRES[random.integers(4, size=n)], np.sqrt(0.15))


def true_score(X: np.ndarray) -> float:
    parts = [multivariate_normal(mean, 0.15).logpdf(X) for mean in CENTRES]
    return float(np.mean(logsumexp(parts, axis=0) - np.log(4.0)))


def in_use(mixture: SpecialistMixture) -> int:
    return int(np.sum(mixture.weights_ > 0))


def test_a_stream_of_batches_comes_as_far_as_a_fit() -> None:
    held_out = four_gaussians(10_000, 7)
    stream = SpecialistMixture(4, random_state=0)
    for seed in range(20):
        stream.partial_fit(four_gaussians(500, 100 + seed))
    truth = true_score(held_out)
    assert abs(stream.score(held_out) - truth) < 0.005 * abs(truth)


@pytest.mark.parametrize("beta_selector", [1.0, 20.0])
@pytest.mark.parametrize(("size", "n_batches"), [(60, 40), (500, 10)])
def test_superfluous_experts_are_dismissed_from_a_stream(
    beta_selector: float, size: int, n_batches: int
) -> None:
    held_out = four_gaussians(5000, 99)
    for seed in range(5):
        mixture = SpecialistMixture(8, beta_selector=beta_selector, random_state=seed)
        for i in range(n_batches):
            mixture.partial_fit(four_gaussians(size, 1000 * seed + i))
        assert in_use(mixture) == 4
        assert mixture.effective_experts_ == pytest.approx(4.0, abs=0.1)
        assert mixture.score(held_out) == pytest.approx(true_score(held_out), rel=0.01)


def test_experts_that_were_kept_are_dismissed_later_in_the_stream() -> None:
    for seed in range(3):
        mixture = SpecialistMixture(8, neglect=False, random_state=seed)
        for i in range(3):
            mixture.partial_fit(four_gaussians(500, 100 * seed + i))
        assert in_use(mixture) > 4
        mixture.set_params(neglect=True)
        for i in range(15):
            mixture.partial_fit(four_gaussians(500, 100 * seed + 10 + i))
        assert in_use(mixture) == 4


def test_idle_experts_are_hired_for_clusters_that_appear_later() -> None:
    first = four_gaussians(500, 0)
    mixture = SpecialistMixture(8, random_state=0).partial_fit(first[first[:, 0] < 0])
    assert in_use(mixture) == 2
    for i in range(10):
        mixture.partial_fit(four_gaussians(500, 1 + i))
    assert in_use(mixture) == 4
    held_out = four_gaussians(5000, 99)
    assert mixture.score(held_out) == pytest.approx(true_score(held_out), rel=0.01)


def test_single_rows_dismiss_nobody() -> None:
    mixture = SpecialistMixture(8, random_state=0).partial_fit(four_gaussians(300, 0))
    for row in four_gaussians(60, 1):
        mixture.partial_fit(row[None])
    assert in_use(mixture) == 4


def test_experts_pay_for_what_they_learned_once_in_a_stream() -> None:
    """The objective of the last batch is its mean free energy less the selector's price."""
    mixture = SpecialistMixture(4, random_state=0)
    for i in range(10):
        batch = four_gaussians(1000, i)
        mixture.partial_fit(batch)
    probs, energy = mixture.predict_proba(batch), mixture.free_energy(batch)
    paid = probs * (energy - np.log(probs.clip(1e-300) / mixture.weights_))
    assert paid.sum() / 1000 == pytest.approx(mixture.lower_bound_, abs=2e-3)
    information = mixture.information_
    assert information.experts == pytest.approx(information.responsibility @ information.per_expert)
    np.testing.assert_allclose(information.responsibility, mixture.weights_, atol=1e-5)


def test_a_fitted_mixture_goes_on_with_batches_that_drift() -> None:
    mixture = SpecialistMixture(4, random_state=0).fit(four_gaussians(1000, 0))
    moved = four_gaussians(1000, 8) + 0.3
    before = mixture.score(moved)
    for _ in range(5):
        mixture.partial_fit(moved)
    assert mixture.score(moved) > before
