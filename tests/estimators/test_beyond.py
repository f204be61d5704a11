"""Rows farther out than all that experts have learned from: one line goes on from there."""

import copy
import sqlite3

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import pinfactory
from pinfactory import SpecialistRegressor
from pinfactory.estimators.beyond import Beyond
from pinfactory.estimators.table import Reach, Rows
from pinfactory.persistence import ModelFileError


@pytest.fixture(scope="module")
def bent() -> pd.DataFrame:
    """|x| with noise, another column without effect, and rows 60 deviations out that say 40."""
    random = np.random.default_rng(0)
    x, other = random.normal(size=(2, 400))
    y = np.abs(x) + random.normal(0, 0.1, 400)
    far = pd.DataFrame({"x": [60.0, 62.0, 64.0], "other": 0.0, "y": 40.0})
    return pd.concat([pd.DataFrame({"x": x, "other": other, "y": y}), far], ignore_index=True)


@pytest.fixture(scope="module")
def committee(bent):
    return SpecialistRegressor(n_experts=3, random_state=0).fit(bent[["x", "other"]], bent["y"])


def rows(*values: float) -> pd.DataFrame:
    return pd.DataFrame({"x": values, "other": np.zeros(len(values))})


def test_beyond_the_data_answers_change_as_those_of_one_line_of_all_rows(committee, bent):
    line = LinearRegression().fit(bent[["x", "other"]], bent["y"])
    answers = committee.predict(rows(-200.0, -100.0, 100.0, 200.0))
    np.testing.assert_allclose(np.diff(answers)[[0, 2]] / 100, line.coef_[0], rtol=0.01)
    # Where rows might have been learned from, but none was, they change as those of one line of
    # the rows that were.
    near = bent[bent["x"].abs() < 10]
    line.fit(near[["x", "other"]], near["y"])
    found = np.diff(committee.predict(rows(12.0, 20.0))) / 8
    np.testing.assert_allclose(found, line.coef_[0], atol=0.001)
    # Within the data every expert has a slope of its own.
    np.testing.assert_allclose(committee.predict(rows(-2.0, 2.0)), 2.0, atol=0.2)


def test_slopes_count_as_far_as_they_are_certain():
    random = np.random.default_rng(0)
    x = random.normal(size=(40_000, 3))
    noise = random.normal(size=40_000) * (1 + np.abs(x[:, 1]))
    y, weight = (x @ [1.0, 0.2, 0.0] + noise)[:, None], np.full(40_000, 7.0)
    sure, plain = (
        Beyond.fit(-np.ones(3), np.ones(3), x, y, weight, certain=c).slope[0, 0]
        for c in (True, False)
    )
    # n times the variance of a slope is E[x_j² (1 + |x₂|)²]: 2 + 2 E|x|, and 1 + 2 E|x|³ + E x⁴.
    variance = np.asarray([2 + 2 * np.sqrt(2 / np.pi), 4 + 4 * np.sqrt(2 / np.pi)]) / 40_000
    np.testing.assert_allclose((plain - sure)[:2] * plain[:2], 4 * variance, rtol=0.1)
    assert sure[2] == 0.0


@pytest.mark.parametrize("n", [5, 20])
def test_slopes_are_as_certain_with_more_columns_than_rows(n):
    random = np.random.default_rng(0)
    x, y, weight = random.normal(size=(n, 9)), random.normal(size=(n, 1)), random.uniform(size=n)
    found = Beyond.fit(-np.ones(9), np.ones(9), x, y, weight, certain=True)
    weight = weight / weight.mean()
    mean = np.average(x, axis=0, weights=weight)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    z, centre = (x - mean) / deviation, np.average(y[:, 0], weights=weight)
    inverse = np.linalg.inv((weight[:, None] * z).T @ z + np.eye(9))
    slope = (inverse @ (weight[:, None] * z).T @ (y - centre))[:, 0]
    residual = y[:, 0] - centre - z @ slope
    doubt = 4 * np.sum(weight * residual**2 * (inverse @ z.T) ** 2, axis=1)
    expected = slope * np.maximum(1 - doubt / slope**2, 0.0) / deviation
    np.testing.assert_allclose(found.slope[0, 0], expected, atol=1e-9)


