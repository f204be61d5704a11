"""A selector that is a tree of gates: all leaves, or the most probable one without the others."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .core.batches import take
from .core.compiling import one_kernel
from .networks import limit, linear


class SoftTree(eqx.Module):
    """A selector that is a binary tree of gates: logit m is the log-probability of the path to m.

    Every gate sends an input to one side with probability σ(w·x + b). The gates of a hierarchical
    mixture of experts (Jordan & Jacobs 1994).

    Attributes
    ----------
    weight, bias
        The gates.
    span
        Leaves stand side by side: a gate has those at places from `span[0]` on below its side
        w·x + b < 0, those from `span[1]` on below the other, and none from `span[2]` on.
    place
        Where each leaf stands; −1 for a leaf that no gate leads to, whose logit is 0.
    """

    weight: Float[Array, "gates d"]
    bias: Float[Array, " gates"]
    span: Int[Array, "gates 3"]
    place: Int[Array, " leaves"]

    @classmethod
    def random(cls, inputs: int, outputs: int, *, key: Key[Array, ""]) -> "SoftTree":
        """Return a balanced tree with random gates."""
        gates = linear(inputs, max(outputs - 1, 1), key=key)
        assert isinstance(gates, eqx.nn.Linear)
        assert gates.bias is not None
        # Leaf n is split off the leaf that came as many before it as there were at that depth.
        parents = [n - 2 ** (n.bit_length() - 1) for n in range(1, outputs)]
        return cls(4.0 * gates.weight, gates.bias, *jax.device_put(split_off(parents, outputs)))

    def __call__(self, x: Float[Array, " d"], *, key: Any = None) -> Float[Array, " leaves"]:
        gate = self.weight @ limit(x) + self.bias
        one, other = jax.nn.log_sigmoid(gate), jax.nn.log_sigmoid(-gate)
        path = self.path
        return (path > 0).astype(gate.dtype) @ one + (path < 0).astype(gate.dtype) @ other

    @property
    def path(self) -> Int[Array, "leaves gates"]:
        """Where the way to each leaf passes a gate on its side > 0 (1), the other (−1), or not."""
        first, middle, end = self.span.T
        place = self.place[:, None]
        below = (place >= first) & (place < end)
        return jnp.where(below, jnp.where(place >= middle, 1, -1), 0)

    def best_outputs(
        self, x: Float[Array, "n d"], available: Bool[Array, " leaves"]
    ) -> Int[Array, " n"]:
        """Return the most probable leaf for each input, without looking at all of them."""
        # Each input has a search of its own length, which pays inside of a kernel only.
        search = one_kernel(
            lambda *tree_and_x: jax.lax.map(partial(_search, *tree_and_x[:-1]), tree_and_x[-1])
        )
        return search(self._ways(available), self.weight, self.bias, limit(x))

    def _ways(self, available: Bool[Array, " leaves"]) -> "Ways":
        """Return what is above each node and below each gate."""
        n_gates, n_leaves = len(self.bias), len(self.place)
        first, middle, end = self.span.T
        is_used, places = end > first, jnp.arange(n_leaves)
        start, stop = jnp.append(first, places), jnp.append(end, places + 1)
        # Every boundary between places divides the leaves of one gate. A node begins or ends at
        # that of its parent; a gate farther up that also begins or ends there has more leaves.
        boundary = jnp.where(is_used, middle, n_leaves + 1)
        dividing = jnp.full(n_leaves + 1, -1).at[boundary].set(jnp.arange(n_gates), mode="drop")
        width = jnp.append(end - first, 2 * n_leaves)
        before, after = dividing[start], dividing[stop]
        side = width[before] < width[after]
        parent = jnp.where(side, before, after)
        below = (jnp.where(parent < 0, n_gates, parent), side.astype(int))
        child = jnp.zeros((n_gates, 2), int)
        child = child.at[below].set(jnp.arange(n_gates + n_leaves), mode="drop")
        place = jnp.where(available & (self.place >= 0), self.place, n_leaves)
        leaf = jnp.full(n_leaves, n_leaves).at[place].min(places, mode="drop")
        is_root = is_used & (parent[:n_gates] < 0)
        root = jnp.where(jnp.any(is_root), jnp.argmax(is_root), n_gates)
        return Ways(root, parent, child, leaf)

    def take_outputs(self, order: Int[Array, " leaves"]) -> "SoftTree":
        """Return the tree whose leaf m is the old leaf ``order[m]``."""
        return SoftTree(self.weight, self.bias, self.span, self.place[order])

    def temper_outputs(
        self, share: Float[Array, " leaves"], factor: Float[Array, ""]
    ) -> "SoftTree":
        """Take the log-odds of every gate, from those of the leaves' shares on, times a factor."""
        path = self.path
        sides = [side.astype(share.dtype).T @ share for side in (path > 0, path < 0)]
        above, below = (jnp.log(jnp.maximum(side, 1e-6)) for side in sides)
        bias = factor * self.bias + (1.0 - factor) * (above - below)
        return SoftTree(factor * self.weight, bias, self.span, self.place)


class Ways(NamedTuple):
    """A tree whose nodes are its gates, and after them the places of its leaves.

    Attributes
    ----------
    root
        Where all ways begin.
    parent
        The gate above each node; −1 above the root.
    child
        The nodes below each gate, on its side w·x + b < 0 and on the other.
    leaf
        Who stands at each place and is available; beyond all if nobody does.
    """

    root: Int[Array, ""]
    parent: Int[Array, " nodes"]
    child: Int[Array, "gates 2"]
    leaf: Int[Array, " places"]


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
        up = ways.parent[now.node]
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


def split_off(
    parents: Sequence[int], n_leaves: int
) -> tuple[Int[np.ndarray, "gates 3"], Int[np.ndarray, " leaves"]]:
    """Return spans and places of a tree whose gate n splits leaf n + 1 off leaf ``parents[n]``."""
    span = np.zeros((max(n_leaves - 1, 1), 3), np.int32)
    place = np.where(np.arange(n_leaves) <= len(parents), 0, -1).astype(np.int32)
    n_below = np.ones(n_leaves, np.int32)
    for gate, parent in reversed(list(enumerate(parents))):
        sizes = n_below[parent], n_below[gate + 1]
        span[gate] = np.cumsum([0, *sizes])
        n_below[parent] += sizes[1]
    for gate, parent in enumerate(parents):
        span[gate] += place[parent]
        place[gate + 1] = span[gate, 1]
    return span, place
