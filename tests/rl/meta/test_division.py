"""Experts divide: what a twin inherits, and which tasks it takes over."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from pinfactory.rl.meta import MetaSpecialistAgent, ParameterFamily
from pinfactory.rl.meta._division import divide
from pinfactory.rl.meta._mind import MetaMind, Trials

TINY = {"n_tasks": 32, "n_steps": 8, "units": 16, "hidden": (8, 8)}


def experienced(points: ParameterFamily, n_experts: int, founders: int, **hyper: float) -> MetaMind:
    """Return a mind with a full memory of trials, at an iteration of a training of 100."""
    agent = MetaSpecialistAgent(points, n_experts, founders=founders, **TINY)
    rng = np.random.default_rng(0)
    n, length, features = agent.mind.trials.transitions.shape
    trials = Trials(
        jnp.asarray(rng.normal(size=(n, length, features)), jnp.float32),
        jnp.zeros(n, jnp.int32),
        jnp.zeros(n),
    )
    now: dict[str, Any] = {"last": 100.0, "iteration": 0} | hyper
    return eqx.tree_at(
        lambda m: (m.trials, m.hyper.last, m.iteration),
        agent.mind,
        (trials, jnp.asarray(now["last"]), jnp.asarray(now["iteration"], jnp.int32)),
    )


def shares(mind: MetaMind) -> np.ndarray:
    return np.asarray(eqx.filter_jit(mind.policy.select)(mind.trials.transitions).probs)


def test_experts_double_until_there_are_enough(points: ParameterFamily) -> None:
    mind = experienced(points, 6, 2)
    counts = {}
    for iteration in (0, 69, 71, 74, 76, 99):
        mind = eqx.tree_at(lambda m: m.iteration, mind, jnp.asarray(iteration, jnp.int32))
        mind = eqx.filter_jit(divide)(mind)
        counts[iteration] = int(mind.policy.hierarchy.available.sum())
    assert counts == {0: 2, 69: 2, 71: 4, 74: 4, 76: 6, 99: 6}


def test_a_twin_knows_all_that_its_parent_knows(points: ParameterFamily) -> None:
    old = experienced(points, 4, 2, iteration=71)
    new = eqx.filter_jit(divide)(old)
    for part in (
        lambda m: m.policy.hierarchy.experts,
        lambda m: m.critics,
        lambda m: m.judge.readout,
        lambda m: m.policy.priors.stages[1].family,
    ):
        arrays = (jax.tree.leaves(eqx.filter(part(mind), eqx.is_array)) for mind in (old, new))
        for before, after in zip(*arrays, strict=True):
            np.testing.assert_array_equal(after[:2], before[:2])
            np.testing.assert_array_equal(after[2:], before[:2])


def test_a_twin_takes_the_harder_half_and_strangers_keep_theirs(points: ParameterFamily) -> None:
    old = experienced(points, 4, 2, iteration=71)
    new = eqx.filter_jit(divide)(old)
    before, after = shares(old), shares(new)
    kept = (after[:, :2] + after[:, 2:]).mean(axis=0)
    np.testing.assert_allclose(kept, before[:, :2].mean(axis=0), atol=0.05)
    np.testing.assert_allclose(after[:, 2:].sum(axis=1).mean(), 0.5, atol=0.1)
    judged = np.asarray(jax.vmap(old.judge)(old.policy.transitions(old.trials.transitions)))
    worth = np.sum(before * judged, axis=1)
    assert spearmanr(after[:, 2:].sum(axis=1), worth).statistic < -0.6


def test_nobody_divides_where_all_are_founders(points: ParameterFamily) -> None:
    old = experienced(points, 4, 4, iteration=90)
    new = eqx.filter_jit(divide)(old)
    assert int(new.policy.hierarchy.available.sum()) == 4
    np.testing.assert_allclose(shares(new), shares(old), atol=1e-6)


def test_founders_are_a_positive_number(points: ParameterFamily) -> None:
    with pytest.raises(ValueError, match="`founders` must be an integer of at least 1"):
        MetaSpecialistAgent(points, 4, founders=0)
