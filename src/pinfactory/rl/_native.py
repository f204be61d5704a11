"""Acting in environments written in JAX, and learning from it, in one compiled program."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pinfactory.core.hierarchy import pick
from pinfactory.core.training import Callback, NonFiniteError, Run, train

from . import envs
from ._actions import native_actions
from ._errors import complain
from ._mind import Mind
from ._play import Episodes, play
from ._policy import Memory, Policy
from ._practice import Practice
from ._rollout import World, staggered
from ._update import Improver


class Native:
    """An environment written in JAX as a place to act and learn in.

    `longest` is when an episode of training is truncated, if the environment does not do it sooner.
    """

    def __init__(self, env: envs.Env, params: Any, n_envs: int, longest: int | None = None) -> None:
        self.env, self.n_envs = env, n_envs
        self._training = env
        if longest is not None and (env.max_steps is None or longest < env.max_steps):
            self._training = dataclasses.replace(env, max_steps=longest)
        self.params = _spread(env.default_params() if params is None else params, n_envs)
        self.actions = native_actions(env.action_space)
        self.observation_shape = env.observation_space.shape

    def start(self, seed: int, mind: Mind) -> tuple[Mind, World]:
        """Return what a run keeps of a mind in these environments: itself, and where they are."""
        memory = Memory.start(self.n_envs)
        world = World.start(self._training, jax.random.key(seed), self.params, memory)
        return mind, staggered(world, self._training, seed)

    @staticmethod
    def mind_of(state: tuple[Mind, World]) -> Mind:
        """Return the mind in what a run keeps."""
        return state[0]

    def train(
        self,
        run: Run,
        improver: Improver,
        n_steps: int,
        *,
        seed: int,
        steps: int,
        chunk: int,
        callbacks: Sequence[Callback],
    ) -> Run:
        """Act and learn until `steps` iterations are done."""
        practice = Practice(self._training, improver, n_steps)
        try:
            trained = train(
                practice, run, self.params, steps=steps, chunk=chunk, callbacks=callbacks
            )
        except NonFiniteError as error:
            self._blame_environment(practice, error)
            raise
        return trained.run

    def _blame_environment(self, practice: Practice, error: NonFiniteError) -> None:
        """Complain of the environment if it was the first to return what is not finite."""
        mind, world = pick(error.run.state, 0)
        # The keys of the iteration that failed, as `train` and `Practice.step` make them.
        key, _ = jax.random.split(jax.random.fold_in(error.run.key[0], error.run.step))
        _, trajectory = eqx.filter_jit(practice.act)(key, mind, world, self.params)
        for name in ("next_observation", "reward"):
            wrong = ~np.isfinite(np.asarray(getattr(trajectory, name)))
            if wrong.any():
                step, copy, *_ = np.argwhere(wrong)[0]
                complain(
                    f"{type(self.env).__name__} returned a {name.removeprefix('next_')} that is "
                    f"not finite (iteration {error.step}, step {step}, copy {copy})"
                )

    def play(self, policy: Policy, n_episodes: int, deterministic: bool, seed: int) -> Episodes:
        """Play whole episodes, all at the same time."""
        if self.env.max_steps is None:
            raise ValueError("An environment must have `max_steps` to be evaluated, but got None.")
        index = np.arange(n_episodes) % self.n_envs
        params = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[index]), self.params)
        return play(
            self.env,
            jax.random.key(seed),
            params,
            policy,
            jnp.asarray(deterministic),
            jnp.asarray(self.env.max_steps),
        )


def _spread(params: PyTree, n: int) -> PyTree:
    """Give every leaf a leading axis of n, if it has none yet."""
    plain = eqx.filter_eval_shape(type(params))

    def spread(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        array = np.asarray(leaf)
        if array.ndim > len(like.shape) and len(array) != n:
            raise ValueError(
                f"Parameters with a leading axis must have one entry for each of the {n} "
                f"environments, but got {len(array)}."
            )
        return jax.device_put(np.broadcast_to(array, (n, *like.shape)))

    return jax.tree.map(spread, params, plain)
