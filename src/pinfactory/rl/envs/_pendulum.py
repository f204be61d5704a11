"""Swing a pendulum up with a weak motor."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ._drawing import INK, Canvas, draw_poles
from ._env import Box, Env, State, Transition, parameter


class PendulumParams(eqx.Module):
    """The constants of Gymnasium's `Pendulum-v1`.

    Parameters
    ----------
    gravity, mass, length
        Of a uniform rod that turns about its end.
    max_torque
        Torque for an action of 2, the largest.
    control_sign
        −1 for a motor that was wired the wrong way round.
    max_speed
        Angular velocities are clipped to ± this.
    timestep
        Seconds between two steps.
    start_angle, start_velocity
        The first angle and velocity are uniform within ± these.
    velocity_cost, control_cost
        Price of the squared angular velocity and of the squared torque, beside 1 for the squared
        angle.
    """

    gravity: Float[Array, "..."] = parameter(10.0)
    mass: Float[Array, "..."] = parameter(1.0)
    length: Float[Array, "..."] = parameter(1.0)
    max_torque: Float[Array, "..."] = parameter(2.0)
    control_sign: Float[Array, "..."] = parameter(1.0)
    max_speed: Float[Array, "..."] = parameter(8.0)
    timestep: Float[Array, "..."] = parameter(0.05)
    start_angle: Float[Array, "..."] = parameter(np.pi)
    start_velocity: Float[Array, "..."] = parameter(1.0)
    velocity_cost: Float[Array, "..."] = parameter(0.1)
    control_cost: Float[Array, "..."] = parameter(0.001)


class Pendulum(Env[PendulumParams]):
    """Swing a pendulum up and hold it, with a torque too weak to lift it: `Pendulum-v1` in JAX.

    The reward is − angle² − velocity_cost · velocity² − control_cost · torque², with the angle from
    upright in [−π, π) before the step; an observation is its cosine, its sine and the velocity.
    """

    max_steps: int | None = eqx.field(default=200, static=True)

    @property
    def observation_space(self) -> Box:
        return Box((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0))

    @property
    def action_space(self) -> Box:
        return Box((-2.0,), (2.0,))

    @property
    def step_seconds(self) -> float:
        return 0.05

    def default_params(self) -> PendulumParams:
        return PendulumParams()

    def reset(
        self, key: Key[Array, ""], params: PendulumParams
    ) -> tuple[State, Float[Array, " 3"]]:
        angle, velocity = jax.random.uniform(key, (2, 1), params.gravity.dtype, -1.0, 1.0)
        state = State(
            params.start_angle * angle, params.start_velocity * velocity, jnp.zeros((), jnp.int32)
        )
        return state, _observe(state)

    def step(
        self, key: Key[Array, ""], state: State, action: Float[Array, " 1"], params: PendulumParams
    ) -> tuple[State, Transition]:
        angle, velocity = state.position[0], state.velocity[0]
        torque = params.control_sign * params.max_torque * 0.5 * jnp.clip(action[0], -2.0, 2.0)
        from_upright = jnp.mod(angle + jnp.pi, 2.0 * jnp.pi) - jnp.pi
        cost = (
            from_upright**2 + params.velocity_cost * velocity**2 + params.control_cost * torque**2
        )

        fall = 1.5 * params.gravity / params.length * jnp.sin(angle)
        lift = 3.0 / (params.mass * params.length**2) * torque
        velocity = velocity + (fall + lift) * params.timestep
        velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
        angle = angle + velocity * params.timestep

        state = State(angle[None], velocity[None], state.steps + 1)
        never = jnp.zeros(cost.shape, bool)
        return state, Transition(_observe(state), -cost, never, self.out_of_time(state.steps))

    def draw(self, state: State, params: PendulumParams, size: int) -> np.ndarray:
        length = float(params.length)
        canvas = Canvas(size, (0.0, 0.0), 1.3 * length)
        draw_poles(
            canvas, (0.0, 0.0), [float(state.position[0])], np.array([length]), 0.14 * length
        )
        canvas.dot((0.0, 0.0), 0.07 * length, INK)
        return canvas.pixels


def _observe(state: State) -> Float[Array, " 3"]:
    angle, velocity = state.position[0], state.velocity[0]
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), velocity])
