import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pinfactory.core.batches import Epochs, hash_rows, padded, padded_length, shuffled

SEEDS = [[0, 1], [2, 3]]


@given(n_rows=st.integers(1, 40), batch_size=st.integers(1, 50))
def test_every_epoch_holds_every_row_once(n_rows, batch_size):
    rows = Epochs(n_rows, batch_size)(SEEDS, 0, 3 * n_rows)
    assert rows.shape == (2, 3 * n_rows, batch_size)
    epochs = np.sort(rows.reshape(2, -1, n_rows), axis=2)
    assert np.all(epochs == np.arange(n_rows))


@given(
    n_rows=st.integers(1, 3000), batch_size=st.integers(1, 600), cuts=st.lists(st.integers(0, 60))
)
def test_rows_depend_on_step_and_seed_alone(n_rows, batch_size, cuts):
    whole = Epochs(n_rows, batch_size)(SEEDS, 0, 61)
    batches = Epochs(n_rows, batch_size)
    ends = [*sorted(set(cuts) - {0}), 61]
    pieces = [batches(SEEDS, a, b - a) for a, b in zip([0, *ends], ends, strict=False)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole)
    np.testing.assert_array_equal(Epochs(n_rows, batch_size)(SEEDS[1:], 60, 1), whole[1:, 60:])


def test_orders_differ_between_epochs_and_seeds():
    first, second = Epochs(50, 50)(SEEDS, 0, 2)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], second[0])


def test_all_orders_are_equally_likely():
    orders = shuffled(np.random.default_rng(0), 24_000, 4).tolist()
    counts = [orders.count(list(order)) for order in itertools.permutations(range(4))]
    assert chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("n_rows", [2**16, 2**16 + 1])
def test_long_orders_hold_every_row_and_forget_where_it_was(n_rows):
    (order,) = shuffled(np.random.default_rng(0), 1, n_rows)
    np.testing.assert_array_equal(np.sort(order), np.arange(n_rows))
    # Of independent orders the correlation has a deviation of 1/√n.
    assert abs(np.corrcoef(order, np.arange(n_rows))[0, 1]) < 4 / np.sqrt(n_rows)


@given(st.integers(1, 10**7))
def test_padding_adds_at_most_half_and_lengths_are_few(n):
    length = padded_length(n)
    assert n <= length <= max(64, 1.5 * n)
    assert padded_length(length) == length


def test_padding_keeps_the_rows_and_appends_zeros():
    rows = padded(np.ones((3, 2), np.float32), 5)
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 1]] * 3 + [[0, 0]] * 2


@pytest.mark.parametrize("n", [64, 96])
def test_rows_of_the_right_number_are_not_copied(n):
    rows = np.ones((n, 1))
    assert padded(rows, padded_length(n)) is rows


def test_rows_have_the_same_hash_exactly_if_they_are_equal():
    x = np.random.default_rng(0).integers(-3, 4, size=(500, 3)).astype(np.float32)
    x[x == 0.0] *= np.where(np.arange(np.sum(x == 0.0)) % 2, 1.0, -1.0)  # both zeros are one number
    codes = hash_rows(x.T, len(x))
    _, rows = np.unique(x + 0.0, axis=0, return_inverse=True)
    np.testing.assert_array_equal(codes[:, None] == codes, rows[:, None] == rows)
    assert not np.array_equal(codes, hash_rows(x[:, ::-1].T, len(x)))
