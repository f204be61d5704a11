"""MuJoCo itself is the reference: `InvertedDoublePendulum-v5`, run in double precision."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from pinfactory.rl.envs import (
    DoublePendulum,
    DoublePendulumParams,
    DoublePendulumSwingUp,
    DoublePendulumSwingUpParams,
    State,
    replicate,
    reset_all,
    step_all,
)

mujoco = pytest.importorskip("mujoco")

KEY = jax.random.key(0)


@jax.jit
def reset(env, key, params):
    return env.reset(key, params)


@jax.jit
def step(env, state, action, params):
    return env.step(KEY, state, action, params)


@pytest.fixture(scope="module")
def reference():
    env = gymnasium.make("InvertedDoublePendulum-v5").unwrapped
    env.reset(seed=0)
    yield env
    env.close()


def states_and_actions(n, seed=0):
    """Draw states anywhere, a third of them at, in or just off the rail's end stops."""
    rng = np.random.default_rng(seed)
    position = rng.uniform([-1.0, -np.pi, -np.pi], [1.0, np.pi, np.pi], (n, 3))
    velocity = rng.normal(size=(n, 3)) * [3.0, 8.0, 8.0]
    near_stop = np.arange(n) % 3 == 0
    position[near_stop, 0] = (
        rng.choice([-1.0, 1.0], n)[near_stop] * rng.uniform(0.97, 1.03, n)[near_stop]
    )
    return position, velocity, rng.uniform(-1.3, 1.3, (n, 1))


def reference_steps(env, positions, velocities, actions):
    """Return next positions, velocities, observations, rewards and terminations of MuJoCo."""
    results = []
    for position, velocity, action in zip(positions, velocities, actions, strict=True):
        mujoco.mj_resetData(env.model, env.data)
        env.set_state(position, velocity)
        observation, reward, terminated, _, _ = env.step(action)
        results.append(
            (env.data.qpos.copy(), env.data.qvel.copy(), observation, reward, terminated)
        )
    return [np.array(column) for column in zip(*results, strict=True)]


def our_steps(env, params, positions, velocities, actions):
    n = len(positions)
    states = State(jnp.asarray(positions), jnp.asarray(velocities), jnp.zeros(n, jnp.int32))
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))
    states, transition = step(KEY, states, jnp.asarray(actions), params)
    return (
        states.position,
        states.velocity,
        transition.observation,
        transition.reward,
        transition.terminated,
    )


def assert_all_close(ours, theirs, tolerance):
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("float64")
def test_one_step_equals_mujoco_to_1e_9_everywhere_in_float64(reference):
    data = states_and_actions(600)
    theirs = reference_steps(reference, *data)
    assert np.mean(theirs[2][:, -1] != 0.0) > 0.1  # the stops did push
    assert 0.1 < np.mean(theirs[4]) < 0.99
    env = DoublePendulum()
    assert_all_close(our_steps(env, env.default_params(), *data), theirs, 1e-9)


def test_one_step_equals_mujoco_to_1e_4_everywhere_in_float32(reference):
    data = states_and_actions(600)
    theirs = reference_steps(reference, *data)
    env = DoublePendulum()
    ours = our_steps(env, env.default_params(), *data)
    # The stop's force is a difference of numbers in the thousands.
    np.testing.assert_allclose(ours[2][:, -1], theirs[2][:, -1], atol=2e-2)
    ours, theirs = ([*data[:2], data[2][:, :-1], *data[3:]] for data in (ours, theirs))
    assert_all_close(ours, theirs, 1e-4)


