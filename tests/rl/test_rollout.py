import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy
from pinfactory.rl import envs
from pinfactory.rl._actions import DiscreteActions
from pinfactory.rl._normalise import Moments
from pinfactory.rl._play import play
from pinfactory.rl._policy import Memory, Policy, n_noise
from pinfactory.rl._rollout import Tally, World, rollout, staggered, uniforms

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
def run(policy: Policy, world: World, params: envs.CartPoleParams, seed: jax.Array):
    noise = uniforms(jax.random.key(seed), (T, N, n_noise(policy.actions)))
    return rollout(
        envs.CartPole(),
        jax.random.key(1),
        params,
        world,
        policy.act,
        lambda choice: policy.actions.to_env(choice.action),
        noise,
    )


def start(params: envs.CartPoleParams) -> World:
    return World.start(envs.CartPole(), jax.random.key(0), params, Memory.start(N))


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
                jax.random.key(9), state, trajectory.choice.action[t, n], body
            )
            reached = trajectory.next_observation[t, n]
            np.testing.assert_allclose(reached, step.observation, rtol=1e-5, atol=1e-6)
            assert bool(step.terminated) == bool(trajectory.terminated[t, n])
            if step.done:
                break
            np.testing.assert_array_equal(
                trajectory.observation[t + 1 : t + 2, n], [reached][: T - t - 1]
            )


def test_after_an_episode_comes_a_fresh_start_and_the_tally_counts_it() -> None:
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
        assert world.tally.last_length[n] == last
        assert world.tally.last_total[n] == pytest.approx(last)
        assert world.tally.length[n] == T - 1 - ends[-1]
    mean_return, mean_length = world.tally.means()
    assert mean_return == mean_length == pytest.approx(np.mean(world.tally.last_length))


def test_before_any_episode_has_ended_means_are_zero_and_finite() -> None:
    assert Tally.start(4).means() == (0.0, 0.0)


def test_probabilities_of_a_decision_are_those_of_the_policy() -> None:
    _, trajectory = run(policy([1.0, 0.0], [[0.3, 0.0], [0.0, 2.0]]), start(PARAMS), PARAMS, 0)
    choice = trajectory.choice
    selector = Categorical.from_logits(jnp.array([1.0, 0.0])).log_probs
    experts = Categorical.from_logits(jnp.array([[0.3, 0.0], [0.0, 2.0]])).log_probs
    np.testing.assert_allclose(choice.log_selector, selector[choice.expert], rtol=1e-5)
    np.testing.assert_allclose(choice.log_expert, experts[choice.expert, choice.action], rtol=1e-5)
    assert 0.6 < np.mean(choice.expert == 0) < 0.85  # softmax says 0.73


def test_an_expert_is_held_for_so_many_steps_or_until_the_episode_ends() -> None:
    even = policy([0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]], hold=5)
    _, trajectory = run(even, start(PARAMS), PARAMS, 3)
    choice = trajectory.choice
    for n in range(N):
        waited = 0
        for t in range(T):
            begins = t == 0 or bool(trajectory.done[t - 1, n])
            due = begins or waited == 5
            assert bool(choice.chosen[t, n]) == due
            waited = 1 if due else waited + 1
            if not due:
                assert choice.expert[t, n] == choice.expert[t - 1, n]


def test_the_favourite_acts_when_nothing_is_left_to_chance() -> None:
    favourite = policy([0.1, 0.0], [[0.0, 0.1], [0.1, 0.0]])
    noise = jnp.full((2, 2), 0.999)
    _, choice = favourite.act(jnp.zeros((2, 4)), jnp.ones(2, bool), Memory.start(2), noise, True)
    np.testing.assert_array_equal(choice.expert, [0, 0])
    np.testing.assert_array_equal(choice.action, [1, 1])


def test_episodes_end_where_stepping_by_hand_ends() -> None:
    left = policy([0.0, 0.0], [[50.0, 0.0], [50.0, 0.0]])
    params = envs.replicate(envs.CartPoleParams(), 4)
    episodes = play(
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
    world = World.start(env, jax.random.key(0), params, Memory.start(50))
    taken = np.asarray(staggered(world, env, 0).states.steps)
    assert taken.min() >= 0
    assert taken.max() < 200
    assert len(set(taken)) > 30
    endless = envs.Pendulum(max_steps=None)
    np.testing.assert_array_equal(staggered(world, endless, 0).states.steps, np.zeros(50))
