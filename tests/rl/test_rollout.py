import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy
from pinfactory.rl import envs
from pinfactory.rl.actions import DiscreteActions
from pinfactory.rl.evaluate import play_episodes
from pinfactory.rl.normalise import Moments
from pinfactory.rl.policy import Policy, PolicyState
from pinfactory.rl.rollout import (
    EpisodeStatistics,
    RolloutState,
    report_missing,
    rollout,
    stagger,
    uniforms,
)

N, T = 3, 40


class Table(eqx.Module):
    """Logits that do not depend on the input."""

    logits: jax.Array

    def __call__(self, x: jax.Array, *, key: object = None) -> jax.Array:
        return self.logits


def policy(selector: list[float], experts: list[list[float]], hold: int = 1) -> Policy:
    """Return a policy with fixed probabilities, in CartPole."""
    answers = FamilyExpert(Table(jnp.array(experts)), DiscreteActions(2))
    hierarchy = Hierarchy(Table(jnp.array(selector)), answers, jnp.ones(len(selector), bool))
    return Policy(hierarchy, Moments.start(4), jnp.asarray(hold, jnp.int32), DiscreteActions(2))


@eqx.filter_jit
def run(policy: Policy, world: RolloutState, params: envs.CartPoleParams, seed: jax.Array):
    noise = uniforms(jax.random.key(seed), (T, N, policy.n_noise))
    return rollout(
        envs.CartPole(),
        jax.random.key(1),
        params,
        world,
        policy.act,
        lambda choice: policy.actions.to_env(choice.action),
        noise,
    )


def start(params: envs.CartPoleParams) -> RolloutState:
    return RolloutState.start(envs.CartPole(), jax.random.key(0), params, PolicyState.start(N))


PARAMS = envs.replicate(envs.CartPoleParams(), N)
# A different body in each environment; the same cart with a wrongly wired motor in the last.
BODIES = dataclasses.replace(
    PARAMS, gravity=jnp.array([9.8, 1.0, 9.8]), control_sign=jnp.array([1.0, 1.0, -1.0])
)


def test_a_rollout_is_stepping_each_body_by_hand() -> None:
    world = start(BODIES)
    _, trajectory = run(policy([0.0, 0.0], [[0.0, 0.0], [0.5, 0.0]]), world, BODIES, 0)
    for n in range(N):
        body = jax.tree.map(lambda leaf, n=n: leaf[n], BODIES)
        state = jax.tree.map(lambda leaf, n=n: leaf[n], world.states)
        for t in range(T):
            state, step = envs.CartPole().step(
                jax.random.key(9), state, trajectory.decision.action[t, n], body
            )
            reached = trajectory.next_observation[t, n]
            np.testing.assert_allclose(reached, step.observation, rtol=1e-5, atol=1e-6)
            assert bool(step.terminated) == bool(trajectory.terminated[t, n])
            if step.done:
                break
            np.testing.assert_array_equal(
                trajectory.observation[t + 1 : t + 2, n], [reached][: T - t - 1]
            )


def test_after_an_episode_comes_a_fresh_start_and_the_statistics_count_it() -> None:
    world, trajectory = run(policy([0.0, 0.0], [[9.0, 0.0], [9.0, 0.0]]), start(PARAMS), PARAMS, 0)
    done = np.asarray(trajectory.done)
    # Always pushing left topples the pole in about ten steps.
    assert done.any(axis=0).all()
    for n in range(N):
        ends = np.flatnonzero(done[:, n])
        following = trajectory.observation[ends[0] + 1, n]
        assert np.abs(following).max() <= 0.05
        assert np.abs(trajectory.next_observation[ends[0], n]).max() > 0.2
        last = ends[-1] - (ends[-2] if len(ends) > 1 else -1)
        assert world.statistics.last_length[n] == last
        assert world.statistics.last_total[n] == pytest.approx(last)
        assert world.statistics.length[n] == T - 1 - ends[-1]
    mean_return, mean_length, finished = world.statistics.means()
    assert mean_return == mean_length == pytest.approx(np.mean(world.statistics.last_length))
    assert finished == 1.0


class Report(NamedTuple):
    objective: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray
    finished: np.ndarray | None


def test_statistics_are_missing_until_an_episode_has_ended() -> None:
    assert EpisodeStatistics.start(4).means() == (0.0, 0.0, 0.0)
    # Means over four iterations of two replicas: in the first none had finished, in the second an
    # episode of -8 in three of them.
    mean = Report(np.ones(2), np.array([0.0, -6.0]), np.array([0.0, 15.0]), np.array([0.0, 0.75]))
    report = report_missing(mean)
    np.testing.assert_array_equal(report.episode_return, [np.nan, -8.0])
    np.testing.assert_array_equal(report.episode_length, [np.nan, 20.0])
    np.testing.assert_array_equal(report.objective, 1.0)
    assert report.finished is None


