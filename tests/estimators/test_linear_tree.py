"""Linear model trees against least squares, logistic regression and divisions that are known."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import BayesianRidge, LogisticRegression

from pinfactory.estimators import linear_tree
from pinfactory.estimators.splits import grow
from pinfactory.estimators.table import Table


def rows(x, y, weight=None):
    weight = np.ones(len(x)) if weight is None else weight
    return Table(x.astype(np.float32), y, weight.astype(np.float32))


def line(n, noise=0.1, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 3))
    return x, (x @ [1.0, -0.5, 0.0] + 0.2 + noise * random.normal(size=n))[:, None]


def bend(n, seed=0):
    """Two planes that meet at x₀ = 0.3, told apart by nothing else."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, size=(n, 3))
    slope = np.where(x[:, :1] > 0.3, [[2.0, 1.0, 0.0]], [[-1.0, 0.0, 1.0]])
    return x, (np.sum(slope * x, axis=1) + 0.05 * random.normal(size=n))[:, None]


def test_where_one_line_is_enough_one_leaf_remains_and_is_least_squares():
    x, y = line(400)
    tree = grow(rows(x, y), 8)
    assert tree.n_leaves == 1
    design = np.column_stack([x, np.ones(400)])
    expected, (rss,), *_ = np.linalg.lstsq(design, y)
    np.testing.assert_allclose(tree.root.coefficients, expected, atol=2e-3)
    assert np.exp(tree.root.log_scale[0]) == pytest.approx(np.sqrt(rss / 396), rel=0.01)


@pytest.mark.parametrize("spread", [0.05, 0.17])
def test_one_line_is_shrunk_as_far_as_evidence_says(spread):
    random = np.random.default_rng(0)
    x, direction = random.normal(size=(400, 20)), random.normal(size=20)
    weights = spread * np.sqrt(20) * direction / np.linalg.norm(direction)
    y = x @ weights + random.normal(size=400)
    # Climbs the evidence in both noise and spread (MacKay 1992).
    expected = BayesianRidge(fit_intercept=False, tol=1e-8).fit(x, y).coef_
    found = grow(rows(x, y[:, None]), 1).root.coefficients[:-1, 0]
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=0.1)


@pytest.mark.parametrize("n_classes", [None, 2])
def test_more_columns_than_rows_are_fitted_as_beside_rows_that_say_nothing(n_classes):
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(30, 60)), np.ones(30)
    y = x[:, :1] + 0.1 * random.normal(size=(30, 1))
    y = y if n_classes is None else (y[:, 0] > 0).astype(int)
    # A weight of nothing: as many rows as columns, whose Gram matrix is that of the columns.
    more = (
        np.concatenate([x, np.ones((40, 60))]),
        np.concatenate([y, np.zeros_like(y[:1]).repeat(40, 0)]),
    )
    few, many = (
        grow(rows(*data), 1, n_classes=n_classes).root
        for data in ((x, y, weight), (*more, np.r_[weight, np.full(40, 1e-30)]))
    )
    np.testing.assert_allclose(few.coefficients, many.coefficients, atol=1e-5)
    np.testing.assert_allclose(few.log_scale, many.log_scale, atol=1e-5)


def test_a_leaf_has_ten_rows_whatever_they_weigh():
    x, y = line(200)
    y[x[:, 0] > 1.5] += 5.0
    few = x[:, 0] > np.sort(x[:, 0])[-6]
    y[few] += 20.0
    tree = grow(rows(x, y, np.where(few, 50.0, 1.0)), 8)
    assert tree.n_leaves > 1
    assert np.bincount(tree.assign(x, tree.n_leaves)).min() >= 10


@pytest.mark.parametrize("oblique", [False, True])
def test_a_bend_is_found_with_both_of_its_planes(oblique):
    tree = grow(rows(*bend(600)), 2, oblique=oblique)
    (split,) = tree.splits
    # An oblique split would be no better, and its weights cost something.
    np.testing.assert_array_equal(split.direction, [1.0, 0.0, 0.0])
    # Cuts are tried at the quantiles, a sixteenth of the range apart.
    assert split.cut == pytest.approx(0.3, abs=1 / 16)
    np.testing.assert_allclose(split.above.coefficients[:-1, 0], [2.0, 1.0, 0.0], atol=0.3)
    np.testing.assert_allclose(split.below.coefficients[:-1, 0], [-1.0, 0.0, 1.0], atol=0.1)


