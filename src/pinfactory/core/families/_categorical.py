"""Answers that are one of K outcomes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key

from ._family import Family, Self, align

# Stands for the log of a probability of zero: finite, because 0 · log 0 is then 0 and not NaN.
LOG_ZERO = -1e9


class Categorical(Family):
    """A distribution over K outcomes, held as normalised log-probabilities."""

    log_probs: Float[Array, "*batch k"]

    @classmethod
    def from_logits(cls, logits: Float[Array, "*batch k"]) -> Self:
        """Normalise unconstrained logits; a logit of −∞ rules an outcome out."""
        return cls(jnp.maximum(jax.nn.log_softmax(logits), LOG_ZERO))

    @classmethod
    def from_probs(cls, probs: Float[Array, "*batch k"]) -> Self:
        """Take probabilities; a zero becomes the smallest positive number, so logs stay finite."""
        return cls(jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny)))

    @classmethod
    def uniform(cls, shape: tuple[int, ...]) -> Self:
        """Equal probabilities over the last axis of `shape`."""
        return cls(jnp.full(shape, -jnp.log(float(shape[-1]))))

    @property
    def probs(self) -> Float[Array, "*batch k"]:
        """Probabilities."""
        return jnp.exp(self.log_probs)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.log_probs.shape[:-1]

    def log_prob(self, value: Integer[Array, "..."]) -> Float[Array, "..."]:
        shape = jnp.broadcast_shapes(self.batch_shape, value.shape)
        log_probs = jnp.broadcast_to(self.log_probs, (*shape, self.log_probs.shape[-1]))
        index = jnp.broadcast_to(value, shape)[..., None]
        return jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Integer[Array, "..."]:
        return jax.random.categorical(key, self.log_probs, shape=shape + self.batch_shape)

    def entropy(self) -> Float[Array, "*batch"]:
        return -jnp.sum(self.probs * self.log_probs, axis=-1)

    def kl(self, other: Self) -> Float[Array, "..."]:
        return jnp.sum(self.probs * (self.log_probs - other.log_probs), axis=-1)

    def merge(self, weights: Float[Array, "n ..."]) -> Self:
        return type(self).from_probs(self._mean(weights))

    def absorb(
        self, others: Self, weights: Float[Array, "n ..."], rate: Float[Array, "..."]
    ) -> Self:
        # Every step does this to the priors. By logs of means, and exponentials of these, it would
        # take a twentieth of a small committee's step.
        rate = align(rate, self.log_probs.ndim)
        return type(self).from_probs((1.0 - rate) * self.probs + rate * others._mean(weights))

    def _mean(self, weights: Float[Array, "n ..."]) -> Float[Array, "*batch k"]:
        return jnp.sum(align(weights, self.log_probs.ndim) * self.probs, axis=0)
