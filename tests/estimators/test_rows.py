import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pinfactory.estimators.table import distinct

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
