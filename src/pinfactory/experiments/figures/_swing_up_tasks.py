"""The swing-ups: their environments, who learns them, and how."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pinfactory.experiments.controls.agents import DENSE_NETWORK
from pinfactory.rl import envs

from ._rl_starts import BACKWARD, Phase


def _pendulum(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arctan2(x[:, 1], x[:, 0]), x[:, 2], x[:, 0] > np.cos(np.pi / 6)


def _cart_pole(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arctan2(x[:, 1], x[:, 2]), x[:, 4], x[:, 2] > np.cos(np.pi / 6)


def _double(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lower = np.arctan2(x[:, 1], x[:, 3])
    upper = np.angle(np.exp(1j * (lower + np.arctan2(x[:, 2], x[:, 4]))))
    return lower, upper, 0.5 * (np.cos(lower) + np.cos(upper)) > np.cos(np.pi / 6)


ONE, TWO, FIVE, EIGHT = (
    "1 linear expert",
    "2 linear experts",
    "5 linear experts",
    "8 linear experts",
)
HELD, NETWORK = "3 linear experts, held", "network of 2 × 64"
FIVE_GROWN, EIGHT_GROWN = f"{FIVE}, grown", f"{EIGHT}, grown"
# The paper's β₁ and β₂, except where experts have to steer for themselves for a while.
KINDS: dict[str, dict[str, Any]] = {
    ONE: {"n_experts": 1, "capacity": 5},
    TWO: {"n_experts": 2, "capacity": 5},
    FIVE: {"n_experts": 5, "capacity": 5},
    FIVE_GROWN: {"n_experts": 5, "capacity": 5, "n_initial_experts": 2},
    HELD: {"n_experts": 3, "capacity": 5, "hold": 5, "beta_expert": 100.0},
    EIGHT: {"n_experts": 8},
    EIGHT_GROWN: {"n_experts": 8, "n_initial_experts": 2},
    NETWORK: {"n_experts": 1, **DENSE_NETWORK},
}
PAPER = {ONE: {"n_experts": 1}, FIVE: {"n_experts": 5}}
N_ENVS = 64
USUAL = (ONE, TWO, FIVE, FIVE_GROWN, HELD, NETWORK)


class Task(NamedTuple):
    """A swing-up: its environment, what a solved one returns, who learns it, and how."""

    title: str
    env: Callable[[], envs.Env]
    solved: float
    learning: dict[str, Any]
    view: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
    labels: tuple[str, str]
    kinds: tuple[str, ...] = USUAL
    phases: tuple[Phase, ...] = ()


TASKS = {
    "pendulum": Task(
        "Pendulum",
        envs.Pendulum,
        -200.0,
        {"gamma": 0.95, "learning_rate": 3e-3},
        _pendulum,
        ("angle from upright", "velocity"),
    ),
    "cart-pole": Task(
        "Pole on a cart",
        envs.CartPoleSwingUp,
        350.0,
        {"gamma": 0.99, "learning_rate": 2e-3},
        _cart_pole,
        ("angle from upright", "velocity"),
    ),
    "double pendulum": Task(
        "Double pendulum on a cart",
        envs.DoublePendulumSwingUp,
        350.0,
        {
            "gamma": 0.99,
            "learning_rate": 3e-3,
            "selector_hidden": (64, 64),
            # Short episodes keep starts among what is learned from; most fall soon after.
            "max_episode_steps": 100,
        },
        _double,
        ("lower pole's angle from upright", "upper pole's angle"),
        (ONE, EIGHT, EIGHT_GROWN, NETWORK),
        BACKWARD,
    ),
}
