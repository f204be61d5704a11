"""Samples, and the statistics that experts are fitted to."""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pinfactory.core.compiling import bounded


class Gaps(NamedTuple):
    """The patterns of missing values that occur in each block, and which of them a sample has."""

    missing: Bool[Array | np.ndarray, "b p d"]
    pattern: Int[Array | np.ndarray, "b n"]


class Blocks(NamedTuple):
    """Samples as columns, in blocks of equal size; those that only pad have no weight.

    What is missing is zero; `gaps` is None if nothing is.
    """

    x: Float[Array | np.ndarray, "b d n"]
    weight: Float[Array | np.ndarray, "b n"]
    gaps: Gaps | None = None


class Statistics(eqx.Module):
    """Sufficient statistics of samples: their mass, mean and scatter about the mean."""

    mass: Float[Array | np.ndarray, "*m"]
    mean: Float[Array | np.ndarray, "*m d"]
    scatter: Float[Array | np.ndarray, "*m d d"]


class HostStatistics(NamedTuple):
    """The same in double precision, on the host."""

    mass: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray


_Any = TypeVar("_Any", Statistics, HostStatistics)


def to_device(exact: HostStatistics) -> Statistics:
    """Return them in single precision; compiled functions bring them to the device quickest."""
    return Statistics(*(leaf.astype(np.float32) for leaf in exact))


def to_host(statistics: Statistics) -> HostStatistics:
    """Return a copy in double precision."""
    return HostStatistics(*(np.array(leaf, float) for leaf in jax.tree.leaves(statistics)))


def scale_up(statistics: Statistics, factor: Float[Array, ""]) -> Statistics:
    """Return the statistics of `factor` times as many samples."""
    return Statistics(statistics.mass * factor, statistics.mean, statistics.scatter * factor)


def join(a: _Any, b: _Any) -> _Any:
    """Return the statistics of the samples of both."""
    mass = a.mass + b.mass
    share = b.mass / (mass + (mass == 0))
    shift = b.mean - a.mean
    between = (a.mass * share)[..., None, None] * shift[..., :, None] * shift[..., None, :]
    return type(a)(mass, a.mean + share[..., None] * shift, a.scatter + b.scatter + between)


@bounded
@jax.jit
def blend(
    old: Statistics,
    new: Statistics,
    rate: Float[Array | np.float32, ""],
    total: Float[Array | np.float32, ""],
) -> Statistics:
    """Return statistics of `total` mass, of which the share `rate` is as in the new ones."""
    old_factor = (1.0 - rate) * total / jnp.sum(old.mass)
    return join(scale_up(old, old_factor), scale_up(new, rate * total / jnp.sum(new.mass)))
