"""Where experts start: k-means++ and a few steps of k-means on a part of the data."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._ascent import Statistics

LLOYD_STEPS = 10


@jax.jit
def seed(
    x: Float[Array, "d n"],
    weight: Float[Array, " n"],
    metric: Float[Array, "d d"],
    uniforms: Float[Array, "replicas m trials"],
) -> Statistics:
    """Return the statistics of a k-means partition for each replica.

    `metric` takes the samples to coordinates in which distances make sense; the random numbers
    come from outside.
    """
    points = metric @ x
    share = weight / jnp.sum(weight)
    labels = jax.vmap(lambda u: _partition(points, share, u))(uniforms)
    m = uniforms.shape[1]
    return jax.vmap(lambda label: _statistics(x, weight, label, m))(labels)


def _partition(
    points: Float[Array, "d n"], weight: Float[Array, " n"], uniforms: Float[Array, "m trials"]
) -> Int[Array, " n"]:
    centres = _plus_plus(points, weight, uniforms)
    m = len(centres)

    def lloyd(_: Int[Array, ""], centres: Float[Array, "m d"]) -> Float[Array, "m d"]:
        members = jax.nn.one_hot(_nearest(points, centres), m, axis=0) * weight
        mass = jnp.sum(members, axis=1)[:, None]
        return jnp.where(mass > 0, members @ points.T / jnp.where(mass > 0, mass, 1.0), centres)

    return _nearest(points, jax.lax.fori_loop(0, LLOYD_STEPS, lloyd, centres))


def _plus_plus(
    points: Float[Array, "d n"], weight: Float[Array, " n"], uniforms: Float[Array, "m trials"]
) -> Float[Array, "m d"]:
    """Draw centres with probability ∝ squared distance, of several the most useful (k-means++)."""

    def draw(i: Int[Array, ""], state: tuple) -> tuple:
        centres, nearest = state
        cumulated = jnp.cumsum(weight * nearest)
        index = jnp.searchsorted(cumulated, uniforms[i] * cumulated[-1])
        trial = points[:, jnp.minimum(index, points.shape[1] - 1)]
        distance = jnp.sum((points[:, None] - trial[:, :, None]) ** 2, axis=0)
        closer = jnp.minimum(nearest, distance)
        best = jnp.argmin(closer @ weight)
        return centres.at[i].set(trial[:, best]), closer[best]

    m, d = len(uniforms), len(points)
    centres, nearest = draw(
        jnp.asarray(0), (jnp.zeros((m, d)), jnp.full(points.shape[1], 1e30))
    )
    return jax.lax.fori_loop(1, m, draw, (centres, nearest))[0]


def _nearest(points: Float[Array, "d n"], centres: Float[Array, "m d"]) -> Int[Array, " n"]:
    half_square = 0.5 * jnp.sum(centres**2, axis=1)[:, None]
    return jnp.argmin(half_square - centres @ points, axis=0)


def _statistics(
    x: Float[Array, "d n"], weight: Float[Array, " n"], label: Int[Array, " n"], m: int
) -> Statistics:
    members = jax.nn.one_hot(label, m, axis=0) * weight
    mass = jnp.sum(members, axis=1)
    mean = members @ x.T / jnp.maximum(mass, 1e-30)[:, None]
    centred = x - mean.T[:, label]
    scatter = jnp.einsum("mn,in,jn->mij", members, centred, centred)
    return Statistics(mass, mean, scatter)
