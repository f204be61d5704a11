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


class Ways(NamedTuple):
    """A tree whose nodes are its gates, and after them the ends of its ways.

    Attributes
    ----------
    root
        Where all ways begin.
    parent
        The gate above each node; −1 above the root.
    child
        The nodes below each gate, on its side w·x + b < 0 and on the other.
    leaf
        The first leaf at each end that is available; beyond all leaves if there is none.
    """

    root: Int[Any, ""]
    parent: Int[Any, " nodes"]
    child: Int[Any, "gates 2"]
    leaf: Int[Any, " leaves"]

    @classmethod
    def of(
        cls, path: Int[np.ndarray, "leaves gates"], available: Bool[np.ndarray, " leaves"]
    ) -> "Ways":
        """Return the ways of a `SoftTree`."""
        n_leaves, n_gates = path.shape
        parent, child = np.full(n_gates + n_leaves, -1), np.full((n_gates, 2), -1)
        leaf = np.full(n_leaves, n_leaves)
        for m in np.flatnonzero(available & ~path.any(axis=1))[:1]:
            # A way without a gate has probability one.
            leaf[0] = m
            return cls(*jax.device_put((np.asarray(n_gates), parent, child, leaf)))
        # Who has more leaves comes first on every way.
        n_below = np.sum(path != 0, axis=0)
        order = np.argsort(-n_below, kind="stable")
        n_ends = n_gates
        for m in range(n_leaves):
            way = order[path[m, order] != 0]
            sides = (path[m, way] > 0).astype(int)
            parent[way[1:]], child[way[:-1], sides[:-1]] = way[:-1], way[1:]
            if len(way) and child[way[-1], sides[-1]] < 0:
                child[way[-1], sides[-1]], parent[n_ends] = n_ends, way[-1]
                n_ends += 1
            if available[m]:
                end = child[way[-1], sides[-1]] - n_gates
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
    ways: Ways

    @classmethod
    def of(cls, tree: SoftTree, available: Bool[Array, " leaves"]) -> "TreeSearch":
        """Return the search in a tree for the best of the leaves that are available."""
        return cls(tree.weight, tree.bias, Ways.of(np.asarray(tree.path), np.asarray(available)))

    def best(self, x: Float[Array, "n d"]) -> Int[Array, " n"]:
        """Return the most probable leaf for each input."""

        def search(ways: Ways, weight: Array, bias: Array, x: Array) -> Int[Array, " n"]:
            return jax.lax.map(partial(_search, ways, weight, bias), x)

        # In a kernel each input has a search of its own length.
        return one_kernel(search)(self.ways, self.weight, self.bias, limit(x))


class _Search(NamedTuple):
    """Where a search is, where it came from, and the best leaf so far.

    `value` is the log-probability of the way to `node`, or to `before` if that is below it.
    `bound` is the largest of the ways that the first descent has left aside.
    """

    node: Int[Array, ""]
    before: Int[Array, ""]
    value: Float[Array, ""]
    best: Float[Array, ""]
    leaf: Int[Array, ""]
    bound: Float[Array, ""]


def _search(
    ways: Ways, weight: Float[Array, "gates d"], bias: Float[Array, " gates"], x: Float[Array, " d"]
) -> Int[Array, ""]:
    """Return the most probable leaf for an input.

    The search goes down on the more probable side of each gate. The probability of a way only
    falls, so that it is over if no way left aside is more probable than the leaf; otherwise it goes
    back and down those that are.
    """
    n_gates, n_leaves, never = len(bias), len(ways.leaf), jnp.asarray(-jnp.inf)

    def goes_on(now: _Search) -> Bool[Array, ""]:
        return (now.node >= 0) & ((now.best == never) | (now.best < now.bound))

    def step(now: _Search) -> _Search:
        is_gate, gate = now.node < n_gates, jnp.minimum(now.node, n_gates - 1)
        score = jnp.sum(take(weight, gate) * x) + take(bias, gate)
        likely = jax.nn.log_sigmoid(jnp.abs(score))
        unlikely = likely - jnp.abs(score)
        below, above = take(ways.child, gate)
        first, second = jnp.where(score > 0, above, below), jnp.where(score > 0, below, above)
        # At a leaf.
        leaf = take(ways.leaf, jnp.maximum(now.node - n_gates, 0))
        better = ~is_gate & (leaf < n_leaves) & (now.value > now.best)
        # Down the first side, back from it, or back from the second.
        from_first, from_second = now.before == first, now.before == second
        passed = jnp.where(from_first, likely, jnp.where(from_second, unlikely, 0.0))
        here = jnp.where(is_gate, now.value - passed, now.value)
        other = here + unlikely
        to_first = is_gate & ~from_first & ~from_second & (here > now.best)
        to_second = is_gate & from_first & (other > now.best)
        up = take(ways.parent, jnp.maximum(now.node, 0))
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
    start = _Search(ways.root, nowhere, jnp.asarray(0.0), never, jnp.asarray(0), never)
    return jax.lax.while_loop(goes_on, step, start).leaf
