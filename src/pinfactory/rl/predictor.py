"""What can be asked of an agent, by small compiled programs: actions and probabilities."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float

from pinfactory.core.compiling import compiled_fully, with_library_settings

from .actions import Actions
from .policy import HierarchicalAction, Policy, PolicyState
from .state import AgentState


class Predictor:
    """Predictions of the learned policy for observations as users have them."""

    n_experts: int
    hold: int
    state_: AgentState
    # Shape of an observation, and the actions.
    _spaces: tuple[tuple[int, ...], Actions]
    _random: np.random.Generator

    @with_library_settings
    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Return the action for one observation, or for a batch of them.

        Parameters
        ----------
        observation
            One, or several along a first axis.
        state
            What the last call returned, if experts are held for several steps.
        episode_start
            Whether an episode begins; true for all if there is no `state`.
        deterministic
            Whether to take the most probable expert and its most probable action.

        Returns
        -------
        action
            As the environment takes it.
        state
            To be handed to the next call; None if the selector chooses at every step.
        """
        rows, single = self._rows(observation)
        n, policy = len(rows), self.state_.policy
        held = PolicyState.start(n) if state is None else PolicyState(*map(jnp.asarray, state))
        starts = np.ones(n, bool) if state is None else np.zeros(n, bool)
        if episode_start is not None and state is not None:
            starts = np.broadcast_to(np.asarray(episode_start, bool), (n,))
        held, _, action = act(
            policy,
            rows,
            starts,
            held,
            host_uniforms(self._random, (n, policy.n_noise)),
            np.asarray(deterministic),
        )
        actions = np.asarray(action)
        single_action = actions[0] if single else actions
        if self.hold == 1:
            return single_action, None
        return single_action, (np.asarray(held.expert), np.asarray(held.steps_held))

    @with_library_settings
    def responsibilities(self, observation: Any) -> Float[np.ndarray, "n m"]:
        """Return p(m|x), a row for each observation and a column for each expert."""
        rows, _ = self._rows(observation)
        return np.asarray(_responsibilities(self.state_.policy, rows))[:, : self.n_experts]

    @with_library_settings
    def log_prob(self, observation: Any, action: Any) -> Float[np.ndarray, " n"]:
        """Return log p(a|x) of the whole committee; for box actions a density within the box."""
        rows, _ = self._rows(observation)
        actions = jnp.asarray(action).reshape(len(rows), *np.shape(action)[1:])
        return np.asarray(_log_density(self.state_.policy, rows, actions))

    def _rows(self, observation: Any) -> tuple[Array, bool]:
        rows, single = observation_rows(observation, self._spaces[0])
        return jax.device_put(rows), single


def observation_rows(
    observation: Any, shape: tuple[int, ...]
) -> tuple[Float[np.ndarray, "n o"], bool]:
    """Return observations as rows, and whether there was only one, not in a batch."""
    array = np.asarray(observation, np.float32)
    if shape not in (array.shape, array.shape[1:]):
        raise ValueError(
            f"An observation must have shape {shape}, with or without a first axis for a batch "
            f"of them, but got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise ValueError("An observation must be finite, but got NaN or infinity.")
    return array.reshape(-1, math.prod(shape)), array.shape == shape


@compiled_fully
def act(
    policy: Policy,
    observation: ArrayLike,
    starts: ArrayLike,
    state: PolicyState,
    uniform: ArrayLike,
    deterministic: ArrayLike,
) -> tuple[PolicyState, HierarchicalAction, Array]:
    """Return the policy's state, its decision, and the actions as the environment takes them."""
    state, decision = policy.act(
        jnp.asarray(observation),
        jnp.asarray(starts),
        state,
        jnp.asarray(uniform),
        jnp.asarray(deterministic),
    )
    return state, decision, policy.actions.to_env(decision.action)


@compiled_fully
def _responsibilities(policy: Policy, observation: Float[Array, "n o"]) -> Float[Array, "n m"]:
    """Return p(m|x)."""
    return policy.decide(observation).responsibilities


@compiled_fully
def _log_density(
    policy: Policy, observation: Float[Array, "n o"], action: Array
) -> Float[Array, " n"]:
    """Return log p(a|x) = log Σ_m p(m|x) p(a|x,m), in the environment's units."""
    decision = policy.decide(observation)
    own = policy.actions.from_env(action)
    log_prob = jax.vmap(lambda answers, a: answers.log_prob(a))(decision.answers, own)
    joint = decision.selections[0].log_probs + log_prob
    return logsumexp(joint, axis=-1) - policy.actions.log_volume(own)


def host_uniforms(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return uniform numbers that are neither zero nor one, by NumPy."""
    return random.uniform(2.0**-24, 1.0 - 2.0**-24, shape).astype(np.float32)
