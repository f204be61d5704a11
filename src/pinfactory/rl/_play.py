"""Whole episodes with a finished policy, in environments written in JAX."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from . import envs
from ._policy import Memory, Policy, n_noise
from ._rollout import uniforms


class Episodes(NamedTuple):
    """Return and length of every episode."""

    returns: Float[Array | np.ndarray, " n"]
    lengths: Int[Array | np.ndarray, " n"]


@eqx.filter_jit
def play(
    env: envs.Env,
    key: Key[Array, ""],
    params: PyTree,
    policy: Policy,
    deterministic: Bool[Array, ""],
    max_steps: Int[Array, ""],
) -> Episodes:
    """Play one episode for each entry of the parameters' leading axis, all at the same time."""
    reset_key, key = jax.random.split(key)
    states, observation = envs.reset_all(env, reset_key, params)
    n = len(observation)
    Carry = tuple[Array, PyTree, Array, Memory, Array, Array, Array]

    def unfinished(carry: Carry) -> Array:
        step, *_, over, _, _ = carry
        return (step < max_steps) & ~jnp.all(over)

    def step(carry: Carry) -> Carry:
        step, states, observation, memory, over, total, length = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, step))
        noise = uniforms(act_key, (n, n_noise(policy.actions)))
        fresh = jnp.broadcast_to(step == 0, (n,))
        memory, choice = policy.act(observation, fresh, memory, noise, deterministic)
        states, transition = jax.vmap(env.step)(
            jax.random.split(env_key, n), states, policy.actions.to_env(choice.action), params
        )
        total = total + jnp.where(over, 0.0, transition.reward)
        length = length + jnp.where(over, 0, 1)
        over = over | transition.done
        return step + 1, states, transition.observation, memory, over, total, length

    nothing = jnp.zeros(n)
    start = (
        jnp.asarray(0),
        states,
        observation,
        Memory.start(n),
        jnp.zeros(n, bool),
        nothing,
        nothing.astype(jnp.int32),
    )
    *_, total, length = jax.lax.while_loop(unfinished, step, start)
    return Episodes(total, length)