@pytest.mark.parametrize("n_classes", [None, 2])
def test_a_bend_along_no_axis_is_found_by_an_oblique_split(n_classes):
    random = np.random.default_rng(0)
    x, direction = random.normal(size=(2000, 4)), np.array([0.8, -0.6, 0.0, 0.0])
    height = 3.0 * np.abs(x @ direction - 0.2)
    y = (height + 0.2 * random.normal(size=2000))[:, None]
    if n_classes:
        y = (height > 2.0 + random.logistic(size=2000) / 3).astype(int)
    (split,) = grow(rows(x, y), 2, n_classes=n_classes, oblique=True).splits
    along = split.direction @ direction
    assert abs(along) > 0.99
    # Classes are told apart by any cut between the two edges, at 0.2 ± 2/3.
    assert split.cut / along == pytest.approx(0.2, abs=2 / 3 if n_classes else 0.1)


def test_likelihoods_are_those_of_the_leaf_that_a_row_belongs_to():
    x, y = bend(300)
    table = rows(x, y)
    tree = grow(table, 4)
    assert tree.n_leaves > 1
    assigned, leaves = tree.assign(table.x, tree.n_leaves), tree.leaves(tree.n_leaves)
    design = np.column_stack([table.x, np.ones(300)])
    mean = [design[n] @ leaves[leaf].coefficients[:, 0] for n, leaf in enumerate(assigned)]
    deviation = [np.exp(leaves[leaf].log_scale[0]) for leaf in assigned]
    expected = norm.logpdf(y[:, 0], mean, deviation)
    np.testing.assert_allclose(tree.log_likelihoods(table)[:, -1], expected, atol=1e-6)


def test_smaller_trees_are_the_beginnings_of_larger_ones():
    table = rows(*bend(300))
    large, small = grow(table, 4), grow(table, 2)
    for mine, other in zip(small.leaves(2), large.leaves(2), strict=True):
        np.testing.assert_allclose(mine.coefficients, other.coefficients)


@pytest.mark.parametrize("n_classes", [None, 2])
def test_rows_that_are_read_part_by_part_give_the_same_tree(n_classes, monkeypatch):
    x, y = bend(400)
    table = rows(x, y if n_classes is None else (y[:, 0] > 0.0).astype(int))
    chosen = np.arange(0, 400, 2)
    whole = grow(table.take(chosen), 3, n_classes=n_classes)
    monkeypatch.setattr(linear_tree, "PART", 30)
    found = grow(table, 3, rows=chosen, n_classes=n_classes)
    assert whole.n_leaves == found.n_leaves > 1
    for mine, other in zip(whole.leaves(3), found.leaves(3), strict=True):
        np.testing.assert_allclose(mine.coefficients, other.coefficients, atol=1e-3)


def test_weights_are_repetitions():
    x, y = bend(200)
    times = np.random.default_rng(0).integers(1, 4, 200)
    weighted = grow(rows(x, y, times), 3)
    repeated = grow(rows(np.repeat(x, times, axis=0), np.repeat(y, times, axis=0)), 3)
    np.testing.assert_array_equal(weighted.splits[0].direction, repeated.splits[0].direction)
    for mine, other in zip(weighted.leaves(2), repeated.leaves(2), strict=True):
        np.testing.assert_allclose(mine.coefficients, other.coefficients, atol=1e-3)


def test_the_logistic_regression_of_one_leaf_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    x = random.normal(size=(2000, 2))
    y = (random.random(2000) < 1 / (1 + np.exp(-2 * x[:, 0] + x[:, 1] - 0.5))).astype(np.int32)
    tree = grow(rows(x, y), 4, n_classes=2)
    assert tree.n_leaves == 1
    other = LogisticRegression(C=np.inf).fit(x, y)
    odds = np.diff(tree.root.coefficients, axis=1)[:, 0]
    np.testing.assert_allclose(odds, [*other.coef_[0], *other.intercept_], rtol=0.03)


def test_classes_that_no_line_separates_are_divided():
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, size=(800, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    tree = grow(rows(x, y), 4, n_classes=2)
    assert tree.log_likelihoods(rows(x, y))[:, -1].mean() > -0.25
    assert tree.log_likelihoods(rows(x, y))[:, 0].mean() < -0.6


def test_constant_leaves_are_means():
    x, y = bend(300)
    table = rows(x, y)
    tree = grow(table, 3, linear=False)
    assert tree.n_leaves == 3
    assigned = tree.assign(table.x, 3)
    for number, leaf in enumerate(tree.leaves(3)):
        np.testing.assert_allclose(leaf.coefficients[:-1], 0.0)
        assert leaf.coefficients[-1, 0] == pytest.approx(y[assigned == number].mean(), abs=1e-6)


def test_no_leaf_is_surer_than_the_floor():
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 2))
    y = np.where(x[:, 0] > 0, 1.0, random.normal(size=500))[:, None]
    tree = grow(rows(x, y), 4, log_floor=np.log(0.2))
    assert min(leaf.log_scale[0] for leaf in tree.leaves(tree.n_leaves)) == pytest.approx(
        np.log(0.2)
    )
