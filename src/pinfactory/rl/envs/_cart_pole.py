"""Two tasks for the cart with one pole: balance it, and swing it up."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ._drawing import draw_cart
from ._env import UNBOUNDED, Box, Discrete, Env, State, Transition, parameter
from ._rail import Angles, Rail, RailEnv, Scalar, angles, rail_force, simulate


class CartPoleBody(eqx.Module):
    """The constants of the motion, as in Gymnasium's `CartPole-v1`.

    Parameters
    ----------
    gravity, cart_mass, pole_mass
        In m/s² and kilograms.
    half_length
        Distance of the pole's centre from its hinge; the pole is a uniform rod.
    max_force
        Of the motor, in newtons.
    control_sign
        −1 for a motor that was wired the wrong way round.
    """

    gravity: Float[Array, "..."] = parameter(9.8)
    cart_mass: Float[Array, "..."] = parameter(1.0)
    pole_mass: Float[Array, "..."] = parameter(0.1)
    half_length: Float[Array, "..."] = parameter(0.5)
    max_force: Float[Array, "..."] = parameter(10.0)
    control_sign: Float[Array, "..."] = parameter(1.0)


class CartPoleParams(CartPoleBody):
    """The body, the start and the limits of `CartPole`, as in `CartPole-v1`.

    Parameters
    ----------
    timestep
        Seconds between two steps.
    noise
        All four numbers of the first state are uniform within ± this.
    max_position, max_angle
        The episode terminates when the cart or the pole leaves these.
    """

    timestep: Float[Array, "..."] = parameter(0.02)
    noise: Float[Array, "..."] = parameter(0.05)
    max_position: Float[Array, "..."] = parameter(2.4)
    max_angle: Float[Array, "..."] = parameter(np.deg2rad(12.0))


class CartPoleSwingUpParams(CartPoleBody, Rail):
    """The body, the rail, the start and the reward of `CartPoleSwingUp`.

    Parameters
    ----------
    rail_range
        The rail is as long as `CartPole` is allowed to go, with end stops as soft as MuJoCo's.
    damping
        Of the slider and the hinge, per velocity.
    timestep
        Of one Runge–Kutta step, in seconds.
    start_angle, noise
        The first state hangs down, its four numbers are uniform within ± `noise` of that.
    haste
        How fast the worth of an upright pole falls with its squared angular velocity.
    position_cost, control_cost
        Prices of the squares of the cart's position and of the action.
    """

    rail_range: Float[Array, "... 2"] = parameter([-2.4, 2.4])
    damping: Float[Array, "... 2"] = parameter([0.0, 0.0])
    timestep: Float[Array, "..."] = parameter(0.01)
    start_angle: Float[Array, "..."] = parameter(np.pi)
    noise: Float[Array, "..."] = parameter(0.05)
    haste: Float[Array, "..."] = parameter(0.05)
    position_cost: Float[Array, "..."] = parameter(0.02)
    control_cost: Float[Array, "..."] = parameter(0.01)


class CartPole(Env[CartPoleParams]):
    """Keep a pole upright by pushing its cart left or right: `CartPole-v1` in JAX.

    The reward is 1 a step; an observation is the cart's position and velocity, and the pole's angle
    and angular velocity.
    """

    max_steps: int | None = eqx.field(default=500, static=True)

    @property
    def observation_space(self) -> Box:
        high = (4.8, UNBOUNDED, float(np.deg2rad(24.0)), UNBOUNDED)
        return Box(tuple(-bound for bound in high), high)

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    @property
    def step_seconds(self) -> float:
        return 0.02

    def default_params(self) -> CartPoleParams:
        return CartPoleParams()

    def reset(
        self, key: Key[Array, ""], params: CartPoleParams
    ) -> tuple[State, Float[Array, " 4"]]:
        spread = jax.random.uniform(key, (2, 2), params.noise.dtype, -1.0, 1.0)
        position, velocity = params.noise * spread
        state = State(position, velocity, jnp.zeros((), jnp.int32))
        return state, _interleave(state)

    def step(
        self, key: Key[Array, ""], state: State, action: Int[Array, ""], params: CartPoleParams
    ) -> tuple[State, Transition]:
        force = params.control_sign * params.max_force * jnp.where(action == 1, 1.0, -1.0)
        forces = jnp.stack([force, jnp.zeros_like(force)])
        acceleration, _ = _accelerate(forces, state.velocity[1], angles(state.position), params)

        # The explicit Euler method: positions move with the velocities before the step.
        state = State(
            state.position + params.timestep * state.velocity,
            state.velocity + params.timestep * acceleration,
            state.steps + 1,
        )
        limits = jnp.stack([params.max_position, params.max_angle])
        terminated = jnp.any(jnp.abs(state.position) > limits)
        reward = jnp.ones_like(force)
        return state, Transition(
            _interleave(state), reward, terminated, self.out_of_time(state.steps)
        )

    def draw(self, state: State, params: CartPoleParams, size: int) -> np.ndarray:
        limit = float(params.max_position)
        return _draw(state, params, np.array([-limit, limit]), size)


class CartPoleSwingUp(RailEnv[CartPoleSwingUpParams]):
    """Swing a hanging pole up by pushing its cart, and balance it.

    The body is that of `CartPole`, the action a force in [−1, 1] times `max_force`, the motion
    of fourth order instead of Euler's first, and the rail has end stops instead of an edge to fall
    off: no state ends an episode. The reward is

        ½ (1 + cos angle) · exp(− haste · spin²) − position_cost · cart² − control_cost · action²,

    1 when the pole stands still in the middle and 0 when it hangs there; the exponential factor
    makes turning round and round a bad deal. An observation is the
    cart's position, the sine and cosine of the angle from upright, and both velocities.
    """

    max_steps: int | None = eqx.field(default=500, static=True)
    frame_skip: int = eqx.field(default=2, static=True)

    @property
    def observation_space(self) -> Box:
        high = (UNBOUNDED, 1.0, 1.0, UNBOUNDED, UNBOUNDED)
        return Box(tuple(-bound for bound in high), high)

    def default_params(self) -> CartPoleSwingUpParams:
        return CartPoleSwingUpParams()

    def reset(
        self, key: Key[Array, ""], params: CartPoleSwingUpParams
    ) -> tuple[State, Float[Array, " 5"]]:
        spread = jax.random.uniform(key, (2, 2), params.noise.dtype, -1.0, 1.0)
        position, velocity = params.noise * spread
        position = position + jnp.stack([jnp.zeros_like(params.start_angle), params.start_angle])
        state = State(position, velocity, jnp.zeros((), jnp.int32))
        return state, _observe(state)

    def step(
        self,
        key: Key[Array, ""],
        state: State,
        action: Float[Array, " 1"],
        params: CartPoleSwingUpParams,
    ) -> tuple[State, Transition]:
        control = jnp.clip(action[0], -1.0, 1.0)
        force = params.control_sign * params.max_force * control

        def accelerate(
            position: Float[Array, " 2"], velocity: Float[Array, " 2"], angles: Angles
        ) -> tuple[Float[Array, " 2"], Scalar]:
            resisted = jnp.stack([force, jnp.zeros_like(force)]) - params.damping * velocity
            free, response = _accelerate(resisted, velocity[1], angles, params)
            stop = rail_force(
                params, position[0], velocity[0], free[0], response[0], _upright_response(params)
            )
            return free + response * stop, stop

        motion = simulate(
            accelerate, state.position, state.velocity, params.timestep, self.frame_skip
        )
        state = State(motion.position, motion.velocity, state.steps + 1)
        reward = (
            0.5
            * (1.0 + jnp.cos(motion.position[1]))
            * jnp.exp(-params.haste * motion.velocity[1] ** 2)
            - params.position_cost * motion.position[0] ** 2
            - params.control_cost * control**2
        )
        never = jnp.zeros(reward.shape, bool)
        return state, Transition(_observe(state), reward, never, self.out_of_time(state.steps))

    def draw(self, state: State, params: CartPoleSwingUpParams, size: int) -> np.ndarray:
        return _draw(state, params, np.asarray(params.rail_range, float), size)


def _accelerate(
    forces: Float[Array, " 2"], spin: Scalar, angles: Angles, body: CartPoleBody
) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
    """Return the accelerations of cart and pole, and how both grow with the force on the cart."""
    sine, cosine = angles.sines[0], angles.cosines[0]
    total = body.cart_mass + body.pole_mass
    lever = body.pole_mass * body.half_length
    inertia = 4.0 / 3.0 * lever * body.half_length
    coupling = lever * cosine
    scale = 1.0 / (total * inertia - coupling**2)

    push = forces[0] + lever * sine * spin**2
    turn = forces[1] + lever * body.gravity * sine
    acceleration = jnp.stack([inertia * push - coupling * turn, total * turn - coupling * push])
    return scale * acceleration, scale * jnp.stack([inertia, -coupling])


def _upright_response(body: CartPoleBody) -> Scalar:
    """Return the cart's acceleration per force when the pole is upright."""
    return 1.0 / (body.cart_mass + 0.25 * body.pole_mass)


def _interleave(state: State) -> Float[Array, " 4"]:
    return jnp.stack([state.position, state.velocity], axis=1).ravel()


def _observe(state: State) -> Float[Array, " 5"]:
    angle = state.position[1:]
    return jnp.concatenate([state.position[:1], jnp.sin(angle), jnp.cos(angle), state.velocity])


def _draw(state: State, body: CartPoleBody, rail: np.ndarray, size: int) -> np.ndarray:
    cart, angle = np.asarray(state.position, float)
    return draw_cart(size, cart, rail, [angle], np.array([2.0 * float(body.half_length)]))
