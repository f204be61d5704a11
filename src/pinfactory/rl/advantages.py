"""Generalised advantage estimation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def compute_advantages(
    utility: Float[Array, "t n"],
    value: Float[Array, "t n"],
    next_value: Float[Array, "t n"],
    terminated: Bool[Array, "t n"],
    done: Bool[Array, "t n"],
    gamma: Float[Array, ""] | float,
    gae_lambda: Float[Array, ""] | float,
) -> Float[Array, "t n"]:
    """Return generalised advantages (Schulman et al. 2016).

        δ_t = u_t + γ V(x_{t+1}) − V(x_t),    A_t = δ_t + γ λ A_{t+1}

    With λ = 0 these are the advantages of Section 3.3. An episode that terminated has no future;
    one that was truncated has the value of the state in which it was.

    Parameters
    ----------
    utility
        Reward minus the cost of information.
    value, next_value
        The critic's values of the state before the step, and of the state it led to, *before* any
        reset.
    terminated, done
        Whether the episode ended by itself, and whether it ended at all.
    gamma, gae_lambda
        γ and λ.
    """
    future = jnp.where(terminated, 0.0, next_value)
    delta = utility + gamma * future - value

    def backward(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, over = now
        advantage = delta + gamma * gae_lambda * jnp.where(over, 0.0, later)
        return advantage, advantage

    start = jnp.zeros_like(delta[0])
    return jax.lax.scan(backward, start, (delta, done), reverse=True)[1]
