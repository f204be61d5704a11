"""The most probable leaf of a tree of gates, found without a score for every leaf."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .core.batches import take
from .core.compiling import one_kernel
from .networks import SoftTree, limit


class Tree(NamedTuple):
    """A tree as arrays: its first nodes are its gates, the others the ends of its paths."""

    root: Int[Any, ""]  # where all paths begin
    # The nodes below each gate, on its side w·x + b < 0 and on the other.
    child: Int[Any, "gates 2"]
    # The first leaf at each end that is available; beyond all leaves if there is none.
    leaf: Int[Any, " leaves"]

    @classmethod
    def of(
        cls, path: Int[np.ndarray, "leaves gates"], available: Bool[np.ndarray, " leaves"]
    ) -> "Tree":
        """Return the tree of the gates that the paths of a `SoftTree` pass."""
        n_leaves, n_gates = path.shape
        child, leaf = np.full((n_gates, 2), -1), np.full(n_leaves, n_leaves)
        for m in np.flatnonzero(available & ~path.any(axis=1))[:1]:
            # A path without a gate has probability one.
            leaf[0] = m
            return cls(*jax.device_put((np.asarray(n_gates), child, leaf)))
        # A gate with more leaves below it comes first on every path.
        n_below = np.sum(path != 0, axis=0)
        order = np.argsort(-n_below, kind="stable")
        n_ends = n_gates
        for m in range(n_leaves):
            gates = order[path[m, order] != 0]
            sides = (path[m, gates] > 0).astype(int)
            child[gates[:-1], sides[:-1]] = gates[1:]
            if len(gates) and child[gates[-1], sides[-1]] < 0:
                child[gates[-1], sides[-1]] = n_ends
                n_ends += 1
            if available[m]:
                end = child[gates[-1], sides[-1]] - n_gates
                leaf[end] = min(leaf[end], m)
        # Sides that lead to no leaf end there.
        for gate, side in np.argwhere((n_below[:, None] > 0) & (child < 0)):
            child[gate, side] = n_ends
            n_ends += 1
        return cls(*jax.device_put((np.asarray(order[0]), child, leaf)))


class TreeSearch(eqx.Module):
    """The gates of a tree, and where they lead to."""

    weight: Float[Array, "gates d"]
    bias: Float[Array, " gates"]
    tree: Tree
    # As many gates as a path has, or a few more: every number is a program of its own.
    depth: int = eqx.field(static=True)

    @classmethod
    def of(cls, tree: SoftTree, available: Bool[Array, " leaves"]) -> "TreeSearch":
        """Return the search in a tree for the best of the leaves that are available."""
        path = np.asarray(tree.path)
        longest = int(np.sum(path != 0, axis=1).max())
        depth = max(16, 1 << (longest - 1).bit_length())
        return cls(tree.weight, tree.bias, Tree.of(path, np.asarray(available)), depth)

    def best(self, x: Float[Array, "n d"]) -> Int[Array, " n"]:
        """Return the most probable leaf for each input."""

        def search(tree: Tree, weight: Array, bias: Array, x: Array) -> Int[Array, " n"]:
            return jax.lax.map(partial(_search, self.depth, tree, weight, bias), x)

        # In a kernel each input has a search of its own length.
        return one_kernel(search)(self.tree, self.weight, self.bias, limit(x))


class _Search(NamedTuple):
    """Where a search is, the best leaf so far, and the sides of gates that it has not taken.

    The log-probability of the path to a node stands beside the node.
    """

    node: Int[Array, ""]
    value: Float[Array, ""]
    leaf: Int[Array, ""]
    best: Float[Array, ""]
    n_left: Int[Array, ""]
    left: Int[Array, " depth"]
    left_values: Float[Array, " depth"]


def _search(
    depth: int,
    tree: Tree,
    weight: Float[Array, "gates d"],
    bias: Float[Array, " gates"],
    x: Float[Array, " d"],
) -> Int[Array, ""]:
    """Return the most probable leaf for an input.

    The search goes down on the more probable side of each gate. The probability of a path only
    falls, so that of the sides not taken only those count that are more probable than the leaf.
    """
    n_gates, n_leaves = len(bias), len(tree.leaf)
    put = jax.lax.dynamic_update_index_in_dim

    def can_be_better(now: _Search) -> Bool[Array, ""]:
        return (now.node < n_gates) & (now.value > now.best)

    def go_down(now: _Search) -> _Search:
        score = jnp.sum(take(weight, now.node) * x) + take(bias, now.node)
        likely = now.value - jnp.log(1.0 + jnp.exp(-jnp.abs(score)))
        unlikely = likely - jnp.abs(score)
        below, above = take(tree.child, now.node)
        return now._replace(
            node=jnp.where(score > 0, above, below),
            value=likely,
            n_left=now.n_left + (unlikely > now.best),
            left=put(now.left, jnp.where(score > 0, below, above), now.n_left, 0),
            left_values=put(now.left_values, unlikely, now.n_left, 0),
        )

    def try_path(now: _Search) -> _Search:
        now = jax.lax.while_loop(can_be_better, go_down, now)
        leaf = take(tree.leaf, jnp.maximum(now.node - n_gates, 0))
        better = (now.node >= n_gates) & (leaf < n_leaves) & (now.value > now.best)
        last = jnp.maximum(now.n_left - 1, 0)
        return now._replace(
            node=take(now.left, last),
            value=take(now.left_values, last),
            leaf=jnp.where(better, leaf, now.leaf),
            best=jnp.where(better, now.value, now.best),
            n_left=now.n_left - 1,
        )

    zero, none = jnp.zeros((), tree.child.dtype), jnp.asarray(-jnp.inf)
    left, values = jnp.zeros(depth, zero.dtype), jnp.zeros(depth)
    start = _Search(tree.root, jnp.asarray(0.0), zero, none, zero, left, values)
    return jax.lax.while_loop(lambda now: now.n_left >= 0, try_path, start).leaf