@pytest.mark.usefixtures("float64")
def test_every_changed_constant_changes_the_motion_as_in_mujoco():
    env = gymnasium.make("InvertedDoublePendulum-v5", healthy_reward=3.0).unwrapped
    env.reset(seed=0)
    model, data = env.model, env.data
    model.body_mass[1:] = [8.0, 3.0, 5.0]
    model.body_inertia[2:, :2] = [[0.1, 0.1], [0.2, 0.2]]
    model.body_ipos[2:, 2] = [0.25, 0.4]
    model.body_pos[3, 2] = 0.5
    model.site_pos[0, 2] = 0.7
    model.dof_damping[:] = [0.5, 0.1, 0.2]
    model.opt.gravity[:] = [0.3, 0.0, -4.0]
    model.opt.timestep = 0.005
    model.actuator_gear[0, 0] = 200.0
    model.jnt_range[0] = [-0.5, 0.8]
    model.jnt_margin[0] = 0.02
    model.jnt_solref[0] = [0.03, 0.8]
    model.jnt_solimp[0] = [0.8, 0.97, 0.004, 0.4, 2.0]
    mujoco.mj_setConst(model, data)  # the stops' softness depends on the masses
    params = DoublePendulumParams(
        cart_mass=8.0,
        pole_mass=[3.0, 5.0],
        pole_inertia=[0.1, 0.2],
        pole_center=[0.25, 0.4],
        pole_length=[0.5, 0.7],
        damping=[0.5, 0.1, 0.2],
        gravity=[0.3, -4.0],
        timestep=0.005,
        gear=200.0,
        rail_range=[-0.5, 0.8],
        rail_margin=0.02,
        rail_reference=[0.03, 0.8],
        rail_impedance=[0.8, 0.97, 0.004, 0.4],
        applied_force=[5.0, -3.0, 2.0],
        control_sign=-1.0,
        healthy_reward=3.0,
    )
    position, velocity, action = states_and_actions(300)
    position[:150, 0] = np.where(position[:150, 0] > 0, 0.8, -0.5)

    results = []
    for q, v, a in zip(position, velocity, -action, strict=True):
        mujoco.mj_resetData(model, data)
        data.qfrc_applied[:] = [5.0, -3.0, 2.0]
        env.set_state(q, v)
        observation, reward, terminated, _, _ = env.step(a)
        results.append((data.qpos.copy(), data.qvel.copy(), observation, reward, terminated))
    env.close()
    theirs = [np.array(column) for column in zip(*results, strict=True)]
    ours = our_steps(DoublePendulum(), params, position, velocity, action)
    assert_all_close(ours, theirs, 1e-9)


def test_the_reward_uses_its_coefficients():
    state = State(jnp.array([0.2, 0.1, -0.3]), jnp.array([0.5, 1.0, -2.0]), jnp.array(0))
    env, action = DoublePendulum(), jnp.zeros(1)
    default = env.default_params()

    def parts(**changes):
        params = dataclasses.replace(default, healthy_reward=0.0, **changes)
        return -step(env, state, action, params)[1].reward

    off = {"distance_cost": [0.0, 0.0], "velocity_cost": [0.0, 0.0]}
    after, _ = step(env, state, action, default)
    spin = after.velocity[1:]
    assert parts(**off) == 0.0
    one_spin = parts(**{**off, "velocity_cost": [2.0, 0.0]})
    np.testing.assert_allclose(one_spin, 2.0 * spin[0] ** 2, rtol=1e-5)
    far = parts(**{**off, "distance_cost": [1.0, 0.0], "goal": [100.0, 2.0]})
    near = parts(**{**off, "distance_cost": [1.0, 0.0]})
    np.testing.assert_allclose(far, (100.0 - np.sqrt(near)) ** 2, rtol=1e-3)


def linear_controller(env):
    """Return the LQR gain on (x, sin, sin, velocities) from finite differences of MuJoCo."""
    step = 1e-5

    def after(state, action):
        mujoco.mj_resetData(env.model, env.data)
        env.set_state(state[:3], state[3:])
        env.step(np.array([action]))
        return np.concatenate([env.data.qpos, env.data.qvel])

    zero = np.zeros(6)
    a = np.stack(
        [(after(step * e, 0.0) - after(-step * e, 0.0)) / (2 * step) for e in np.eye(6)], axis=1
    )
    b = ((after(zero, step) - after(zero, -step)) / (2 * step))[:, None]
    p = scipy.linalg.solve_discrete_are(a, b, np.eye(6), np.eye(1))
    gain = np.linalg.solve(1.0 + b.T @ p @ b, b.T @ p @ a)[0]
    weights = np.zeros(9)
    weights[[0, 1, 2, 5, 6, 7]] = -gain
    return weights


def closed_loop(reference, weights, steps=400):
    """Return both trajectories of observations and rewards from one start, each under its own."""
    start = np.array([0.3, 0.1, -0.1]), np.array([0.2, -0.1, 0.1])
    mujoco.mj_resetData(reference.model, reference.data)
    reference.set_state(*start)
    observation, theirs = reference._get_obs(), []
    for _ in range(steps):
        observation, reward, terminated, _, _ = reference.step(np.array([weights @ observation]))
        assert not terminated
        theirs.append([*observation, reward])

    env = DoublePendulum()
    params, gain = env.default_params(), jnp.asarray(weights)

    def advance(carry, _):
        state, observation = carry
        state, transition = env.step(KEY, state, jnp.dot(gain, observation)[None], params)
        seen = jnp.concatenate([transition.observation, transition.reward[None]])
        return (state, transition.observation), seen

    q, v = (jnp.asarray(part) for part in start)
    observation = jnp.concatenate([q[:1], jnp.sin(q[1:]), jnp.cos(q[1:]), v, jnp.zeros(1)])
    start_state = State(q, v, jnp.array(0, jnp.int32))
    _, ours = jax.jit(lambda: jax.lax.scan(advance, (start_state, observation), None, steps))()
    return np.array(ours), np.array(theirs)


