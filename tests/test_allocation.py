"""A limit on the size of what is built."""

import pytest

from pinfactory.allocation import SMALLEST, AllocationError, limited, reserve


def test_sizes_add_up_to_the_limit_and_not_beyond():
    with limited(100):
        reserve(6, 10)
        reserve(40)
        with pytest.raises(AllocationError, match=r"\(1,\)"):
            reserve(1)


def test_small_arrays_and_impossible_shapes_count_for_something():
    with limited(2 * SMALLEST):
        reserve(0, 10)
        reserve(-5, 1000)
        with pytest.raises(AllocationError):
            reserve()


def test_without_a_limit_nothing_is_counted_and_limits_nest():
    reserve(10**30)
    with limited(1000):
        with limited(50), pytest.raises(AllocationError):
            reserve(60)
        reserve(1000)
    reserve(10**30)
