"""Gymnasium's vector environments, with checks and one form of result for both reset modes."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .actions import Actions, DiscreteActions, MultiDiscreteActions, box_actions
from .errors import raise_fault

try:
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
except ImportError as error:
    raise ImportError(
        "Gymnasium environments need Gymnasium; install it with `pip install pinfactory[rl]`."
    ) from error


class VectorStep(NamedTuple):
    """The result of one step of n environments.

    Attributes
    ----------
    observation
        What the agent acts on next, after any reset.
    next_observation
        What the step led to, before any reset.
    starts
        Whether an episode begins with `observation`.
    weight
        Zero where the step did nothing but reset an environment.
    """

    observation: Float[np.ndarray, "n o"]
    next_observation: Float[np.ndarray, "n o"]
    reward: Float[np.ndarray, " n"]
    terminated: Bool[np.ndarray, " n"]
    done: Bool[np.ndarray, " n"]
    starts: Bool[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]


class CheckedVectorEnv:
    """A vector environment that resets by itself, in the same step or in the next."""

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self._mode = env.metadata.get("autoreset_mode")
        if self._mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                "A vector environment must reset by itself, with metadata['autoreset_mode'] "
                f"SAME_STEP or NEXT_STEP, but got {self._mode}."
            )
        self.n = int(env.num_envs)
        self.actions = space_actions(env.single_action_space)
        self.observation_shape = space_shape(env.single_observation_space)
        self._to_reset = np.zeros(self.n, bool)

    def reset(self, seed: int) -> Float[np.ndarray, "n o"]:
        """Start an episode everywhere."""
        try:
            observation, _ = self.env.reset(seed=seed)
        except Exception as error:
            raise_fault(f"raised {type(error).__name__} in reset: {error}", error)
        self._to_reset = np.zeros(self.n, bool)
        return self._checked(observation, "observation of reset")

    def step(self, action: np.ndarray) -> VectorStep:
        """Take one action in each environment."""
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
                last = np.stack([_flat(info["final_obs"][i]) for i in np.flatnonzero(done)])
                next_observation = observation.copy()
                next_observation[done] = self._finite(last, "last observation of an episode")
        else:
            self._to_reset = done
        return VectorStep(
            observation,
            next_observation,
            reward,
            np.asarray(terminated, bool),
            done,
            starts,
            (~resetting).astype(np.float32),
        )

    def _checked(self, observation: Any, what: str) -> Float[np.ndarray, "n o"]:
        rows = np.asarray(observation, np.float32).reshape(self.n, -1)
        if rows.shape[1] != math.prod(self.observation_shape):
            raise_fault(
                f"returned an {what} of {rows.shape[1]} numbers where its observation_space has "
                f"the shape {self.observation_shape}"
            )
        return self._finite(rows, what)

    @staticmethod
    def _finite(rows: np.ndarray, what: str) -> np.ndarray:
        if not np.isfinite(rows).all():
            row, number = np.argwhere(~np.isfinite(rows))[0]
            raise_fault(f"returned {rows[row, number]} as number {number} of an {what}")
        return rows


def _flat(observation: Any) -> np.ndarray:
    return np.asarray(observation, np.float32).ravel()


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
