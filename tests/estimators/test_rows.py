import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pinfactory.estimators.table import distinct, repeated, repetitions

SMALL = st.integers(-2, 2).map(float)


@st.composite
def tables(draw):
    n = draw(st.integers(1, 20))
    x = draw(hnp.arrays(np.float64, (n, 2), elements=SMALL))
    y = draw(hnp.arrays(np.float64, (n,), elements=SMALL))
    weight = draw(hnp.arrays(np.float64, (n,), elements=st.integers(0, 3).map(float)))
    return x, y, weight


def content(x, y, rows):
    return [(*x[i], y[i], w) for i, w in zip(rows.position, rows.weight, strict=True)]


@given(tables())
def test_distinct_rows_are_those_of_a_plain_count(table):
    x, y, weight = table
    count: dict[tuple, float] = {}
    for row, w in zip(np.column_stack([x, y]).tolist(), weight, strict=True):
        if w:
            count[tuple(row)] = count.get(tuple(row), 0.0) + w
    found = {tuple(row): w for *row, w in content(x, y, distinct(x, y, weight))}
    assert found == count


@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_rows_leaves_no_trace(table, random):
    x, y, weight = table
    order = list(range(len(x)))
    random.shuffle(order)
    shuffled = x[order], y[order], weight[order]
    assert content(x, y, distinct(*table)) == content(*shuffled[:2], distinct(*shuffled))


@given(tables())
def test_a_weight_is_a_number_of_repetitions(table):
    x, y, weight = table
    assume(weight.any())
    times = weight.astype(int)
    x_long, y_long = np.repeat(x, times, axis=0), np.repeat(y, times)
    repeated = distinct(x_long, y_long, np.ones(len(x_long)))
    assert content(x, y, distinct(x, y, weight)) == content(x_long, y_long, repeated)


def test_minus_zero_is_zero():
    x = np.asarray([[0.0], [-0.0]])
    assert len(distinct(x, np.zeros(2), np.ones(2)).position) == 1


def test_a_large_grid_has_no_two_rows_with_one_hash():
    grid = np.stack(np.meshgrid(*[np.arange(60.0)] * 3), -1).reshape(-1, 3)
    assert len(distinct(grid[:, :2], grid[:, 2], np.ones(len(grid))).position) == len(grid)


TWICE = np.asarray([1.0, 2.0, 1.0, 3.0])


@pytest.mark.parametrize(
    ("weight", "classes", "expected"),
    [
        (TWICE, np.zeros(4), TWICE),
        (0.3 * TWICE, np.zeros(4), TWICE),
        # Heavy cells have no row that is there once.
        ([57.0, 93.0, 30.0], np.zeros(3), [19, 31, 10]),
        # A weight of a class makes no row two.
        ([0.5, 0.5, 50.0, 100.0], np.asarray([0, 0, 1, 1]), [1, 1, 1, 2]),
        # Weights that count nothing.
        ([0.5, 0.77, 1.31], np.zeros(3), [1, 1, 1]),
        # So many that more would tell nothing.
        ([1.0, 2.0**18], np.zeros(2), [1, 2**16]),
    ],
)
def test_a_row_is_worth_as_many_as_its_weight_says(weight, classes, expected):
    np.testing.assert_array_equal(repetitions(np.asarray(weight), classes), expected)


def test_rows_that_are_equal_are_as_many_as_if_they_differed_by_nothing_that_matters():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 2, size=(5000, 4)).astype(float), random.integers(0, 2, size=5000)
    rows = repeated(x, y, np.ones(5000), classes=True)
    np.testing.assert_array_equal(rows.weight, np.ones(5000))
    cells, n = np.unique(np.column_stack([x, y]), axis=0, return_counts=True)
    found = np.column_stack([x, y])[rows.position]
    np.testing.assert_array_equal(np.unique(found, axis=0, return_counts=True)[1], n)
    # The first of them are a random sample: every cell is among them by its share.
    first = np.asarray([np.sum((found[:1000] == cell).all(axis=1)) for cell in cells])
    assert np.sum((first - n / 5) ** 2 / (n / 5)) < 80
    # In any order, and as weights instead of rows.
    order = random.permutation(5000)
    again = repeated(x[order], y[order], np.ones(5000), classes=True)
    np.testing.assert_array_equal(np.column_stack([x, y])[order][again.position], found)
    merged = repeated(cells[:, :4], cells[:, 4], n.astype(float), classes=True)
    np.testing.assert_array_equal(cells[merged.position], found)
