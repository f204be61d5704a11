"""`SpecialistMixture` against closed forms, quadrature, SciPy and scikit-learn."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import gaussian_kde, kstest, multivariate_normal, multivariate_t, wishart
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.utils.estimator_checks import estimator_checks_generator

import pinfactory
from pinfactory import density
from pinfactory.core.training import Progress
from pinfactory.estimators import SpecialistMixture

CENTRES = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
VARIANCE = 0.15


def four_gaussians(n: int, seed: int) -> np.ndarray:
    """The paper's data (Section 4.2), with the fourth mean it intends."""
    random = np.random.default_rng(seed)
    return random.normal(CENTRES[random.integers(4, size=n)], np.sqrt(VARIANCE))


def true_score(X: np.ndarray) -> float:
    parts = [multivariate_normal(mean, VARIANCE).logpdf(X) for mean in CENTRES]
    return float(np.mean(logsumexp(parts, axis=0) - np.log(4.0)))


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return four_gaussians(1000, 0)


@pytest.fixture(scope="module")
def mixture(X: np.ndarray) -> SpecialistMixture:
    return SpecialistMixture(4, random_state=0).fit(X)


# ------------------------------------------------------------------------------ the paper's claims


def test_recovers_the_four_gaussians_with_the_papers_prices(X: np.ndarray) -> None:
    held_out = four_gaussians(20_000, 1)
    mixture = SpecialistMixture(4, beta_selector=20.0, beta_expert=1.0, random_state=0).fit(X)
    score = mixture.score(held_out)
    assert abs(score - true_score(held_out)) < 0.01 * abs(true_score(held_out))
    assert score > np.mean(gaussian_kde(X.T).logpdf(held_out.T))
    order = np.lexsort(np.sign(mixture.means_.T))
    np.testing.assert_allclose(mixture.means_[order], CENTRES[np.lexsort(CENTRES.T)], atol=0.1)
    reference = GaussianMixture(4, means_init=mixture.means_).fit(X)
    np.testing.assert_allclose(mixture.covariances_, reference.covariances_, atol=0.01)
    np.testing.assert_allclose(mixture.precisions_, np.linalg.inv(mixture.covariances_), rtol=1e-6)


@pytest.mark.parametrize("beta_selector", [1.0, 20.0])
def test_superfluous_experts_are_neglected(beta_selector: float) -> None:
    for seed in range(10):
        data = four_gaussians(1000, seed)
        mixture = SpecialistMixture(8, beta_selector=beta_selector, random_state=seed).fit(data)
        means = mixture.means_[mixture.weights_ > 0]
        assert len(means) == 4
        assert np.all(np.diff(mixture.weights_) <= 0)
        assert mixture.effective_experts_ == pytest.approx(4.0, abs=0.1)
        # One at every centre.
        nearest = np.linalg.norm(means[:, None] - CENTRES, axis=-1).argmin(axis=1)
        assert sorted(nearest) == [0, 1, 2, 3]


def test_all_experts_stay_if_none_may_be_neglected(X: np.ndarray) -> None:
    mixture = SpecialistMixture(8, neglect=False, random_state=0).fit(X)
    assert np.sum(mixture.weights_ > 0) > 4


def test_a_larger_selector_resource_makes_a_harder_partition(X: np.ndarray) -> None:
    bits = [
        SpecialistMixture(4, beta_selector=beta, random_state=0).fit(X).information_.selector
        for beta in (0.5, 1.0, 20.0)
    ]
    assert bits[0] < bits[1] < bits[2] <= 2.0 + 1e-4


def test_a_smaller_expert_resource_keeps_experts_close_to_their_prior(X: np.ndarray) -> None:
    bits = [
        SpecialistMixture(4, beta_expert=beta, neglect=False, random_state=0)
        .fit(X)
        .information_.experts
        for beta in (0.01, 1.0, 100.0)
    ]
    assert bits[0] < bits[1] < bits[2]


# ------------------------------------------------------------------------------- the free energy


def test_closed_form_utility_agrees_with_samples_of_mean_and_precision(
    mixture: SpecialistMixture, X: np.ndarray
) -> None:
    posterior = mixture.state_.experts.posterior
    columns = jnp.asarray(mixture.state_.whitening.columns(X[:20], 20))
    exact = density.utility(posterior, density.standardised(posterior, columns))
    random = np.random.default_rng(0)
    values = np.empty((4000, 4, 2, 3), np.float32)
    for m in range(4):
        root, df = np.asarray(posterior.scale_cholesky[m], float), float(posterior.df[m])
        precision = wishart(df, root @ root.T, seed=random).rvs(4000)
        noise = random.standard_normal((4000, 2, 1)) / np.sqrt(float(posterior.strength[m]))
        back = np.swapaxes(np.linalg.inv(np.linalg.cholesky(precision)), -1, -2)
        values[:, m, :, :1] = np.asarray(posterior.mean[m])[:, None] + back @ noise
        values[:, m, :, 1:] = precision
    # The paper's estimate: the mean of log N(x | μ, Λ⁻¹) over samples of μ and Λ.
    shift = np.asarray(columns)[None, None] - values[..., :1]
    square = np.einsum("smin,smij,smjn->smn", shift, values[..., 1:], shift)
    log_det = np.linalg.slogdet(values[..., 1:])[1][..., None]
    sampled = np.mean(0.5 * (log_det - 2 * np.log(2 * np.pi) - square), axis=0)
    np.testing.assert_allclose(sampled, exact, rtol=0.02, atol=0.05)


