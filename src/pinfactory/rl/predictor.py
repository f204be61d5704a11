"""What can be asked of an agent: actions, probabilities, bits."""

import math
from abc import abstractmethod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pinfactory.core.information import Information
from pinfactory.environment import with_library_settings

from . import queries
from .actions import Actions
from .policy import PolicyState, n_noise
from .state import AgentState


class Predictor:
    """Predictions of the learned policy for observations as users have them."""

    n_experts: int
    hold: int
    # Shape of an observation, and the actions.
    _kind: tuple[tuple[int, ...], Actions]
    _random: np.random.Generator

    @property
    @abstractmethod
    def state_(self) -> AgentState:
        """All that has been learned."""

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
        held, _, action = queries.act(
            policy,
            rows,
            starts,
            held,
            queries.host_uniforms(self._random, (n, n_noise(policy.actions))),
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
        return np.asarray(queries.responsibilities(self.state_.policy, rows))[:, : self.n_experts]

    @with_library_settings
    def log_prob(self, observation: Any, action: Any) -> Float[np.ndarray, " n"]:
        """Return log p(a|x) of the whole committee; for box actions a density within the box."""
        rows, _ = self._rows(observation)
        actions = jnp.asarray(action).reshape(len(rows), *np.shape(action)[1:])
        return np.asarray(queries.log_density(self.state_.policy, rows, actions))

    @property
    @with_library_settings
    def information_(self) -> Information:
        """Bits that selector and experts process on the states of the last update.

        I(S;M) of the selector, I(S;A|M) of the experts; for box actions the latter is relative to
        a Gaussian prior, an upper bound. Where experts are held, I(S;M) is that of the states in
        which the selector chose.
        """
        state = self.state_
        if not int(state.timesteps):
            raise AttributeError(
                f"This {type(self).__name__} has no `information_` before it has learned."
            )
        return queries.measure_information(state.policy, state.visited, self.n_experts)

    @property
    def effective_experts_(self) -> float:
        """2^H(M), the number of equally used experts with the same entropy."""
        return float(self.information_.effective_experts)

    def _rows(self, observation: Any) -> tuple[Any, bool]:
        """Return observations as rows, and whether there was only one, not in a batch."""
        array, shape = np.asarray(observation, np.float32), self._kind[0]
        if shape not in (array.shape, array.shape[1:]):
            raise ValueError(
                f"An observation must have shape {shape}, with or without a first axis for a batch "
                f"of them, but got {array.shape}."
            )
        if not np.isfinite(array).all():
            raise ValueError("An observation must be finite, but got NaN or infinity.")
        return jnp.asarray(array.reshape(-1, math.prod(shape))), array.shape == shape
