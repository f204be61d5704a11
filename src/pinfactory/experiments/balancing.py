"""Whole episodes of balancing for any controller, in our pendulum and in MuJoCo's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.rl import envs

ID, JUDGE = "InvertedDoublePendulum-v5", envs.DoublePendulum()
# From observations, a row for each episode, to actions.
Act = Callable[[np.ndarray], np.ndarray]


def play(act: Act, n_episodes: int, seed: int) -> np.ndarray:
    """Return the returns of episodes side by side in our double pendulum, which equals MuJoCo's."""
    keys, params = _keys(n_episodes, seed), envs.replicate(JUDGE.default_params(), n_episodes)
    states, observation = _start(keys, params)
    total, over = np.zeros(n_episodes), np.zeros(n_episodes, bool)
    while not over.all():
        actions = jnp.asarray(act(np.asarray(observation)))
        states, observation, reward, done = _step(keys, states, actions, params)
        total += np.where(over, 0.0, reward)
        over |= np.asarray(done)
    return total


def play_original(act: Act, n_episodes: int, seed: int) -> np.ndarray:
    """Return the returns of the same episodes, from the same first states, in MuJoCo itself."""
    import gymnasium

    params = envs.replicate(JUDGE.default_params(), n_episodes)
    states, _ = _start(_keys(n_episodes, seed), params)
    copies: list[Any] = [gymnasium.make(ID) for _ in range(n_episodes)]
    for copy, position, velocity in zip(copies, states.position, states.velocity, strict=True):
        copy.reset(seed=0)
        copy.unwrapped.set_state(np.asarray(position, float), np.asarray(velocity, float))
    seen = np.stack([copy.unwrapped._get_obs() for copy in copies]).astype(np.float32)
    total, over = np.zeros(n_episodes), np.zeros(n_episodes, bool)
    while not over.all():
        actions = np.asarray(act(seen))
        for i in np.flatnonzero(~over):
            seen[i], reward, terminated, truncated, _ = copies[i].step(actions[i])
            total[i] += reward
            over[i] = terminated or truncated
    for copy in copies:
        copy.close()
    return total


def _keys(n: int, seed: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), n)


@jax.jit
def _start(keys: Any, params: Any) -> tuple[Any, Any]:
    return jax.vmap(JUDGE.reset)(keys, params)


@jax.jit
def _step(keys: Any, states: Any, actions: Any, params: Any) -> tuple[Any, ...]:
    states, moved = jax.vmap(JUDGE.step)(keys, states, actions, params)
    return states, moved.observation, moved.reward, moved.done
