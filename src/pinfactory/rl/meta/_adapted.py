"""An agent that has met one task: its expert is chosen and stays."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.rl.envs import Env, replicate

from ._play import probe_and_select
from ._policy import MetaPolicy, of

if TYPE_CHECKING:
    import gymnasium


class AdaptedAgent:
    """The expert that a selector chose for one task.

    Attributes
    ----------
    expert_ : int
        Which one it is.
    responsibilities_ : ndarray of shape (n_experts,)
        p(m|τ) after the probe.
    """

    def __init__(
        self, policy: MetaPolicy, responsibilities: Float[np.ndarray, " m"], seed: int
    ) -> None:
        self.responsibilities_ = responsibilities
        self.expert_ = int(np.argmax(responsibilities))
        self._policy = policy
        self._random = np.random.default_rng(seed)

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
        rows = np.asarray(observation, np.float32)
        single = rows.ndim == 1
        rows = np.atleast_2d(rows)
        wanted = self._policy.observations.mean.shape[0]
        if rows.shape[-1] != wanted:
            raise ValueError(
                f"An observation must have {wanted} numbers, but got shape {np.shape(observation)}."
            )
        noise = self._random.uniform(1e-6, 1.0 - 1e-6, (len(rows), self._policy.actions.n_noise))
        action = np.asarray(
            _act(
                self._policy,
                np.int32(self.expert_),
                rows,
                noise.astype(np.float32),
                np.asarray(deterministic),
            )
        )
        return (action[0] if single else action), None


def adapt_native(policy: MetaPolicy, env: Env, params: Any, seed: int) -> np.ndarray:
    """Probe one body of an environment written in JAX; return p(m|τ)."""
    _, selection = probe_and_select(env, jax.random.key(seed), replicate(params, 1), policy)
    return np.asarray(selection.probs)[0]


def adapt_gymnasium(policy: MetaPolicy, env: "gymnasium.Env", seed: int) -> np.ndarray:
    """Reset a Gymnasium environment and probe it; it is left where the probe ends."""
    observation, _ = env.reset(seed=seed)
    random = np.random.default_rng(seed)
    probe = policy.probe
    noise = random.uniform(1e-6, 1.0 - 1e-6, (probe.length, 1, 1 + policy.actions.n_noise))
    plan = np.asarray(_plan(policy, jnp.asarray(noise, jnp.float32)))
    rows = []
    for step in range(probe.length):
        if probe.kind in ("shake", "noise"):
            action = plan[step, 0]
        else:
            seen = np.atleast_2d(np.asarray(observation, np.float32))
            uniform = noise[step, :, 1:].astype(np.float32)
            action = np.asarray(_act(policy, plan[step, 0], seen, uniform, np.asarray(False)))[0]
        following, reward, terminated, truncated, _ = env.step(action)
        change = np.asarray(following) - np.asarray(observation)
        rows.append(np.concatenate([observation, np.ravel(action), [reward], change]))
        observation = env.reset()[0] if terminated or truncated else following
    transitions = jnp.asarray(np.stack(rows)[None], jnp.float32)
    return np.asarray(_select(policy, transitions))[0]


@eqx.filter_jit
def _act(policy: MetaPolicy, expert: Any, rows: Any, uniform: Any, deterministic: Any) -> Array:
    own = of(policy.hierarchy.experts, jnp.broadcast_to(expert, (len(rows),)))
    deed = policy.act(own, jnp.asarray(rows), jnp.asarray(uniform), deterministic)
    return policy.actions.to_env(deed.action)


@eqx.filter_jit
def _select(policy: MetaPolicy, transitions: Float[Array, "n l f"]) -> Float[Array, "n m"]:
    return policy.select(transitions).probs


@eqx.filter_jit
def _plan(policy: MetaPolicy, noise: Float[Array, "l 1 k"]) -> Array:
    return policy.plan(noise)
