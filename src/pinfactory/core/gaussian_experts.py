"""Experts that answer with Gaussians, and where their deviations come from."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from .families import Gaussian
from .hierarchy import Expert, Hierarchy

# Standardised targets: a deviation below e⁻⁵ or above e⁵ is a sign of trouble, not of knowledge.
WIDEST = 5.0


class ConstantNoiseExpert(Expert):
    """An expert whose network gives the mean, and whose deviation is the same for all inputs.

    An expert whose deviation may vary would rather fit one part of its region well and call the
    rest noise than bend to the truth.
    """

    network: Callable[..., Array]  # maps x to the mean
    log_scale: Float[Array, " d"]  # the log-deviation before it is bounded
    # The least log-deviation in thousandths, whole numbers because training leaves those alone;
    # None for −`WIDEST`. On targets with repeated values an expert could otherwise gain without
    # bound by a narrow peak on one of them.
    floor: Int[Array, " d"] | None = None

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Gaussian:
        mean = self.network(x, key=key)
        lowest = -WIDEST if self.floor is None else self.floor / 1000.0
        return Gaussian(mean, jnp.broadcast_to(bounded(self.log_scale, lowest), mean.shape))


def bounded(
    log_scale: Float[Array, "..."], lowest: Float[Array, "..."] | float = -WIDEST
) -> Float[Array, "..."]:
    """Return log-deviations between `lowest` and `WIDEST`."""
    middle, half = 0.5 * (WIDEST + lowest), 0.5 * (WIDEST - lowest)
    return middle + half * jnp.tanh((log_scale - middle) / half)


def unbounded(
    log_scale: Float[np.ndarray, "..."], lowest: Float[np.ndarray, "..."] | float = -WIDEST
) -> Float[np.ndarray, "..."]:
    """Return what `bounded` turns into the given log-deviations, as far as it can."""
    middle, half = 0.5 * (WIDEST + lowest), 0.5 * (WIDEST - lowest)
    return middle + half * np.arctanh(np.clip((log_scale - middle) / half, -0.99, 0.99))


def gaussian(outputs: Float[Array, "..."]) -> Gaussian:
    """Read the first half of a network's outputs as means, the second as log-deviations."""
    mean, log_scale = jnp.split(outputs, 2, axis=-1)
    return Gaussian(mean, bounded(log_scale))


class Calibrated(Expert):
    """An expert with the deviation of its errors in place of that of its answers."""

    expert: Expert | Hierarchy
    log_noise: Float[Array, "m d"]

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Gaussian:
        answer = self.expert(x, key=key)
        assert isinstance(answer, Gaussian)
        return Gaussian(answer.mean, self.log_noise)


class Widened(Expert):
    """An expert whose deviations are larger by a factor, given as its logarithm."""

    expert: Expert | Hierarchy
    log_factor: float = eqx.field(static=True)

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Gaussian:
        answer = self.expert(x, key=key)
        assert isinstance(answer, Gaussian)
        return Gaussian(answer.mean, answer.log_scale + self.log_factor)


class Extended(Expert):
    """An expert that answers within a range, and beyond it goes on by slopes that all share.

    Its mean is f(x₁) + s₁·(x₂ − x₁) + … + s_k·(x − x_k), with x₁, …, x_k the nearest inputs in
    ranges of which each holds the one before.
    """

    expert: Expert | Hierarchy
    low: Float[Array, "... k d"]
    high: Float[Array, "... k d"]
    slope: Float[Array, "... k t d"]

    def __call__(self, x: Float[Array, " d"], *, key: Key[Array, ""] | None = None) -> Gaussian:
        ends = jnp.vstack([jnp.clip(x, self.low, self.high), x])
        answer = self.expert(ends[0], key=key)
        assert isinstance(answer, Gaussian)
        more = jnp.einsum("ktd,kd->t", self.slope, jnp.diff(ends, axis=0))
        return Gaussian(answer.mean + more, answer.log_scale)
