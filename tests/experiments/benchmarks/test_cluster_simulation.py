import numpy as np
import pytest

from pinfactory.experiments.benchmarks.cluster_simulation import (
    DAY,
    SLOWDOWN,
    STRAGGLERS,
    pass_seconds,
    simulate_sweep,
)


def test_without_costs_one_worker_is_never_idle():
    assert simulate_sweep(1, 50, 1.0, 0.0, np.random.default_rng(0)) == pytest.approx(1.0)


def test_a_coordinator_gives_no_more_than_its_own_pace():
    # 200 workers with tasks of one second ask 200 times a second; 20 are answered.
    efficiency = simulate_sweep(200, 20_000, 1.0, 0.05, np.random.default_rng(0))
    mean = 1.0 + STRAGGLERS * (SLOWDOWN - 1.0)
    assert efficiency == pytest.approx(mean * 20 / 200, rel=0.05)


def test_lost_work_is_done_again():
    # Workers are lost at random, once a day: work of d days takes exp(d) − 1 days in the mean.
    steady = simulate_sweep(5, 2000, 1.0, 0.0, np.random.default_rng(0))
    unsteady = simulate_sweep(5, 2000, 0.2 * DAY, 0.0, np.random.default_rng(0))
    days = np.array([0.2, 0.2 * SLOWDOWN])
    share = np.array([1.0 - STRAGGLERS, STRAGGLERS])
    assert steady > 0.95
    assert unsteady == pytest.approx(share @ days / (share @ np.expm1(days)), rel=0.15)


def test_a_pass_is_split_over_workers():
    random = np.random.default_rng(0)
    alone = np.mean([pass_seconds(1, 1e9, 1e-7, random) for _ in range(200)])
    many = np.mean([pass_seconds(1000, 1e9, 1e-7, random) for _ in range(200)])
    assert alone == pytest.approx(100.0, rel=0.05)
    assert 0.1 < many < 0.2  # the slowest of a thousand, and messages