def test_rows_not_learned_from_tell_of_rows_farther_than_they_are_and_of_no_others(committee, bent):
    near = bent[bent["x"].abs() < 10]
    alone = SpecialistRegressor(n_experts=3, random_state=0).fit(near[["x", "other"]], near["y"])
    # Rows at 60, 62 and 64 are 15 lengths of the middle outside, and 7 · 1.5² lengths reach to 63.
    inside, outside = rows(-50.0, 0.5, 4.0, 55.0), rows(120.0, 150.0)
    np.testing.assert_allclose(committee.predict(inside), alone.predict(inside), rtol=1e-5)
    errors = [np.abs(model.predict(outside) - 40.0).max() for model in (committee, alone)]
    assert errors[0] < 0.8 * errors[1]


def test_experts_end_where_fewer_than_ten_rows_tell_of_a_slope():
    x = np.r_[np.arange(1001) / 1000, np.arange(40.0, 52.0), 70.0][:, None]
    every = Rows(np.arange(len(x)), np.ones(len(x)))
    reach = Reach.of_experts(x, every, Reach(np.array([0.025]), np.array([6.975])))
    # Ten rows are at 43 or more. No row is below 0.
    np.testing.assert_allclose(reach, [[0.025 - 6.95], [43.0]], atol=0.002)


def test_rows_measured_wrongly_change_no_prediction_of_other_rows():
    random = np.random.default_rng(1)
    x = random.standard_t(3, size=(600, 3))
    y = x.sum(axis=1) + np.abs(x[:, 0]) + random.normal(0, 0.1, 600)
    wrong = 50.0 * random.choice([-1.0, 1.0], size=(10, 3)) * x.std(axis=0)
    x[:50, 1] = np.nan

    def samples(values: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(values, columns=["a", "b", "c"])

    model = SpecialistRegressor(n_experts=4, random_state=0)
    alone = model.fit(samples(x), y).predict(samples(x))
    model.fit(samples(np.vstack([x, wrong])), np.r_[y, np.full(10, y.mean())])
    np.testing.assert_allclose(model.predict(samples(x)), alone, atol=1e-4)


def test_a_straight_line_goes_on_however_far_a_row_is():
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 2))
    y = x @ [3.0, -1.0] + random.normal(0, 0.1, 300)
    far = np.asarray([[46.0, 0.0], [0.0, -300.0]])
    answers = SpecialistRegressor(n_experts=4, random_state=0).fit(x, y).predict(far)
    np.testing.assert_allclose(answers, [138.0, 300.0], rtol=0.02)


def test_explanations_and_queries_say_the_same_of_rows_far_away(committee):
    far = rows(-200.0, 0.5, 80.0)
    answers = committee.predict(far)
    found = committee.attributions(far)
    np.testing.assert_allclose(found.base_values + found.values.sum(axis=1), answers, rtol=1e-4)
    with sqlite3.connect(":memory:") as connection:
        far.to_sql("far", connection, index=False)
        told = pd.read_sql_query(committee.to_sql("far"), connection)
    np.testing.assert_allclose(told["prediction"], answers, rtol=1e-4)


def test_a_file_knows_how_answers_go_on(committee, tmp_path):
    committee.save(tmp_path / "far.pin")
    far = rows(-200.0, 80.0)
    read = pinfactory.load(tmp_path / "far.pin")
    np.testing.assert_array_equal(read.predict(far), committee.predict(far))


@pytest.mark.parametrize(
    "known",
    [
        (np.zeros((1, 2)), np.ones((1, 2))),
        (np.zeros((1, 2)), -np.ones((1, 2)), np.zeros((1, 1, 2))),
        (np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 1, 2))),
        (np.zeros(2), np.ones(2), np.zeros((1, 2))),
        "a",
        3.0,
    ],
)
def test_a_file_with_ends_that_cannot_be_is_refused(committee, tmp_path, known):
    strange = copy.copy(committee)
    strange._beyond = known
    strange.save(tmp_path / "strange.pin")
    with pytest.raises(ModelFileError):
        pinfactory.load(tmp_path / "strange.pin")


def test_what_was_learned_on_line_goes_on_by_itself(bent):
    near = bent[bent["x"].abs() < 10].to_numpy()
    model = SpecialistRegressor(n_experts=1, expert="linear", random_state=0)
    model.fit(near[:, :2], near[:, 2]).partial_fit(near[:, :2], near[:, 2])
    slopes = np.diff(model.predict(np.asarray([[-1.0, 0.0], [0.0, 0.0], [1e3, 0.0]]))) / [1, 1e3]
    np.testing.assert_allclose(*slopes, atol=1e-4)
