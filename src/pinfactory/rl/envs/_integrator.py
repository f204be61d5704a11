"""Runge–Kutta steps as MuJoCo takes them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Scalar = Float[Array, ""]


class Angles(NamedTuple):
    """Sines and cosines of all coordinates but the first, which is the cart's position."""

    sines: Float[Array, " q-1"]
    cosines: Float[Array, " q-1"]


class Motion(NamedTuple):
    """Where a simulation arrives, and what its last Runge–Kutta stage saw on the way.

    MuJoCo reports site positions and constraint forces of that stage, not of the state it arrives
    at; whoever wants to equal it must do the same.
    """

    position: Float[Array, " q"]
    velocity: Float[Array, " q"]
    stage_position: Float[Array, " q"]
    stage_force: Scalar


Accelerate = Callable[
    [Float[Array, " q"], Float[Array, " q"], Angles], tuple[Float[Array, " q"], Scalar]
]


def angles(position: Float[Array, " q"]) -> Angles:
    """Return the sines and cosines that equations of motion need."""
    return Angles(jnp.sin(position[1:]), jnp.cos(position[1:]))


def simulate(
    accelerate: Accelerate,
    position: Float[Array, " q"],
    velocity: Float[Array, " q"],
    timestep: Scalar,
    frames: int,
) -> Motion:
    """Take `frames` steps of the classical fourth-order method.

    Parameters
    ----------
    accelerate
        Map from position, velocity and the angles' sines and cosines to the acceleration and the
        force of the rail's end stop.
    """
    q = position.shape[0]
    ahead = jnp.array([0.5, 0.5, 1.0, 0.0], position.dtype)
    weight = jnp.array([1.0, 2.0, 2.0, 1.0], position.dtype) / 6.0

    # One loop over stages rather than over frames, with sines and cosines handed from stage to
    # stage: XLA would compute them again for every use, six times slower in all.
    def stage(i: Array, carry: tuple[Array, Angles, Array, Array, Array, Array]) -> tuple:
        state, trigonometry, start, gained, _, _ = carry
        last = i % 4 == 3
        acceleration, force = accelerate(state[:q], state[q:], trigonometry)
        slope = timestep * jnp.concatenate([state[q:], acceleration])
        gained = gained + weight[i % 4] * slope
        reached = start + jnp.where(last, gained, ahead[i % 4] * slope)
        return (
            reached,
            angles(reached[:q]),
            jnp.where(last, reached, start),
            jnp.where(last, 0.0, gained),
            state[:q],
            force,
        )

    state = jnp.concatenate([position, velocity])
    first = (state, angles(position), state, jnp.zeros_like(state), position, state[0])
    state, _, _, _, stage_position, force = jax.lax.fori_loop(0, 4 * frames, stage, first)
    return Motion(state[:q], state[q:], stage_position, force)
