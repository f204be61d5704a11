"""From what a user calls an environment to something an agent can act and learn in."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from pinfactory.core.compiling import compiled_fully
from pinfactory.core.failures import NonFiniteError
from pinfactory.core.hierarchy import pick

from . import envs
from .actions import env_actions
from .evaluate import EpisodeResults, episode_limit, play_episodes
from .policy import Policy, PolicyState
from .ppo import PPO, Info
from .rollout import RolloutState, Trajectory, raise_fault, rollout, stagger, uniforms
from .state import AgentState

# Gymnasium's environments that ours are equal to, number by number.
EQUIVALENT = {
    "InvertedDoublePendulum-v5": envs.DoublePendulum,
    "Pendulum-v1": envs.Pendulum,
    "CartPole-v1": envs.CartPole,
}
OURS = {f"pinfactory/{name}-v0": env for name, env in envs.ENVIRONMENTS.items()}


# What a run keeps: the agent, and the state of the environments.
State = tuple[AgentState, RolloutState]


class OnPolicyLearner(eqx.Module):
    """A step acts for `n_steps` steps in all environments, then learns from them.

    The state of the environments is part of the state, so that a resumed run goes on as if it had
    never stopped; the data are the parameters of the environments.
    """

    env: envs.Env
    ppo: PPO
    n_steps: int = eqx.field(static=True)

    def step(self, key: Key[Array, ""], state: State, params: PyTree) -> tuple[State, Info]:
        """Act for `n_steps` steps in every environment, and learn."""
        agent, environments = state
        act_key, learn_key = jax.random.split(key)
        environments, trajectory = self.act(act_key, agent, environments, params)
        agent, info = self.ppo.step(learn_key, agent, (trajectory, environments.statistics))
        return (agent, environments), info

    def act(
        self, key: Key[Array, ""], agent: AgentState, environments: RolloutState, params: PyTree
    ) -> tuple[RolloutState, Trajectory]:
        """Return the environments after `n_steps` steps, and what happened."""
        env_key, noise_key = jax.random.split(key)
        policy = agent.policy
        noise = uniforms(noise_key, (self.n_steps, len(environments.starts), policy.n_noise))
        return rollout(
            self.env,
            env_key,
            params,
            environments,
            policy.act,
            lambda decision: policy.actions.to_env(decision.action),
            noise,
        )


class JaxBackend:
    """An environment written in JAX to act and learn in, in one compiled program.

    `max_episode_steps` is when an episode of training is truncated, if the environment does not do
    it sooner.
    """

    on_host = False

    def __init__(
        self, env: envs.Env, params: Any, n_envs: int, max_episode_steps: int | None = None
    ) -> None:
        self.env, self.n_envs = env, n_envs
        self._training_env = env
        limit = max_episode_steps
        if limit is not None and (env.max_steps is None or limit < env.max_steps):
            self._training_env = dataclasses.replace(env, max_steps=limit)
        self.params = _broadcast_params(env, params, n_envs)
        self.actions = env_actions(env.action_space)
        self.observation_shape = env.observation_space.shape

    def initial_state(self, seed: int, agent: AgentState) -> State:
        """Return what a run keeps: the agent, and the state of the environments."""
        env = self._training_env
        start = RolloutState.start(
            env, jax.random.key(seed), self.params, PolicyState.start(self.n_envs)
        )
        return agent, stagger(start, env, seed)

    def learner(self, ppo: PPO, n_steps: int) -> OnPolicyLearner:
        """Return the step for `pinfactory.core.training.train`."""
        return OnPolicyLearner(self._training_env, ppo, n_steps)

    def data(self, seed: int, n_steps: int) -> PyTree:
        """Return what a step needs beside the state: the parameters of the environments."""
        return self.params

    def raise_if_at_fault(self, learner: OnPolicyLearner, error: NonFiniteError) -> None:
        """Raise `EnvironmentFault` if the environment was the first to return NaN or infinity."""
        agent, environments = pick(error.run.state, 0)
        # The keys of the iteration that failed, as `train` and `OnPolicyLearner.step` make them.
        key, _ = jax.random.split(jax.random.fold_in(error.run.key[0], error.run.step))
        _, trajectory = _acted(learner, key, agent, environments, self.params)
        for name in ("next_observation", "reward"):
            wrong = ~np.isfinite(np.asarray(getattr(trajectory, name)))
            if wrong.any():
                step, copy, *_ = np.argwhere(wrong)[0]
                raise_fault(
                    f"{type(self.env).__name__} returned a {name.removeprefix('next_')} that is "
                    f"not finite (iteration {error.step}, step {step}, copy {copy})"
                )

    def play(
        self, policy: Policy, n_episodes: int, deterministic: bool, seed: int
    ) -> EpisodeResults:
        """Play whole episodes, all at the same time."""
        limit = episode_limit(self.env)
        index = np.arange(n_episodes) % self.n_envs
        params = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[index]), self.params)
        key, sure = jax.random.key(seed), jnp.asarray(deterministic)
        return play_episodes(self.env, key, params, policy, sure, limit).on_host()


def make_backend(env: Any, params: Any, n_envs: int, max_episode_steps: int | None = None) -> Any:
    """Return a `JaxBackend` for environments written in JAX, a `GymBackend` for all others.

    Arguments are those of `SpecialistAgent`; a vector environment has an `n_envs` of its own.
    """
    known: dict[str, Callable[[], envs.Env]] = {**EQUIVALENT, **OURS}
    if isinstance(env, str) and env in known:
        env = known[env]()
    if isinstance(env, type) and issubclass(env, envs.Env):
        make: Callable[[], envs.Env] = env
        env = make()
    if isinstance(env, envs.Env):
        return JaxBackend(env, params, n_envs, max_episode_steps)
    if params is not None:
        raise ValueError(
            "`params` must be None for a Gymnasium environment, which takes them when it is made; "
            f"got {params!r}."
        )
    try:
        from .gym_backend import make_gym_backend
    except ImportError as error:
        raise ImportError(
            "Gymnasium environments need Gymnasium: pip install 'pinfactory[rl]'"
        ) from error
    return make_gym_backend(env, n_envs, max_episode_steps)


def _broadcast_params(env: envs.Env, params: Any, n: int) -> PyTree:
    """Return parameters with a leading axis of n, which they may have already."""
    defaults = env.default_params()
    if params is None:
        params = defaults
    if not isinstance(params, type(defaults)):
        raise ValueError(
            f"`params` must be {type(defaults).__name__}, the parameters of "
            f"{type(env).__name__}, or None, but got {params!r}."
        )
    plain = eqx.filter_eval_shape(type(params))

    def broadcast(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        array = np.asarray(leaf)
        if array.ndim > len(like.shape) and len(array) != n:
            raise ValueError(
                f"Parameters with a leading axis must have one entry for each of the {n} "
                f"environments, but got {len(array)}."
            )
        return jax.device_put(np.broadcast_to(array, (n, *like.shape)))

    return jax.tree.map(broadcast, params, plain)


@compiled_fully
def _acted(learner: OnPolicyLearner, *arguments: Any) -> Any:
    return learner.act(*arguments)
