"""Answers that are vectors of real numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ._family import Family, Self, align
from .numerics import LOG_2PI, excess


class Gaussian(Family):
    """A Gaussian with diagonal covariance over vectors of D numbers."""

    mean: Float[Array, "*batch d"]
    log_scale: Float[Array, "*batch d"]

    @property
    def scale(self) -> Float[Array, "*batch d"]:
        """Standard deviations."""
        return jnp.exp(self.log_scale)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.mean.shape[:-1]

    def log_prob(self, value: Float[Array, "... d"]) -> Float[Array, "..."]:
        z = (value - self.mean) / self.scale
        return -jnp.sum(0.5 * (z**2 + LOG_2PI) + self.log_scale, axis=-1)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        noise = jax.random.normal(key, shape + self.mean.shape, self.mean.dtype)
        return self.mean + self.scale * noise

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(0.5 * (1.0 + LOG_2PI) + self.log_scale, axis=-1)

    def kl(self, other: Self) -> Float[Array, "..."]:
        z = (self.mean - other.mean) / other.scale
        return 0.5 * jnp.sum(excess(2.0 * (self.log_scale - other.log_scale)) + z**2, axis=-1)

    def merge(self, weights: Float[Array, "n ..."]) -> Self:
        w = align(weights, self.mean.ndim)
        # Deviations from the mean's first estimate, so that a common offset loses no digits.
        centre = jnp.sum(w * self.mean, axis=0)
        deviation = self.mean - centre
        offset = jnp.sum(w * deviation, axis=0)
        variance = jnp.sum(w * (self.scale**2 + (deviation - offset) ** 2), axis=0)
        floor = jnp.finfo(variance.dtype).tiny
        return type(self)(centre + offset, 0.5 * jnp.log(jnp.maximum(variance, floor)))
