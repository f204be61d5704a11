"""Whole episodes with a policy that does not learn meanwhile, in environments written in JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory.core.compiling import compiled_fully

from . import envs
from .policy import Policy, PolicyState
from .rollout import uniforms


class EpisodeResults(NamedTuple):
    """Return and length of every episode."""

    returns: Float[Array | np.ndarray, " n"]
    lengths: Int[Array | np.ndarray, " n"]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    def on_host(self) -> "EpisodeResults":
        """Return the same with arrays of NumPy."""
        return EpisodeResults(*map(np.asarray, self))

    def __repr__(self) -> str:
        return f"{self.mean:.4g} ± {self.std:.2g} in {len(self.returns)} episodes"


class Evaluation(NamedTuple):
    """Results of deterministic and of stochastic episodes.

    The deterministic policy takes the most probable expert, argmax p(m|x), and the action this
    expert finds most probable. That is not the most probable action of p(a|x) = Σ p(m|x) p(a|x,m),
    which is what is trained, and what the stochastic policy samples from. An expert with
    p(m|x) = 0.4 acts alone where three others, 0.2 each, agree on another action; and experts that
    are useful because the selector alternates between them, pushing left and right in proportion,
    push to one side only. Their deterministic return can be much lower than the stochastic one.
    """

    deterministic: EpisodeResults
    stochastic: EpisodeResults

    def __repr__(self) -> str:
        return f"deterministic {self.deterministic!r}, stochastic {self.stochastic!r}"


class EpisodeState(NamedTuple):
    """The state of n episodes, one in each environment."""

    step: Int[Array, ""]
    states: PyTree
    observation: Float[Array, "n o"]
    over: Bool[Array, " n"]
    total: Float[Array, " n"]
    length: Int[Array, " n"]
    policy_state: Any


def run_episodes(
    env: envs.Env,
    key: Key[Array, ""],
    params: PyTree,
    start: EpisodeState,
    act: Callable[[Key[Array, ""], EpisodeState], tuple[Array, Any]],
    max_steps: Int[Array, ""],
) -> EpisodeState:
    """Act until all episodes are over, or `max_steps` steps have been taken.

    `act` maps a key and the state of the episodes to actions, as the environment takes them, and
    the next state of the policy.
    """

    def unfinished(now: EpisodeState) -> Array:
        return (now.step < max_steps) & ~jnp.all(now.over)

    def step(now: EpisodeState) -> EpisodeState:
        act_key, env_key = jax.random.split(jax.random.fold_in(key, now.step))
        actions, policy_state = act(act_key, now)
        states, transition = jax.vmap(env.step)(
            jax.random.split(env_key, len(now.over)), now.states, actions, params
        )
        return EpisodeState(
            now.step + 1,
            states,
            transition.observation,
            now.over | transition.done,
            now.total + jnp.where(now.over, 0.0, transition.reward),
            now.length + jnp.where(now.over, 0, 1),
            policy_state,
        )

    return jax.lax.while_loop(unfinished, step, start)


def reset_and_run(
    env: envs.Env,
    key: Key[Array, ""],
    params: PyTree,
    policy_state: Any,
    act: Callable[[Key[Array, ""], EpisodeState], tuple[Array, Any]],
    max_steps: Int[Array, ""],
) -> EpisodeResults:
    """Play one episode for each entry of the parameters' leading axis; see `run_episodes`."""
    reset_key, key = jax.random.split(key)
    states, observation = envs.reset_all(env, reset_key, params)
    none = jnp.zeros(len(observation), jnp.int32)
    over, total = none.astype(bool), none.astype(float)
    start = EpisodeState(jnp.asarray(0), states, observation, over, total, none, policy_state)
    end = run_episodes(env, key, params, start, act, max_steps)
    return EpisodeResults(end.total, end.length)


@compiled_fully
def play_episodes(
    env: envs.Env,
    key: Key[Array, ""],
    params: PyTree,
    policy: Policy,
    deterministic: Bool[Array, ""],
    max_steps: Int[Array, ""],
) -> EpisodeResults:
    """Play one episode for each entry of the parameters' leading axis, all at the same time."""

    def act(key: Key[Array, ""], now: EpisodeState) -> tuple[Array, PolicyState]:
        n = len(now.over)
        state, decision = policy.act(
            now.observation,
            jnp.broadcast_to(now.step == 0, (n,)),
            now.policy_state,
            uniforms(key, (n, policy.n_noise)),
            deterministic,
        )
        return policy.actions.to_env(decision.action), state

    n = jax.tree.leaves(params)[0].shape[0]
    return reset_and_run(env, key, params, PolicyState.start(n), act, max_steps)


def episode_limit(env: envs.Env) -> Int[Array, ""]:
    """Return the time limit of an environment, which evaluation needs."""
    if env.max_steps is None:
        raise ValueError("An environment must have `max_steps` to be evaluated, but got None.")
    return jnp.asarray(env.max_steps)
