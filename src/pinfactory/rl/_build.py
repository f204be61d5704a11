"""From a user's settings to a mind that has learned nothing yet, and the way it learns."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble
from pinfactory.core.priors import Priors
from pinfactory.core.resources import Resource

from ._actions import Actions
from ._mind import Critics, Hyper, Mind
from ._normalise import Moments
from ._policy import Policy
from ._update import Improver

# The last learning rate of a call of `learn`, as a share of the first.
LAST_RATE = 0.1
Settings = Mapping[str, Any]


def build_improver(settings: Settings, n_envs: int) -> Improver:
    """Return how an agent learns from what happened in `n_envs` environments."""
    batch = check.integer("batch_size", settings["batch_size"], 1)
    clipped = check.choice("update", settings["update"], ("clipped", "plain")) == "clipped"
    return Improver(
        check.choice("critic", settings["critic"], ("shared", "paper")),
        clipped,
        check.integer("n_epochs", settings["n_epochs"], 1) if clipped else 1,
        min(batch, n_envs * check.integer("n_steps", settings["n_steps"], 1)),
    )


def build_mind(settings: Settings, n_observation: int, actions: Actions, n_envs: int) -> Mind:
    """Return a mind for so many observed numbers, these actions and environments."""
    key = jax.random.key(settings["seed"])
    n_experts, capacity = settings["n_experts"], settings["capacity"]
    capacity = n_experts if capacity is None else check.integer("capacity", capacity, n_experts)
    hierarchy = _build_hierarchy(key, settings, n_observation, actions, capacity)
    like = jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)),
        eqx.filter_eval_shape(hierarchy, jax.ShapeDtypeStruct((n_observation,), np.float32)),
    )
    hidden = check.sizes("critic_hidden", settings["critic_hidden"])

    def critic(key: Array) -> Any:
        return networks.mlp(n_observation, 1, hidden, networks.tanh, key=key)

    n_critics = 1 if settings["critic"] == "shared" else 1 + capacity
    hold = jax.device_put(np.int32(check.integer("hold", settings["hold"], 1)))
    momentum = _real(check.number("momentum", settings["momentum"], 0.0, 1.0))
    return Mind.start(
        Policy(hierarchy, Moments.start(n_observation), hold, actions),
        Critics.build(jax.random.fold_in(key, 1), n_critics, critic),
        Priors.running(like, momentum, momentum),
        _build_resources(settings),
        _build_hyper(settings),
        n_envs,
        settings["n_steps"],
    )


def _build_hierarchy(
    key: Array, settings: Settings, n_observation: int, actions: Actions, capacity: int
) -> Hierarchy:
    """Return a selector over `n_experts` experts, in arrays that could hold `capacity`."""
    selector_hidden = check.sizes("selector_hidden", settings["selector_hidden"])
    linear = check.choice("expert", settings["expert"], ("linear", "mlp")) == "linear"
    expert_hidden = () if linear else check.sizes("expert_hidden", settings["expert_hidden"])

    def selector(key: Array) -> Callable[..., Array]:
        return networks.mlp(n_observation, capacity, selector_hidden, networks.tanh, key=key)

    def expert(key: Array) -> FamilyExpert:
        sizes = (n_observation, actions.n_outputs)
        return FamilyExpert(networks.mlp(*sizes, expert_hidden, networks.tanh, key=key), actions)

    hierarchy = assemble(key, selector, expert, capacity)
    available = jax.device_put(np.arange(capacity) < settings["n_experts"])
    return eqx.tree_at(lambda h: h.available, hierarchy, available)


def _build_resources(settings: Settings) -> tuple[Resource, Resource]:
    most = math.log2(settings["n_experts"])
    return (
        check.resource("selector", settings["beta_selector"], settings["selector_bits"], most),
        check.resource("expert", settings["beta_expert"], settings["expert_bits"]),
    )


def _build_hyper(settings: Settings) -> Hyper:
    rate = check.number("learning_rate", settings["learning_rate"], 0.0, open_low=True)
    trace = check.number("gae_lambda", settings["gae_lambda"], 0.0, 1.0)
    numbers = (
        rate,
        LAST_RATE * rate,
        check.number("gamma", settings["gamma"], 0.0, 0.99999),
        0.0 if settings["update"] == "plain" else trace,
        check.number("clip", settings["clip"], 0.0, open_low=True),
        0.0,
        1.0,
    )
    return Hyper(*map(_real, numbers))


def _real(value: float) -> Array:
    """Return a number that compiled programs take as an argument."""
    return jax.device_put(np.float32(value))
