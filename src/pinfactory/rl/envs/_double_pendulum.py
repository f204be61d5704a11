"""Two tasks for the cart with the double pendulum: balance it, and swing it up."""

from abc import abstractmethod
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from ._double_pendulum_body import DoublePendulumBody, move, tip
from ._drawing import draw_cart
from ._env import UNBOUNDED, Box, State, Transition, parameter
from ._rail import Motion, RailEnv

Params = TypeVar("Params", bound=Any)

FORCE_LIMIT = 10.0


class DoublePendulumParams(DoublePendulumBody):
    """The body, the start and the reward of `DoublePendulum`, as in `InvertedDoublePendulum-v5`.

    Parameters
    ----------
    start_position
        Mean of the first position: cart, lower pole from upright, upper pole from the lower one.
    position_noise, velocity_noise
        The first position is uniform within ± the former, the first velocity Gaussian with the
        latter as its deviation.
    healthy_reward
        For every step in which the tip stays up.
    goal
        Where the tip should be: along the rail, and above it.
    distance_cost
        Price of the squared distances of the tip from the goal, in the same order.
    velocity_cost
        Price of the squared velocities of the two hinges.
    fall_height
        The episode terminates when the tip is not above this height.
    """

    start_position: Float[Array, "... 3"] = parameter([0.0, 0.0, 0.0])
    position_noise: Float[Array, "..."] = parameter(0.1)
    velocity_noise: Float[Array, "..."] = parameter(0.1)
    healthy_reward: Float[Array, "..."] = parameter(10.0)
    goal: Float[Array, "... 2"] = parameter([0.0, 2.0])
    distance_cost: Float[Array, "... 2"] = parameter([0.01, 1.0])
    velocity_cost: Float[Array, "... 2"] = parameter([0.001, 0.005])
    fall_height: Float[Array, "..."] = parameter(1.0)


class DoublePendulumSwingUpParams(DoublePendulumBody):
    """The body, the start and the reward of `DoublePendulumSwingUp`.

    Parameters
    ----------
    start_position, position_noise, velocity_noise
        As in `DoublePendulumParams`, but hanging down, and with a number for each coordinate: poles
        may start anywhere while the cart starts on its rail.
    fall_height
        The episode terminates when the tip is not above this height; the default is out of reach.
    max_spin
        The episode is truncated when a hinge turns faster than this, in radians per second.
    haste
        How fast the worth of a high tip falls with the squared velocities of the two hinges.
    position_cost
        Price of the cart's squared position.
    control_cost
        Price of the squared action.
    """

    start_position: Float[Array, "... 3"] = parameter([0.0, np.pi, 0.0])
    position_noise: Float[Array, "... 3"] = parameter([0.1, 0.1, 0.1])
    velocity_noise: Float[Array, "... 3"] = parameter([0.1, 0.1, 0.1])
    fall_height: Float[Array, "..."] = parameter(-10.0)
    max_spin: Float[Array, "..."] = parameter(50.0)
    haste: Float[Array, "... 2"] = parameter([0.05, 0.05])
    position_cost: Float[Array, "..."] = parameter(0.05)
    control_cost: Float[Array, "..."] = parameter(0.01)


class _DoublePendulumEnv(RailEnv[Params]):
    """What both tasks share: all but the reward and the end of an episode."""

    velocity_limit: eqx.AbstractClassVar[float]

    @abstractmethod
    def outcome(
        self, motion: Motion, control: Float[Array, ""], params: Params
    ) -> tuple[Float[Array, ""], Bool[Array, ""], Bool[Array, ""] | bool]:
        """Return the reward of a step, and whether it terminates or truncates the episode."""

    @property
    def observation_space(self) -> Box:
        high = (UNBOUNDED, *[1.0] * 4, *[self.velocity_limit] * 3, FORCE_LIMIT)
        return Box(tuple(-bound for bound in high), high)

    def reset(self, key: Key[Array, ""], params: Params) -> tuple[State, Float[Array, " 9"]]:
        dtype = params.start_position.dtype
        noise = jax.random.normal(key, (2, 3), dtype)
        # erf makes a Gaussian number uniform: one draw compiles faster than two.
        spread = jax.scipy.special.erf(noise[0] / np.sqrt(2.0).astype(dtype))
        position = params.start_position + params.position_noise * spread
        velocity = params.velocity_noise * noise[1]
        motion = move(position, velocity, jnp.zeros((), dtype), params, frames=0)
        return State(position, velocity, jnp.zeros((), jnp.int32)), self._observe(motion)

    def step(
        self, key: Key[Array, ""], state: State, action: Float[Array, " 1"], params: Params
    ) -> tuple[State, Transition]:
        control = jnp.clip(action[0], -1.0, 1.0)
        motion = move(state.position, state.velocity, control, params, self.frame_skip)
        reward, terminated, truncated = self.outcome(motion, control, params)
        steps = state.steps + 1
        transition = Transition(
            self._observe(motion), reward, terminated, truncated | self.out_of_time(steps)
        )
        return State(motion.position, motion.velocity, steps), transition

    def _observe(self, motion: Motion) -> Float[Array, " 9"]:
        hinges = motion.position[1:]
        return jnp.concatenate(
            [
                motion.position[:1],
                jnp.sin(hinges),
                jnp.cos(hinges),
                jnp.clip(motion.velocity, -self.velocity_limit, self.velocity_limit),
                jnp.clip(motion.stage_force, -FORCE_LIMIT, FORCE_LIMIT)[None],
            ]
        )

    def draw(self, state: State, params: Params, size: int) -> np.ndarray:
        cart, lower, upper = np.asarray(state.position, float)
        return draw_cart(
            size,
            cart=cart,
            rail=np.asarray(params.rail_range, float),
            angles=[lower, lower + upper],
            lengths=np.asarray(params.pole_length, float),
        )


