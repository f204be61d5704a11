"""How the experts of an agent are split while it learns, with all that belongs to them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from pinfactory.core.growth import last_layer, take_experts
from pinfactory.core.hierarchy import Hierarchy, take_expert
from pinfactory.core.splitting import add_noise, plan_splits, split_by_cost, split_priors

from .state import AgentState
from .values import Critics

# By how much the log odds in favour of the child grow with every standard deviation that its
# parent's answers cost more.
SHARPNESS = 1.0


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
    wanted = growth.n_wanted(state.hyper.progress(state.iteration))
    split = plan_splits(hierarchy.available, wanted, jnp.sum(taken * costs, axis=0))
    parent = split.parent
    copied = take_experts(hierarchy, parent)
    selector: Any = hierarchy.selector
    hidden = jax.vmap(eqx.nn.Sequential(selector.layers[:-1]))(x)
    layer = last_layer(selector)
    assert layer is not None
    log_costs = jnp.log(jnp.maximum(costs, 1e-6))
    layer = split_by_cost(layer, split, hidden, log_costs, taken, SHARPNESS)
    grown = eqx.tree_at(
        lambda h: (h.selector, h.experts, h.available),
        copied,
        (
            eqx.tree_at(last_layer, hierarchy.selector, layer),
            add_noise(key, copied.experts, split.is_child),
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
