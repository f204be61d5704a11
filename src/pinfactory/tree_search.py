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
    parent: Int[Any, " nodes"]  # the gate above each node; −1 above the root
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
        parent, child = np.full(n_gates + n_leaves, -1), np.full((n_gates, 2), -1)
        leaf = np.full(n_leaves, n_leaves)
        for m in np.flatnonzero(available & ~path.any(axis=1))[:1]:
            # A path without a gate has probability one.
            leaf[0] = m
            return cls(*jax.device_put((np.asarray(n_gates), parent, child, leaf)))
        # A gate with more leaves below it comes first on every path.
        n_below = np.sum(path != 0, axis=0)
        order = np.argsort(-n_below, kind="stable")
        n_ends = n_gates
        for m in range(n_leaves):
            gates = order[path[m, order] != 0]
            sides = (path[m, gates] > 0).astype(int)
            parent[gates[1:]], child[gates[:-1], sides[:-1]] = gates[:-1], gates[1:]
            if len(gates) and child[gates[-1], sides[-1]] < 0:
                child[gates[-1], sides[-1]], parent[n_ends] = n_ends, gates[-1]
                n_ends += 1
            if available[m]:
                end = child[gates[-1], sides[-1]] - n_gates
                leaf[end] = min(leaf[end], m)
        # Sides that lead to no leaf end there.
        for gate, side in np.argwhere((n_below[:, None] > 0) & (child < 0)):
            child[gate, side], parent[n_ends] = n_ends, gate
            n_ends += 1
        return cls(*jax.device_put((np.asarray(order[0]), parent, child, leaf)))


class TreeSearch(eqx.Module):
    """The gates of a tree, and where they lead to."""

    weight: Float[Array, "gates d"]
    bias: Float[Array, " gates"]
    tree: Tree

    @classmethod
    def of(cls, tree: SoftTree, available: Bool[Array, " leaves"]) -> "TreeSearch":
        """Return the search in a tree for the best of the leaves that are available."""
        return cls(tree.weight, tree.bias, Tree.of(np.asarray(tree.path), np.asarray(available)))

    def best(self, x: Float[Array, "n d"]) -> Int[Array, " n"]:
        """Return the most probable leaf for each input."""

        def search(tree: Tree, weight: Array, bias: Array, x: Array) -> Int[Array, " n"]:
            return jax.lax.map(partial(_search, tree, weight, bias), x)

        # In a kernel each input has a search of its own length.
        return one_kernel(search)(self.tree, self.weight, self.bias, limit(x))


class _Search(NamedTuple):
    """Where a search is, where it came from, and the best leaf so far.

    `value` is the log-probability of the path to `node`, or to `before` if that is below it.
    `bound` is the largest of the paths that the first descent has not taken.
    """

    node: Int[Array, ""]
    before: Int[Array, ""]
    value: Float[Array, ""]
    best: Float[Array, ""]
    leaf: Int[Array, ""]
    bound: Float[Array, ""]


def _search(
    tree: Tree, weight: Float[Array, "gates d"], bias: Float[Array, " gates"], x: Float[Array, " d"]
) -> Int[Array, ""]:
    """Return the most probable leaf for an input.

    The search goes down on the more probable side of each gate. The probability of a path only
    falls, so that it is over if no path not taken is more probable than the leaf; otherwise it goes
    back and down those that are.
    """
    n_gates, n_leaves, never = len(bias), len(tree.leaf), jnp.asarray(-jnp.inf)

    def goes_on(now: _Search) -> Bool[Array, ""]:
        return (now.node >= 0) & ((now.best == never) | (now.best < now.bound))

    def step(now: _Search) -> _Search:
        is_gate, gate = now.node < n_gates, jnp.minimum(now.node, n_gates - 1)
        score = jnp.sum(take(weight, gate) * x) + take(bias, gate)
        likely = jax.nn.log_sigmoid(jnp.abs(score))
        unlikely = likely - jnp.abs(score)
        below, above = take(tree.child, gate)
        first, second = jnp.where(score > 0, above, below), jnp.where(score > 0, below, above)
        # At a leaf.
        leaf = take(tree.leaf, jnp.maximum(now.node - n_gates, 0))
        better = ~is_gate & (leaf < n_leaves) & (now.value > now.best)
        # Down the first side, back from it, or back from the second.
        from_first, from_second = now.before == first, now.before == second
        passed = jnp.where(from_first, likely, jnp.where(from_second, unlikely, 0.0))
        here = jnp.where(is_gate, now.value - passed, now.value)
        other = here + unlikely
        to_first = is_gate & ~from_first & ~from_second & (here > now.best)
        to_second = is_gate & from_first & (other > now.best)
        up = take(tree.parent, jnp.maximum(now.node, 0))
        return _Search(
            jnp.where(to_first, first, jnp.where(to_second, second, up)),
            now.node,
            jnp.where(
                to_first,
                here + likely,
                jnp.where(to_second, other, jnp.where(is_gate, here, now.value)),
            ),
            jnp.where(better, now.value, now.best),
            jnp.where(better, leaf, now.leaf),
            jnp.where(to_first & (now.best == never), jnp.maximum(now.bound, other), now.bound),
        )

    nowhere = jnp.asarray(-1)
    start = _Search(tree.root, nowhere, jnp.asarray(0.0), never, jnp.asarray(0), never)
    return jax.lax.while_loop(goes_on, step, start).leaf
