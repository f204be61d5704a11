"""Experts that answer with Gaussians, and where their deviations come from."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from .families import Gaussian
from .hierarchy import Expert, Hierarchy

# Standardised targets: a deviation below e⁻⁵ or above e⁵ is a sign of trouble, not of knowledge.
WIDEST = 5.0


class SteadyExpert(Expert):
    """An expert whose network gives the mean, and whose deviation is the same for all inputs.

    An expert whose deviation may vary would rather fit one part of its region well and call the
    rest noise than bend to the truth.
    """

    network: Callable[..., Array]
    log_scale: Float[Array, " d"]

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Gaussian:
        mean = self.network(x, key=key)
        return Gaussian(mean, jnp.broadcast_to(bounded(self.log_scale), mean.shape))


def bounded(log_scale: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log-deviations within ±`WIDEST`."""
    return WIDEST * jnp.tanh(log_scale / WIDEST)


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
