"""How few experts become many while gradients train them: when and which ones are split, and how.

Shapes stay the same throughout: a child takes a place that was switched off, so that one compiled
program serves before and after.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from .constraints import Priors
from .families import Categorical
from .growth import take_priors
from .hierarchy import take_expert

# Parameters of a child differ from those of its parent by so much of their own size.
NOISE = 0.01
# Splits follow one another after at most this fraction of training.
LONGEST_INTERVAL = 0.1

Order = Int[Array, " m"]


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


class Growth(eqx.Module):
    """When experts are split: at `start`, a progress of training, and after every `interval`."""

    n_initial_experts: Float[Array, ""]
    n_experts: Float[Array, ""]
    start: Float[Array, ""]
    interval: Float[Array, ""]

    @classmethod
    def plan(cls, n_initial: int, n_experts: int, start: float) -> "Growth":
        """Leave half of what comes after `start` to the experts that are split last."""
        interval = min(LONGEST_INTERVAL, 0.5 * (1.0 - start) / n_doublings(n_initial, n_experts))
        numbers = (n_initial, n_experts, start, interval)
        return cls(*(jax.device_put(np.float32(number)) for number in numbers))

    def n_wanted(self, progress: Float[Array, ""]) -> Int[Array, ""]:
        """Return how many experts there should be."""
        since = progress - self.start + self.interval
        return n_wanted(since, self.interval, self.n_initial_experts, self.n_experts)


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


# ------------------------------------------------------------------------- what children begin with


def add_noise(key: Key[Array, ""], experts: PyTree, is_child: Bool[Array, " m"]) -> PyTree:
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


def split_priors(priors: Priors, parent: Order) -> Priors:
    """Return priors with p(m) of a parent shared evenly by its copies; all keep p(y|m)."""
    copied = take_priors(priors, parent)
    selection = copied.stages[0].family
    assert isinstance(selection, Categorical)
    probs = selection.probs / n_copies(parent)
    shared = Categorical.from_probs(probs / jnp.sum(probs))
    return eqx.tree_at(lambda p: p.stages[0].family, copied, shared)


def split_by_cost(
    layer: eqx.nn.Linear,
    split: Split,
    hidden: Float[Array, "n h"],
    cost: Float[Array, "n m"],
    taken: Float[Array, "n m"],
    sharpness: float,
) -> eqx.nn.Linear:
    """Return a selector's last layer, in which children take over what costs their parents most.

    The cost of an input for every expert is regressed on the layer's inputs, in proportion to how
    much the expert has `taken` of it. The log odds in favour of a child grow by `sharpness` with
    every standard deviation of the regression.
    """
    slope = jax.vmap(cost_direction, (None, 1, 1))(hidden, cost, taken)
    share = taken / jnp.maximum(jnp.sum(taken, axis=0), 1e-6)
    threshold = jnp.sum(share * (hidden @ slope.T), axis=0)
    parent = split.parent
    sides = -0.5 * sharpness * split.side
    return split_outputs(layer, parent, slope[parent], threshold[parent], sides)


def split_outputs(
    layer: eqx.nn.Linear,
    parent: Order,
    direction: Float[Array, "*m h"],
    threshold: Float[Array, " m"],
    sharpness: Float[Array, " m"],
) -> eqx.nn.Linear:
    """Return a selector's last layer, in which the copies of an expert divide its inputs.

    Output m is that of the parent plus sharpness · (direction · h − threshold), lowered by log 2
    where there are two copies. With sharpnesses ±s the log odds between the two are
    2s · (direction · h − threshold), and at the threshold each gets half of what the one had.
    There is one direction, or one for each output.
    """
    copied = take_expert(layer, parent)
    assert copied.bias is not None
    weight = copied.weight + sharpness[:, None] * direction
    bias = copied.bias - sharpness * threshold - jnp.log(n_copies(parent))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), copied, (weight, bias))


def n_copies(parent: Order) -> Float[Array, " m"]:
    """Return for every place how many have the same parent."""
    return jnp.sum(parent[:, None] == parent, axis=0).astype(float)
