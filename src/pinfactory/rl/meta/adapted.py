"""An agent adapted to one task: its expert is chosen and stays."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.core.hierarchy import take_expert
from pinfactory.rl.predictor import host_uniforms, observation_rows

from .policy import MetaPolicy

if TYPE_CHECKING:
    import gymnasium


class AdaptedAgent:
    """The expert that a selector chose for one task.

    Attributes
    ----------
    expert_ : int
        The chosen expert.
    responsibilities_ : ndarray of shape (n_experts,)
        p(m|τ) after the probe.
    """

    @with_library_settings
    def __init__(
        self, policy: MetaPolicy, responsibilities: Float[np.ndarray, " m"], seed: int
    ) -> None:
        self.responsibilities_ = finite_choice(responsibilities)
        self.expert_ = int(np.argmax(responsibilities))
        self._policy = policy
        self._random = np.random.default_rng(seed)

    @with_library_settings
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, None]:
        """Return the expert's action for one observation, or for a batch of them.

        The signature is that of Stable-Baselines3; `state` and `episode_start` are not needed,
        because the expert stays.
        """
        policy = self._policy
        rows, single = observation_rows(observation, policy.observations.mean.shape)
        noise = host_uniforms(self._random, (len(rows), policy.actions.n_noise))
        actions = _act(policy, np.int32(self.expert_), rows, noise, np.asarray(deterministic))
        action = np.asarray(actions)
        return (action[0] if single else action), None


def finite_choice(responsibilities: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return p(m|τ), if the probe that it comes from was finite."""
    if not np.isfinite(responsibilities).all():
        raise FloatingPointError("the probe met observations or rewards that are not finite.")
    return responsibilities


def probe_gymnasium(policy: MetaPolicy, env: "gymnasium.Env", seed: int) -> np.ndarray:
    """Reset and probe a Gymnasium environment, left where the probe ends; return p(m|τ)."""
    observation, _ = env.reset(seed=seed)
    random = np.random.default_rng(seed)
    probe = policy.probe
    noise = host_uniforms(random, (probe.length, 1, 1 + policy.actions.n_noise))
    plan = np.asarray(_plan(policy, jnp.asarray(noise)))
    rows = []
    for step in range(probe.length):
        if probe.open_loop:
            action = plan[step, 0]
        else:
            seen = np.atleast_2d(np.asarray(observation, np.float32))
            uniform = noise[step, :, 1:]
            action = np.asarray(_act(policy, plan[step, 0], seen, uniform, np.asarray(False)))[0]
        following, reward, terminated, truncated, _ = env.step(action)
        change = np.asarray(following) - np.asarray(observation)
        rows.append(np.concatenate([observation, np.ravel(action), [reward], change]))
        observation = env.reset()[0] if terminated or truncated else following
    transitions = jnp.asarray(np.stack(rows)[None], jnp.float32)
    return np.asarray(_select(policy, transitions))[0]


@compiled_fully
def _act(policy: MetaPolicy, expert: Any, rows: Any, uniform: Any, deterministic: Any) -> Array:
    experts = take_expert(policy.hierarchy.experts, jnp.broadcast_to(expert, (len(rows),)))
    sample = policy.act(experts, jnp.asarray(rows), jnp.asarray(uniform), deterministic)
    return policy.actions.to_env(sample.action)


@compiled_fully
def _select(policy: MetaPolicy, transitions: Float[Array, "n l f"]) -> Float[Array, "n m"]:
    return policy.select(transitions).probs


@compiled_fully
def _plan(policy: MetaPolicy, noise: Float[Array, "l 1 k"]) -> Array:
    return policy.plan(noise)
