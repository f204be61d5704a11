"""Value functions."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, Key

from pinfactory.core.hierarchy import stack

from .policy import take_expert


class Critics(eqx.Module):
    """One network for each value function, stacked.

    Values are in units of the standard deviation of returns. When that changes, `rescaled` keeps
    the values the same in units of the reward (Pop-Art, van Hasselt et al. 2016).
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

    def of_expert(self, x: Float[Array, "t n o"], expert: Int[Array, " n"]) -> Float[Array, "t n"]:
        """Return the values of t states in n tasks, by the critic of each task's expert."""

        def own(critic: Critics, x: Float[Array, "t o"]) -> Float[Array, " t"]:
            return jax.vmap(lambda x: critic.head(critic.body(x))[0])(x)

        critics = take_expert(self, expert)
        return eqx.filter_vmap(own, in_axes=(eqx.if_array(0), 1), out_axes=1)(critics, x)

    def rescaled(self, factor: Float[Array, ""]) -> "Critics":
        """Return critics whose values are `factor` times these."""
        return eqx.tree_at(lambda c: c.head, self, jax.tree.map(lambda w: factor * w, self.head))
