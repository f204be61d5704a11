"""Answers that are several choices at once, each among outcomes of its own."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key

from pinfactory.core.families import Categorical, Family
from pinfactory.core.families._family import Self


class MultiCategorical(Family):
    """D independent choices: a Categorical with one more batch axis, over which everything sums.

    Choices with fewer outcomes than the largest have the missing ones ruled out.
    """

    choices: Categorical

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.choices.batch_shape[:-1]

    def log_prob(self, value: Integer[Array, "... d"]) -> Float[Array, "..."]:
        return jnp.sum(self.choices.log_prob(value), axis=-1)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Integer[Array, "... d"]:
        return self.choices.sample(key, shape)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(self.choices.entropy(), axis=-1)

    def kl(self, other: Self) -> Float[Array, "..."]:
        return jnp.sum(self.choices.kl(other.choices), axis=-1)

    def merge(self, weights: Float[Array, "n ..."]) -> Self:
        # The best product of marginals has the mean of every marginal.
        return type(self)(self.choices.merge(weights))


def from_logits(logits: Float[Array, "... d k"], sizes: tuple[int, ...]) -> MultiCategorical:
    """Normalise logits, with outcomes from `sizes[i]` on ruled out for choice i."""
    possible = jnp.arange(logits.shape[-1]) < jnp.array(sizes)[:, None]
    return MultiCategorical(Categorical.from_logits(jnp.where(possible, logits, -jnp.inf)))


def invert(choice: Categorical, uniform: Float[Array, "*batch"]) -> Integer[Array, "*batch"]:
    """Return the outcome at which the distribution function exceeds a uniform number."""
    reached = jnp.cumsum(choice.probs, axis=-1) <= uniform[..., None]
    # Rounding may leave the last sum below one; an outcome of no probability is never meant.
    last = jnp.max(jnp.where(choice.probs > 0, jnp.arange(reached.shape[-1]), 0), axis=-1)
    return jnp.minimum(jnp.sum(reached, axis=-1), last)