@pytest.mark.usefixtures("float64")
def test_closed_loop_equals_mujoco_to_1e_9_in_float64(reference):
    ours, theirs = closed_loop(reference, linear_controller(reference))
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_closed_loop_equals_mujoco_to_1e_4_in_float32(reference):
    ours, theirs = closed_loop(reference, linear_controller(reference))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_best_linear_controller_scores_the_maximum_of_v5(reference):
    env = DoublePendulum()
    weights = jnp.asarray(linear_controller(reference))
    params = env.default_params()

    def advance(carry, _):
        state, observation = carry
        state, transition = env.step(KEY, state, jnp.dot(weights, observation)[None], params)
        return (state, transition.observation), transition

    keys = jax.random.split(KEY, 4)
    run = jax.jit(
        jax.vmap(lambda key: jax.lax.scan(advance, env.reset(key, params), None, 1000)[1])
    )
    transition = run(keys)
    assert not jnp.any(transition.terminated)
    assert jnp.all(transition.truncated == (jnp.arange(1000) == 999))
    np.testing.assert_allclose(transition.reward.sum(axis=1), 9360.0, atol=2.0)


def test_a_reset_has_the_spread_of_v5():
    env = DoublePendulum()
    params = env.default_params()
    states, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(KEY, 4000), params)
    assert jnp.all(jnp.abs(states.position) <= 0.1)
    np.testing.assert_allclose(states.position.mean(axis=0), 0.0, atol=0.005)
    np.testing.assert_allclose(states.position.std(axis=0), 0.1 / np.sqrt(3.0), rtol=0.03)
    np.testing.assert_allclose(states.velocity.std(axis=0), 0.1, rtol=0.04)


@pytest.mark.usefixtures("float64")
def test_a_reset_at_the_end_stop_observes_the_force_of_mujoco(reference):
    env = DoublePendulum()
    params = DoublePendulumParams(
        start_position=[1.02, 0.2, 0.1], position_noise=0.0, velocity_noise=0.0
    )
    mujoco.mj_resetData(reference.model, reference.data)
    reference.set_state(np.array([1.02, 0.2, 0.1]), np.zeros(3))
    _, observation = reset(env, KEY, params)
    np.testing.assert_allclose(observation, reference._get_obs(), atol=1e-9)
    assert observation[-1] == -10.0


def conserved(position, velocity, params):
    """Return energy and momentum along the rail, from the positions of the centres of mass."""

    def centers(q):
        lower, upper = q[1], q[1] + q[2]
        hinge = jnp.stack([q[0], 0.0 * q[0]])
        elbow = hinge + params.pole_length[0] * jnp.stack([jnp.sin(lower), jnp.cos(lower)])
        first = hinge + params.pole_center[0] * jnp.stack([jnp.sin(lower), jnp.cos(lower)])
        second = elbow + params.pole_center[1] * jnp.stack([jnp.sin(upper), jnp.cos(upper)])
        return jnp.stack([hinge, first, second])

    points, speeds = jax.jvp(centers, (position,), (velocity,))
    masses = jnp.concatenate([params.cart_mass[None], params.pole_mass])
    spins = jnp.stack([velocity[1], velocity[1] + velocity[2]])
    kinetic = jnp.sum(masses[:, None] * speeds**2) + jnp.sum(params.pole_inertia * spins**2)
    energy = 0.5 * kinetic - jnp.sum(masses[:, None] * points * params.gravity)
    return jnp.stack([energy, jnp.sum(masses * speeds[:, 0])])


