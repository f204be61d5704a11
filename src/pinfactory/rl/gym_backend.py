"""Acting in ordinary Gymnasium environments, which step on the host."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from gymnasium.vector import VectorEnv

from pinfactory.core.failures import NonFiniteError
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Run

from .evaluate import EpisodeResults
from .gym_vector import CheckedVectorEnv, VectorStep
from .policy import HierarchicalAction, Policy, PolicyState, n_noise
from .ppo import PPO
from .predictor import act, host_uniforms
from .rollout import EpisodeStatistics, Trajectory
from .state import AgentState


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
        self._make = make
        self._vector = CheckedVectorEnv(training)
        self.n_envs, self.actions = self._vector.n, self._vector.actions
        self.observation_shape = self._vector.observation_shape
        self._rollout: HostRollout | None = None

    def initial_state(self, seed: int, agent: AgentState) -> AgentState:
        """Return what a run keeps: the agent alone, because environments cannot be stored."""
        return agent

    @staticmethod
    def agent_state(state: AgentState) -> AgentState:
        """Return the agent in what a run keeps."""
        return state

    def learner(self, ppo: PPO, n_steps: int) -> PPO:
        """Return the step for `pinfactory.core.training.train`."""
        return ppo

    def data(
        self, seed: int, n_steps: int
    ) -> Callable[[Run], tuple[Trajectory, EpisodeStatistics]]:
        """Return a function that lets the agent of a run act for `n_steps` steps."""

        def collect(run: Run) -> tuple[Trajectory, EpisodeStatistics]:
            if self._rollout is None:
                self._rollout = HostRollout(self._vector, [seed, int(run.step)])
            return self._rollout.collect(pick(run.state, 0).policy, n_steps)

        return collect

    def raise_if_at_fault(self, learner: PPO, error: NonFiniteError) -> None:
        """Do nothing: what the environments return is checked at every step."""

    def play(
        self, policy: Policy, n_episodes: int, deterministic: bool, seed: int
    ) -> EpisodeResults:
        """Play whole episodes, as many at a time as there are environments."""
        vector = CheckedVectorEnv(self._make(min(n_episodes, self.n_envs)))
        if vector.env is self._vector.env:
            self._rollout = None  # training has to start new episodes afterwards
        rollout = HostRollout(vector, [seed, 0])
        # Every environment plays a fixed number, so that short episodes do not count more often.
        left = np.full(vector.n, n_episodes // vector.n)
        left[: n_episodes % vector.n] += 1
        returns: list[float] = []
        lengths: list[int] = []
        while left.any():
            *_, step = rollout.step(policy, deterministic)
            for i in np.flatnonzero(step.done & (left > 0)):
                left[i] -= 1
                returns.append(float(rollout.statistics.last_total[i]))
                lengths.append(int(rollout.statistics.last_length[i]))
        if vector.env is not self._vector.env:
            vector.env.close()
        return EpisodeResults(np.array(returns), np.array(lengths))


class HostRollout:
    """Steps a vector of environments, from where they are."""

    def __init__(self, vector: CheckedVectorEnv, seed: Sequence[int]) -> None:
        self._vector, self._random = vector, np.random.default_rng(seed)
        self._observation = vector.reset(int(self._random.integers(2**31)))
        self._starts = np.ones(vector.n, bool)
        self._policy_state = PolicyState.start(vector.n)
        self.statistics = EpisodeStatistics.start(vector.n)

    def collect(self, policy: Policy, n_steps: int) -> tuple[Trajectory, EpisodeStatistics]:
        """Act for `n_steps` steps in every environment."""
        steps: Any = stack([self.step(policy, False) for _ in range(n_steps)])
        observation, decision, step = steps
        trajectory = Trajectory(
            observation,
            decision,
            step.reward,
            step.terminated,
            step.done,
            step.next_observation,
            step.weight,
        )
        return trajectory, jax.device_put(self.statistics)

    def step(
        self, policy: Policy, deterministic: bool
    ) -> tuple[np.ndarray, HierarchicalAction, VectorStep]:
        """Act for one step in every environment."""
        observation = self._observation
        self._policy_state, decision, action = act(
            policy,
            observation,
            self._starts,
            self._policy_state,
            host_uniforms(self._random, (self._vector.n, n_noise(policy.actions))),
            np.asarray(deterministic),
        )
        step = self._vector.step(np.asarray(action))
        self._observation, self._starts = step.observation, step.starts
        self.statistics = self.statistics.update(
            step.reward, step.done, step.weight.astype(np.int32)
        )
        return observation, decision, step
