"""From settings to the initial state of a meta-learning agent."""

import math
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from pinfactory import settings as check
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision, FamilyExpert, Hierarchy, stack
from pinfactory.core.splitting import n_doublings
from pinfactory.networks import linear, mlp, relu, reserve
from pinfactory.recurrent import SequenceNetwork
from pinfactory.rl.actions import Actions, BoxActions, env_actions
from pinfactory.rl.build import build_resources, real
from pinfactory.rl.normalise import Moments, start_scale
from pinfactory.rl.optimise import init_optimiser
from pinfactory.rl.values import Critics

from .losses import optimiser_of
from .policy import PROBES, MetaPolicy, Probe, transition_size
from .state import Hyperparameters, MetaAgentState, SelectorReplay

if TYPE_CHECKING:
    from .agent import MetaSpecialistAgent

# Tasks of so many iterations are kept for the selector to learn from.
REPLAY_ITERATIONS = 16
# Experts begin with small answers, all nearly the same.
INITIAL_SCALE = 0.1


def build_state(settings: "MetaSpecialistAgent") -> MetaAgentState:
    """Check the settings of an agent and return its initial state."""
    env = settings.family.env
    n_experts, capacity = settings.n_experts, settings.capacity
    capacity = n_experts if capacity is None else check.integer("capacity", capacity, n_experts)
    reserve(capacity)
    squash = bool(check.choice("squash", settings.squash, (True, False)))
    actions = env_actions(env.action_space, squash)
    probe = _build_probe(settings, actions)
    hyper = _build_hyperparameters(settings)
    n_inputs, features = len(env.observation_space.low), transition_size(env, actions)
    expert_key, critic_key, selector_key, selector_critic_key = jax.random.split(
        jax.random.key(settings.seed), 4
    )
    experts = _build_experts(expert_key, settings, n_inputs, actions, capacity)
    critic_hidden = check.sizes("critic_hidden", settings.critic_hidden)
    plain = is_plain(settings)
    n_parts = 1 if plain else 2
    critics = Critics.build(
        critic_key, capacity, lambda key: mlp(n_inputs, n_parts, critic_hidden, relu, key=key)
    )
    units = check.integer("selector_units", settings.selector_units, 1)

    def recurrent(outputs: int, key: Key[Array, ""]) -> SequenceNetwork:
        return SequenceNetwork.create(settings.selector_cell, features, outputs, units, key=key)

    selector = recurrent(capacity, selector_key)
    selector_critic = recurrent(1 if plain else n_parts * capacity, selector_critic_key)
    available = jax.device_put(np.arange(capacity) < float(hyper.n_initial_experts))
    answers = eqx.filter_vmap(lambda expert: expert(jnp.zeros(n_inputs)))(experts)
    policy = MetaPolicy(
        Hierarchy(selector, experts, available),
        settings._priors(Decision((Categorical.uniform((capacity,)),), answers)),
        Moments.start(n_inputs),
        Moments.start(features),
        actions,
        probe,
    )
    return MetaAgentState(
        policy,
        critics,
        selector_critic,
        build_resources(settings),
        start_scale(),
        tuple(
            init_optimiser(part, optimiser_of(plain))
            for part in (experts, critics, selector, selector_critic)
        ),
        SelectorReplay.empty(REPLAY_ITERATIONS * settings.n_tasks, probe.length, features, n_parts),
        hyper,
        jax.device_put(np.zeros((), np.int32)),
    )


def is_plain(settings: "MetaSpecialistAgent") -> bool:
    """Return whether an agent learns by the paper's rule."""
    return check.choice("update", settings.update, ("clipped", "plain")) == "plain"


def _build_experts(
    key: Key[Array, ""],
    settings: "MetaSpecialistAgent",
    n_inputs: int,
    actions: Actions,
    capacity: int,
) -> FamilyExpert:
    """Return stacked experts whose first answers are small, unless the paper's rule is wanted."""
    scale = 1.0 if is_plain(settings) else INITIAL_SCALE
    is_linear = check.choice("expert", settings.expert, ("linear", "mlp")) == "linear"
    hidden = () if is_linear else check.sizes("expert_hidden", settings.expert_hidden)
    last_width = hidden[-1] if hidden else n_inputs

    def expert(key: Key[Array, ""]) -> FamilyExpert:
        network = mlp(n_inputs, actions.n_outputs, hidden, relu, key=key)
        last = jax.tree.map(
            lambda w: jax.device_put(np.float32(scale) * np.asarray(w)),
            linear(last_width, actions.n_outputs, key=jax.random.fold_in(key, 99)),
        )
        return FamilyExpert(eqx.tree_at(lambda n: n.layers[-1], network, last), actions)

    return stack([expert(k) for k in jax.random.split(key, capacity)])


def _build_probe(settings: "MetaSpecialistAgent", actions: Actions) -> Probe:
    kind = check.choice("probe", settings.probe, PROBES)
    probe = Probe(
        kind,
        check.integer("probe_steps", settings.probe_steps, 1),
        check.number("probe_size", settings.probe_size, 0.0, 1.0, open_low=True),
    )
    bounded = not isinstance(actions, BoxActions) or np.all(np.isfinite(actions.low))
    if probe.open_loop and not bounded:
        raise ValueError(
            f"`probe` must be 'prior' or 'expert' where actions have no bounds, but got {kind!r}."
        )
    return probe


def _build_hyperparameters(settings: "MetaSpecialistAgent") -> Hyperparameters:
    n_experts = settings.n_experts
    n_initial = min(n_experts, check.integer("n_initial_experts", settings.n_initial_experts, 1))
    n_splits = n_doublings(n_initial, n_experts)

    def positive(name: str) -> Array:
        return real(check.number(name, getattr(settings, name), 0.0, open_low=True))

    def within(name: str, low: float, high: float = math.inf) -> Array:
        return real(check.number(name, getattr(settings, name), low, high))

    return Hyperparameters(
        learning_rate=positive("learning_rate"),
        critic_learning_rate=positive("critic_learning_rate"),
        selector_learning_rate=positive("selector_learning_rate"),
        gamma=within("gamma", 0.0, 0.99999),
        gae_lambda=within("gae_lambda", 0.0, 1.0),
        clip_range=positive("clip_range"),
        balance_coef=within("balance_coef", 0.0),
        n_initial_experts=real(float(n_initial)),
        n_experts=real(float(n_experts)),
        split_interval=real(min(0.05, 0.15 / n_splits)),
        child_scale=positive("child_scale"),
        growth_fraction=within("growth_fraction", 0.05, 0.95),
        first_iteration=real(0.0),
        last_iteration=real(1.0),
    )