def test_statistics_on_the_host_are_those_of_the_compiled_loop() -> None:
    rng = np.random.default_rng(0)
    host = EpisodeStatistics.start(3)
    device = jax.device_put(host)
    for _ in range(12):
        reward, done = rng.normal(size=3).astype(np.float32), rng.random(3) < 0.3
        host = host.update(reward, done)
        device = device.update(jnp.asarray(reward), jnp.asarray(done))
    for ours, theirs in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    # A step that only resets an environment is no part of an episode.
    reset = host.update(np.zeros(3, np.float32), np.zeros(3, bool), np.array([0, 1, 0], np.int32))
    np.testing.assert_array_equal(reset.length - host.length, [0, 1, 0])


def test_probabilities_of_a_decision_are_those_of_the_policy() -> None:
    _, trajectory = run(policy([1.0, 0.0], [[0.3, 0.0], [0.0, 2.0]]), start(PARAMS), PARAMS, 0)
    choice = trajectory.decision
    selector = Categorical.from_logits(jnp.array([1.0, 0.0])).log_probs
    experts = Categorical.from_logits(jnp.array([[0.3, 0.0], [0.0, 2.0]])).log_probs
    np.testing.assert_allclose(choice.log_prob_selector, selector[choice.expert], rtol=1e-5)
    np.testing.assert_allclose(
        choice.log_prob_expert, experts[choice.expert, choice.action], rtol=1e-5
    )
    assert 0.6 < np.mean(choice.expert == 0) < 0.85  # softmax says 0.73


def test_an_expert_is_held_for_so_many_steps_or_until_the_episode_ends() -> None:
    even = policy([0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]], hold=5)
    _, trajectory = run(even, start(PARAMS), PARAMS, 3)
    choice = trajectory.decision
    for n in range(N):
        waited = 0
        for t in range(T):
            begins = t == 0 or bool(trajectory.done[t - 1, n])
            due = begins or waited == 5
            assert bool(choice.selected[t, n]) == due
            waited = 1 if due else waited + 1
            if not due:
                assert choice.expert[t, n] == choice.expert[t - 1, n]


def test_the_favourite_acts_when_nothing_is_left_to_chance() -> None:
    favourite = policy([0.1, 0.0], [[0.0, 0.1], [0.1, 0.0]])
    noise = jnp.full((2, 2), 0.999)
    _, choice = favourite.act(
        jnp.zeros((2, 4)), jnp.ones(2, bool), PolicyState.start(2), noise, True
    )
    np.testing.assert_array_equal(choice.expert, [0, 0])
    np.testing.assert_array_equal(choice.action, [1, 1])


def test_the_deterministic_action_is_not_the_most_probable_one_of_the_committee() -> None:
    # Expert 0 is the most probable one, but the others together prefer the other action.
    committee = policy(np.log([0.4, 0.3, 0.3]).tolist(), [[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    zeros, noise = jnp.zeros((4000, 4)), uniforms(jax.random.key(0), (4000, 2))
    starts, state = jnp.ones(4000, bool), PolicyState.start(4000)
    _, sure = committee.act(zeros, starts, state, noise, True)
    _, drawn = committee.act(zeros, starts, state, noise)
    np.testing.assert_array_equal(sure.action, 0)
    right = 1.0 / (1.0 + np.exp(-2.0))
    assert np.mean(drawn.action) == pytest.approx(0.4 * (1 - right) + 0.6 * right, abs=0.03)


def test_episodes_end_where_stepping_by_hand_ends() -> None:
    left = policy([0.0, 0.0], [[50.0, 0.0], [50.0, 0.0]])
    params = envs.replicate(envs.CartPoleParams(), 4)
    episodes = play_episodes(
        envs.CartPole(), jax.random.key(5), params, left, jnp.asarray(True), jnp.asarray(500)
    )
    reset_key, _ = jax.random.split(jax.random.key(5))
    states, _ = envs.reset_all(envs.CartPole(), reset_key, params)
    for n in range(4):
        state, steps, over = jax.tree.map(lambda leaf, n=n: leaf[n], states), 0, False
        while not over:
            state, step = envs.CartPole().step(
                jax.random.key(0), state, jnp.asarray(0), envs.CartPoleParams()
            )
            steps, over = steps + 1, bool(step.done)
        assert episodes.lengths[n] == steps
        assert episodes.returns[n] == steps


def test_first_episodes_are_staggered_so_that_a_time_limit_does_not_keep_them_in_step() -> None:
    env = envs.Pendulum()
    params = envs.replicate(env.default_params(), 50)
    world = RolloutState.start(env, jax.random.key(0), params, PolicyState.start(50))
    taken = np.asarray(stagger(world, env, 0).states.steps)
    assert taken.min() >= 0
    assert taken.max() < 200
    assert len(set(taken)) > 30
    endless = envs.Pendulum(max_steps=None)
    np.testing.assert_array_equal(stagger(world, endless, 0).states.steps, np.zeros(50))
