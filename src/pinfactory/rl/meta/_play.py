"""Whole episodes in tasks never met before: probe, choose, act."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.information import StageMeter
from pinfactory.rl._rollout import uniforms
from pinfactory.rl.envs import Env, reset_all

from ._policy import MetaPolicy, of


class Played(NamedTuple):
    """One episode in each of n tasks.

    Attributes
    ----------
    returns, lengths
        Of the episodes, steps of the probe included.
    expert
        Who was chosen.
    responsibilities
        p(m|τ).
    meter
        Information of the experts' stage on the states they met.
    """

    returns: Float[Array, " n"]
    lengths: Int[Array, " n"]
    expert: Int[Array, " n"]
    responsibilities: Float[Array, "n m"]
    meter: StageMeter


@eqx.filter_jit
def play(
    env: Env,
    key: Key[Array, ""],
    tasks: PyTree,
    policy: MetaPolicy,
    deterministic: Bool[Array, ""],
    max_steps: Int[Array, ""],
) -> Played:
    """Play one episode in each task, all at the same time, for at most `max_steps` steps."""
    explore_key, choice_key, key = jax.random.split(key, 3)
    probed = policy.explore(env, explore_key, tasks)
    selection = policy.select(probed.transitions)
    best = jnp.argmax(selection.log_probs, axis=-1)
    expert = jnp.where(deterministic, best, selection.sample(choice_key)).astype(jnp.int32)
    experts = of(policy.hierarchy.experts, expert)
    n, capacity = selection.log_probs.shape
    ended = jnp.cumsum(probed.trajectory.done, axis=0)
    counts = ended - probed.trajectory.done == 0
    taking_part = jax.nn.one_hot(expert, capacity)

    def act(
        key: Key[Array, ""], observation: Array, over: Array, meter: StageMeter
    ) -> tuple[Array, StageMeter]:
        noise = uniforms(key, (n, policy.actions.n_noise))
        deed = policy.act(experts, observation, noise, deterministic)
        answers = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf[:, None], (n, capacity, *leaf.shape[1:])),
            deed.answer,
        )
        meter = meter.update(answers, taking_part * ~over[:, None])
        return policy.actions.to_env(deed.action), meter

    start = Standing(
        jnp.asarray(policy.probe.length),
        probed.world.states,
        probed.world.observation,
        ended[-1] > 0,
        jnp.sum(counts * probed.trajectory.reward, axis=0),
        jnp.sum(counts, axis=0).astype(jnp.int32),
        StageMeter.start(policy.priors.stages[1].family),
    )
    end = finish(env, key, tasks, start, act, max_steps)
    return Played(end.total, end.length, expert, selection.probs, end.memory)


class Standing(NamedTuple):
    """Where n episodes stand; `memory` is whatever the one who acts remembers."""

    step: Int[Array, ""]
    states: PyTree
    observation: Float[Array, "n o"]
    over: Bool[Array, " n"]
    total: Float[Array, " n"]
    length: Int[Array, " n"]
    memory: Any


def start_episodes(env: Env, key: Key[Array, ""], tasks: PyTree, memory: Any) -> Standing:
    """Reset one environment for each task."""
    states, observation = reset_all(env, key, tasks)
    n = len(observation)
    nothing = jnp.zeros(n)
    return Standing(
        jnp.asarray(0),
        states,
        observation,
        jnp.zeros(n, bool),
        nothing,
        nothing.astype(jnp.int32),
        memory,
    )


def finish(
    env: Env,
    key: Key[Array, ""],
    tasks: PyTree,
    start: Standing,
    act: Callable[[Array, Array, Array, Any], tuple[Array, Any]],
    max_steps: Int[Array, ""],
) -> Standing:
    """Go on until all episodes are over, or `max_steps` steps have been taken.

    `act` maps a key, observations, which episodes are over, and its memory to actions and memory.
    """

    def unfinished(now: Standing) -> Array:
        return (now.step < max_steps) & ~jnp.all(now.over)

    def step(now: Standing) -> Standing:
        act_key, env_key = jax.random.split(jax.random.fold_in(key, now.step))
        actions, memory = act(act_key, now.observation, now.over, now.memory)
        states, transition = jax.vmap(env.step)(
            jax.random.split(env_key, len(now.over)), now.states, actions, tasks
        )
        return Standing(
            now.step + 1,
            states,
            transition.observation,
            now.over | transition.done,
            now.total + ~now.over * transition.reward,
            now.length + ~now.over,
            memory,
        )

    return jax.lax.while_loop(unfinished, step, start)


@eqx.filter_jit
def probe_and_select(
    env: Env, key: Key[Array, ""], tasks: PyTree, policy: MetaPolicy
) -> tuple[Float[Array, "n l f"], Categorical]:
    """Probe tasks and return what was found, and p(m|τ)."""
    probed = policy.explore(env, key, tasks)
    return probed.transitions, policy.select(probed.transitions)
