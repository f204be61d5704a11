"""Where a double pendulum starts while an agent learns to swing it up."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pinfactory.rl import envs


class Phase(NamedTuple):
    """How episodes begin and end for a share of all steps.

    So many bodies start hanging, others with poles up to `widest` off upright. A tip that is not
    above `fall_height` ends an episode.
    """

    widest: float
    hanging: float
    fall_height: float
    share: float


# The agent learns to stand first, and then to come back from ever farther away.
BACKWARD = (
    Phase(0.3, 0.0, 0.6, 0.1),
    Phase(1.0, 0.0, -0.6, 0.2),
    Phase(np.pi, 0.3, -10.0, 0.7),
)


def starts(phase: Phase, n: int) -> envs.DoublePendulumSwingUpParams:
    """Return n bodies; those that stand start farther from upright from one to the next."""
    params = envs.replicate(envs.DoublePendulumSwingUp().default_params(), n)
    n_upright = n - round(phase.hanging * n)
    position, noise, speed = (
        np.array(part)
        for part in (params.start_position, params.position_noise, params.velocity_noise)
    )
    spread = np.linspace(0.1, phase.widest, n_upright)[:, None]
    position[:n_upright] = 0.0
    noise[:n_upright] = np.minimum([0.1, 0.0, 0.0] + spread * [0.2, 1.0, 1.0], [0.6, np.pi, np.pi])
    speed[:n_upright] = spread * [0.5, 1.0, 1.0]
    return dataclasses.replace(
        params,
        start_position=jnp.asarray(position),
        position_noise=jnp.asarray(noise),
        velocity_noise=jnp.asarray(speed),
        fall_height=jnp.full(n, phase.fall_height),
    )
