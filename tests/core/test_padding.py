import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfactory.core.padding import padded, padded_length


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
