"""MuJoCo's motion of a cart: Runge–Kutta steps, and the soft end stops of a rail in closed form."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._env import Box, Env, Params, parameter

Scalar = Float[Array, ""]


class Angles(NamedTuple):
    """Sines and cosines of all coordinates but the first, which is the cart's position."""

    sines: Float[Array, " q-1"]
    cosines: Float[Array, " q-1"]


class Motion(NamedTuple):
    """Where a simulation arrives, and what its last Runge–Kutta stage saw on the way.

    MuJoCo reports site positions and constraint forces of that stage, not of the state it arrives
    at; equal results need the same.
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
    # Not as `one_kernel`, though that is faster: XLA then aborts the process while it compiles
    # some larger programs.
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


class Rail(eqx.Module):
    """Where a rail ends and how its end stops give way, in MuJoCo's terms.

    Parameters
    ----------
    rail_range
        Lowest and highest position of the cart.
    rail_margin
        Distance from a stop at which it starts to push.
    rail_reference
        `solref`: time constant in seconds (at least two time steps) and damping ratio of a stop.
    rail_impedance
        `solimp`: impedance at the margin and far inside the stop, the width of the transition and
        its midpoint. The fifth number, the power, is always MuJoCo's default of 2.
    """

    rail_range: Float[Array, "... 2"] = parameter([-1.0, 1.0])
    rail_margin: Float[Array, "..."] = parameter(0.01)
    rail_reference: Float[Array, "... 2"] = parameter([0.02, 1.0])
    rail_impedance: Float[Array, "... 4"] = parameter([0.9, 0.95, 0.001, 0.5])


class RailEnv(Env[Params]):
    """A cart that a motor pushes along a rail; a step is `frame_skip` time steps of 0.01 s."""

    frame_skip: eqx.AbstractVar[int]

    @property
    def action_space(self) -> Box:
        return Box((-1.0,), (1.0,))

    @property
    def step_seconds(self) -> float:
        return 0.01 * self.frame_skip


def rail_force(
    rail: Rail,
    position: Scalar,
    velocity: Scalar,
    acceleration: Scalar,
    inverse_inertia: Scalar,
    inverse_inertia_at_rest: Scalar,
) -> Scalar:
    """Return the force of the stops on the cart.

    With one constraint row J = ±1 MuJoCo's convex problem has the solution

        f = max(0, (a_ref − J a) / (J M⁻¹ Jᵀ + R)),    R = (1 − d)/d · (M₀⁻¹)₀₀,

    where a is the acceleration without the stop and d the impedance.

    Parameters
    ----------
    inverse_inertia
        (M⁻¹)₀₀, the cart's acceleration per force.
    inverse_inertia_at_rest
        The same in the reference configuration, where all joints are at zero.
    """
    low, high = rail.rail_range[0], rail.rail_range[1]
    to_low, to_high = position - low, high - position
    side = jnp.where(to_low < to_high, 1.0, -1.0).astype(position.dtype)
    distance = jnp.minimum(to_low, to_high) - rail.rail_margin

    near, deep, width, midpoint = (rail.rail_impedance[i] for i in range(4))
    depth = jnp.clip(-distance / width, 0.0, 1.0)
    smooth = jnp.where(
        depth <= midpoint, depth**2 / midpoint, 1.0 - (1.0 - depth) ** 2 / (1.0 - midpoint)
    )
    impedance = near + smooth * (deep - near)

    time_constant, damping_ratio = rail.rail_reference[0], rail.rail_reference[1]
    stiffness = 1.0 / (deep * time_constant * damping_ratio) ** 2
    damping = 2.0 / (deep * time_constant)
    wanted = -damping * side * velocity - stiffness * impedance * distance

    # f = (wanted − Ja) / (inverse_inertia + R) with both sides times d: one division less.
    softness = (1.0 - impedance) * inverse_inertia_at_rest
    force = impedance * (wanted - side * acceleration) / (impedance * inverse_inertia + softness)
    return jnp.where(distance < 0.0, side * jnp.maximum(force, 0.0), 0.0)
