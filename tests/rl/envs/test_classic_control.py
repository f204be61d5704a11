"""Gymnasium's `Pendulum-v1` and `CartPole-v1` are the reference, and MuJoCo for the swing-up."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.rl.envs import CartPole, CartPoleSwingUp, Pendulum, State

KEY = jax.random.key(0)


def step_many(env, params, positions, velocities, actions):
    n = len(positions)
    states = State(jnp.asarray(positions), jnp.asarray(velocities), jnp.zeros(n, jnp.int32))
    return jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))(
        KEY, states, jnp.asarray(actions), params
    )


@pytest.mark.usefixtures("float64")
def test_pendulum_equals_pendulum_v1():
    rng = np.random.default_rng(0)
    n = 300
    position, velocity = rng.uniform(-12.0, 12.0, (n, 1)), rng.uniform(-8.0, 8.0, (n, 1))
    action = rng.uniform(-3.0, 3.0, (n, 1))
    env = Pendulum()
    states, transition = step_many(env, env.default_params(), position, velocity, action)

    reference = gymnasium.make("Pendulum-v1").unwrapped
    reference.reset(seed=0)
    for i in range(n):
        reference.state = np.array([position[i, 0], velocity[i, 0]])
        observation, reward, terminated, _, _ = reference.step(action[i])
        ours = states.position[i, 0], states.velocity[i, 0]
        np.testing.assert_allclose(ours, reference.state, atol=1e-12)
        np.testing.assert_allclose(transition.observation[i], observation, atol=1e-6)
        np.testing.assert_allclose(transition.reward[i], reward, atol=1e-12)
        assert bool(transition.terminated[i]) == terminated


@pytest.mark.usefixtures("float64")
def test_pendulum_equals_pendulum_v1_with_other_constants():
    reference = gymnasium.make("Pendulum-v1", g=5.0).unwrapped
    reference.reset(seed=0)
    reference.m, reference.l, reference.dt, reference.max_torque = 2.0, 0.7, 0.03, 1.5
    reference.state = np.array([2.0, -1.0])
    reference.step(np.array([5.0]))

    env = Pendulum()
    params = dataclasses.replace(
        env.default_params(), gravity=5.0, mass=2.0, length=0.7, timestep=0.03, max_torque=1.5
    )
    states, _ = step_many(env, params, np.array([[2.0]]), np.array([[-1.0]]), np.array([[5.0]]))
    ours = states.position[0, 0], states.velocity[0, 0]
    np.testing.assert_allclose(ours, reference.state, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_cart_pole_equals_cart_pole_v1():
    rng = np.random.default_rng(0)
    n = 300
    position = rng.uniform([-2.6, -0.25], [2.6, 0.25], (n, 2))
    velocity = rng.normal(size=(n, 2)) * 3.0
    action = rng.integers(0, 2, n)
    env = CartPole()
    states, transition = step_many(env, env.default_params(), position, velocity, action)
    assert 0.1 < jnp.mean(transition.terminated) < 0.9

    reference = gymnasium.make("CartPole-v1").unwrapped
    for i in range(n):
        reference.reset(seed=0)
        reference.state = np.stack([position[i], velocity[i]], axis=1).ravel()
        observation, reward, terminated, _, _ = reference.step(action[i])
        ours = np.stack([states.position[i], states.velocity[i]], axis=1).ravel()
        np.testing.assert_allclose(ours, reference.state, atol=1e-12)
        np.testing.assert_allclose(transition.observation[i], observation, rtol=1e-6)
        assert transition.reward[i] == reward
        assert bool(transition.terminated[i]) == terminated


def test_first_states_have_the_spread_of_the_references():
    for env, name in ((Pendulum(), "Pendulum-v1"), (CartPole(), "CartPole-v1")):
        reference = gymnasium.make(name).unwrapped
        reference.reset(seed=0)
        theirs = np.array([reference.reset()[0] for _ in range(2000)])
        keys = jax.random.split(KEY, 2000)
        _, ours = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, env.default_params())
        np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.06)
        np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.05)
        np.testing.assert_allclose(abs(ours).max(axis=0), abs(theirs).max(axis=0), rtol=0.02)


CART_POLE_XML = """
<mujoco>
  <option gravity="0 0 -9.8" integrator="RK4" timestep="0.01" tolerance="0"/>
  <worldbody>
    <body>
      <joint name="slide" type="slide" axis="1 0 0" limited="true" range="-2.4 2.4" margin="0.01"
        damping="0.3"/>
      <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
      <body>
        <joint type="hinge" axis="0 1 0" damping="0.02"/>
        <inertial pos="0 0 0.5" mass="0.1" diaginertia="INERTIA INERTIA 0.001"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="10" ctrllimited="true" ctrlrange="-1 1"/></actuator>
</mujoco>
""".replace("INERTIA", str(0.1 / 12.0))


@pytest.mark.usefixtures("float64")
def test_cart_pole_swing_up_moves_as_a_mujoco_model_of_it():
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(CART_POLE_XML)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    n = 200
    position = rng.uniform([-2.4, -np.pi], [2.4, np.pi], (n, 2))
    position[::3, 0] = np.sign(position[::3, 0]) * rng.uniform(2.37, 2.43, len(position[::3]))
    velocity, action = rng.normal(size=(n, 2)) * 4.0, rng.uniform(-1.2, 1.2, (n, 1))
    env = CartPoleSwingUp()
    params = dataclasses.replace(env.default_params(), damping=[0.3, 0.02])
    states, transition = step_many(env, params, position, velocity, action)
    assert not jnp.any(transition.terminated)
    for i in range(n):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = position[i], velocity[i], action[i]
        mujoco.mj_step(model, data, nstep=2)
        np.testing.assert_allclose(states.position[i], data.qpos, atol=1e-9)
        np.testing.assert_allclose(states.velocity[i], data.qvel, atol=1e-9)


def test_cart_pole_swing_up_can_be_solved():
    """Pump energy while hanging, catch with a linear controller: well above the solved level."""
    env = CartPoleSwingUp()
    params = env.default_params()

    def controller(observation):
        x, sine, cosine, speed, spin = observation
        lever, inertia = 0.1 * 0.5, 4.0 / 3.0 * 0.1 * 0.5**2
        missing = 0.5 * inertia * spin**2 + lever * 9.8 * (cosine - 1.0)
        pump = 25.0 * missing * spin * cosine - 0.3 * x - 0.3 * speed
        catch = 0.1 * x + 0.2 * speed + 3.5 * sine + 0.7 * spin
        return jnp.where((cosine > 0.9) & (abs(spin) < 4.0), catch, pump)[None]

    def step(carry, _):
        state, observation = carry
        state, transition = env.step(KEY, state, controller(observation), params)
        return (state, transition.observation), transition

    run = jax.jit(jax.vmap(lambda key: jax.lax.scan(step, env.reset(key, params), None, 500)[1]))
    transition = run(jax.random.split(KEY, 8))
    assert jnp.all(transition.reward.sum(axis=1) > 350.0)
    assert jnp.all(transition.observation[:, -1, 2] > 0.99)
