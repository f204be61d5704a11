"""What every environment can do, and how finished episodes start again."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PyTree, Shaped

Params = TypeVar("Params")

# For numbers without a bound of their own: finite, as Gymnasium's checks ask for.
UNBOUNDED = float(np.finfo(np.float32).max)


class Box(NamedTuple):
    """Vectors of real numbers between `low` and `high`, number by number."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def shape(self) -> tuple[int]:
        """Shape of one vector."""
        return (len(self.low),)


class Discrete(NamedTuple):
    """The whole numbers 0 … n − 1."""

    n: int

    @property
    def shape(self) -> tuple[()]:
        """Shape of one number."""
        return ()


def parameter(default: float | Sequence[float]) -> Any:
    """Declare a field of an environment's parameters: an array, converted from numbers.

    A value may have more leading axes than the default (one body each), but no other trailing ones.
    """
    shape = np.shape(default)

    def convert(value: ArrayLike | Sequence[float]) -> Float[Array, "..."]:
        array = jnp.asarray(value, float)
        if array.shape[max(array.ndim - len(shape), 0) :] != shape:
            raise ValueError(
                f"A parameter with default {default} must have shape {shape} (after leading axes), "
                f"but got {array.shape}."
            )
        return array

    return eqx.field(default_factory=lambda: convert(default), converter=convert)


class State(NamedTuple):
    """Generalised coordinates and velocities, and the steps taken since the reset."""

    position: Float[Array, "*batch q"]
    velocity: Float[Array, "*batch q"]
    steps: Int[Array, "*batch"]


class Transition(NamedTuple):
    """Outcome of a step: the observation *before* any reset, the reward, and two ways to end."""

    observation: Float[Array, "*batch o"]
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]

    @property
    def done(self) -> Bool[Array, "*batch"]:
        """Whether the episode is over, for either reason."""
        return self.terminated | self.truncated


class Env(eqx.Module, Generic[Params]):
    """A pure environment: all that changes is in the state, all that can be tuned in `params`.

    An environment holds no arrays. `reset` and `step` describe one body; `jax.vmap` over states,
    actions *and* parameters steps many different bodies together.

    Parameters
    ----------
    max_steps
        Steps after which an episode is truncated; `None` for no limit.
    """

    max_steps: eqx.AbstractVar[int | None]

    @property
    @abstractmethod
    def observation_space(self) -> Box:
        """The observations that `reset` and `step` may return."""

    @property
    @abstractmethod
    def action_space(self) -> Box | Discrete:
        """The actions that `step` takes; a Box action outside the range is clipped."""

    @property
    @abstractmethod
    def step_seconds(self) -> float:
        """Simulated time between two steps at the default parameters."""

    @abstractmethod
    def default_params(self) -> Params:
        """Return the parameters of the reference environment.

        Parameters are a frozen dataclass of arrays: `dataclasses.replace(params, gear=200.0)`
        changes some of them.
        """

    @abstractmethod
    def reset(self, key: Key[Array, ""], params: Params) -> tuple[Any, Float[Array, " o"]]:
        """Draw a first state and return it with its observation."""

    @abstractmethod
    def step(
        self, key: Key[Array, ""], state: Any, action: Shaped[Array, "..."], params: Params
    ) -> tuple[Any, Transition]:
        """Advance by one step."""

    def draw(self, state: Any, params: Params, size: int) -> np.ndarray:
        """Return a picture of the state, as `size` × `size` × 3 bytes."""
        raise NotImplementedError(f"{type(self).__name__} has no picture; override `draw`.")

    def out_of_time(self, steps: Int[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Return whether the time limit is reached."""
        if self.max_steps is None:
            return jnp.zeros(steps.shape, bool)
        return steps >= self.max_steps


def replicate(params: Params, n: int) -> Params:
    """Give every leaf a leading axis of `n` equal entries."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *jnp.shape(leaf))), params)


def reset_all(
    env: Env[Params], key: Key[Array, ""], params: Params
) -> tuple[PyTree, Float[Array, "n o"]]:
    """Reset n environments, one for each entry of the parameters' leading axis."""
    n = jax.tree.leaves(params)[0].shape[0]
    return jax.vmap(env.reset)(jax.random.split(key, n), params)


def step_all(
    env: Env[Params],
    key: Key[Array, ""],
    states: PyTree,
    actions: Shaped[Array, "n ..."],
    params: Params,
) -> tuple[PyTree, Float[Array, "n o"], Transition]:
    """Step n environments and reset those whose episode ended.

    States, actions and parameters have a leading axis of n. Returned are the states in which the
    next step starts, what the agent sees there, and what the step led to: the observation of the
    transition is the last one of the episode where one ended, so that a critic can bootstrap from
    it when the end was a truncation.
    """
    step_key, reset_key = jax.random.split(key)
    step_keys = jax.random.split(step_key, actions.shape[0])
    states, transition = jax.vmap(env.step)(step_keys, states, actions, params)
    done = transition.done

    def restart() -> tuple[PyTree, Float[Array, "n o"]]:
        fresh = reset_all(env, reset_key, params)
        return jax.tree.map(
            lambda new, old: jnp.where(done.reshape(done.shape + (1,) * (old.ndim - 1)), new, old),
            fresh,
            (states, transition.observation),
        )

    # Fresh states are drawn for all environments, but only when at least one needs one.
    states, observations = jax.lax.cond(
        jnp.any(done), restart, lambda: (states, transition.observation)
    )
    return states, observations, transition
