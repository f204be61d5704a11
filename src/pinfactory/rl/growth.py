"""How few experts become many while an agent learns: when and which ones are split, and how.

Shapes stay the same throughout: a child takes a place that was switched off, so that one compiled
program serves before and after.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory.core.growth import (
    last_layer,
    n_copies,
    split_outputs,
    split_priors,
    take_experts,
)
from pinfactory.core.hierarchy import Hierarchy, take_expert

from .state import AgentState
from .values import Critics

# Parameters of a child differ from those of its parent by so much of their own size.
NOISE = 0.01
# By how much the log odds in favour of the child grow with every standard deviation that its
# parent's answers cost more.
SHARPNESS = 1.0


# --------------------------------------------------------------------------- when, and which ones


def n_doublings(n_initial: int, n_experts: int) -> int:
    """Return how often all experts have to be split to become `n_experts`, at least once."""
    return max(1, math.ceil(math.log2(n_experts / n_initial)))


def n_wanted(
    progress: Float[Array, ""],
    interval: Float[Array, ""],
    n_initial: Float[Array, ""],
    n_experts: Float[Array, ""],
) -> Int[Array, ""]:
    """Return how many experts there should be: all are split whenever an interval is over."""
    # The last step of an interval must not miss a split by rounding.
    n_splits = jnp.floor(jnp.maximum(progress, 0.0) / interval + 1e-3)
    return jnp.minimum(n_initial * 2.0**n_splits, n_experts).astype(jnp.int32)


class Split(NamedTuple):
    """Who is split: the parent of every expert, most often itself, and which experts are new.

    `side` is 1 for a parent that is split, −1 for its child, and 0 for all others.
    """

    parent: Int[Array, " m"]
    is_child: Bool[Array, " m"]
    side: Float[Array, " m"]


def plan_splits(
    available: Bool[Array, " m"], wanted: Int[Array, ""], score: Float[Array, " m"]
) -> Split:
    """Return which experts are split to become `wanted`, those with the highest score first.

    There are at most twice as many afterwards. Children come after all that are available, which
    are the first ones.
    """
    number, n = jnp.arange(len(available)), jnp.sum(available)
    order = jnp.argsort(jnp.where(available, -score, jnp.inf))
    is_child = (number >= n) & (number < jnp.minimum(wanted, 2 * n))
    parent = jnp.where(is_child, order[number - n], number)
    side = jnp.where(is_child, -1.0, jnp.where(n_copies(parent) > 1.0, 1.0, 0.0))
    return Split(parent, is_child, side)


def cost_direction(
    hidden: Float[Array, "r h"], cost: Float[Array, " r"], weight: Float[Array, " r"]
) -> Float[Array, " h"]:
    """Return the ridge regression of cost on hidden states, with predictions of unit variance."""
    share = weight / jnp.maximum(jnp.sum(weight), 1e-6)
    centred = jnp.sqrt(share)[:, None] * (hidden - share @ hidden)
    covariance = centred.T @ centred
    ridge = (1e-2 * jnp.trace(covariance) / len(covariance) + 1e-6) * jnp.eye(len(covariance))
    slope = jnp.linalg.solve(
        covariance + ridge, centred.T @ (jnp.sqrt(share) * (cost - share @ cost))
    )
    return slope / (jnp.linalg.norm(centred @ slope) + 1e-6)


# ---------------------------------------------------------------------------- experts of an agent


def split_experts(
    key: Key[Array, ""],
    state: AgentState,
    x: Float[Array, "b o"],
    expert: Int[Array, " b"],
    weight: Float[Array, " b"],
) -> AgentState:
    """Return the state with as many experts as there should be by now, at most twice as many.

    Given are the inputs of the last steps, the experts that acted, and how much a step counts.
    Those are split first that processed most information, the sum of KL(p(a|x,m) ‖ p(a|m)). A
    child begins with the parameters of its parent and some noise, and takes over the states in
    which its parent's answers cost more than on average.
    """
    growth, hierarchy = state.growth, state.policy.hierarchy
    assert growth is not None
    costs = jax.vmap(hierarchy)(x).answers.kl(state.priors.stages[1].family)
    taken = weight[:, None] * jax.nn.one_hot(expert, len(hierarchy.available))
    since = state.hyper.progress(state.iteration) - growth.start + growth.interval
    wanted = n_wanted(since, growth.interval, growth.n_initial_experts, growth.n_experts)
    split = plan_splits(hierarchy.available, wanted, jnp.sum(taken * costs, axis=0))
    parent = split.parent
    copied = take_experts(hierarchy, parent)
    layer = _split_last_layer(hierarchy, x, costs, taken, split)
    grown = eqx.tree_at(
        lambda h: (h.selector, h.experts, h.available),
        copied,
        (
            eqx.tree_at(last_layer, hierarchy.selector, layer),
            _add_noise(key, copied.experts, split.is_child),
            hierarchy.available | split.is_child,
        ),
    )
    return eqx.tree_at(
        lambda s: (s.policy.hierarchy, s.critics, s.priors, s.optimiser),
        state,
        (
            grown,
            _take_critics(state.critics, parent),
            split_priors(state.priors, parent),
            _take_moments(state.optimiser, parent),
        ),
    )


def _split_last_layer(
    hierarchy: Hierarchy,
    x: Float[Array, "b o"],
    costs: Float[Array, "b m"],
    taken: Float[Array, "b m"],
    split: Split,
) -> eqx.nn.Linear:
    """Return the selector's last layer, in which a child shares the states of its parent."""
    selector: Any = hierarchy.selector
    hidden = jax.vmap(eqx.nn.Sequential(selector.layers[:-1]))(x)
    log_costs = jnp.log(jnp.maximum(costs, 1e-6))
    slope = jax.vmap(cost_direction, (None, 1, 1))(hidden, log_costs, taken)
    share = taken / jnp.maximum(jnp.sum(taken, axis=0), 1e-6)
    threshold = jnp.sum(share * (hidden @ slope.T), axis=0)
    layer = last_layer(selector)
    assert layer is not None
    parent, sharpness = split.parent, -0.5 * SHARPNESS * split.side
    return split_outputs(layer, parent, slope[parent], threshold[parent], sharpness)


