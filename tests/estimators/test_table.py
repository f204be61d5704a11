"""Which rows replicas learn from, and by which they are judged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfactory.estimators.table import (
    Distances,
    RowBatches,
    Rows,
    Table,
    Validation,
    indicator_scales,
)


def table(n: int) -> Table:
    """Return rows that carry their own number as input and target."""
    numbers = np.arange(n)
    return Table(numbers[:, None].astype(np.float32), numbers, np.ones(n, np.float32))


@settings(deadline=None)
@given(st.integers(5, 60), st.integers(2, 5))
def test_every_row_judges_the_one_fold_that_does_not_learn_from_it(n, n_folds):
    order = np.random.default_rng(n).permutation(n)
    folds = Validation.folds(table(n), order, n_folds)
    weight = np.asarray(folds.judged.weight)
    judged = [y[w > 0] for y, w in zip(np.asarray(folds.judged.y), weight, strict=True)]
    np.testing.assert_array_equal(np.sort(np.concatenate(judged)), np.arange(n))
    for rows, others in zip(folds.learned, judged, strict=True):
        np.testing.assert_array_equal(np.sort([*rows, *others]), np.arange(n))
    *folded, unjudged = (len(rows) for rows in judged)
    assert max(folded) - min(folded) <= 1
    assert unjudged == 0
    assert folds.n_replicas == n_folds + 1


def test_all_candidates_are_judged_by_the_same_folds():
    folds = Validation.folds(table(20), np.arange(20), 4)
    together = np.asarray(folds.judged_together(3).y)
    np.testing.assert_array_equal(together, np.concatenate([np.asarray(folds.judged.y)] * 3))


@pytest.mark.parametrize(("share", "n_judged"), [(0.15, 3), (0.01, 1), (0.9, 18)])
def test_a_part_is_judged_by_and_the_rest_learned_from(share, n_judged):
    part = Validation.part(table(20), np.arange(20)[::-1], share)
    assert float(part.judged.weight.sum()) == n_judged
    np.testing.assert_array_equal(part.learned[0], np.arange(20 - n_judged))


def test_of_a_large_table_ten_thousand_rows_judge_and_all_others_are_learned_from():
    part = Validation.part(table(100_000), np.arange(100_000), 0.15)
    assert float(part.judged.weight.sum()) == 10_000
    np.testing.assert_array_equal(part.learned[0], np.arange(10_000, 100_000))


def test_rows_far_outside_are_left_out_and_no_others():
    random = np.random.default_rng(0)
    x = np.column_stack([random.uniform(-1, 1, 1000), random.random(1000) < 0.01]).astype(float)
    # The middle 95 % of the first column is (−0.95, 0.95); seven times its length beyond is ±14.25.
    x[:2, 0] = 13.5, -15.0
    rows = Rows(np.arange(1000), np.full(1000, 3.0))
    kept = Distances.find(x, rows).learned
    np.testing.assert_array_equal(kept.position, [0, *range(2, 1000)])
    np.testing.assert_array_equal(kept.weight, 3.0)


def test_what_is_learned_from_and_its_middle_are_the_same_whether_there_are_outliers():
    """Counts, whose middle ten more rows would move, and with it how far a row may be."""
    random = np.random.default_rng(0)
    for n_rows in range(300, 320):
        x = random.geometric(0.5, size=(n_rows, 3)) * random.choice([1.0, 6.0], size=(n_rows, 3))
        x[:20, 0] = np.arange(20.0) * 20
        found = []
        for n_far in (0, 10):
            far = x.mean(axis=0) + 50 * x.std(axis=0) * random.choice([-1, 1], size=(n_far, 3))
            rows = Rows(np.arange(n_rows + n_far), np.ones(n_rows + n_far))
            found.append(Distances.find(np.vstack([x, far]), rows))
        alone, beside = found
        np.testing.assert_array_equal(alone.learned.position, beside.learned.position)
        np.testing.assert_array_equal(alone.middle, beside.middle)


def test_rows_not_learned_from_are_told_apart_by_how_far_they_are():
    x = np.concatenate([np.linspace(-1, 1, 1000), [17.0, 18.0, 40.0, 1e9]])[:, None]
    # One length is 1.9: they are 8.4, 9.0, 20.5 and 5e8 lengths outside.
    distances = Distances.find(x, Rows(np.arange(1004), np.ones(1004)))
    assert distances.farther() == [7 * 1.5, 7 * 1.5**3]
    assert [len(distances.within(n).position) for n in distances.farther()] == [1002, 1003]


def test_rare_large_values_beside_many_zeros_are_learned_from():
    random = np.random.default_rng(0)
    for share in (0.02, 0.05, 0.4):
        large = random.random(20_000) < share
        x = np.where(large, random.lognormal(sigma=1.5, size=20_000), 0.0)
        found = Distances.find(x[:, None], Rows(np.arange(20_000), np.ones(20_000)))
        assert np.sum(found.lengths > 7) < 0.01 * large.sum()
        # As before, some wrong values among them are not.
        x[np.flatnonzero(large)[:20]] = 1e4
        found = Distances.find(x[:, None], Rows(np.arange(20_000), np.ones(20_000)))
        assert (found.lengths[x == 1e4] > 7).all()


def test_errors_of_rounding_are_no_range():
    random = np.random.default_rng(0)
    x = 3.0 + 1e-12 * random.normal(size=(1000, 1))
    x[:20] = 5.0
    found = Distances.find(x, Rows(np.arange(1000), np.ones(1000)))
    assert len(found.learned.position) == 1000


def test_an_epoch_holds_every_row_a_replica_learns_from_once():
    learned = [np.asarray([1, 3, 5, 7]), np.asarray([0, 2])]
    drawn = RowBatches(learned, 2)([[0, 1], [0, 2]], 0, 4)
    assert drawn.shape == (2, 4, 2)
    np.testing.assert_array_equal(np.sort(drawn[0].reshape(2, 4)), [learned[0]] * 2)
    np.testing.assert_array_equal(np.sort(drawn[1].reshape(4, 2)), [learned[1]] * 4)


def test_columns_of_two_values_have_half_their_distance_as_scale():
    rare, common = np.zeros(100), np.tile([-3.0, 5.0], 50)
    rare[7] = 1.0
    others = [np.arange(100) % 3, np.ones(100), np.where(rare > 0, 0.1 + 0.2, 0.3)]
    x = np.column_stack([rare, common, 1e308 * np.sign(common), *others])
    found = indicator_scales(x, Rows(np.arange(100), np.ones(100)))
    np.testing.assert_array_equal(found, [0.5, 4.0, 1e308, 0.0, 0.0, 0.0])
    # A value in rows that are not learned from is none.
    x[8, 3] = 9.0
    found = indicator_scales(x, Rows(np.delete(np.arange(100), np.arange(2, 100, 3)), np.ones(67)))
    assert found[3] == 0.5
