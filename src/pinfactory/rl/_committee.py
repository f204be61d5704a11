"""What can be asked of an agent that has learned: actions, probabilities, bits."""

import math
from abc import abstractmethod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from . import _questions
from ._actions import Actions
from ._information import AgentInformation
from ._mind import Mind
from ._policy import Memory, n_noise


class Committee:
    """A mind that answers questions about observations as users have them."""

    n_experts: int
    hold: int
    # Shape of an observation, and the actions.
    _kind: tuple[tuple[int, ...], Actions]
    _random: np.random.Generator

    @property
    @abstractmethod
    def mind(self) -> Mind:
        """All that has been learned."""

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
            Where an episode begins; everywhere if there is no `state`.
        deterministic
            Whether to take the most probable expert and the action it favours.

        Returns
        -------
        action
            As the environment takes it.
        state
            To be handed to the next call; None if the selector chooses at every step.
        """
        rows, single = self._rows(observation)
        n, policy = len(rows), self.mind.policy
        memory = Memory.start(n) if state is None else Memory(*map(jnp.asarray, state))
        fresh = np.ones(n, bool) if state is None else np.zeros(n, bool)
        if episode_start is not None and state is not None:
            fresh = np.broadcast_to(np.asarray(episode_start, bool), (n,))
        memory, _, action = _questions.act(
            policy,
            rows,
            fresh,
            memory,
            _questions.uniforms(self._random, (n, n_noise(policy.actions))),
            np.asarray(deterministic),
        )
        actions = np.asarray(action)
        held = None if self.hold == 1 else (np.asarray(memory.expert), np.asarray(memory.held))
        return (actions[0] if single else actions), held

    def responsibilities(self, observation: Any) -> Float[np.ndarray, "n m"]:
        """Return p(m|x), a row for each observation and a column for each expert."""
        rows, _ = self._rows(observation)
        return np.asarray(_questions.select(self.mind.policy, rows))[:, : self.n_experts]

    def log_prob(self, observation: Any, action: Any) -> Float[np.ndarray, " n"]:
        """Return log p(a|x) of the whole committee; for box actions a density within the box."""
        rows, _ = self._rows(observation)
        actions = jnp.asarray(action).reshape(len(rows), *np.shape(action)[1:])
        return np.asarray(_questions.log_density(self.mind.policy, rows, actions))

    @property
    def information_(self) -> AgentInformation:
        """Bits that selector and experts process on the states of the last update."""
        mind = self.mind
        return AgentInformation.of(_questions.inform(mind.policy, mind.visited), self.n_experts)

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
