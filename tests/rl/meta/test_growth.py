"""Experts are split: what a child gets of its parent, and which tasks it takes over."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from pinfactory.core.hierarchy import pick
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.core.training import Callback
from pinfactory.rl.meta import MetaSpecialistAgent, ParameterFamily, learner
from pinfactory.rl.meta.growth import split_experts
from pinfactory.rl.meta.state import MetaAgentState, SelectorReplay

TINY = {
    "n_tasks": 32,
    "n_steps": 8,
    "selector_units": 16,
    "expert_hidden": (8, 8),
    "critic_hidden": (8, 8),
}
# One iteration after experts of a training of 100 iterations begin to be split.
AFTER_FIRST_SPLIT = 86
SPLIT = eqx.filter_jit(split_experts)


def at(state: MetaAgentState, iteration: int) -> MetaAgentState:
    return eqx.tree_at(lambda s: s.iteration, state, jnp.asarray(iteration, jnp.int32))


def experienced(
    points: ParameterFamily, n_experts: int, n_initial: int, **settings: Any
) -> MetaAgentState:
    """Return a state with a full replay buffer, in a training of 100 iterations."""
    agent = MetaSpecialistAgent(points, n_experts, n_initial_experts=n_initial, **TINY, **settings)
    rng = np.random.default_rng(0)
    n, length, features = agent.state_.replay.transitions.shape
    transitions = jnp.asarray(rng.normal(size=(n, length, features)), jnp.float32)
    expert = jnp.asarray(rng.integers(n_initial, size=n), jnp.int32)
    noise = jnp.asarray(rng.normal(size=n), jnp.float32)
    replay = SelectorReplay(
        transitions,
        expert,
        jnp.zeros((n, 2)),
        # Some tasks cost more than others, and the probe shows which.
        jnp.exp(noise + transitions[:, 0, 0]),
    )
    return eqx.tree_at(
        lambda s: (s.replay, s.hyper.last_iteration), agent.state_, (replay, jnp.asarray(100.0))
    )


def shares(state: MetaAgentState) -> np.ndarray:
    return np.asarray(eqx.filter_jit(state.policy.select)(state.replay.transitions).probs)


@pytest.mark.parametrize(("n_initial", "n_experts"), [(2, 6), (1, 8), (3, 3)])
def test_experts_double_after_the_growth_fraction_until_there_are_enough(
    points: ParameterFamily, n_initial: int, n_experts: int
) -> None:
    state = experienced(points, n_experts, n_initial, growth_fraction=0.5, capacity=8)
    counts = []
    for iteration in range(100):
        state = SPLIT(at(state, iteration))
        counts.append(int(state.policy.hierarchy.available.sum()))
    assert counts[:50] == [n_initial] * 50
    assert counts[-1] == n_experts
    # Experts of the last generation still have time to learn.
    assert counts[90] == n_experts
    for before, after in itertools.pairwise(counts):
        assert after in (before, min(2 * before, n_experts))


def test_a_child_is_a_copy_whose_answers_may_be_larger(points: ParameterFamily) -> None:
    old = at(experienced(points, 4, 2, child_scale=1.3), AFTER_FIRST_SPLIT)
    new = SPLIT(old)
    for part in (
        lambda s: s.policy.hierarchy.experts.network.layers[:-1],
        lambda s: s.critics,
        # Two numbers for each expert.
        lambda s: jax.tree.map(lambda w: w.reshape(4, 2, -1), s.selector_critic.readout),
        lambda s: s.policy.priors.stages[1].family,
    ):
        arrays = (jax.tree.leaves(eqx.filter(part(state), eqx.is_array)) for state in (old, new))
        for before, after in zip(*arrays, strict=True):
            np.testing.assert_array_equal(after[:2], before[:2])
            np.testing.assert_array_equal(after[2:], before[:2])
    x = jnp.asarray(np.random.default_rng(1).normal(size=1), jnp.float32)
    before, after = (
        eqx.filter_vmap(lambda e: e(x))(state.policy.hierarchy.experts) for state in (old, new)
    )
    np.testing.assert_allclose(after.mean[:2], before.mean[:2], rtol=1e-6)
    np.testing.assert_allclose(after.mean[2:], 1.3 * before.mean[:2], rtol=1e-5)
    np.testing.assert_allclose(after.scale[2:], before.scale[:2], rtol=1e-6)


def test_a_child_takes_the_costlier_half_of_its_parent_and_nothing_of_others(
    points: ParameterFamily,
) -> None:
    old = at(experienced(points, 4, 2), AFTER_FIRST_SPLIT)
    new = SPLIT(old)
    before, after = shares(old), shares(new)
    np.testing.assert_allclose(after[:, :2] + after[:, 2:], before[:, :2], atol=1e-4)
    np.testing.assert_allclose(after[:, 2:].sum(axis=1).mean(), 0.5, atol=0.1)
    costly = np.asarray(old.replay.transitions[:, 0, 0])
    assert spearmanr(after[:, 2:].sum(axis=1), costly).statistic > 0.6


class Watch(Callback):
    """Keeps the selector and the number of experts of every iteration."""

    def __init__(self) -> None:
        self.selectors: list[list[np.ndarray]] = []
        self.counts: list[int] = []

    def chunk(self, progress, run) -> None:
        hierarchy = run.state[0].policy.hierarchy
        self.selectors.append([np.asarray(leaf) for leaf in jax.tree.leaves(hierarchy.selector)])
        self.counts.append(int(hierarchy.available.sum()))


def test_the_selector_learns_until_growth_begins_and_then_changes_by_splits_alone(
    points: ParameterFamily,
) -> None:
    watch = Watch()
    MetaSpecialistAgent(points, 4, **TINY).learn(20, watch, report_every=1)
    changed = [
        any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        for before, after in itertools.pairwise(watch.selectors)
    ]
    split = [after > before for before, after in itertools.pairwise(watch.counts)]
    begins = int(0.8 * 20)
    assert all(changed[: begins - 1])
    assert changed[begins - 1 :] == split[begins - 1 :]
    assert sum(split) == 1


def test_experts_learn_from_tasks_that_the_selector_no_longer_needs(
    points: ParameterFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(
        _: Any, parts: Any, optimisers: Any, rates: Any, batches: Any, optimiser: Any
    ) -> Any:
        if isinstance(batches, tuple):  # of the experts: whose tasks, and which steps
            return parts, optimisers, batches[0].astype(float)
        return parts, optimisers, (jnp.zeros(1), jnp.zeros(1))

    monkeypatch.setattr(learner, "gradient_steps", watched)
    tasks = points.draw(np.random.default_rng(0), 2 * TINY["n_tasks"])
    step = eqx.filter_jit(lambda learner, *rest: learner.step(jax.random.key(0), *rest))
    for n_experts, iteration, share in ((4, 79, 0.0), (4, 80, 0.5), (2, 80, 0.5), (1, 0, 0.5)):
        agent = MetaSpecialistAgent(points, n_experts, capacity=4, **TINY)
        state, slots = pick(agent.prepared_run(100).state, 0)
        _, info = step(agent._learner, (at(state, iteration), slots), tasks)
        np.testing.assert_allclose(info.information[1] / BITS_PER_NAT, share, atol=1e-6)


@pytest.mark.parametrize(
    ("growth_fraction", "remaining"),
    [
        (0.8, [1.0, 0.75, 0.5, 0.25, 0.2, 0.1, 0.0]),
        # Four fifths of the way in the first half.
        (0.5, [1.0, 0.6, 0.2, 0.1, 0.08, 0.04, 0.0]),
    ],
)
def test_a_fifth_of_a_training_remains_when_growth_begins(
    points: ParameterFamily, growth_fraction: float, remaining: list[float]
) -> None:
    agent = MetaSpecialistAgent(points, growth_fraction=growth_fraction, **TINY)
    hyper = pick(agent.prepared_run(100).state, 0)[0].hyper
    found = [float(hyper.remaining(jnp.asarray(i))) for i in (0, 25, 50, 75, 80, 90, 100)]
    np.testing.assert_allclose(found, remaining, atol=1e-6)
    begins = int(100 * growth_fraction)
    growing = [bool(hyper.growing(jnp.asarray(begins + i))) for i in (-1, 0, 1)]
    assert growing == [False, True, True]


def test_none_is_split_where_all_experts_begin(points: ParameterFamily) -> None:
    old = at(experienced(points, 4, 4), 90)
    new = SPLIT(old)
    assert int(new.policy.hierarchy.available.sum()) == 4
    np.testing.assert_allclose(shares(new), shares(old), atol=1e-6)
