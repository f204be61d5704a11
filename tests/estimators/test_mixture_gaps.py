"""`SpecialistMixture` on data frames with categories, dates and missing values."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.stats import multivariate_normal

from pinfactory import SpecialistMixture, load
from pinfactory.plotting import DensityDisplay, PartitionDisplay


def clusters(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    which = random.integers(0, 2, n)
    noise = random.normal(size=(n, 3)) @ [[1.0, 0.8, 0.2], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]
    return noise + 8.0 * which[:, None] * [1.0, -1.0, 0.5], which


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    x, _ = clusters()
    gone = np.random.default_rng(1).random(x.shape) < 0.25
    return pd.DataFrame(np.where(gone, np.nan, x), columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def mixture(table) -> SpecialistMixture:
    return SpecialistMixture(4, random_state=0).fit(table)


def test_clusters_are_found_in_spite_of_gaps(table, mixture):
    _, which = clusters()
    used = mixture.weights_ > 0
    assert used.sum() == 2
    truth = np.array([[0.0, 0.0, 0.0], [8.0, -8.0, 4.0]])
    found = mixture.means_[used][np.argsort(mixture.means_[used][:, 0])]
    np.testing.assert_allclose(found, truth, atol=0.25)
    covariance = np.array([[1.0, 0.8, 0.2], [0.8, 1.64, 0.66], [0.2, 0.66, 1.29]])
    for matrix in mixture.covariances_[used]:
        np.testing.assert_allclose(matrix, covariance, atol=0.35)
    known = table.notna().any(axis=1).to_numpy()
    labels = mixture.predict(table)[known]
    agree = (labels == labels[0]) == (which[known] == which[known][0])
    assert agree.mean() > 0.95


def test_the_density_of_what_is_known_is_the_integral_over_the_rest(mixture):
    grid = np.linspace(-60.0, 60.0, 6001)
    rows = pd.DataFrame({"a": 0.4, "b": grid, "c": -0.3})
    integral = np.trapezoid(np.exp(mixture.score_samples(rows)), grid)
    gap = pd.DataFrame({"a": [0.4], "b": [np.nan], "c": [-0.3]})
    assert mixture.score_samples(gap)[0] == pytest.approx(np.log(integral), abs=1e-3)


def test_responsibilities_are_those_of_the_marginal_gaussians(mixture):
    rows = np.array([[4.0, np.nan, np.nan], [np.nan, -4.1, 2.2], [3.5, -4.0, np.nan]])
    told = mixture.responsibilities(pd.DataFrame(rows, columns=["a", "b", "c"]))
    used = np.flatnonzero(mixture.weights_)
    for row, shares in zip(rows, told, strict=True):
        o = np.flatnonzero(~np.isnan(row))
        density = [
            mixture.weights_[m]
            * multivariate_normal(mixture.means_[m][o], mixture.covariances_[m][np.ix_(o, o)]).pdf(
                row[o]
            )
            for m in used
        ]
        np.testing.assert_allclose(shares[used], density / np.sum(density), atol=0.03)


def test_a_row_of_nothing_is_as_likely_as_any(mixture):
    nothing = pd.DataFrame({name: [np.nan] for name in "abc"})
    assert mixture.score_samples(nothing)[0] == pytest.approx(0.0, abs=1e-9)
    assert mixture.surprise(nothing)[0] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(mixture.responsibilities(nothing)[0], mixture.weights_, rtol=1e-6)


def test_values_that_are_missing_for_a_reason_are_expected_from_the_others():
    """Where b is known only of small a, the rows in which all is known are no fair sample."""
    random = np.random.default_rng(0)
    a = random.normal(size=3000)
    b = 2.0 * a + 0.5 * random.normal(size=3000)
    frame = pd.DataFrame({"a": a, "b": np.where(a > 0.0, np.nan, b)})
    one = SpecialistMixture(1, random_state=0).fit(frame)
    only_complete = SpecialistMixture(1, random_state=0).fit(frame.dropna())
    assert abs(one.means_[0, 1]) < 0.2
    assert only_complete.means_[0, 1] < -1.0
    np.testing.assert_allclose(one.covariances_[0], np.cov(a, b), rtol=0.15)


def test_outliers_are_found_among_rows_with_gaps(table, mixture):
    strange = table.copy()
    strange.loc[len(strange)] = [0.0, np.nan, 9.0]
    surprise = mixture.surprise(strange)
    assert surprise.argmax() == len(strange) - 1
    assert abs(np.median(surprise)) < 1.0


def test_frames_of_any_library_with_categories_and_dates(tmp_path):
    random, n = np.random.default_rng(0), 300
    kind = random.choice(["x", "y", "z"], n)
    frame = pd.DataFrame(
        {
            "size": random.normal(size=n) + 6.0 * (kind == "z"),
            "kind": kind,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 600, n), "D"),
            "new": random.random(n) < 0.5,
        }
    )
    frame.loc[::7, "kind"], frame.loc[::9, "size"] = None, np.nan
    mixture = SpecialistMixture(2, random_state=0).fit(frame)
    told = {row[0]: row[2] for row in mixture.encoding_.table()}
    assert "missing: integrated out" in told["kind"]
    assert "missing: integrated out" in told["size"]
    assert mixture.means_.shape == (2, len(mixture.encoding_.features))
    assert list(mixture.feature_names_in_) == ["size", "kind", "day", "new"]
    expected = mixture.score_samples(frame)
    assert np.isfinite(expected).all()
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame), frame[frame.columns[::-1]]):
        np.testing.assert_allclose(mixture.score_samples(other), expected)
    mixture.save(tmp_path / "mixture.pin")
    again = load(tmp_path / "mixture.pin")
    np.testing.assert_allclose(again.score_samples(frame), expected)
    with pytest.raises(ValueError, match="columns size, kind, day, new"):
        mixture.score_samples(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="lacks 'kind'"):
        mixture.score_samples(frame.drop(columns="kind"))
    with pytest.warns(UserWarning, match="taken as missing: 'w' in column 'kind'"):
        new = mixture.score_samples(frame[:1].assign(kind="w"))
    np.testing.assert_allclose(new, mixture.score_samples(frame[:1].assign(kind=None)))
    assert np.isfinite(DensityDisplay.from_estimator(mixture, frame).density).all()
    display = PartitionDisplay.from_estimator(mixture, frame, features=["size", "kind"])
    assert np.isfinite(display.responsibilities).all()
    plt.close("all")


def test_batches_may_have_gaps_if_the_first_has(table):
    mixture = SpecialistMixture(3, random_state=0)
    for start in range(0, 1500, 500):
        mixture.partial_fit(table[start : start + 500])
    assert mixture.score(table) > SpecialistMixture(1).fit(table).score(table)
    whole = SpecialistMixture(3, random_state=0).partial_fit(table.dropna())
    with pytest.raises(ValueError, match="no missing values if the first ones had none"):
        whole.partial_fit(table)
