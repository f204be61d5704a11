"""How experts grow in number under fixed shapes: what pays, who is split or merged, who moves.

A change pays if it gains more than its price in the objective, or on held-out rows more than
chance. How an expert is split or merged depends on what it is; which one is decided here.

What belongs to an expert: its parameters, its output of the selector, its priors, the running mean
of its parameters and what the optimiser knows of them. All of it is moved by an order that says
for every place which expert it gets; one that is named twice is split. Shapes never change, so
that one compiled program serves before and after.

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
from jaxtyping import Array, Bool, Float, Int

from .compiling import compiled
from .constraints import Constraints, Prior, Priors
from .families import Categorical
from .hierarchy import Hierarchy, take_expert
from .learning import State

Selector = TypeVar("Selector")
Places = Int[np.ndarray, " m"]
Indices = Int[np.ndarray, " pairs"]
Order = Int[Array, " m"]

# Takes the place of a share of nothing, whose logarithm is infinite.
LEAST_SHARE = 1e-6
# An estimated gain counts if it is larger than so many standard errors: the best of several
# candidates gains one by chance alone.
BEYOND_NOISE = 2.0
# The mean gain in score of a row, and its standard error.
Gain = tuple[float, float]


# ---------------------------------------------------------------------------------- what pays


def parameter_price(n_rows: float, n_parameters: int = 1) -> float:
    """Return k/2 log N nats, what k parameters cost by Bayes' information criterion."""
    return 0.5 * n_parameters * float(np.log(max(n_rows, 1.0)))


def mean_gain(difference: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]) -> Gain:
    """Return the weighted mean of a gain on held-out rows, and its standard error."""
    mean = float(np.average(difference, weights=weight))
    # Few rows of large weight tell less than as much weight in many rows.
    return mean, float(np.linalg.norm(weight * (difference - mean)) / weight.sum())


def fewest_as_good(scores: Float[np.ndarray, "n k"], weight: Float[np.ndarray, " n"]) -> int:
    """Return the smallest number of experts that is as good on held-out rows as the best one.

    Column k has the scores of k + 1 experts.
    """
    best = int(np.argmax(weight @ scores))
    gains = [mean_gain(scores[:, best] - scores[:, k], weight) for k in range(best)]
    worse = [mean > error for mean, error in gains]
    return worse.index(False) + 1 if False in worse else best + 1


def best_split(gain: Float[np.ndarray, " splits"], price: float = 0.0) -> int | None:
    """Return the split that gains most; None if none gains more than its price."""
    best = int(np.argmax(gain)) if len(gain) else None
    return None if best is None or gain[best] <= price else best


def best_merges(gain: Float[np.ndarray, " pairs"], a: Indices, b: Indices) -> list[int]:
    """Return which pairs (a, b) of experts are merged: those that gain, the best first.

    Merging one pair changes the gain of others with the same experts, which are left alone.
    """
    chosen: list[int] = []
    changed: set[int] = set()
    for pair in np.argsort(-gain, kind="stable"):
        members = {int(a[pair]), int(b[pair])}
        if gain[pair] > 0.0 and not members & changed:
            chosen.append(int(pair))
            changed |= members
    return chosen


# -------------------------------------------------------------------------------------- order


def by_share(share: Float[np.ndarray, " m"], available: Bool[np.ndarray, " m"]) -> Places:
    """Return the order in which the busiest expert is first, and those switched off last."""
    return np.lexsort((-share, ~available)).astype(np.int64)


def reorder(state: State[Hierarchy], order: Places) -> State[Hierarchy]:
    """Put expert ``order[m]`` in place m."""
    if sorted(order.tolist()) != list(range(len(state.model.available))):
        raise ValueError(f"`order` must name every expert once, but got {order.tolist()}.")
    return _take_state(state, jax.device_put(order))


def order_by_share(state: State[Hierarchy], share: Float[np.ndarray, " m"]) -> State[Hierarchy]:
    """Put the busiest expert first, and those that are switched off last."""
    return reorder(state, by_share(share, np.asarray(state.model.available)))


# ------------------------------------------------------------------------- outputs of selectors


def take_outputs(selector: Selector, order: Order) -> Selector:
    """Return the selector whose output m is the old output ``order[m]``."""
    if hasattr(selector, "take_outputs"):
        return selector.take_outputs(order)
    return _with_last_layer(selector, lambda leaf: leaf[order])


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


def take_state(state: State[Hierarchy], order: Order) -> State[Hierarchy]:
    """Return the state with the expert ``order[m]`` in every place m."""
    parameters, rest = eqx.partition(state.model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(parameters)

    def move(leaf: Any) -> Any:
        # Moments and averages are vectors in the order of the parameters.
        if not eqx.is_array(leaf) or leaf.shape != flat.shape:
            return leaf
        moved = take_experts(eqx.combine(unravel(leaf), rest), order)
        return ravel_pytree(eqx.filter(moved, eqx.is_inexact_array))[0]

    constraints = state.constraints
    if isinstance(constraints, Constraints):
        constraints = eqx.tree_at(
            lambda c: c.priors, constraints, take_priors(constraints.priors, order)
        )
    return eqx.tree_at(
        lambda s: (s.model, s.constraints, s.optimiser, s.average),
        state,
        (
            take_experts(state.model, order),
            constraints,
            jax.tree.map(move, state.optimiser),
            move(state.average),
        ),
        is_leaf=lambda leaf: leaf is None,
    )


# One program: array by array a first fit would compile one for every shape.
_take_state = compiled(take_state)


def take_experts(model: Hierarchy, order: Order) -> Hierarchy:
    """Return a hierarchy, or moments shaped like one, with expert ``order[m]`` in every place m."""
    return eqx.tree_at(
        lambda h: (h.selector, h.experts, h.available),
        model,
        (
            take_outputs(model.selector, order),
            *take_expert((model.experts, model.available), order),
        ),
        is_leaf=lambda leaf: leaf is None,  # moments say nothing of `available`
    )


def take_priors(priors: Priors, order: Order) -> Priors:
    """Return the priors with what belongs to the expert ``order[m]`` in every place m."""
    outermost, *inner = priors.stages
    family = outermost.family
    assert isinstance(family, Categorical)
    moved = eqx.tree_at(lambda f: f.log_probs, family, family.log_probs[..., order])
    stages = [eqx.tree_at(lambda p: p.family, outermost, moved)]
    for prior in inner:
        stages.append(
            Prior(
                take_expert(prior.family, order),
                prior.mass[order],
                prior.momentum,
                prior.frozen,
            )
        )
    return Priors(tuple(stages))