@pytest.mark.usefixtures("float64")
def test_without_motor_and_friction_energy_and_momentum_are_conserved():
    env = DoublePendulumSwingUp(frame_skip=50)
    params = DoublePendulumSwingUpParams(
        damping=[0.0, 0.0, 0.0], gravity=[0.0, -9.81], rail_range=[-50.0, 50.0], timestep=0.001
    )
    state = State(jnp.array([0.0, 2.0, 1.0]), jnp.array([0.3, 1.0, -4.0]), jnp.array(0, jnp.int32))

    def advance(state, _):
        state, _ = env.step(KEY, state, jnp.zeros(1), params)
        return state, conserved(state.position, state.velocity, params)

    last, history = jax.jit(lambda: jax.lax.scan(advance, state, None, 60))()
    assert abs(last.position[1] - 2.0) > 0.5
    before = np.array(conserved(state.position, state.velocity, params))
    np.testing.assert_allclose(history, np.tile(before, (60, 1)), rtol=1e-8)


@pytest.mark.usefixtures("float64")
def test_the_swing_up_moves_as_mujoco(reference):
    data = states_and_actions(100, seed=1)
    theirs = reference_steps(reference, *data)
    env = DoublePendulumSwingUp()
    ours = our_steps(env, env.default_params(), *data)
    assert_all_close(ours[:2], theirs[:2], 1e-9)
    assert not jnp.any(ours[4])


def test_the_swing_up_starts_hanging_and_rewards_standing_still():
    env = DoublePendulumSwingUp()
    none = [0.0, 0.0, 0.0]
    still = dataclasses.replace(env.default_params(), position_noise=none, velocity_noise=none)
    down, _ = reset(env, KEY, still)
    _, hanging = step(env, down, jnp.zeros(1), still)
    np.testing.assert_allclose(hanging.reward, 0.0, atol=1e-5)

    upright = dataclasses.replace(still, start_position=[0.0, 0.0, 0.0])
    up, _ = reset(env, KEY, upright)
    _, standing = step(env, up, jnp.zeros(1), upright)
    np.testing.assert_allclose(standing.reward, 1.0, atol=1e-5)
    _, pushed = step(env, up, jnp.ones(1), upright)
    assert pushed.reward < 0.99


def test_the_swing_up_ends_with_a_fall_only_if_asked_to():
    env = DoublePendulumSwingUp()
    asked = dataclasses.replace(env.default_params(), fall_height=0.6)
    for lower, falls in ((0.0, False), (2.0, True)):
        state = State(jnp.array([0.0, lower, 0.0]), jnp.zeros(3), jnp.array(0, jnp.int32))
        assert not step(env, state, jnp.zeros(1), env.default_params())[1].terminated
        assert step(env, state, jnp.zeros(1), asked)[1].terminated == falls


def fly(env, params, states, observations, weights, steps):
    """Return all observations under saturated linear controllers, one for each environment."""
    scale = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 10.0, 10.0, 10.0])

    def advance(carry, key):
        states, observations = carry
        actions = jnp.tanh(3.0 * jnp.sum(weights * observations / scale, axis=1, keepdims=True))
        states, observations, transition = step_all(env, key, states, actions, params)
        return (states, observations), transition

    keys = jax.random.split(KEY, steps)
    return jax.jit(lambda start: jax.lax.scan(advance, start, keys)[1])((states, observations))


def test_a_swing_up_too_fast_for_its_time_steps_is_truncated_while_it_is_finite():
    env = DoublePendulumSwingUp()
    params = replicate(env.default_params(), 1)
    # The cart had been thrown back from far beyond the rail's end.
    position = jnp.array([[1.2096123, -5.73278, 15.672724]])
    velocity = jnp.array([[-3.328249, -14.768707, 160.27696]])
    states = State(position, velocity, jnp.zeros(1, jnp.int32))
    transition = fly(env, params, states, jnp.ones((1, 9)), jnp.ones((1, 9)), 20)
    assert jnp.all(jnp.isfinite(transition.observation))
    assert transition.truncated[0]
    assert not jnp.any(transition.terminated)


def test_no_controller_drives_the_swing_up_out_of_the_finite_numbers():
    env, n = DoublePendulumSwingUp(), 300
    anywhere = dataclasses.replace(
        env.default_params(),
        position_noise=[1.0, np.pi, np.pi],
        velocity_noise=[2.0, 10.0, 10.0],
    )
    params = replicate(anywhere, n)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(n, 9)), jnp.float32)
    transition = fly(env, params, *reset_all(env, KEY, params), weights, 500)
    assert jnp.all(jnp.isfinite(transition.observation))
    assert jnp.all(jnp.abs(transition.observation[..., 0]) < 1.5)
    early = transition.truncated & (jnp.arange(500) < 499)[:, None]
    assert 0.0 < jnp.mean(jnp.any(early, axis=0)) < 1.0
