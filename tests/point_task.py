"""A task whose answer is known: push a point to the origin, by a motor of unknown sign."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory.rl.envs import Box, Env, State, Transition, parameter
from pinfactory.rl.meta import Either, ParameterFamily, Uniform


class PointParams(eqx.Module):
    sign: Float[Array, "..."] = parameter(1.0)
    gain: Float[Array, "..."] = parameter(0.3)


class Point(Env[PointParams]):
    """x ← x + sign · gain · a, reward −x²; the best action is −sign · x / gain, clipped."""

    max_steps: int | None = eqx.field(default=20, static=True)

    @property
    def observation_space(self) -> Box:
        return Box((-10.0,), (10.0,))

    @property
    def action_space(self) -> Box:
        return Box((-1.0,), (1.0,))

    @property
    def step_seconds(self) -> float:
        return 1.0

    def default_params(self) -> PointParams:
        return PointParams()

    def reset(self, key: Key[Array, ""], params: PointParams) -> tuple[State, Float[Array, " 1"]]:
        x = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return State(x, jnp.zeros(1), jnp.zeros((), jnp.int32)), x

    def step(
        self, key: Key[Array, ""], state: State, action: Float[Array, " 1"], params: PointParams
    ) -> tuple[State, Transition]:
        x = state.position + params.sign * params.gain * jnp.clip(action, -1.0, 1.0)
        x = jnp.clip(x, -3.0, 3.0)
        steps = state.steps + 1
        never = jnp.zeros((), bool)
        state = State(x, jnp.zeros(1), steps)
        return state, Transition(x, -(x[0] ** 2), never, self.out_of_time(steps))


def point_tasks() -> ParameterFamily:
    return ParameterFamily(Point(), {"sign": Either(1.0, -1.0), "gain": Uniform(0.25, 0.35)})


def best_return(shakes: int, n: int = 20_000) -> float:
    """Return the mean return of the best controller that has to shake for some steps first."""
    rng = np.random.default_rng(0)
    sign, gain = np.where(rng.random(n) < 0.5, 1.0, -1.0), rng.uniform(0.25, 0.35, n)
    x, total = rng.uniform(-1.0, 1.0, n), np.zeros(n)
    for step in range(20):
        shake = 0.1 * (1.0 - 2.0 * (step % 2))
        action = shake if step < shakes else np.clip(-sign * x / gain, -1.0, 1.0)
        x = x + sign * gain * action
        total -= x**2
    return float(total.mean())
