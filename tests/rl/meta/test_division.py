"""Experts divide: what a twin inherits, and which tasks it takes over."""

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
from pinfactory.rl.meta import MetaSpecialistAgent, ParameterFamily, _learner
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
        jnp.asarray(rng.integers(founders, size=n), jnp.int32),
        jnp.zeros(n),
        jnp.exp(jnp.asarray(rng.normal(size=n), jnp.float32)),
    )
    # Some tasks cost more than others, and the probe shows which.
    trials = eqx.tree_at(
        lambda t: t.cost, trials, trials.cost * jnp.exp(trials.transitions[:, 0, 0])
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
    for iteration in (0, 84, 86, 89, 91, 99):
        mind = eqx.tree_at(lambda m: m.iteration, mind, jnp.asarray(iteration, jnp.int32))
        mind = eqx.filter_jit(divide)(mind)
        counts[iteration] = int(mind.policy.hierarchy.available.sum())
    assert counts == {0: 2, 84: 2, 86: 4, 89: 4, 91: 6, 99: 6}


def test_a_twin_knows_all_that_its_parent_knows_and_may_answer_more_strongly(
    points: ParameterFamily,
) -> None:
    old = experienced(points, 4, 2, iteration=86)
    old = eqx.tree_at(lambda m: m.hyper.vigour, old, jnp.asarray(1.3, jnp.float32))
    new = eqx.filter_jit(divide)(old)
    for part in (
        lambda m: m.policy.hierarchy.experts.network.layers[:-1],
        lambda m: m.critics,
        lambda m: m.judge.readout,
        lambda m: m.policy.priors.stages[1].family,
    ):
        arrays = (jax.tree.leaves(eqx.filter(part(mind), eqx.is_array)) for mind in (old, new))
        for before, after in zip(*arrays, strict=True):
            np.testing.assert_array_equal(after[:2], before[:2])
            np.testing.assert_array_equal(after[2:], before[:2])
    x = jnp.asarray(np.random.default_rng(1).normal(size=1), jnp.float32)
    before, after = (
        eqx.filter_vmap(lambda e: e(x))(mind.policy.hierarchy.experts) for mind in (old, new)
    )
    np.testing.assert_allclose(after.mean[:2], before.mean[:2], rtol=1e-6)
    np.testing.assert_allclose(after.mean[2:], 1.3 * before.mean[:2], rtol=1e-5)
    np.testing.assert_allclose(after.scale[2:], before.scale[:2], rtol=1e-6)


def test_a_twin_takes_the_costlier_half_and_strangers_keep_theirs(points: ParameterFamily) -> None:
    old = experienced(points, 4, 2, iteration=86)
    new = eqx.filter_jit(divide)(old)
    before, after = shares(old), shares(new)
    np.testing.assert_allclose(after[:, :2] + after[:, 2:], before[:, :2], atol=1e-4)
    np.testing.assert_allclose(after[:, 2:].sum(axis=1).mean(), 0.5, atol=0.1)
    costly = np.asarray(old.trials.transitions[:, 0, 0])
    assert spearmanr(after[:, 2:].sum(axis=1), costly).statistic > 0.6


class Watch(Callback):
    """Keeps the selector of every iteration."""

    def __init__(self) -> None:
        self.seen: list[list[np.ndarray]] = []

    def chunk(self, progress, run) -> None:
        selector = run.state[0].policy.hierarchy.selector
        self.seen.append([np.asarray(leaf) for leaf in jax.tree.leaves(selector)])


def test_the_selector_learns_in_childhood(points: ParameterFamily) -> None:
    watch = Watch()
    agent = MetaSpecialistAgent(points, 4, **TINY)
    agent.learn(20, watch, report_every=1)

    def moved(i: int) -> bool:
        pairs = zip(watch.seen[i - 1], watch.seen[i], strict=True)
        return any(not np.array_equal(before, after) for before, after in pairs)

    # Counted from zero, the last fifth begins in iteration 16; experts divide in iteration 17, and
    # twins get their shares.
    assert [moved(i) for i in range(1, 20)] == [True] * 15 + [False, True, False, False]


def test_experts_learn_from_tasks_that_the_selector_no_longer_needs(
    points: ParameterFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(_: Any, parts: Any, optimisers: Any, rates: Any, batches: Any) -> Any:
        from_selector = batches[0] if isinstance(batches, tuple) else jnp.zeros(1)
        return parts, optimisers, from_selector.astype(float)

    monkeypatch.setattr(_learner, "descend", watched)
    tasks = points.draw(np.random.default_rng(0), 2 * TINY["n_tasks"])
    step = eqx.filter_jit(lambda learner, *rest: learner.step(jax.random.key(0), *rest))
    for n_experts, iteration, share in ((4, 79, 0.0), (4, 80, 0.5), (2, 80, 0.5), (1, 0, 0.5)):
        agent = MetaSpecialistAgent(points, n_experts, capacity=4, **TINY)
        mind, places = pick(agent._prepared(100).state, 0)
        mind = eqx.tree_at(lambda m: m.iteration, mind, jnp.asarray(iteration, jnp.int32))
        _, info = step(agent._learner(points.env), (mind, places), tasks)
        np.testing.assert_allclose(info.information[1] / BITS_PER_NAT, share, atol=1e-6)


@pytest.mark.parametrize(
    ("childhood", "left"),
    [
        (0.8, [1.0, 0.75, 0.5, 0.25, 0.2, 0.1, 0.0]),
        # Four fifths of the way in the first half.
        (0.5, [1.0, 0.6, 0.2, 0.1, 0.08, 0.04, 0.0]),
    ],
)
def test_a_training_has_a_fifth_of_its_way_to_go_when_childhood_ends(
    points: ParameterFamily, childhood: float, left: list[float]
) -> None:
    run = MetaSpecialistAgent(points, childhood=childhood, **TINY)._prepared(100)
    hyper = pick(run.state, 0)[0].hyper
    found = [float(hyper.left(jnp.asarray(i))) for i in (0, 25, 50, 75, 80, 90, 100)]
    np.testing.assert_allclose(found, left, atol=1e-6)
    grown = [bool(hyper.grown_up(jnp.asarray(int(100 * childhood) + i))) for i in (-1, 0, 1)]
    assert grown == [False, True, True]


def test_nobody_divides_where_all_are_founders(points: ParameterFamily) -> None:
    old = experienced(points, 4, 4, iteration=90)
    new = eqx.filter_jit(divide)(old)
    assert int(new.policy.hierarchy.available.sum()) == 4
    np.testing.assert_allclose(shares(new), shares(old), atol=1e-6)


def test_founders_are_a_positive_number(points: ParameterFamily) -> None:
    with pytest.raises(ValueError, match="`founders` must be an integer of at least 1"):
        MetaSpecialistAgent(points, 4, founders=0)
