"""All that an agent learns, and the hyperparameters that may differ within one program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from pinfactory.core.constraints import Priors, Resource, UtilityScale
from pinfactory.core.splitting import Growth
from pinfactory.networks import reserve

from .policy import Policy
from .values import Critics


class Hyperparameters(eqx.Module):
    """Numbers that control learning, all of them traced.

    The learning rate is linear between its ends at `first_iteration` and `last_iteration`.
    """

    learning_rate: Float[Array, ""]
    final_learning_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    gae_lambda: Float[Array, ""]
    clip_range: Float[Array, ""]
    first_iteration: Float[Array, ""]
    last_iteration: Float[Array, ""]

    def progress(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """Return the share of all iterations that come before this one."""
        length = jnp.maximum(self.last_iteration - self.first_iteration, 1.0)
        return jnp.clip((iteration - self.first_iteration) / length, 0, 1)

    def rate(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """Return the learning rate of an iteration."""
        done = self.progress(iteration)
        return self.learning_rate + done * (self.final_learning_rate - self.learning_rate)


class Visited(eqx.Module):
    """The states of the last iteration, the expert that acted, and where it was just selected."""

    observation: Float[Array, "v o"]
    expert: Int[Array, " v"]
    selected: Bool[Array, " v"]

    @classmethod
    def start(cls, n: int, n_observation: int) -> "Visited":
        """Make room for n states."""
        reserve(n, n_observation)
        observation = np.zeros((n, n_observation), np.float32)
        return cls(*jax.device_put((observation, np.zeros(n, np.int32), np.zeros(n, bool))))


class AgentState(eqx.Module):
    """What an agent has learned: policy and critics, priors, resources, optimiser.

    `discounted` are the discounted rewards so far of the running episodes, `visited` the states of
    the last iteration, `timesteps` counts the steps taken in all environments. Where all experts
    begin, there is no `growth`.
    """

    policy: Policy
    critics: Critics
    priors: Priors
    resources: tuple[Resource, Resource]
    scale: UtilityScale
    discounted: Float[Array, " n"]
    visited: Visited
    optimiser: optax.OptState
    hyper: Hyperparameters
    iteration: Int[Array, ""]
    timesteps: Int[Array, ""]
    growth: Growth | None = None

    def resized(self, n_envs: int, n_steps: int) -> "AgentState":
        """Return the same state for another number of environments."""
        if n_envs == len(self.discounted):
            return self

        def resize(leaf: Array) -> Array:
            return jax.device_put(np.resize(np.asarray(leaf), (n_envs * n_steps, *leaf.shape[1:])))

        discounted = jax.device_put(np.zeros(n_envs, np.float32))
        visited = jax.tree.map(resize, self.visited)
        return eqx.tree_at(lambda s: (s.discounted, s.visited), self, (discounted, visited))
