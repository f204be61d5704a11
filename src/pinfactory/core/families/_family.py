"""What every posterior family can do; answers that are one of K outcomes, or vectors of numbers."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer, Key, Shaped

if TYPE_CHECKING:
    from typing import Self
else:
    # The run-time checker looks at one method at a time and does not know whose it is.
    Self = Any

# Stands for the log of a probability of zero: finite, because 0 · log 0 is then 0 and not NaN.
LOG_ZERO = -1e9
LOG_2PI = 1.8378770664093453


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

    def merge_groups(
        self, weights: Float[Array, "n k"], group: Int[Array, "n k"], n_groups: int
    ) -> Self:
        """Return `merge` for each group of posteriors; weights sum to one within a group.

        A group that has none may get any finite member.
        """
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self)
        shares = (group.ravel()[:, None] == jnp.arange(n_groups)) * weights.ravel()[:, None]
        shares = jnp.where(shares.sum(axis=0) > 0, shares, 1.0 / len(shares))
        return jax.vmap(flat.merge, in_axes=1)(shares)

    def absorb(
        self, others: Self, weights: Float[Array, "n ..."], rate: Float[Array, "..."]
    ) -> Self:
        """Return the merger of p, which weighs 1 − `rate`, and n others, which weigh `rate`·w."""
        return self._absorb(others.merge(weights), rate)

    def absorb_groups(
        self,
        others: Self,
        weights: Float[Array, "n k"],
        group: Int[Array, "n k"],
        rate: Float[Array, " m"],
    ) -> Self:
        """Return `absorb` for each member, of those of the others that are of its group."""
        return self._absorb(others.merge_groups(weights, group, len(rate)), rate)

    def _absorb(self, other: Self, rate: Float[Array, "..."]) -> Self:
        pair = jax.tree.map(lambda *two: jnp.stack(two), self, other)
        return pair.merge(jnp.stack([1.0 - rate, rate]))


def align(weights: Float[Array, "..."], ndim: int) -> Float[Array, "..."]:
    """Append axes so that `weights` broadcasts against an array of `ndim` dimensions."""
    return weights.reshape(weights.shape + (1,) * (ndim - weights.ndim))


def excess(t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return eᵗ − 1 − t, never negative: what a ratio of scales eᵗ costs in a KL divergence."""
    return jnp.expm1(t) - t


def _group_sums(
    weights: Float[Array, "n k"], group: Int[Array, "n k"], n_groups: int, values: Array
) -> Float[Array, "m ..."]:
    """Return weighted sums of values within groups."""
    sums = jnp.zeros((n_groups, *values.shape[2:]), values.dtype)
    return sums.at[group].add(align(weights, values.ndim) * values)


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

    def merge_groups(
        self, weights: Float[Array, "n k"], group: Int[Array, "n k"], n_groups: int
    ) -> Self:
        return type(self).from_probs(_group_sums(weights, group, n_groups, self.probs))

    def absorb(
        self, others: Self, weights: Float[Array, "n ..."], rate: Float[Array, "..."]
    ) -> Self:
        # Every step does this to the priors. By logs of means, and exponentials of these, it would
        # take a twentieth of a small committee's step.
        rate = align(rate, self.log_probs.ndim)
        return type(self).from_probs((1.0 - rate) * self.probs + rate * others._mean(weights))

    def _mean(self, weights: Float[Array, "n ..."]) -> Float[Array, "*batch k"]:
        return jnp.sum(align(weights, self.log_probs.ndim) * self.probs, axis=0)


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
        return self._of_moments(centre + offset, variance)

    def merge_groups(
        self, weights: Float[Array, "n k"], group: Int[Array, "n k"], n_groups: int
    ) -> Self:
        centre = _group_sums(weights, group, n_groups, self.mean)
        deviation = self.mean - centre[group]
        offset = _group_sums(weights, group, n_groups, deviation)
        square = self.scale**2 + (deviation - offset[group]) ** 2
        return self._of_moments(centre + offset, _group_sums(weights, group, n_groups, square))

    @classmethod
    def _of_moments(cls, mean: Float[Array, "..."], variance: Float[Array, "..."]) -> Self:
        floor = jnp.finfo(variance.dtype).tiny
        return cls(mean, 0.5 * jnp.log(jnp.maximum(variance, floor)))