class DoublePendulum(_DoublePendulumEnv[DoublePendulumParams]):
    """Keep a double pendulum upright by pushing its cart: `InvertedDoublePendulum-v5` in JAX.

    The reward is

        healthy_reward · [tip is up]
            − Σ distance_cost · (tip − goal)² − Σ velocity_cost · hinge velocity²

    and an observation is the cart's position, the sines and then the cosines of both hinges, the
    three velocities and the force of the rail's end stop, velocities and force clipped to ±10.
    """

    max_steps: int | None = eqx.field(default=1000, static=True)
    frame_skip: int = eqx.field(default=5, static=True)
    velocity_limit: ClassVar[float] = 10.0

    def default_params(self) -> DoublePendulumParams:
        return DoublePendulumParams()

    def outcome(
        self, motion: Motion, control: Float[Array, ""], params: DoublePendulumParams
    ) -> tuple[Float[Array, ""], Bool[Array, ""], bool]:
        # MuJoCo places the tip by the last Runge–Kutta stage.
        x, height = tip(motion.stage_position, params)
        fallen = height <= params.fall_height
        reward = (
            jnp.where(fallen, 0.0, params.healthy_reward)
            - _price(params.distance_cost, x - params.goal[0], height - params.goal[1])
            - _price(params.velocity_cost, motion.velocity[1], motion.velocity[2])
        )
        return reward, fallen, False


class DoublePendulumSwingUp(_DoublePendulumEnv[DoublePendulumSwingUpParams]):
    """Swing a hanging double pendulum up and balance it.

    The body is that of `DoublePendulum`. Nothing terminates an episode, unless `fall_height` is
    raised for an agent that has to learn to stand first. A hinge that spins faster than `max_spin`
    truncates it: at three times that speed time steps of 0.01 s are too long for the Runge–Kutta
    method, and the motion would leave the finite numbers. The reward is

        ½ (1 + height of the tip / length of both poles) · exp(− Σ haste · hinge velocity²)
            − position_cost · cart² − control_cost · action²,

    1 when it stands still in the middle and 0 when it hangs there. Without the exponential
    factor, turning round and round with the poles in line would earn 0.6. Observations are those of
    `DoublePendulum`, with velocities clipped to ±30: a falling pendulum is faster than 10.
    """

    max_steps: int | None = eqx.field(default=500, static=True)
    frame_skip: int = eqx.field(default=5, static=True)
    velocity_limit: ClassVar[float] = 30.0

    def default_params(self) -> DoublePendulumSwingUpParams:
        return DoublePendulumSwingUpParams()

    def outcome(
        self, motion: Motion, control: Float[Array, ""], params: DoublePendulumSwingUpParams
    ) -> tuple[Float[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
        _, height = tip(motion.position, params)
        reward = (
            0.5
            * (1.0 + height / (params.pole_length[0] + params.pole_length[1]))
            * jnp.exp(-_price(params.haste, motion.velocity[1], motion.velocity[2]))
            - params.position_cost * motion.position[0] ** 2
            - params.control_cost * control**2
        )
        too_fast = jnp.max(jnp.abs(motion.velocity[1:])) > params.max_spin
        return reward, height <= params.fall_height, too_fast


def _price(cost: Float[Array, " 2"], first: Array, second: Array) -> Array:
    return cost[0] * first**2 + cost[1] * second**2
