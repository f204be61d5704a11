"""The soak sees memory that grows, and forgives what is compiled in the beginning."""

import itertools

import pytest
from soak import Sample, early_and_late, rounds, soak


def soaked(memory):
    clock, used = itertools.count(), map(memory, itertools.count(1))
    return soak(
        itertools.repeat(lambda: None), 100, now=lambda: next(clock), memory=lambda: next(used)
    )


def test_memory_that_grows_is_seen():
    early, late = early_and_late(soaked(lambda n: 10.0 * n))
    assert late - early > 300


def test_a_warm_up_is_forgiven():
    early, late = early_and_late(soaked(lambda n: 10.0 * min(n, 30)))
    assert early == late == 300.0


def test_one_round_is_too_few():
    with pytest.raises(ValueError, match="soak for longer"):
        early_and_late([Sample(100.0, 1, 5.0)])


@pytest.mark.slow
def test_every_kind_of_round_runs():
    for work in itertools.islice(rounds(), 4):
        work()
