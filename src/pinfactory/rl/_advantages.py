"""How much better a decision turned out than expected."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def advantages(
    utility: Float[Array, "t n"],
    value: Float[Array, "t n"],
    next_value: Float[Array, "t n"],
    terminated: Bool[Array, "t n"],
    done: Bool[Array, "t n"],
    gamma: Float[Array, ""] | float,
    trace: Float[Array, ""] | float,
) -> Float[Array, "t n"]:
    """Return generalised advantages (Schulman et al. 2016).

        δ_t = u_t + γ V(x_{t+1}) − V(x_t),    A_t = δ_t + γ λ A_{t+1}

    With λ = 0 these are the advantages of Section 3.3. An episode that terminated has no future;
    one that was truncated has the value of the state in which it was.

    Parameters
    ----------
    utility
        Reward less the price of information.
    value, next_value
        The critic's values of the state before the step, and of the state it led to, *before* any
        reset.
    terminated, done
        Whether the episode ended by itself, and whether it ended at all.
    gamma, trace
        γ and λ.
    """
    future = jnp.where(terminated, 0.0, next_value)
    surprise = utility + gamma * future - value

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, over = now
        advantage = delta + gamma * trace * jnp.where(over, 0.0, later)
        return advantage, advantage

    start = jnp.zeros_like(surprise[0])
    return jax.lax.scan(back, start, (surprise, done), reverse=True)[1]
