"""Experts that are split, merged, switched off and put in order, under fixed shapes.

A hierarchy has room for M experts, of which `Hierarchy.available` says who may be chosen. These
operations move experts between places and switch places on and off, with all that belongs to an
expert: its parameters, its output of the selector, its priors, the running mean of its parameters
and what the optimiser knows of them. Shapes never change, so that one compiled program serves
before and after.

What a selector gives out for each expert is moved by `take_outputs`; a selector of one's own needs
a method of that name, or a last layer that is an `eqx.nn.Linear`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from .compiling import compiled
from .constraints import Constraints, Prior, Priors
from .families import Categorical
from .hierarchy import Hierarchy
from .learning import State

Selector = TypeVar("Selector")
Places = Int[np.ndarray, " m"]
Order = Int[Array, " m"]

LOG_2 = float(np.log(2.0))
# Takes the place of a share of nothing, whose logarithm is infinite.
LEAST_SHARE = 1e-6


def reorder(state: State[Hierarchy], order: Places) -> State[Hierarchy]:
    """Put expert ``order[m]`` in place m."""
    if sorted(order.tolist()) != list(range(len(state.model.available))):
        raise ValueError(f"`order` must name every expert once, but got {order.tolist()}.")
    return _taken(state, jax.device_put(order))


def order_by_share(state: State[Hierarchy], share: Float[np.ndarray, " m"]) -> State[Hierarchy]:
    """Put the busiest expert first, and those that are switched off last."""
    available = np.asarray(state.model.available)
    return reorder(state, np.lexsort((-share, ~available)).astype(np.int64))


def prune(state: State[Hierarchy], expert: int) -> State[Hierarchy]:
    """Switch an expert off; the others share its inputs as the selector sees fit."""
    available = np.asarray(state.model.available)
    if not available[expert] or available.sum() < 2:
        raise ValueError(f"expert {expert} must be available beside others to be switched off.")
    return _switched(state, expert, False)


def split(
    state: State[Hierarchy], expert: int, key: Key[Array, ""], scale: Float[Array, ""] | float = 0.1
) -> tuple[State[Hierarchy], int]:
    """Copy an expert to the first free place, which is returned.

    Each of the two gets half of what was its share. Their answers are as before; their outputs of
    the selector differ by noise of deviation `scale` times that of the weights, because training
    never separates what is exactly equal.
    """
    available = np.asarray(state.model.available)
    free = np.flatnonzero(~available)
    if not len(free) or not available[expert]:
        raise ValueError(f"expert {expert} must be available and a place free to be split.")
    place = int(free[0])
    order = np.arange(len(available))
    order[place] = expert
    copied = _switched(_taken(state, jax.device_put(order)), place, True)
    selector = separate_outputs(copied.model.selector, expert, place, key, jnp.asarray(scale))
    copied = eqx.tree_at(lambda s: s.model.selector, copied, selector)
    return _with_halved_prior(_with_average(copied), expert, place), place


def merge(
    state: State[Hierarchy], kept: int, other: int, share: Float[np.ndarray, " m"]
) -> State[Hierarchy]:
    """Replace two experts by one at `kept` with the mean of their parameters by share.

    Between them the selector's output is the mean as well, raised by log 2 so that the one is
    chosen as often as the two were.
    """
    available = np.asarray(state.model.available)
    if kept == other or not (available[kept] and available[other]):
        raise ValueError("two experts must differ and be available to be merged.")
    part = share[other] / max(share[kept] + share[other], 1e-12)

    def mean(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        return leaf.at[kept].set((1.0 - part) * leaf[kept] + part * leaf[other])

    experts = jax.tree.map(mean, state.model.experts)
    selector = average_outputs(state.model.selector, kept, other)
    merged = eqx.tree_at(lambda s: (s.model.experts, s.model.selector), state, (experts, selector))
    return _with_average(_switched(merged, other, False))


# ------------------------------------------------------------------------- outputs of selectors


def take_outputs(selector: Selector, order: Order) -> Selector:
    """Return the selector whose output m is the old output ``order[m]``."""
    if hasattr(selector, "take_outputs"):
        return selector.take_outputs(order)
    return _with_last_layer(selector, lambda leaf: leaf[order])


def separate_outputs(
    selector: Selector, first: int, second: int, key: Key[Array, ""], scale: Float[Array, ""]
) -> Selector:
    """Move two equal outputs apart, each lowered by log 2 so that they share what one had."""
    if hasattr(selector, "separate_outputs"):
        return selector.separate_outputs(first, second, key, scale)

    def apart(leaf: Array) -> Array:
        if leaf.ndim == 1:
            return leaf.at[jnp.asarray([first, second])].add(-LOG_2)
        noise = scale * jnp.std(leaf) * jax.random.normal(key, leaf.shape[1:], leaf.dtype)
        return leaf.at[first].add(-noise).at[second].add(noise)

    return _with_last_layer(selector, apart)


def average_outputs(selector: Selector, kept: int, other: int) -> Selector:
    """Give output `kept` the mean of two outputs plus log 2."""
    if hasattr(selector, "average_outputs"):
        return selector.average_outputs(kept, other)

    def mean(leaf: Array) -> Array:
        raised = LOG_2 if leaf.ndim == 1 else 0.0
        return leaf.at[kept].set(0.5 * (leaf[kept] + leaf[other]) + raised)

    return _with_last_layer(selector, mean)


def temper_outputs(
    selector: Selector, share: Float[Array, " m"], factor: Float[Array, ""]
) -> Selector:
    """Take the log-ratio of p(m|x) to the prior p(m), which is `share`, times a factor."""
    if hasattr(selector, "temper_outputs"):
        return selector.temper_outputs(share, factor)
    prior = (1.0 - factor) * jnp.log(jnp.maximum(share, LEAST_SHARE))
    return _with_last_layer(
        selector, lambda leaf: factor * leaf + (prior if leaf.ndim == 1 else 0.0)
    )


def has_movable_outputs(selector: Any) -> bool:
    """Return whether the outputs of a selector can be put in another order."""
    return hasattr(selector, "take_outputs") or last_layer(selector) is not None


def last_layer(selector: Any) -> eqx.nn.Linear | None:
    """Return the linear layer that a network ends in, if it does."""
    if isinstance(selector, eqx.nn.Linear):
        return selector
    layers = getattr(selector, "layers", ())
    return last_layer(layers[-1]) if layers else None


def _with_last_layer(selector: Selector, change: Callable[[Array], Array]) -> Selector:
    """Change the weights and biases of the last layer, whose first axis is that of experts."""
    if last_layer(selector) is None:
        raise TypeError(
            "A selector must end in an eqx.nn.Linear or have the method `take_outputs`, but got "
            f"{type(selector).__name__}."
        )
    return eqx.tree_at(last_layer, selector, replace_fn=lambda layer: _changed(layer, change))


def _changed(layer: eqx.nn.Linear, change: Callable[[Array], Array]) -> eqx.nn.Linear:
    return jax.tree.map(lambda leaf: change(leaf) if eqx.is_array(leaf) else leaf, layer)


# ------------------------------------------------------------------------------- whole states


@compiled
def _taken(state: State[Hierarchy], order: Order) -> State[Hierarchy]:
    """Return the state with the expert ``order[m]`` in every place m.

    One program: array by array a first fit would compile one for every shape.
    """

    def take(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[order] if eqx.is_array(leaf) else leaf, tree)

    def taken(model: Hierarchy) -> Hierarchy:
        return Hierarchy(
            take_outputs(model.selector, order),
            take(model.experts),
            model.available[order],
            top_k=model.top_k,
        )

    parameters, rest = eqx.partition(state.model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)

    def move(leaf: Any) -> Any:
        # Moments and averages are vectors in the order of the parameters.
        if not eqx.is_array(leaf) or leaf.shape != flat.shape:
            return leaf
        moved = taken(eqx.combine(unravel(leaf), rest))
        return ravel_pytree(eqx.filter(moved, eqx.is_inexact_array))[0]

    constraints = state.constraints
    if isinstance(constraints, Constraints):
        constraints = eqx.tree_at(
            lambda c: c.priors, constraints, _taken_priors(constraints.priors, order)
        )
    return eqx.tree_at(
        lambda s: (s.model, s.constraints, s.optimiser, s.average),
        state,
        (
            taken(state.model),
            constraints,
            jax.tree.map(move, state.optimiser),
            move(state.average),
        ),
        is_leaf=lambda leaf: leaf is None,
    )


def _taken_priors(priors: Priors, order: Order) -> Priors:
    outermost, *inner = priors.stages
    family = outermost.family
    assert isinstance(family, Categorical)
    moved = eqx.tree_at(lambda f: f.log_probs, family, family.log_probs[..., order])
    stages = [eqx.tree_at(lambda p: p.family, outermost, moved)]
    for prior in inner:
        stages.append(
            Prior(
                jax.tree.map(lambda leaf: leaf[order], prior.family),
                prior.mass[order],
                prior.momentum,
                prior.frozen,
            )
        )
    return Priors(tuple(stages))


def _with_halved_prior(state: State[Hierarchy], first: int, second: int) -> State[Hierarchy]:
    """Share the prior p(m) of one expert between two."""
    if not isinstance(state.constraints, Constraints):
        return state
    family = state.constraints.priors.stages[0].family
    assert isinstance(family, Categorical)
    halved = family.log_probs.at[..., jnp.asarray([first, second])].add(-LOG_2)
    return eqx.tree_at(lambda s: s.constraints.priors.stages[0].family.log_probs, state, halved)


def _with_average(state: State[Hierarchy]) -> State[Hierarchy]:
    """Let the running mean of the parameters begin anew."""
    if state.average is None:
        return state
    flat, _ = ravel_pytree(eqx.filter(state.model, eqx.is_inexact_array))
    return eqx.tree_at(lambda s: s.average, state, flat)


def _switched(state: State[Hierarchy], place: int, on: bool) -> State[Hierarchy]:
    available = state.model.available.at[place].set(on)
    return eqx.tree_at(lambda s: s.model.available, state, available)
