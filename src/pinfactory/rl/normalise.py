"""Observations and returns in units of their standard deviation."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pinfactory.core.constraints import UtilityScale

# Normalised observations are clipped to this range.
MAX_DEVIATION = 10.0
# What an iteration leaves of the scale of returns: a hundred iterations later it is forgotten, and
# a β is a price in units of the returns of now, whatever they were when learning began.
SCALE_MOMENTUM = 0.99


class Moments(eqx.Module):
    """Running mean and variance of every number of an observation, over all that was seen."""

    mean: Float[Array, " o"]
    variance: Float[Array, " o"]
    mass: Float[Array, ""]

    @classmethod
    def start(cls, n: int) -> "Moments":
        """Begin with nothing seen: observations are left as they are."""
        zeros = np.zeros(n, np.float32)
        return cls(*map(jax.device_put, (zeros, zeros + 1, np.zeros((), np.float32))))

    def __call__(self, x: Float[Array, "*batch o"]) -> Float[Array, "*batch o"]:
        """Return x in deviations from the mean, as it is before anything was seen."""
        deviation = jnp.sqrt(jnp.maximum(self.variance, 1e-8))
        near = jnp.clip((x - self.mean) / deviation, -MAX_DEVIATION, MAX_DEVIATION)
        return jnp.where(self.mass > 0, near, x)

    def update(
        self, x: Float[Array, "*batch o"], weight: Float[Array, "*batch"] | None = None
    ) -> "Moments":
        """Take in a batch of observations, weighted if weights are given (Chan's formula)."""
        weight = jnp.ones(x.shape[:-1]) if weight is None else weight
        x, weight = x.reshape(-1, x.shape[-1]), weight.reshape(-1, 1)
        total = jnp.sum(weight)
        part = weight / jnp.where(total > 0, total, 1.0)
        mean = jnp.sum(part * x, axis=0)
        mass = self.mass + total
        share = total / jnp.where(mass > 0, mass, 1.0)
        spread = jnp.sum(part * (x - mean) ** 2, axis=0)
        variance = (1.0 - share) * self.variance + share * (
            spread + (1.0 - share) * (mean - self.mean) ** 2
        )
        return type(self)(self.mean + share * (mean - self.mean), variance, mass)


def discounted_rewards(
    rewards: Float[Array, "t n"],
    done: Bool[Array, "t n"],
    start: Float[Array, " n"],
    gamma: Float[Array, ""],
) -> tuple[Float[Array, " n"], Float[Array, "t n"]]:
    """Return the discounted rewards so far after every step, G ← γ G + r, and the last of them.

    Their deviation is that of the returns, and can be measured before an episode has ended.
    """

    def step(so_far: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, over = now
        so_far = gamma * so_far + reward
        return jnp.where(over, 0.0, so_far), so_far

    return jax.lax.scan(step, start, (rewards, done))


def start_scale() -> UtilityScale:
    """Return the scale of returns before the first iteration."""
    return UtilityScale(momentum=jax.device_put(np.float32(SCALE_MOMENTUM)))


class ReturnScaling(NamedTuple):
    """The running scale of discounted returns after a batch of rewards.

    Rewards are multiplied by `unit`, one over the standard deviation of returns, which has changed
    by `factor`; what critics expect of rewards changes with it (Pop-Art). `discounted` are the
    discounted rewards so far of the running episodes.
    """

    scale: UtilityScale
    unit: Float[Array, ""]
    factor: Float[Array, ""]
    discounted: Float[Array, " n"]


def scale_returns(
    scale: UtilityScale,
    rewards: Float[Array, "t n"],
    done: Bool[Array, "t n"],
    start: Float[Array, " n"],
    gamma: Float[Array, ""],
    weight: Float[Array, "t n"],
) -> ReturnScaling:
    """Take rewards into the running scale of returns."""
    so_far, returns = discounted_rewards(rewards, done, start, gamma)
    new = scale.update(returns, weight / weight.size)
    one = jnp.ones(())
    unit = new(one)
    factor = jnp.where(scale.mass > 0, unit / scale(one), 1.0)
    return ReturnScaling(new, unit, factor, so_far)