def _add_noise(key: Key[Array, ""], experts: PyTree, is_child: Bool[Array, " m"]) -> PyTree:
    """Return experts in which every array of a child has noise in proportion to its size."""
    arrays, rest = eqx.partition(experts, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)

    def noisy(key: Key[Array, ""], leaf: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
        inner = tuple(range(1, leaf.ndim))
        size = jnp.sqrt(jnp.mean(leaf**2, axis=inner, keepdims=True))
        child = is_child.reshape(-1, *(1,) * len(inner))
        return leaf + jnp.where(child, NOISE * size * jax.random.normal(key, leaf.shape), 0.0)

    keys = jax.random.split(key, len(leaves))
    return eqx.combine(jax.tree.unflatten(structure, map(noisy, keys, leaves)), rest)


def _take_critics(critics: Critics, parent: Int[Array, " m"]) -> Critics:
    """Return critics in which a child has that of its parent, if experts have their own."""
    if len(critics.head.weight) == 1:
        return critics
    # The first one is the selector's.
    return take_expert(critics, jnp.concatenate([jnp.zeros(1, parent.dtype), 1 + parent]))


def _take_moments(optimiser: PyTree, parent: Int[Array, " m"]) -> PyTree:
    """Return the optimiser's state with the moments of parents for their children."""

    def take(part: Any) -> Any:
        if isinstance(part, Hierarchy):
            return take_experts(part, parent)
        return _take_critics(part, parent) if isinstance(part, Critics) else part

    return jax.tree.map(take, optimiser, is_leaf=lambda part: isinstance(part, Hierarchy | Critics))
