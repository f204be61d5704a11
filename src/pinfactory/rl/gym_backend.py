"""Acting and learning in Gymnasium environments, which step on the host."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from jaxtyping import Float

from pinfactory.core.failures import NonFiniteError
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Run

from .actions import Actions, DiscreteActions, MultiDiscreteActions, box_actions
from .evaluate import EpisodeResults
from .policy import Policy, PolicyState
from .ppo import PPO
from .predictor import act, host_uniforms
from .rollout import EpisodeStatistics, Trajectory, raise_fault
from .state import AgentState


def make_gym_backend(env: Any, n_envs: int, max_episode_steps: int | None) -> "GymBackend":
    """Return a backend for an id, an environment, a function that makes one, or a vector."""
    limit = max_episode_steps
    if isinstance(env, VectorEnv | gymnasium.Env):
        if limit is not None:
            raise ValueError(
                "`max_episode_steps` must be None for an environment that was made already, but "
                f"got {limit}; pass a function that makes one."
            )
        only = env if isinstance(env, VectorEnv) else _vector(lambda: env, 1)
        return GymBackend(lambda n: only, only)
    if isinstance(env, str):
        try:
            gymnasium.spec(env)
        except gymnasium.error.Error as error:
            raise ValueError(
                f"`env` must be the id of a registered environment, but got {env!r}: {error}"
            ) from error
        env = partial(gymnasium.make, env)
    if callable(env):
        limited = env if limit is None else lambda: TimeLimit(env(), limit)
        return GymBackend(partial(_vector, env), _vector(limited, n_envs))
    raise ValueError(
        "`env` must be an environment of pinfactory.rl.envs, the id of a Gymnasium environment, or "
        f"a Gymnasium environment, class or vector environment, but got {env!r}."
    )


def _vector(make: Any, n: int) -> VectorEnv:
    return SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)


class GymBackend:
    """Gymnasium environments to act and learn in.

    Parameters
    ----------
    make
        Builds a vector of so many environments, or returns the only one there is.
    training
        The one to train in.
    """

    # Every update learns from experience of its own, gathered between two compiled steps.
    on_host = True

    def __init__(self, make: Callable[[int], VectorEnv], training: VectorEnv) -> None:
        self._make, self._training = make, HostRollout(training)
        self.n_envs, self.actions = self._training.n, self._training.actions
        self.observation_shape = self._training.observation_shape

    def initial_state(self, seed: int, agent: AgentState) -> AgentState:
        """Return what a run keeps: the agent alone, because environments cannot be stored."""
        return agent

    def learner(self, ppo: PPO, n_steps: int) -> PPO:
        """Return the step for `pinfactory.core.training.train`."""
        return ppo

    def data(
        self, seed: int, n_steps: int
    ) -> Callable[[Run], tuple[Trajectory, EpisodeStatistics]]:
        """Return a function that lets the agent of a run act for `n_steps` steps."""

        def collect(run: Run) -> tuple[Trajectory, EpisodeStatistics]:
            if not self._training.started:
                self._training.start([seed, int(run.step)])
            return self._training.collect(pick(run.state, 0).policy, n_steps)

        return collect

    def raise_if_at_fault(self, learner: PPO, error: NonFiniteError) -> None:
        """Do nothing: what the environments return is checked at every step."""

    def play(
        self, policy: Policy, n_episodes: int, deterministic: bool, seed: int
    ) -> EpisodeResults:
        """Play whole episodes, as many at a time as there are environments."""
        rollout = HostRollout(self._make(min(n_episodes, self.n_envs)))
        shared = rollout.env is self._training.env
        if shared:  # training has to start new episodes afterwards
            self._training.started = False
        rollout.start([seed, 0])
        # Every environment plays a fixed number, so that short episodes do not count more often.
        left = np.full(rollout.n, n_episodes // rollout.n)
        left[: n_episodes % rollout.n] += 1
        returns: list[float] = []
        lengths: list[int] = []
        while left.any():
            step = rollout.step(policy, deterministic)
            for i in np.flatnonzero(step.done & (left > 0)):
                left[i] -= 1
                returns.append(float(rollout.statistics.last_total[i]))
                lengths.append(int(rollout.statistics.last_length[i]))
        if not shared:
            rollout.env.close()
        return EpisodeResults(np.array(returns), np.array(lengths))


class HostRollout:
    """Steps a vector of environments that resets by itself, in the same step or in the next.

    Whatever the environments return is checked.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.started = env, False
        self._mode = env.metadata.get("autoreset_mode")
        if self._mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                "A vector environment must reset by itself, with metadata['autoreset_mode'] "
                f"SAME_STEP or NEXT_STEP, but got {self._mode}."
            )
        self.n = int(env.num_envs)
        self.actions = space_actions(env.single_action_space)
        self.observation_shape = space_shape(env.single_observation_space)

    def start(self, seed: Sequence[int]) -> None:
        """Start an episode everywhere."""
        self._random = np.random.default_rng(seed)
        try:
            observation, _ = self.env.reset(seed=int(self._random.integers(2**31)))
        except Exception as error:
            raise_fault(f"raised {type(error).__name__} in reset: {error}", error)
        self.observation = self._checked(observation, "observation of reset")
        self.starts, self._to_reset = np.ones(self.n, bool), np.zeros(self.n, bool)
        self._policy_state = PolicyState.start(self.n)
        self.statistics = EpisodeStatistics.start(self.n)
        self.started = True

    def collect(self, policy: Policy, n_steps: int) -> tuple[Trajectory, EpisodeStatistics]:
        """Act for `n_steps` steps in every environment."""
        trajectory = stack([self.step(policy, False) for _ in range(n_steps)])
        return trajectory, jax.device_put(self.statistics)

    def step(self, policy: Policy, deterministic: bool) -> Trajectory:
        """Act for one step in every environment."""
        self._policy_state, decision, action = act(
            policy,
            self.observation,
            self.starts,
            self._policy_state,
            host_uniforms(self._random, (self.n, policy.n_noise)),
            np.asarray(deterministic),
        )
        return self.advance(np.asarray(action), decision)

    def advance(self, action: np.ndarray, decision: Any = None) -> Trajectory:
        """Take one action in each environment, which the policy's decision led to."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise_fault(f"raised {type(error).__name__} in step: {error}", error, action)
        observation = self._checked(observation, "observation")
        reward = np.asarray(reward, np.float32)
        if not np.isfinite(reward).all():
            where = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise_fault(f"returned the reward {reward[where]} (in copy {where} of {self.n})")
        resetting, done = self._to_reset, np.asarray(terminated | truncated, bool)
        next_observation, starts = observation, resetting
        if self._mode == AutoresetMode.SAME_STEP:
            starts = done
            if done.any():
                rows = [np.ravel(info["final_obs"][i]) for i in np.flatnonzero(done)]
                last = np.asarray(rows, np.float32)
                next_observation = observation.copy()
                next_observation[done] = _finite(last, "last observation of an episode")
        else:
            self._to_reset = done
        weight = (~resetting).astype(np.float32)
        self.statistics = self.statistics.update(reward, done, weight.astype(np.int32))
        before, self.observation, self.starts = self.observation, observation, starts
        ends = (np.asarray(terminated, bool), done)
        step: Any = (before, decision, reward, *ends, next_observation, weight)
        return Trajectory(*step)

    def _checked(self, observation: Any, what: str) -> Float[np.ndarray, "n o"]:
        rows = np.asarray(observation, np.float32).reshape(self.n, -1)
        if rows.shape[1] != math.prod(self.observation_shape):
            raise_fault(
                f"returned an {what} of {rows.shape[1]} numbers where its observation_space has "
                f"the shape {self.observation_shape}"
            )
        return _finite(rows, what)


def _finite(rows: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(rows).all():
        row, number = np.argwhere(~np.isfinite(rows))[0]
        raise_fault(f"returned {rows[row, number]} as number {number} of an {what}")
    return rows


def space_actions(space: Any) -> Actions:
    """Return the actions of a Gymnasium space."""
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return MultiDiscreteActions(tuple(int(n) for n in space.nvec))
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int | np.integer):
        return MultiDiscreteActions((2,) * int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return box_actions(space.low, space.high)
    raise ValueError(
        "The action space must be a Box of floats, Discrete, MultiDiscrete or MultiBinary, but got "
        f"{space}; translate it with gymnasium.wrappers.TransformAction."
    )


def space_shape(space: Any) -> tuple[int, ...]:
    """Return the shape of an observation."""
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"The observation space must be a Box, but got {space}; flatten it with "
            "gymnasium.wrappers.FlattenObservation."
        )
    return tuple(space.shape)
