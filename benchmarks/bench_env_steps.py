"""Environment steps per second on one core, beside Gymnasium's own environments.

Random actions, resets included: ours compiled into one scan over time, Gymnasium's in a
`SyncVectorEnv`. Seconds are those of the processor, which others on the machine disturb less than
those of the clock; on an idle core they are the same. Run as
`python benchmarks/bench_env_steps.py [--envs 64 1024] [--repeats 5]`.
"""

import os

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp

from pinfactory.rl import envs

PAIRS: list[tuple[envs.Env[Any], str | None]] = [
    (envs.DoublePendulum(), "InvertedDoublePendulum-v5"),
    (envs.DoublePendulumSwingUp(), None),
    (envs.Pendulum(), "Pendulum-v1"),
    (envs.CartPole(), "CartPole-v1"),
    (envs.CartPoleSwingUp(), None),
]


def random_actions(env: envs.Env[Any], key: jax.Array, n: int) -> jax.Array:
    """Draw one action for each of n environments."""
    space = env.action_space
    if isinstance(space, envs.Discrete):
        return jax.random.randint(key, (n,), 0, space.n)
    low, high = jnp.array(space.low), jnp.array(space.high)
    return jax.random.uniform(key, (n, *space.shape), minval=low, maxval=high)


@partial(jax.jit, static_argnames="steps")
def rollout(env: envs.Env[Any], key: jax.Array, params: Any, steps: int) -> jax.Array:
    """Return the mean reward of random actions, so that nothing is left uncomputed."""
    start_key, key = jax.random.split(key)
    states, _ = envs.reset_all(env, start_key, params)
    n = states.steps.shape[0]

    def advance(states: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        action_key, step_key = jax.random.split(key)
        actions = random_actions(env, action_key, n)
        states, observations, transition = envs.step_all(env, step_key, states, actions, params)
        return states, jnp.mean(transition.reward) + 0.0 * jnp.sum(observations)

    return jnp.mean(jax.lax.scan(advance, states, jax.random.split(key, steps))[1])


def rates(run: Callable[[int], Any], steps: int, repeats: int) -> list[float]:
    """Return steps per second of every repeat."""
    results = []
    for repeat in range(repeats):
        start = time.process_time()
        run(repeat)
        results.append(steps / (time.process_time() - start))
    return results


def ours(env: envs.Env[Any], n: int, repeats: int) -> tuple[list[float], float]:
    """Return our rates and the seconds before the first result."""
    params = envs.replicate(env.default_params(), n)
    steps = 200_000 // n

    def run(seed: int) -> None:
        jax.block_until_ready(rollout(env, jax.random.key(seed), params, steps))

    start = time.process_time()
    run(0)
    first = time.process_time() - start
    return rates(run, steps * n, repeats), first


def gymnasiums(name: str, n: int, repeats: int) -> list[float]:
    """Return the rates of Gymnasium's environment."""
    vector = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, name)] * n)
    vector.reset(seed=0)
    vector.action_space.seed(0)
    steps = max(1, 6_000 // n)

    def run(_: int) -> None:
        for _ in range(steps):
            vector.step(vector.action_space.sample())

    run(0)
    result = rates(run, steps * n, repeats)
    vector.close()
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    print("environment            n      steps/s (median, lowest–highest)   first call  Gymnasium")
    for env, reference in PAIRS:
        for n in arguments.envs:
            values, first = ours(env, n, arguments.repeats)
            middle, low, high = statistics.median(values), min(values), max(values)
            line = f"{type(env).__name__:21s}{n:6d}   {middle:12,.0f}  {low:,.0f}–{high:,.0f}"
            line = f"{line:68s}{first:7.1f} s"
            if reference is not None and n == arguments.envs[0]:
                theirs = statistics.median(gymnasiums(reference, n, arguments.repeats))
                line += f"  {theirs:9,.0f}  ({middle / theirs:,.0f} ×, {reference})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
