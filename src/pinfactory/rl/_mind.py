"""All that an agent learns, and the settings that may differ between agents of one program."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from pinfactory.core.hierarchy import stack
from pinfactory.core.priors import Priors
from pinfactory.core.resources import Resource, UtilityScale

from ._policy import Policy

OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-5))


class Critics(eqx.Module):
    """One network for each value function, side by side.

    Values are in units of the deviation of returns. When that changes, `rescaled` keeps the values
    as they are (Pop-Art, van Hasselt et al. 2016).
    """

    body: Callable[..., Array]
    head: eqx.nn.Linear

    @classmethod
    def build(cls, key: Key[Array, ""], n: int, build: Callable[..., Any]) -> "Critics":
        """Stack n networks with one output each that `build` makes from a key."""
        networks = stack([build(k) for k in jax.random.split(key, n)])
        *body, head = networks.layers
        return cls(eqx.nn.Sequential(body), head)

    def __call__(self, x: Float[Array, "n o"]) -> Float[Array, "n c"]:
        """Return the value of n states by each critic."""

        def one(body: Callable[..., Array], head: eqx.nn.Linear) -> Float[Array, " n"]:
            return jax.vmap(lambda x: head(body(x))[0])(x)

        return eqx.filter_vmap(one)(self.body, self.head).T

    def rescaled(self, factor: Float[Array, ""]) -> "Critics":
        """Return critics whose values are `factor` times these."""
        return eqx.tree_at(lambda c: c.head, self, jax.tree.map(lambda w: factor * w, self.head))


class Hyper(eqx.Module):
    """Numbers that steer learning, all of them traced.

    Attributes
    ----------
    learning_rate, last_rate
        At the iterations `first` and `last`; linear in between.
    gamma, trace
        Discount γ and the λ of the advantages.
    clip
        How far a probability may move from that of the policy that acted, as a ratio.
    """

    learning_rate: Float[Array, ""]
    last_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    trace: Float[Array, ""]
    clip: Float[Array, ""]
    first: Float[Array, ""]
    last: Float[Array, ""]

    def rate(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """Return the learning rate of an iteration."""
        done = jnp.clip((iteration - self.first) / jnp.maximum(self.last - self.first, 1.0), 0, 1)
        return self.learning_rate + done * (self.last_rate - self.learning_rate)


class Mind(eqx.Module):
    """What an agent knows: policy and critics, priors, resources, and how to go on learning.

    `discounted` are the rewards so far of the running episodes, `visited` the observations of the
    last iteration, `timesteps` counts the steps taken in all environments.
    """

    policy: Policy
    critics: Critics
    priors: Priors
    resources: tuple[Resource, Resource]
    scale: UtilityScale
    discounted: Float[Array, " n"]
    visited: Float[Array, "v o"]
    optimiser: optax.OptState
    hyper: Hyper
    iteration: Int[Array, ""]
    timesteps: Int[Array, ""]

    @classmethod
    def start(
        cls,
        policy: Policy,
        critics: Critics,
        priors: Priors,
        resources: tuple[Resource, Resource],
        hyper: Hyper,
        n_envs: int,
        n_steps: int,
    ) -> "Mind":
        """Begin before the first iteration."""
        learned = eqx.filter((policy.hierarchy, critics), eqx.is_inexact_array)
        n_numbers = len(policy.observations.mean)
        # By NumPy, because JAX would compile a program for every shape.
        zeros = jax.tree.map(
            lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)),
            eqx.filter_eval_shape(OPTIMISER.init, learned),
        )
        return cls(
            policy,
            critics,
            priors,
            resources,
            UtilityScale(momentum=jax.device_put(np.float32(1.0))),
            jax.device_put(np.zeros(n_envs, np.float32)),
            jax.device_put(np.zeros((n_envs * n_steps, n_numbers), np.float32)),
            zeros,
            hyper,
            jax.device_put(np.zeros((), np.int32)),
            jax.device_put(np.zeros((), np.int32)),
        )

    def moved(self, n_envs: int, n_steps: int) -> "Mind":
        """Return the same mind for another number of environments."""
        if n_envs == len(self.discounted):
            return self
        visited = np.resize(np.asarray(self.visited), (n_envs * n_steps, self.visited.shape[1]))
        return eqx.tree_at(
            lambda m: (m.discounted, m.visited),
            self,
            (jax.device_put(np.zeros(n_envs, np.float32)), jax.device_put(visited)),
        )
