"""From what a user asked for to a mind that has learned nothing."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pinfactory import settings as check
from pinfactory.rl._actions import BoxActions, native_actions
from pinfactory.rl.envs import Env

from ._mind import Hyper, MetaMind, build_mind
from ._policy import PROBES, Probe

# Validation tasks of so many iterations are kept for the selector to learn from.
REMEMBERED = 16


def mind_for(env: Env, settings: Mapping[str, Any]) -> MetaMind:
    """Check the settings of an agent and return its first mind."""
    n_experts = settings["n_experts"]
    actions = native_actions(env.action_space)
    kind = check.choice("probe", settings["probe"], PROBES)
    bounded = not isinstance(actions, BoxActions) or np.all(np.isfinite(actions.low))
    if kind in ("shake", "noise") and not bounded:
        raise ValueError(
            f"`probe` must be 'prior' or 'expert' where actions have no bounds, but got {kind!r}."
        )
    capacity = n_experts
    if settings["capacity"] is not None:
        capacity = check.integer("capacity", settings["capacity"], n_experts)

    founders = min(n_experts, check.integer("founders", settings["founders"], 1))

    def positive(name: str) -> jax.Array:
        return _real(check.number(name, settings[name], 0.0, open_low=True))

    hyper = Hyper(
        positive("learning_rate"),
        positive("critic_learning_rate"),
        positive("selector_learning_rate"),
        _real(check.number("gamma", settings["gamma"], 0.0, 0.99999)),
        _real(check.number("gae_lambda", settings["gae_lambda"], 0.0, 1.0)),
        positive("clip"),
        positive("beta_selector"),
        positive("beta_expert"),
        _real(check.number("balance", settings["balance"], 0.0)),
        _real(float(founders)),
        _real(float(n_experts)),
        _real(min(0.05, 0.15 / max(1, math.ceil(math.log2(n_experts / founders))))),
        positive("vigour"),
        _real(check.number("childhood", settings["childhood"], 0.05, 0.95)),
        _real(0.0),
        _real(1.0),
    )
    return build_mind(
        jax.random.key(settings["seed"]),
        env,
        actions,
        Probe(
            kind,
            check.integer("probe_steps", settings["probe_steps"], 1),
            check.number("probe_size", settings["probe_size"], 0.0, 1.0, open_low=True),
        ),
        hyper,
        capacity=capacity,
        cell=settings["cell"],
        units=check.integer("units", settings["units"], 1),
        hidden=check.sizes("hidden", settings["hidden"]),
        n_trials=REMEMBERED * settings["n_tasks"],
    )


def _real(value: float) -> jax.Array:
    return jax.device_put(np.float32(value))