def test_with_unit_resources_the_objective_is_below_the_evidence_and_touches_it_for_one_expert(
    X: np.ndarray,
) -> None:
    """With one expert the bound is tight: log p(X) is a product of Student-t predictions."""
    X = X[:40]
    mixture = SpecialistMixture(1, random_state=0).fit(X)
    prior = mixture.state_.hyper.prior
    root, d = np.asarray(prior.scale_cholesky, float), 2
    df, strength = float(prior.df), float(prior.strength)
    z = mixture.state_.whitening.columns(X, len(X)).T.astype(float)
    log_evidence = 0.0
    for i in range(len(z)):
        mean = z[:i].sum(axis=0) / (strength + i)
        scatter = np.linalg.inv(root @ root.T) + z[:i].T @ z[:i]
        scatter -= (strength + i) * np.outer(mean, mean)
        t_df = df + i - d + 1
        shape = scatter * (strength + i + 1) / ((strength + i) * t_df)
        log_evidence += multivariate_t(mean, shape, t_df).logpdf(z[i])
    expected = log_evidence / len(X) + mixture.state_.whitening.log_det
    assert mixture.lower_bound_ == pytest.approx(expected, abs=1e-4)


def test_the_objective_never_falls(X: np.ndarray) -> None:
    bounds = []
    for n in (1, 2, 3, 5, 10, 30):
        mixture = SpecialistMixture(6, max_iter=n, tol=1e-9, neglect=False, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(X)
        bounds.append(mixture.lower_bound_)
    assert np.all(np.diff(bounds) > -1e-6)


def test_free_energy_shares_the_price_of_an_expert_among_its_samples(
    mixture: SpecialistMixture, X: np.ndarray
) -> None:
    probs, energy = mixture.predict_proba(X), mixture.free_energy(X)
    paid = probs * (energy - np.log(probs.clip(1e-300) / mixture.weights_))
    assert paid.sum() / len(X) == pytest.approx(mixture.lower_bound_, abs=1e-3)


def test_responsibilities_are_the_posterior_of_a_mixture_where_the_data_are_many() -> None:
    data = four_gaussians(20_000, 3)
    mixture = SpecialistMixture(4, random_state=0).fit(data)
    points = four_gaussians(200, 4)
    log_parts = [
        np.log(w) + multivariate_normal(mean, cov).logpdf(points)
        for w, mean, cov in zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
    ]
    expected = np.exp(log_parts - logsumexp(log_parts, axis=0)).T
    np.testing.assert_allclose(mixture.predict_proba(points), expected, atol=0.02)


def test_information_is_what_its_definition_says(mixture: SpecialistMixture, X: np.ndarray) -> None:
    probs = mixture.predict_proba(X)
    share = probs.mean(axis=0)
    expected = np.mean(np.sum(probs * np.log2(probs.clip(1e-300) / share), axis=1))
    information = mixture.information_
    assert information.selector == pytest.approx(expected, abs=1e-4)
    np.testing.assert_allclose(information.responsibility, share, atol=1e-5)
    assert information.effective_experts == pytest.approx(2 ** -np.sum(share * np.log2(share)))
    assert information.experts == pytest.approx(information.responsibility @ information.per_expert)


# --------------------------------------------------------------------------------- the density


def test_density_integrates_to_one_in_one_dimension() -> None:
    data = np.random.default_rng(0).gamma(2.0, 3.0, size=(300, 1))
    mixture = SpecialistMixture(3, random_state=0).fit(data)
    mass = quad(
        lambda x: np.exp(mixture.score_samples([[x]])[0]), -300, 400, points=[0, 5, 20], limit=200
    )[0]
    assert mass == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("d", [2, 3])
def test_density_integrates_to_one_in_more_dimensions(d: int) -> None:
    random = np.random.default_rng(d)
    data = random.normal(size=(400, d)) @ random.normal(size=(d, d)) + 5 * random.integers(
        2, size=(400, 1)
    )
    mixture = SpecialistMixture(2, random_state=0).fit(data)
    # Importance sampling from a wide t, whose tails are heavier than those of the mixture.
    proposal = multivariate_t(data.mean(axis=0), 2 * np.cov(data.T), df=3, seed=0)
    points = proposal.rvs(200_000)
    ratio = np.exp(mixture.score_samples(points) - proposal.logpdf(points))
    assert ratio.mean() == pytest.approx(1.0, abs=4 * ratio.std() / np.sqrt(len(ratio)))


def test_density_is_the_mixture_of_student_t_that_scipy_computes(
    mixture: SpecialistMixture, X: np.ndarray
) -> None:
    expected = mixture.state_.marginal_log_density(X, [0, 1])
    np.testing.assert_allclose(mixture.score_samples(X), expected, atol=1e-4)


def test_samples_follow_the_density(mixture: SpecialistMixture) -> None:
    points, labels = mixture.sample(4000)
    assert points.shape == (4000, 2)
    np.testing.assert_allclose(np.bincount(labels, minlength=4) / 4000, mixture.weights_, atol=0.04)
    grid = np.linspace(-4, 4, 2001)
    for feature in range(2):
        pdf = np.exp(mixture.state_.marginal_log_density(grid[:, None], [feature]))
        cdf = np.cumsum(pdf) * (grid[1] - grid[0])
        assert kstest(points[:, feature], lambda x, c=cdf: np.interp(x, grid, c)).pvalue > 1e-3


def test_density_is_at_least_level_with_a_gaussian_mixture(X: np.ndarray) -> None:
    held_out = four_gaussians(20_000, 2)
    ours = SpecialistMixture(4, random_state=0).fit(X).score(held_out)
    assert ours > GaussianMixture(4, random_state=0).fit(X).score(held_out) - 1e-3


@pytest.mark.parametrize(("offset", "scale"), [(1e6, 1.0), (0.0, 1e-4), (-1e6, 1e4)])
def test_units_do_not_matter(X: np.ndarray, offset: float, scale: float) -> None:
    settings = {"n_experts": 4, "df_prior": 3.0, "tol": 1e-6, "random_state": 0}
    expected = SpecialistMixture(**settings).fit(X).score_samples(X) - 2 * np.log(scale)
    moved = offset + scale * X
    actual = SpecialistMixture(**settings).fit(moved).score_samples(moved)
    np.testing.assert_allclose(actual, expected, atol=0.02)


def test_features_of_very_different_units_and_tight_clusters() -> None:
    random = np.random.default_rng(0)
    data = np.vstack([random.normal(size=(300, 2)), 50 + 1e-3 * random.normal(size=(300, 2))])
    mixture = SpecialistMixture(2, random_state=0).fit(data * [1e-4, 1e4])
    tight = int(np.argmax(mixture.means_[:, 1]))
    deviations = np.sqrt(np.diagonal(mixture.covariances_[tight])) / [1e-4, 1e4]
    # The prior, which knows the wide cluster, widens the tight one a little.
    assert np.all(deviations > 0.9e-3)
    assert np.all(deviations < 0.1)
    assert np.isfinite(mixture.score_samples(data * [1e-4, 1e4])).all()


# --------------------------------------------------------------------------- scikit-learn's world


def test_weights_are_the_same_as_repetition(X: np.ndarray) -> None:
    weight = np.random.default_rng(0).integers(0, 4, size=len(X))
    weighted = SpecialistMixture(4, random_state=0).fit(X, sample_weight=weight)
    repeated = SpecialistMixture(4, random_state=0).fit(np.repeat(X, weight, axis=0))
    np.testing.assert_allclose(weighted.score_samples(X), repeated.score_samples(X), atol=1e-7)


def test_warm_start_goes_on_from_the_last_solution(X: np.ndarray) -> None:
    mixture = SpecialistMixture(4, warm_start=True, random_state=0).fit(X)
    n_iter, score = mixture.n_iter_, mixture.score(X)
    mixture.fit(X)
    assert mixture.n_iter_ < n_iter
    assert mixture.score(X) == pytest.approx(score, abs=1e-3)


def test_the_second_fit_compiles_nothing(X: np.ndarray, caplog: pytest.LogCaptureFixture) -> None:
    def compiled(n_samples: int, **settings: float) -> list[str]:
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            SpecialistMixture(3, **settings).fit(X[:n_samples])
        return [text for text in caplog.messages if text.startswith("Compiling jit(ascend)")]

    assert compiled(1000, random_state=0)
    assert not compiled(900, beta_selector=3.0, beta_expert=0.5, tol=1e-3, random_state=1)


def test_interruption_keeps_what_has_been_found_and_reaches_the_caller(
    X: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinfactory.density.search.BLOCKS_PER_CALL", 3)

    def interrupt(progress: Progress) -> None:
        if progress.step > 3:
            raise KeyboardInterrupt

    mixture = SpecialistMixture(4, tol=1e-9, random_state=0)
    with pytest.warns(UserWarning, match="what was learned"), pytest.raises(KeyboardInterrupt):
        mixture.fit(X, callbacks=interrupt)
    assert not mixture.converged_
    assert mixture.n_iter_ == 6
    assert np.isfinite(mixture.score(X))


def test_a_failed_fit_changes_nothing(mixture: SpecialistMixture, X: np.ndarray) -> None:
    fitted = SpecialistMixture(4, random_state=0).fit(X)
    with pytest.raises(ValueError, match="must be within"):
        fitted.fit(np.full((5, 3), 1e200) * np.arange(15).reshape(5, 3))
    assert fitted.n_features_in_ == 2
    np.testing.assert_array_equal(fitted.score_samples(X), mixture.score_samples(X))


@pytest.mark.parametrize("stop", [1, 2, 4, 7])
def test_a_search_that_was_stopped_anywhere_ends_as_one_that_was_not(
    X: np.ndarray, stop: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinfactory.density.search.BLOCKS_PER_CALL", 5)
    settings = {"n_experts": 8, "beta_selector": 5.0, "n_init": 2, "random_state": 0}
    seen: list[int] = []

    def interrupt(progress: Progress) -> bool:
        seen.append(progress.step)
        return len(seen) == stop

    path = tmp_path / "search.pin"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        cut = SpecialistMixture(**settings).fit(X, callbacks=interrupt, checkpoint=path)
    resumed = SpecialistMixture(**settings).fit(X, checkpoint=path)
    whole = SpecialistMixture(**settings).fit(X)
    assert cut.n_iter_ == seen[-1] < resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.score_samples(X), whole.score_samples(X))
    assert resumed.information_.selector == whole.information_.selector
    with pytest.raises(ValueError, match="data"):
        SpecialistMixture(**settings).fit(X + 1.0, checkpoint=path)


# Those that differ most from what other tests promise; the others are slow to compile.
IMPORTANT = {
    "check_estimators_nan_inf",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_get_params_invariance",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_sample_weight_equivalence_on_dense_data",
}


def checked(chosen: Callable[[str], bool]) -> list[str]:
    """Run scikit-learn's checks and return the names of those that ran."""
    ran = []
    for mixture, check in estimator_checks_generator(SpecialistMixture(3, random_state=0)):
        name = getattr(check, "func", check).__name__
        # The array API needs an environment variable that is set before SciPy is imported.
        if chosen(name) and name != "check_array_api_input":
            check(mixture)
            ran.append(name)
    return ran


@pytest.mark.usefixtures("types_unchecked")
def test_important_checks_of_scikit_learn_pass() -> None:
    assert set(checked(lambda name: name in IMPORTANT)) == IMPORTANT


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
def test_all_other_checks_of_scikit_learn_pass() -> None:
    assert len(checked(lambda name: name not in IMPORTANT)) + len(IMPORTANT) >= 41


def test_criteria_count_the_parameters_of_the_experts_that_are_asked(X: np.ndarray) -> None:
    mixture = SpecialistMixture(8, random_state=0).fit(X)
    n_parameters = 4 * (2 + 3) + 3
    log_likelihood = mixture.score_samples(X).sum()
    assert mixture.aic(X) == pytest.approx(2 * n_parameters - 2 * log_likelihood)
    assert mixture.bic(X) == pytest.approx(n_parameters * np.log(1000) - 2 * log_likelihood)


def test_labels_are_those_of_the_most_responsible(
    mixture: SpecialistMixture, X: np.ndarray
) -> None:
    np.testing.assert_array_equal(mixture.predict(X), mixture.predict_proba(X).argmax(axis=1))
    fresh = SpecialistMixture(4, random_state=0)
    np.testing.assert_array_equal(fresh.fit_predict(X), mixture.predict(X))


def test_a_file_holds_everything(mixture: SpecialistMixture, X: np.ndarray, tmp_path) -> None:
    path = tmp_path / "mixture.pin"
    mixture.save(path)
    loaded = pinfactory.load(path)
    np.testing.assert_array_equal(loaded.score_samples(X), mixture.score_samples(X))
    assert loaded.information_.selector == mixture.information_.selector
    assert loaded.get_params() == mixture.get_params()
    np.testing.assert_allclose(
        loaded.partial_fit(X).means_,
        SpecialistMixture(4, random_state=0).fit(X).partial_fit(X).means_,
    )


def test_an_unfitted_mixture_cannot_be_saved(tmp_path) -> None:
    with pytest.raises(NotFittedError):
        SpecialistMixture().save(tmp_path / "mixture.pin")
