"""Experience from environments written in JAX: one compiled loop over time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from pinfactory.core.compiling import compiled_fully

from . import envs

# Of JAX, or of NumPy on the host.
AnyArray = Array | np.ndarray
# The same; type checkers see what compiled functions make of it.
if TYPE_CHECKING:
    StepArray = Array
else:
    StepArray = AnyArray
# (observations, where an episode begins, state of the policy, uniform numbers)
# ↦ (state of the policy, decision)
Act = Callable[[Array, Array, Any, Array], tuple[Any, Any]]


class EnvironmentFault(RuntimeError):
    """An environment raised an error or returned invalid values.

    The agent keeps what it had learned until then.
    """


def raise_fault(what: str, error: Exception | None = None, action: Any = None) -> NoReturn:
    """Raise an `EnvironmentFault` that says what an environment did."""
    acted = "" if action is None else f" for actions of shape {action.shape}, type {action.dtype}"
    raise EnvironmentFault(
        f"The environment {what}{acted}. What the agent learned until then is kept: it can act, be "
        "saved, and go on learning in a sound environment."
    ) from error


class EpisodeStatistics(eqx.Module):
    """Return and length of the running episode of each environment, and of its last whole one.

    A first episode that begins within its time limit (`stagger`) is not `whole`: its return is not
    comparable with those of others.
    """

    total: Float[AnyArray, " n"]
    length: Int[AnyArray, " n"]
    last_total: Float[AnyArray, " n"]
    last_length: Int[AnyArray, " n"]
    finished: Bool[AnyArray, " n"]
    whole: Bool[AnyArray, " n"]

    @classmethod
    def start(cls, n: int) -> "EpisodeStatistics":
        """Begin on the host with no episode finished."""
        zeros, none = np.zeros(n, np.float32), np.zeros(n, np.int32)
        return cls(zeros, none, zeros, none, np.zeros(n, bool), np.ones(n, bool))

    def update(
        self,
        reward: Float[AnyArray, " n"],
        done: Bool[AnyArray, " n"],
        weight: Int[AnyArray, " n"] | int = 1,
    ) -> "EpisodeStatistics":
        """Take in a step of every environment, of JAX or of NumPy; a reset has the weight zero."""
        xp: Any = self.total.__array_namespace__()
        total, length = self.total + reward, self.length + weight
        counts = done & self.whole
        return type(self)(
            xp.where(done, 0.0, total),
            xp.where(done, 0, length),
            xp.where(counts, total, self.last_total),
            xp.where(counts, length, self.last_length),
            self.finished | counts,
            self.whole | done,
        )

    def means(self) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Return mean return and length of the last episodes, and whether there is any (1 or 0).

        Both means are zero where there is none yet; `report_missing` makes them NaN in reports.
        """
        n = jnp.maximum(jnp.sum(self.finished), 1)
        return (
            jnp.sum(jnp.where(self.finished, self.last_total, 0.0)) / n,
            jnp.sum(jnp.where(self.finished, self.last_length, 0)) / n,
            jnp.any(self.finished).astype(float),
        )


def report_missing(info: Any) -> Any:
    """Return a report with NaN for statistics of episodes before the first one has finished.

    `info` holds means over some iterations; `info.finished` is the share of those in which there
    was a finished episode. A compiled loop cannot carry NaN for missing values, because NaN tells
    it that learning has failed.
    """
    if not hasattr(info, "finished"):
        return info
    finished = np.asarray(info.finished)
    some = np.where(finished > 0, finished, 1.0)
    changes = {
        name: np.where(finished > 0, np.asarray(getattr(info, name)) / some, np.nan)
        for name in ("episode_return", "episode_length")
        if name in info._fields
    }
    return info._replace(finished=None, **changes)


class RolloutState(eqx.Module):
    """The state of n environments between two steps, and that of the policy in them."""

    states: PyTree
    observation: Float[Array, "n o"]
    starts: Bool[Array, " n"]
    policy_state: Any
    statistics: EpisodeStatistics

    @classmethod
    def start(
        cls, env: envs.Env, key: Key[Array, ""], params: PyTree, policy_state: Any
    ) -> "RolloutState":
        """Reset one environment for each entry of the parameters' leading axis."""
        states, observation = _reset_all(env, key, params)
        n = len(observation)
        starts = jax.device_put(np.ones(n, bool))
        statistics = jax.device_put(EpisodeStatistics.start(n))
        return cls(states, observation, starts, policy_state, statistics)


class Trajectory(eqx.Module):
    """What happened in a step of n environments, or in t of them.

    `decision` is what the policy returned, such as a `HierarchicalAction`, and `next_observation`
    what a step led to, before any reset. A step that only reset an environment has no weight.
    """

    observation: Float[StepArray, "*t n o"]
    decision: Any
    reward: Float[StepArray, "*t n"]
    terminated: Bool[StepArray, "*t n"]
    done: Bool[StepArray, "*t n"]
    next_observation: Float[StepArray, "*t n o"]
    weight: Float[StepArray, "*t n"]


def rollout(
    env: envs.Env,
    key: Key[Array, ""],
    params: PyTree,
    start: RolloutState,
    act: Act,
    to_env: Callable[[Any], Shaped[Array, "n ..."]],
    uniform: Float[Array, "t n k"],
) -> tuple[RolloutState, Trajectory]:
    """Act for t steps in n environments; those whose episode ends start again.

    `act` decides for all environments, such as `Policy.act`, and `to_env` returns the actions of a
    decision as the environment takes them. `key` is of the environments' own randomness; `uniform`
    has the numbers for all decisions, because random numbers inside a loop take long to compile.
    """

    def step(now: RolloutState, given: tuple[Array, Array]) -> tuple[RolloutState, Trajectory]:
        step_key, noise = given
        policy_state, decision = act(now.observation, now.starts, now.policy_state, noise)
        states, observation, transition = envs.step_all(
            env, step_key, now.states, to_env(decision), params
        )
        new = RolloutState(
            states,
            observation,
            transition.done,
            policy_state,
            now.statistics.update(transition.reward, transition.done),
        )
        return new, Trajectory(
            now.observation,
            decision,
            transition.reward,
            transition.terminated,
            transition.done,
            transition.observation,
            jnp.ones_like(transition.reward),
        )

    return jax.lax.scan(step, start, (jax.random.split(key, len(uniform)), uniform))


def uniforms(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Return uniform numbers that are neither zero nor one."""
    return jax.random.uniform(key, shape, minval=2.0**-24, maxval=1.0 - 2.0**-24)


def stagger(start: RolloutState, env: envs.Env, seed: int) -> RolloutState:
    """Let first episodes end at different times.

    Otherwise environments that only a time limit ends would stay in step, and every update would
    learn from one phase of an episode alone.
    """
    if env.max_steps is None or not isinstance(start.states, envs.State):
        return start
    taken = np.random.default_rng(seed).integers(0, env.max_steps, len(start.starts), np.int32)
    parts = jax.device_put((taken, taken == 0))
    return eqx.tree_at(lambda s: (s.states.steps, s.statistics.whole), start, parts)


@compiled_fully
def _reset_all(env: envs.Env, key: Key[Array, ""], params: PyTree) -> tuple[PyTree, Array]:
    return envs.reset_all(env, key, params)
