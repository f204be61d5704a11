import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.rl.envs import (
    CartPole,
    CartPoleSwingUp,
    DoublePendulum,
    DoublePendulumParams,
    DoublePendulumSwingUp,
    Pendulum,
    capsule,
    replicate,
    reset_all,
    step_all,
)

ENVS = [DoublePendulum, DoublePendulumSwingUp, Pendulum, CartPole, CartPoleSwingUp]
KEY = jax.random.key(0)

reset_together = jax.jit(reset_all)
step_together = jax.jit(step_all)


def some_actions(env, n):
    if env.action_space.shape == ():
        return jnp.arange(n) % env.action_space.n
    return jnp.linspace(-1.0, 1.0, n)[:, None]


@pytest.mark.parametrize("kind", ENVS)
def test_bodies_that_differ_in_every_parameter_step_together_as_they_step_alone(kind):
    env, n = kind(), 5
    scale = jnp.linspace(0.8, 1.2, n)
    params = jax.tree.map(
        lambda leaf: leaf * scale.reshape(n, *[1] * leaf.ndim), env.default_params()
    )
    states, observations = reset_together(env, KEY, params)
    actions = some_actions(env, n)
    _, _, together = step_together(env, KEY, states, actions, params)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for i, key in enumerate(jax.random.split(KEY, n)):
        alone_params = jax.tree.map(lambda leaf, i=i: leaf[i], params)
        state, observation = reset(key, alone_params)
        np.testing.assert_allclose(observation, observations[i], rtol=1e-5, atol=1e-6)
        _, alone = step(KEY, state, actions[i], alone_params)
        for ours, theirs in zip(alone, together, strict=True):
            np.testing.assert_allclose(ours, theirs[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ENVS)
def test_every_parameter_is_a_leaf_of_its_own(kind):
    params = kind().default_params()
    assert len(jax.tree.leaves(params)) == len(dataclasses.fields(params))


def test_only_the_finished_environment_starts_again_and_its_last_observation_is_kept():
    env, n = CartPole(), 3
    params = replicate(env.default_params(), n)
    states, _ = reset_together(env, KEY, params)
    falling = states.position.at[1, 1].set(0.3)
    states = states._replace(position=falling, steps=jnp.array([7, 7, 7]))
    actions = jnp.ones(n, jnp.int32)
    expected, plain = jax.vmap(env.step)(jax.random.split(KEY, n), states, actions, params)
    after, observations, transition = step_together(env, KEY, states, actions, params)

    np.testing.assert_array_equal(transition.terminated, [False, True, False])
    np.testing.assert_array_equal(after.steps, [8, 0, 8])
    for i in (0, 2):
        np.testing.assert_allclose(after.position[i], expected.position[i], rtol=1e-6)
        np.testing.assert_allclose(observations[i], transition.observation[i], rtol=1e-6)
    np.testing.assert_allclose(transition.observation, plain.observation, rtol=1e-6)
    assert transition.observation[1, 2] > 0.2
    assert jnp.all(jnp.abs(observations[1]) <= 0.05)


def test_finished_environments_start_from_different_states_each_time():
    env, n = CartPole(), 4
    params = replicate(env.default_params(), n)
    states, _ = reset_together(env, KEY, params)
    fallen = states._replace(position=jnp.full((n, 2), 3.0))
    actions = jnp.zeros(n, jnp.int32)
    starts = [
        step_together(env, jax.random.key(seed), fallen, actions, params)[1] for seed in range(2)
    ]
    assert len(np.unique(np.concatenate(starts), axis=0)) == 2 * n


@pytest.mark.parametrize("kind", ENVS)
def test_a_time_limit_truncates_and_does_not_terminate(kind):
    env = kind(max_steps=3)
    params = env.default_params()
    actions = some_actions(env, 1)[0]

    @jax.jit
    def rollout(key):
        def advance(state, _):
            return env.step(key, state, 0 * actions, params)

        return jax.lax.scan(advance, env.reset(key, params)[0], None, 4)[1]

    transition = rollout(KEY)
    np.testing.assert_array_equal(transition.truncated, [False, False, True, True])
    assert not jnp.any(transition.terminated)
    assert not jnp.any(kind(max_steps=None).out_of_time(jnp.array([10**6])))


def test_a_rollout_of_other_bodies_needs_no_new_compilation():
    env, traced = DoublePendulum(), []

    @jax.jit
    def run(key, params):
        traced.append(None)

        def advance(carry, key):
            states, observations = carry
            states, observations, transition = step_all(
                env, key, states, observations[:, :1], params
            )
            return (states, observations), transition.reward

        return jax.lax.scan(advance, reset_all(env, key, params), jax.random.split(key, 5))[1]

    light = run(KEY, replicate(DoublePendulumParams(gravity=[0.0, -1.0]), 2))
    heavy = run(KEY, replicate(DoublePendulumParams(gear=-200.0), 2))
    assert len(traced) == 1
    assert not np.allclose(light, heavy)


def test_a_parameter_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"must have shape \(2,\).*but got \(\)"):
        DoublePendulumParams(gravity=9.81)
    with pytest.raises(TypeError, match="weight"):
        dataclasses.replace(DoublePendulumParams(), weight=1.0)


def test_a_capsule_without_length_is_a_ball_and_a_thin_one_is_a_rod():
    mass, inertia = capsule(0.0, 0.2, density=1.0)
    np.testing.assert_allclose(mass, 4.0 / 3.0 * np.pi * 0.2**3)
    np.testing.assert_allclose(inertia, 0.4 * mass * 0.2**2)
    mass, inertia = capsule(2.0, 1e-6)
    np.testing.assert_allclose(inertia, mass * 2.0**2 / 12.0, rtol=1e-5)


@pytest.mark.parametrize("kind", ENVS)
def test_the_picture_shows_the_state(kind):
    env = kind()
    draw = partial(env.draw, params=env.default_params(), size=64)
    state, _ = jax.jit(env.reset)(KEY, env.default_params())
    picture = draw(state)
    assert picture.shape == (64, 64, 3)
    assert picture.dtype == np.uint8
    turned = state._replace(position=state.position.at[-1].add(1.5))
    assert np.any(draw(turned) != picture)
