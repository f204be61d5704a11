"""Experience from environments written in JAX: one compiled loop over time."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from . import envs

# Observations, where an episode begins, memory and uniform numbers ↦ memory and decision
Act = Callable[[Array, Array, Any, Array], tuple[Any, Any]]


class Tally(eqx.Module):
    """Return and length of the running episode of each environment, and of its last one."""

    total: Float[Array, " n"]
    length: Int[Array, " n"]
    last_total: Float[Array, " n"]
    last_length: Int[Array, " n"]
    finished: Bool[Array, " n"]

    @classmethod
    def start(cls, n: int) -> "Tally":
        """Begin with no episode finished."""
        zeros, none = np.zeros(n, np.float32), np.zeros(n, np.int32)
        return cls(*map(jax.device_put, (zeros, none, zeros, none, np.zeros(n, bool))))

    def update(self, reward: Float[Array, " n"], done: Bool[Array, " n"]) -> "Tally":
        """Take in a step of every environment."""
        total, length = self.total + reward, self.length + 1
        return type(self)(
            jnp.where(done, 0.0, total),
            jnp.where(done, 0, length),
            jnp.where(done, total, self.last_total),
            jnp.where(done, length, self.last_length),
            self.finished | done,
        )

    def means(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the mean return and length of the last episodes; zero before there is one."""
        n = jnp.maximum(jnp.sum(self.finished), 1)
        return (
            jnp.sum(jnp.where(self.finished, self.last_total, 0.0)) / n,
            jnp.sum(jnp.where(self.finished, self.last_length, 0)) / n,
        )


class World(eqx.Module):
    """Where n environments are between two steps. `memory` is the policy's own."""

    states: PyTree
    observation: Float[Array, "n o"]
    fresh: Bool[Array, " n"]
    memory: Any
    tally: Tally

    @classmethod
    def start(cls, env: envs.Env, key: Key[Array, ""], params: PyTree, memory: Any) -> "World":
        """Reset one environment for each entry of the parameters' leading axis."""
        states, observation = _reset_all(env, key, params)
        n = len(observation)
        return cls(states, observation, jax.device_put(np.ones(n, bool)), memory, Tally.start(n))


class Trajectory(eqx.Module):
    """What happened in a step of n environments, or in t of them.

    Attributes
    ----------
    observation, next_observation
        Before and after the step; the latter before any reset.
    choice
        What the policy decided.
    weight
        How much a step counts: one, or zero for a step that only reset an environment.
    """

    observation: Float[Array, "*t n o"]
    choice: Any
    reward: Float[Array, "*t n"]
    terminated: Bool[Array, "*t n"]
    done: Bool[Array, "*t n"]
    next_observation: Float[Array, "*t n o"]
    weight: Float[Array, "*t n"]


def rollout(
    env: envs.Env,
    key: Key[Array, ""],
    params: PyTree,
    world: World,
    act: Act,
    to_env: Callable[[Any], Shaped[Array, "n ..."]],
    uniform: Float[Array, "t n k"],
) -> tuple[World, Trajectory]:
    """Act for t steps in n environments; those whose episode ends start again.

    Parameters
    ----------
    env
        The environment.
    key
        Of the environments' own randomness.
    params
        Bodies, with a leading axis of n.
    world
        Where to start.
    act
        Decides for all environments, such as `Policy.act`.
    to_env
        Returns the actions of a decision as the environment takes them.
    uniform
        Uniform numbers for the decisions; all at once, because random numbers inside a loop take
        long to compile.
    """

    def step(world: World, now: tuple[Array, Array]) -> tuple[World, Trajectory]:
        step_key, noise = now
        memory, choice = act(world.observation, world.fresh, world.memory, noise)
        states, observation, transition = envs.step_all(
            env, step_key, world.states, to_env(choice), params
        )
        new = World(
            states,
            observation,
            transition.done,
            memory,
            world.tally.update(transition.reward, transition.done),
        )
        return new, Trajectory(
            world.observation,
            choice,
            transition.reward,
            transition.terminated,
            transition.done,
            transition.observation,
            jnp.ones_like(transition.reward),
        )

    return jax.lax.scan(step, world, (jax.random.split(key, len(uniform)), uniform))


def uniforms(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Return uniform numbers that are neither zero nor one."""
    return jax.random.uniform(key, shape, minval=2.0**-24, maxval=1.0 - 2.0**-24)


def staggered(world: World, env: envs.Env, seed: int) -> World:
    """Let first episodes end at different times.

    Otherwise environments that only a time limit ends would stay in step, and every update would
    learn from one phase of an episode alone.
    """
    if env.max_steps is None or not isinstance(world.states, envs.State):
        return world
    taken = np.random.default_rng(seed).integers(0, env.max_steps, len(world.fresh), np.int32)
    return eqx.tree_at(lambda w: w.states.steps, world, jax.device_put(taken))


@eqx.filter_jit
def _reset_all(env: envs.Env, key: Key[Array, ""], params: PyTree) -> tuple[PyTree, Array]:
    return envs.reset_all(env, key, params)
