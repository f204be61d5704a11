"""`SpecialistMixture` on awkward data and with senseless settings."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import load_wine

from pinfactory.estimators import SpecialistMixture


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(200, 2))


@pytest.mark.parametrize(
    "data",
    [
        np.full((20, 2), 3.0),
        np.repeat([[0.0, 1.0], [2.0, 3.0]], 50, axis=0),
        np.column_stack([np.arange(50.0), 2 * np.arange(50.0)]),
        np.column_stack([np.arange(50.0), np.full(50, 1e6)]),
        np.arange(30.0)[:, None],
        np.array([[0.0, 0.0], [1.0, 1.0]]),
        np.vstack([np.random.default_rng(0).normal(size=(500, 2)), [[1e6, -1e6]]]),
        np.vstack(
            [np.random.default_rng(0).normal(size=(500, 2)), [[1e6, 0], [-1e6, 3], [0, 1e6]]]
        ),
        np.random.default_rng(0).normal(size=(10, 30)),
        1e-300 * np.random.default_rng(0).normal(size=(50, 2)),
    ],
    ids=[
        "one point",
        "two points",
        "collinear",
        "constant feature",
        "one feature",
        "two rows",
        "outlier",
        "outliers",
        "more features than rows",
        "tiny",
    ],
)
def test_awkward_data_have_a_sane_density(data: np.ndarray) -> None:
    mixture = SpecialistMixture(4, random_state=0).fit(data)
    for value in (mixture.means_, mixture.covariances_, mixture.weights_, mixture.lower_bound_):
        assert np.isfinite(value).all()
    assert np.isfinite(mixture.score_samples(data)).all()
    # Far away, where even squares are infinite.
    assert not np.isnan(mixture.score_samples(data + 1e200)).any()
    np.testing.assert_allclose(mixture.predict_proba(data).sum(axis=1), 1.0)
    assert np.isfinite(mixture.sample(10)[0]).all()


def test_an_outlier_does_not_spoil_the_density_of_the_rest() -> None:
    random = np.random.default_rng(0)
    clean, held_out = random.normal(size=(500, 2)), random.normal(size=(500, 2))
    mixture = SpecialistMixture(4, random_state=0).fit(np.vstack([clean, [[1e6, -1e6]]]))
    assert mixture.score(held_out) > multivariate_normal(np.zeros(2)).logpdf(held_out).mean() - 0.5


@pytest.fixture(scope="module")
def squares() -> np.ndarray:
    """Four clusters at the corners of a square."""
    random = np.random.default_rng(0)
    return random.normal(size=(300, 2)) + 6 * random.integers(0, 2, size=(300, 2))


def assert_possible(mixture: SpecialistMixture, X: np.ndarray) -> None:
    """Check what holds for every mixture: information within its bounds, everything finite."""
    information, probs = mixture.information_, mixture.responsibilities(X)
    assert 0.0 <= information.selector <= np.log2(mixture.n_experts)
    assert (information.per_expert >= 0.0).all()
    assert np.isfinite([information.selector, information.experts, mixture.lower_bound_]).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-12)
    assert ((probs >= 0.0) & (probs <= 1.0)).all()
    assert np.isfinite(mixture.score_samples(X)).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("beta", [1e-6, 1e-3, 1e3, 1e6, 1e30])
@pytest.mark.parametrize("name", ["beta_selector", "beta_expert"])
def test_extreme_resources_give_possible_numbers(
    squares: np.ndarray, name: str, beta: float
) -> None:
    assert_possible(SpecialistMixture(4, random_state=0, **{name: beta}).fit(squares), squares)


@pytest.mark.parametrize("beta", [20.0, 1e3, 1e6, 1e12])
def test_a_hard_partition_of_equal_clusters_takes_the_entropy_of_their_shares(
    squares: np.ndarray, beta: float
) -> None:
    mixture = SpecialistMixture(4, beta_selector=beta, random_state=0).fit(squares)
    shares = np.bincount(mixture.predict(squares), minlength=4) / len(squares)
    entropy = -np.sum(shares * np.log2(shares))
    assert mixture.information_.selector == pytest.approx(entropy, abs=1e-3)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_possible_numbers_in_any_units(squares: np.ndarray, scale: float) -> None:
    assert_possible(SpecialistMixture(4, random_state=0).fit(scale * squares), scale * squares)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("spread", [0.0, 20.0, 300.0])
@pytest.mark.parametrize("size", [-300.0, 0.0, 18.0, 307.0])
def test_extreme_sample_weights_give_possible_numbers(
    squares: np.ndarray, size: float, spread: float
) -> None:
    exponent = size + np.random.default_rng(0).uniform(-spread, spread, len(squares))
    weight = 10.0 ** np.clip(exponent, -307, 307)
    mixture = SpecialistMixture(4, random_state=0).fit(squares, sample_weight=weight)
    assert_possible(mixture, squares)


def test_large_equal_weights_are_as_good_as_any_large_number_of_samples(
    squares: np.ndarray,
) -> None:
    one, other = (
        SpecialistMixture(4, random_state=0).fit(squares, sample_weight=np.full(300, w))
        for w in (1e9, 1e30)
    )
    np.testing.assert_allclose(other.score_samples(squares), one.score_samples(squares), atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_experts_are_found_in_any_units_and_order(seed: int) -> None:
    X, random = load_wine().data, np.random.default_rng(seed)
    scale, shift = 10.0 ** random.uniform(-8, 8, X.shape[1]), random.normal(size=X.shape[1])
    order = random.permutation(len(X))
    mixture = SpecialistMixture(6, random_state=0).fit(X)
    other = SpecialistMixture(6, random_state=0).fit((scale * (X + shift))[order])
    np.testing.assert_allclose(
        other.score_samples(scale * (X + shift)) + np.log(scale).sum(),
        mixture.score_samples(X),
        rtol=1e-4,
    )
    np.testing.assert_allclose(other.weights_, mixture.weights_, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(X: np.ndarray, bad: float) -> None:
    broken = X.copy()
    broken[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        SpecialistMixture().fit(broken)


def test_values_whose_squares_overflow_are_refused(X: np.ndarray) -> None:
    with pytest.raises(ValueError, match="must be within"):
        SpecialistMixture().fit(1e200 * X)


def test_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="minimum of 2"):
        SpecialistMixture().fit([[1.0, 2.0]])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"n_experts": 0}, "n_experts"),
        ({"beta_selector": 0.0}, "beta_selector"),
        ({"beta_expert": -1.0}, "beta_expert"),
        ({"df_prior": 1.0}, "df_prior"),
        ({"strength_prior": 0.0}, "strength_prior"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"n_init": 0}, "n_init"),
    ],
)
def test_senseless_settings_are_refused(X: np.ndarray, setting: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"`{message}` must be"):
        SpecialistMixture(**setting).fit(X)


def test_a_table_gives_the_same_as_its_values() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(300, 2)) + 5 * random.integers(2, size=(300, 1))
    table = pd.DataFrame(values, columns=["height", "weight"])
    weight = pd.Series(random.integers(1, 3, size=300))
    settings = {"n_experts": 4, "warm_start": True, "random_state": 0}
    expected = SpecialistMixture(**settings).fit(values, sample_weight=weight.to_numpy())
    mixture = SpecialistMixture(**settings).fit(table, sample_weight=weight)
    np.testing.assert_array_equal(mixture.score_samples(table), expected.score_samples(values))
    assert list(mixture.feature_names_in_) == ["height", "weight"]
    np.testing.assert_array_equal(mixture.fit(table).means_, expected.fit(values).means_)
    np.testing.assert_array_equal(
        mixture.partial_fit(table).means_, expected.partial_fit(values).means_
    )
    with pytest.raises(ValueError, match="feature names"):
        mixture.predict(table[["weight", "height"]])
