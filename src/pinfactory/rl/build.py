"""From settings to the initial state of an agent, and to the way it learns."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.constraints import Budget, Resource
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble, zeros_like
from pinfactory.core.splitting import Growth

from .actions import Actions
from .normalise import Moments, start_scale
from .optimise import clipped_adam, init_optimiser
from .policy import Policy
from .ppo import PPO
from .state import AgentState, Hyperparameters, Visited
from .values import Critics

if TYPE_CHECKING:
    from .agent import SpecialistAgent
    from .base import HierarchicalAgent

# The last learning rate of a call of `learn`, as a share of the first, if no other is asked for.
FINAL_RATE = 0.1


def build_ppo(settings: "SpecialistAgent", n_envs: int) -> PPO:
    """Return how an agent learns from `n_envs` environments."""
    batch = check.integer("batch_size", settings.batch_size, 1)
    clipped = check.choice("update", settings.update, ("clipped", "plain")) == "clipped"
    sampled = check.choice("expectation", settings.expectation, ("exact", "sampled"))
    return PPO(
        check.choice("critic", settings.critic, ("shared", "paper", "printed")),
        clipped,
        sampled == "sampled",
        check.choice("units", settings.units, ("return", "reward")),
        bool(check.choice("normalise", settings.normalise, (True, False))),
        _build_optimiser(settings),
        check.integer("n_epochs", settings.n_epochs, 1) if clipped else 1,
        min(batch, n_envs * check.integer("n_steps", settings.n_steps, 1)),
    )


def _build_optimiser(settings: "SpecialistAgent") -> optax.GradientTransformation:
    norm = settings.max_grad_norm
    return clipped_adam(
        None if norm is None else check.number("max_grad_norm", norm, 0.0, open_low=True)
    )


def build_state(
    settings: "SpecialistAgent", n_observation: int, actions: Actions, n_envs: int
) -> AgentState:
    """Return the initial state for so many observed numbers, these actions and environments."""
    key = jax.random.key(settings.seed)
    n_experts, capacity = settings.n_experts, settings.capacity
    capacity = n_experts if capacity is None else check.integer("capacity", capacity, n_experts)
    hierarchy = _build_hierarchy(key, settings, n_observation, actions, capacity)
    one = jax.ShapeDtypeStruct((n_observation,), np.float32)
    like = zeros_like(eqx.filter_eval_shape(hierarchy, one))
    hidden = check.sizes("critic_hidden", settings.critic_hidden)
    # Where rewards change their unit, their part of a value is apart from that of information.
    n_parts = 2 if settings.units == "return" else 1
    n_critics = 1 if settings.critic == "shared" else 1 + capacity
    critics = Critics.build(
        jax.random.fold_in(key, 1),
        n_critics,
        lambda key: networks.mlp(n_observation, n_parts, hidden, networks.tanh, key=key),
    )
    hold = jax.device_put(np.int32(check.integer("hold", settings.hold, 1)))
    visited = Visited.start(n_envs * settings.n_steps, n_observation)
    return AgentState(
        Policy(hierarchy, Moments.start(n_observation), hold, actions),
        critics,
        settings._priors(like),
        build_resources(settings),
        start_scale(),
        jax.device_put(np.zeros(n_envs, np.float32)),
        visited,
        init_optimiser((hierarchy, critics), _build_optimiser(settings)),
        _build_hyperparameters(settings),
        jax.device_put(np.zeros((), np.int32)),
        jax.device_put(np.zeros((), np.int32)),
        _build_growth(settings),
    )


def _build_hierarchy(
    key: Array, settings: "SpecialistAgent", n_observation: int, actions: Actions, capacity: int
) -> Hierarchy:
    """Return a selector over `n_experts` experts, in arrays that could hold `capacity`."""
    selector_hidden = check.sizes("selector_hidden", settings.selector_hidden)
    kind = check.choice("expert", settings.expert, ("constant", "linear", "mlp"))
    expert_hidden = check.sizes("expert_hidden", settings.expert_hidden) if kind == "mlp" else ()

    def selector(key: Array) -> Callable[..., Array]:
        return networks.mlp(n_observation, capacity, selector_hidden, networks.tanh, key=key)

    def expert(key: Array) -> FamilyExpert:
        sizes = (n_observation, actions.n_outputs)
        if kind == "constant":
            return FamilyExpert(networks.constant(*sizes, key=key), actions)
        return FamilyExpert(networks.mlp(*sizes, expert_hidden, networks.tanh, key=key), actions)

    hierarchy = assemble(key, selector, expert, capacity)
    available = jax.device_put(np.arange(capacity) < n_initial_experts(settings))
    return eqx.tree_at(lambda h: h.available, hierarchy, available)


def build_resources(settings: "HierarchicalAgent") -> tuple[Resource, Resource]:
    """Return the resources of selector and experts, with budgets that are met early.

    The pace for tables is for ten thousand steps of a constant learning rate; an agent has a few
    thousand minibatches with falling rates, and a β that comes late is not followed any more.
    """
    selector, expert = (
        dataclasses.replace(resource, rate=jnp.asarray(0.03), horizon=300.0)
        if isinstance(resource, Budget)
        else resource
        for resource in settings._resources()
    )
    return selector, expert


def _build_hyperparameters(settings: "SpecialistAgent") -> Hyperparameters:
    rate = check.number("learning_rate", settings.learning_rate, 0.0, open_low=True)
    final = settings.final_learning_rate
    gae_lambda = check.number("gae_lambda", settings.gae_lambda, 0.0, 1.0)
    numbers = (
        rate,
        FINAL_RATE * rate if final is None else check.number("final_learning_rate", final, 0.0),
        check.number("gamma", settings.gamma, 0.0, 0.99999),
        0.0 if settings.update == "plain" else gae_lambda,
        check.number("clip_range", settings.clip_range, 0.0, open_low=True),
        0.0,
        1.0,
    )
    return Hyperparameters(*map(real, numbers))


def n_initial_experts(settings: "SpecialistAgent") -> int:
    """Return how many experts begin."""
    asked, n_experts = settings.n_initial_experts, settings.n_experts
    if asked is None:
        return n_experts
    return min(n_experts, check.integer("n_initial_experts", asked, 1))


def _build_growth(settings: "SpecialistAgent") -> Growth | None:
    """Return when experts are split, if they are."""
    fraction = check.number("growth_fraction", settings.growth_fraction, 0.0, 0.95)
    if settings.n_initial_experts is None:
        return None
    return Growth.plan(n_initial_experts(settings), settings.n_experts, fraction)


def real(value: float) -> Array:
    """Return a number that compiled programs take as an argument."""
    return jax.device_put(np.float32(value))
