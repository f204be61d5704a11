"""Environment steps per second beside Gymnasium's own environments, on one core."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results
from pinfactory.rl import envs

TITLE = "Environment steps per second compared with Gymnasium"
ABOUT = """
Random actions, including resets. Our environments are compiled into one loop over time. Gymnasium's
run in a `SyncVectorEnv` with the same number of copies. Both alternate on one core; times are
processor time without compilation. Two of our environments have no counterpart in Gymnasium.
"""
LOG_SCALE = ("steps per second", "times faster than Gymnasium")
REQUIRES = ("gymnasium", "mujoco")
ALONE = True

PAIRS: dict[str, tuple[Callable[[], envs.Env[Any]], str | None]] = {
    "double pendulum": (envs.DoublePendulum, "InvertedDoublePendulum-v5"),
    "double pendulum swing-up": (envs.DoublePendulumSwingUp, None),
    "pendulum": (envs.Pendulum, "Pendulum-v1"),
    "cart-pole": (envs.CartPole, "CartPole-v1"),
    "cart-pole swing-up": (envs.CartPoleSwingUp, None),
}


@dataclass(frozen=True)
class Settings(Presets):
    """Environments side by side, and steps of a turn; seeds are turns."""

    seeds: int = 5
    n_envs: int = 64
    our_steps: int = 200_000
    their_steps: int = 6_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every environment."""
    return {name: partial(_in_turns, settings, name) for name in PAIRS}


def _in_turns(settings: Settings, name: str) -> dict[str, list[float]]:
    make, reference = PAIRS[name]
    sides = {"ours": (_ours(make(), settings), settings.our_steps)}
    if reference is not None:
        sides["Gymnasium"] = (_gymnasium(reference, settings), settings.their_steps)
    rates: dict[str, list[float]] = {who: [] for who in sides}
    for turn in range(-1, settings.seeds):
        for who, (run, steps) in sides.items():
            began = time.process_time()
            run(turn)
            seconds = time.process_time() - began
            if turn >= 0:  # the first one compiles
                rates[who].append(steps / seconds)
    return rates


def _ours(env: envs.Env[Any], settings: Settings) -> Callable[[int], Any]:
    params = envs.replicate(env.default_params(), settings.n_envs)
    steps = settings.our_steps // settings.n_envs

    @jax.jit
    def rollout(key: jax.Array, params: Any) -> jax.Array:
        start_key, key = jax.random.split(key)

        def advance(states: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            action_key, step_key = jax.random.split(key)
            actions = _random_actions(env, action_key, settings.n_envs)
            states, seen, moved = envs.step_all(env, step_key, states, actions, params)
            return states, jnp.mean(moved.reward) + 0.0 * jnp.sum(seen)

        states, _ = envs.reset_all(env, start_key, params)
        return jnp.mean(jax.lax.scan(advance, states, jax.random.split(key, steps))[1])

    return lambda turn: rollout(jax.random.key(turn), params).block_until_ready()


def _random_actions(env: envs.Env[Any], key: jax.Array, n: int) -> jax.Array:
    space = env.action_space
    if isinstance(space, envs.Discrete):
        return jax.random.randint(key, (n,), 0, space.n)
    low, high = jnp.array(space.low), jnp.array(space.high)
    return jax.random.uniform(key, (n, *space.shape), minval=low, maxval=high)


def _gymnasium(name: str, settings: Settings) -> Callable[[int], Any]:
    import gymnasium

    vector = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, name)] * settings.n_envs)
    vector.reset(seed=0)
    vector.action_space.seed(0)

    def run(_: int) -> None:
        for _ in range(settings.their_steps // settings.n_envs):
            vector.step(vector.action_space.sample())

    return run


def measures(results: Results) -> list[Measure]:
    """Return how many times faster ours are, and all speeds."""
    ratios = [
        Measure.over(
            f"times faster than Gymnasium, {name}",
            np.divide(rates["ours"], rates["Gymnasium"]),
            unit="×",
        )
        for name, rates in results.items()
        if "Gymnasium" in rates
    ]
    return ratios + [
        Measure.over(f"steps per second, {who}, {name}", values, unit="1/s")
        for name, rates in results.items()
        for who, values in rates.items()
    ]
