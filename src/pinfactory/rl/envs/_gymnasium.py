"""The environments as Gymnasium knows them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from pinfactory.core.compiling import bounded

from . import ENVIRONMENTS
from ._env import Box, Discrete, Env

try:
    import gymnasium
except ImportError as error:
    raise ImportError("GymnasiumEnv needs Gymnasium: pip install 'pinfactory[rl]'") from error

FRAME_SIZE = 480

# Returns at which an environment counts as solved: Gymnasium's own where there is one, and 70 % of
# the time upright for a swing-up.
SOLVED = {
    "DoublePendulum": 9100.0,
    "DoublePendulumSwingUp": 350.0,
    "CartPole": 475.0,
    "CartPoleSwingUp": 350.0,
}


class GymnasiumEnv(gymnasium.Env[np.ndarray, Any]):
    """Any functional environment behind Gymnasium's interface.

    Parameters
    ----------
    env
        The functional environment, whose time limit truncates episodes; or the name of a class of
        this package, then without a time limit (`gymnasium.make` adds its own).
    params
        Its parameters; the default ones if not given.
    render_mode
        `"rgb_array"` for `render` to return pictures.
    **changes
        New values for some of the parameters.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        env: Env[Any] | str,
        params: Any | None = None,
        render_mode: str | None = None,
        **changes: Any,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or 'rgb_array', but got {render_mode!r}.")
        if isinstance(env, str):
            if env not in ENVIRONMENTS:
                raise ValueError(f"env must be one of {', '.join(ENVIRONMENTS)}, but got {env!r}.")
            env = ENVIRONMENTS[env](max_steps=None)
        self.env = env
        params = self.env.default_params() if params is None else params
        self.params = dataclasses.replace(params, **changes) if changes else params
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1.0 / self.env.step_seconds)}
        self.observation_space = _space(self.env.observation_space)
        self.action_space = _space(self.env.action_space)
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; `options` are new values of parameters, kept from now on."""
        super().reset(seed=seed)
        if options:
            self.params = dataclasses.replace(self.params, **options)
        self._key, key = jax.random.split(jax.random.key(self.np_random.integers(2**32)))
        self._state, observation = _reset(self.env, key, self.params)
        return np.array(observation, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, `terminated`, `truncated` and an empty dictionary."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("reset must be called before step.")
        action = np.asarray(action, self.action_space.dtype)
        if action.shape != self.action_space.shape:
            raise ValueError(
                f"action must have shape {self.action_space.shape}, but got {action.shape}."
            )
        if isinstance(self.env.action_space, Discrete) and action not in self.action_space:
            raise ValueError(f"action must be in {self.action_space}, but got {action}.")
        self._key, self._state, transition = _step(
            self.env, self._key, self._state, action, self.params
        )
        observation, reward, terminated, truncated = jax.device_get(tuple(transition))
        return (
            np.array(observation, np.float32),
            float(reward),
            bool(terminated),
            bool(truncated),
            {},
        )

    def render(self) -> np.ndarray | None:
        """Return a picture of the current state if `render_mode` is "rgb_array"."""
        if self.render_mode is None:
            gymnasium.logger.warn("render needs render_mode='rgb_array' when the env is made.")
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("reset must be called before render.")
        return self.env.draw(self._state, self.params, FRAME_SIZE)


@bounded
@jax.jit
def _reset(env: Env[Any], key: jax.Array, params: Any) -> Any:
    return env.reset(key, params)


@bounded
@jax.jit
def _step(env: Env[Any], key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    key, step_key = jax.random.split(key)
    return key, *env.step(step_key, state, action, params)


def _space(space: Box | Discrete) -> gymnasium.spaces.Space[Any]:
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n)
    low, high = (np.array(bound, np.float32) for bound in space)
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def register() -> None:
    """Register `pinfactory/NAME-v0` for every environment."""
    for name, env in ENVIRONMENTS.items():
        gymnasium.register(
            id=f"pinfactory/{name}-v0",
            entry_point="pinfactory.rl.envs._gymnasium:GymnasiumEnv",
            kwargs={"env": name},
            max_episode_steps=env().max_steps,
            reward_threshold=SOLVED.get(name),
        )
