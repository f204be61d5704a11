import subprocess
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from pinfactory.rl.envs import CartPole, DoublePendulum, GymnasiumEnv

NAMES = ["DoublePendulum", "DoublePendulumSwingUp", "Pendulum", "CartPole", "CartPoleSwingUp"]


@pytest.mark.parametrize("name", NAMES)
def test_gymnasiums_own_check_finds_nothing(name):
    env = gymnasium.make(f"pinfactory/{name}-v0", render_mode="rgb_array")
    with warnings.catch_warnings():
        if name == "Pendulum":  # Pendulum-v1 has torques in [−2, 2], and this equals it
            warnings.filterwarnings("ignore", ".*symmetric and normalized space.*")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("DoublePendulum", "InvertedDoublePendulum-v5"),
        ("Pendulum", "Pendulum-v1"),
        ("CartPole", "CartPole-v1"),
    ],
)
def test_the_specification_is_that_of_the_original(ours, theirs):
    if theirs.startswith("Inverted"):
        pytest.importorskip("mujoco")
    our, their = gymnasium.make(f"pinfactory/{ours}-v0"), gymnasium.make(theirs)
    assert our.spec.max_episode_steps == their.spec.max_episode_steps
    assert our.spec.reward_threshold == their.spec.reward_threshold
    assert our.action_space == their.action_space
    assert our.observation_space.shape == their.observation_space.shape
    assert our.metadata["render_fps"] == {"Pendulum": 20}.get(ours, their.metadata["render_fps"])


def test_the_same_seed_gives_the_same_episode_and_no_seed_another():
    env = gymnasium.make("pinfactory/DoublePendulum-v0")

    def episode(seed):
        observation, _ = env.reset(seed=seed)
        return np.concatenate([observation, env.step(np.array([0.3], np.float32))[0]])

    first = episode(3)
    np.testing.assert_array_equal(first, episode(3))
    assert np.any(first != episode(None))
    assert np.any(first != episode(4))


def test_the_time_limit_can_be_longer_or_shorter_when_made():
    for limit in (3, 600):
        env = gymnasium.make("pinfactory/CartPoleSwingUp-v0", max_episode_steps=limit)
        env.reset(seed=0)
        ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(limit)]
        assert ends[-1] == (False, True)
        assert not any(terminated or truncated for terminated, truncated in ends[:-1])


def test_an_env_of_the_functional_kind_keeps_its_own_time_limit():
    env = GymnasiumEnv(CartPole(max_steps=2))
    env.reset(seed=0)
    assert env.step(0)[2:4] == (False, False)
    assert env.step(1)[2:4] == (False, True)


def test_parameters_can_be_changed_when_made_and_at_a_reset():
    env = gymnasium.make("pinfactory/DoublePendulum-v0", gear=200.0)
    assert env.unwrapped.params.gear == 200.0
    env.reset(seed=0, options={"gravity": [0.0, -4.9], "gear": 185.0})
    np.testing.assert_allclose(env.unwrapped.params.gravity, [0.0, -4.9])
    assert env.unwrapped.params.gear == 185.0


def test_the_adapter_steps_as_the_functional_environment():
    functional = DoublePendulum()
    env = GymnasiumEnv(functional)
    observation, _ = env.reset(seed=0)
    state, params = env._state, env.params
    after, reward, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
    _, transition = jax.jit(functional.step)(
        jax.random.key(0), state, np.array([0.5], np.float32), params
    )
    assert observation.dtype == after.dtype == np.float32
    np.testing.assert_allclose(after, transition.observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reward, transition.reward, rtol=1e-5)
    assert (terminated, truncated) == (False, False)


def test_it_steps_in_gymnasiums_vector_environments():
    envs = gymnasium.make_vec("pinfactory/Pendulum-v0", num_envs=3, vectorization_mode="sync")
    observations, _ = envs.reset(seed=0)
    assert observations.shape == (3, 3)
    assert len(np.unique(observations[:, 0])) == 3
    assert envs.step(np.zeros((3, 1), np.float32))[1].shape == (3,)


def test_wrong_use_is_told():
    env = GymnasiumEnv(DoublePendulum(), render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded, match="before step"):
        env.step(np.zeros(1))
    with pytest.raises(gymnasium.error.ResetNeeded, match="before render"):
        env.render()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action must have shape \(1,\), but got \(2,\)"):
        env.step(np.zeros(2))
    with pytest.raises(ValueError, match=r"env must be one of .*DoublePendulum.*'Acrobot'"):
        GymnasiumEnv("Acrobot")
    cart_pole = GymnasiumEnv(CartPole())
    cart_pole.reset(seed=0)
    with pytest.raises(ValueError, match=r"action must be in Discrete\(2\), but got 2"):
        cart_pole.step(2)
    with pytest.raises(ValueError, match="render_mode must be"):
        GymnasiumEnv(DoublePendulum(), render_mode="ansi")


def test_without_gymnasium_the_functional_part_works_and_the_adapter_names_the_extra():
    program = """
import sys
sys.modules["gymnasium"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "gymnasium" else find(name, *rest)
import pinfactory.rl.envs as envs
envs.Pendulum().default_params()
try:
    envs.GymnasiumEnv
except ImportError as error:
    assert "pip install 'pinfactory[rl]'" in str(error), error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
