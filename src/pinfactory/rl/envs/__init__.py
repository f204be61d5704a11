"""Environments in JAX: pure functions of a state, an action and the parameters of a body.

`reset` and `step` compile, map over many bodies at once and scan over time. Importing this package
also registers the environments with Gymnasium, if that is installed, as `pinfactory/NAME-v0`.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from pinfactory.lazy import attach

from ._cart_pole import CartPole, CartPoleParams, CartPoleSwingUp, CartPoleSwingUpParams
from ._double_pendulum import (
    DoublePendulum,
    DoublePendulumParams,
    DoublePendulumSwingUp,
    DoublePendulumSwingUpParams,
)
from ._double_pendulum_body import capsule
from ._env import (
    Box,
    Discrete,
    Env,
    State,
    Transition,
    parameter,
    replicate,
    reset_all,
    step_all,
)
from ._pendulum import Pendulum, PendulumParams

# All environments, by name.
ENVIRONMENTS: dict[str, Callable[..., Env[Any]]] = {
    env.__name__: env
    for env in (CartPole, CartPoleSwingUp, DoublePendulum, DoublePendulumSwingUp, Pendulum)
}

__all__ = [
    "ENVIRONMENTS",
    "Box",
    "CartPole",
    "CartPoleParams",
    "CartPoleSwingUp",
    "CartPoleSwingUpParams",
    "Discrete",
    "DoublePendulum",
    "DoublePendulumParams",
    "DoublePendulumSwingUp",
    "DoublePendulumSwingUpParams",
    "Env",
    "GymnasiumEnv",
    "Pendulum",
    "PendulumParams",
    "State",
    "Transition",
    "capsule",
    "parameter",
    "replicate",
    "reset_all",
    "step_all",
]

if find_spec("gymnasium") is not None:
    from ._gymnasium import register

    register()

# The one name here that needs Gymnasium.
__getattr__, __dir__ = attach(__name__, {"._gymnasium": "GymnasiumEnv"})
