"""Value functions, and the advantages that are computed with them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from pinfactory.core.hierarchy import stack, take_expert

from .policy import ActionSample


class Critics(eqx.Module):
    """One network for each value function, stacked, with one output or two.

    Where rewards are in units of the standard deviation of returns, a value has two parts: the
    reward to come, and what information will cost. When the unit changes, `rescaled` keeps the
    first the same in units of the reward (Pop-Art, van Hasselt et al. 2016); the second is not
    measured in it, and stays as it is.
    """

    body: Callable[..., Array]
    head: eqx.nn.Linear

    @classmethod
    def build(cls, key: Key[Array, ""], n: int, build: Callable[..., Any]) -> "Critics":
        """Stack n networks that `build` makes from a key."""
        networks = stack([build(k) for k in jax.random.split(key, n)])
        *body, head = networks.layers
        return cls(eqx.nn.Sequential(body), head)

    def __call__(self, x: Float[Array, "n o"]) -> Float[Array, "n c k"]:
        """Return the parts of the value of n states by each critic."""

        def one(body: Callable[..., Array], head: eqx.nn.Linear) -> Float[Array, "n k"]:
            return jax.vmap(lambda x: head(body(x)))(x)

        return eqx.filter_vmap(one, out_axes=1)(self.body, self.head)

    def of_expert(
        self, x: Float[Array, "t n o"], expert: Int[Array, " n"]
    ) -> Float[Array, "t n k"]:
        """Return the values of t states in n tasks, by the critic of each task's expert."""

        def own(critic: Critics, x: Float[Array, "t o"]) -> Float[Array, "t k"]:
            return jax.vmap(lambda x: critic.head(critic.body(x)))(x)

        critics = take_expert(self, expert)
        return eqx.filter_vmap(own, in_axes=(eqx.if_array(0), 1), out_axes=1)(critics, x)

    def rescaled(self, factor: Float[Array, ""]) -> "Critics":
        """Return critics for which a reward is worth `factor` times as much."""
        head = jax.tree.map(lambda w: w.at[:, 0].multiply(factor), self.head)
        return eqx.tree_at(lambda c: c.head, self, head)


class Experience(NamedTuple):
    """Steps of one policy in each of n tasks, with what it and its critic learn from them."""

    x: Float[Array, "t n o"]
    sample: ActionSample
    advantage: Float[Array, "t n"]
    target: Float[Array, "t n *k"]


def compute_advantages(
    utility: Float[Array, "t n *k"],
    value: Float[Array, "t n *k"],
    next_value: Float[Array, "t n *k"],
    terminated: Bool[Array, "t n"],
    done: Bool[Array, "t n"],
    gamma: Float[Array, ""] | float,
    gae_lambda: Float[Array, ""] | float,
) -> Float[Array, "t n *k"]:
    """Return generalised advantages (Schulman et al. 2016).

        δ_t = u_t + γ V(x_{t+1}) − V(x_t),    A_t = δ_t + γ λ A_{t+1}

    With λ = 0 these are the advantages of Section 3.3. The utility u is reward minus the cost of
    information; `next_value` is that of the state a step led to, *before* any reset. An episode
    that terminated has no future; one that was truncated, `done` only, has the value of the state
    in which it was. Further axes are values of several critics, or parts of one.
    """

    def fitting(mask: Array) -> Array:
        return mask.reshape(*mask.shape, *(1,) * (utility.ndim - 2))

    delta = utility + gamma * jnp.where(fitting(terminated), 0.0, next_value) - value

    def backward(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, over = now
        advantage = delta + gamma * gae_lambda * jnp.where(over, 0.0, later)
        return advantage, advantage

    start = jnp.zeros_like(delta[0])
    return jax.lax.scan(backward, start, (delta, fitting(done)), reverse=True)[1]


def discounted_sums(
    utility: Float[Array, "t n *k"],
    next_value: Float[Array, "t n *k"],
    terminated: Bool[Array, "t n"],
    done: Bool[Array, "t n"],
    gamma: Float[Array, ""] | float,
) -> Float[Array, "t n *k"]:
    """Return F_t = Σ γ^l u_{t+l} to the end of an episode (equations 19, 21 and 22).

    Where an episode is truncated, or goes on after the last step, the value of the state it has
    come to stands for the rest.
    """
    cut = done.at[-1].set(True)
    beyond = cut.reshape(*cut.shape, *(1,) * (utility.ndim - 2)) * next_value
    return compute_advantages(
        utility, jnp.zeros_like(utility), beyond, terminated, cut, gamma, jnp.ones(())
    )


def normalise_advantages(
    advantage: Float[Array, "b l"], share: Float[Array, " b"]
) -> tuple[Float[Array, "b l"], Float[Array, " l"]]:
    """Return advantages of mean zero and deviation one, and the factor they were multiplied by."""
    centre = jnp.sum(share[:, None] * advantage, axis=0)
    deviation = jnp.sqrt(jnp.sum(share[:, None] * (advantage - centre) ** 2, axis=0))
    unit = 1.0 / (deviation + 1e-8)
    return unit * (advantage - centre), unit
