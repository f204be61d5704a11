"""Several independent categorical variables as one distribution."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key

from pinfactory.core.families import Categorical, Family

if TYPE_CHECKING:
    from typing import Self
else:
    Self = Any  # as in the base class: runtime type checkers cannot check Self


class MultiCategorical(Family):
    """D independent categoricals: one with a further batch axis, over which everything sums.

    Those with fewer outcomes than the largest give the missing ones no probability.
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
    """Normalise logits, with no probability from outcome `sizes[i]` on for variable i."""
    possible = jnp.arange(logits.shape[-1]) < jnp.array(sizes)[:, None]
    return MultiCategorical(Categorical.from_logits(jnp.where(possible, logits, -jnp.inf)))


def invert_cdf(
    distribution: Categorical, uniform: Float[Array, "*batch"]
) -> Integer[Array, "*batch"]:
    """Return the outcome at which the distribution function exceeds a uniform number."""
    reached = jnp.cumsum(distribution.probs, axis=-1) <= uniform[..., None]
    # Rounding may leave the last sum below one: stop at the last outcome with any probability.
    last = jnp.max(jnp.where(distribution.probs > 0, jnp.arange(reached.shape[-1]), 0), axis=-1)
    return jnp.minimum(jnp.sum(reached, axis=-1), last)
