"""What every posterior family can do."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

if TYPE_CHECKING:
    from typing import Self
else:
    # The run-time checker looks at one method at a time and does not know whose it is.
    Self = Any


class Family(eqx.Module):
    """A distribution with closed-form entropy, KL divergence and best common prior."""

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the leading axes."""

    @abstractmethod
    def log_prob(self, value: Array) -> Float[Array, "..."]:
        """Return log p(value)."""

    @abstractmethod
    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Shaped[Array, "..."]:
        """Draw `shape` independent samples, as leading axes in front of the batch axes."""

    @abstractmethod
    def entropy(self) -> Float[Array, "*batch"]:
        """Return H(p) in nats."""

    @abstractmethod
    def kl(self, other: Self) -> Float[Array, "..."]:
        """Return KL(p ‖ other) in nats; batch axes broadcast."""

    @abstractmethod
    def merge(self, weights: Float[Array, "n ..."]) -> Self:
        """Return argmin_q Σᵢ wᵢ KL(pᵢ ‖ q) over the first batch axis.

        `weights` has the leading batch axes (all of them, or the first few) and sums to one over
        the first.
        """

    def absorb(
        self, others: Self, weights: Float[Array, "n ..."], rate: Float[Array, "..."]
    ) -> Self:
        """Return the merger of p, which weighs 1 − `rate`, and n others, which weigh `rate`·w."""
        pair = jax.tree.map(lambda *two: jnp.stack(two), self, others.merge(weights))
        return pair.merge(jnp.stack([1.0 - rate, rate]))


def align(weights: Float[Array, "..."], ndim: int) -> Float[Array, "..."]:
    """Append axes so that `weights` broadcasts against an array of `ndim` dimensions."""
    return weights.reshape(weights.shape + (1,) * (ndim - weights.ndim))
