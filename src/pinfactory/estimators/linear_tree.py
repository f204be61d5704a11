"""Linear model trees: a ridge or logistic regression in every leaf, and committees that begin so.

Leaves become experts, and cuts become gates of the selector. `splits` grows the trees.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from pinfactory import networks
from pinfactory.core.gaussian_experts import ConstantNoiseExpert, unbounded
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, pick, stack
from pinfactory.core.learning import Data, Learner, State
from pinfactory.core.training import Run, train

from .table import RowBatches, RowNumbers, Table

LOG_2PI = float(np.log(2.0 * np.pi))
# Deviations of a child's weights around those of its parent that are tried. In large steps the best
# one is missed; classes, which take longer, make do with few.
LEAF_SPREADS = np.geomspace(0.01, 3.0, 21)
CLASS_SPREADS = (0.03, 0.1, 0.3, 1.0)
# So many rows' worth of the parent's variance is in every leaf's.
PRIOR_ROWS = 5.0
# So many rows are copied at a time.
PART = 65_536
# A gate of the selector goes from 0.05 to 0.95 within a deviation of the column in its leaf.
SHARPNESS = 6.0
# A perceptron begins small beside the linear map that a leaf gave it.
SMALL = 0.1
# How long a selector that is no tree is taught the leaves, and by how many rows.
TAUGHT_STEPS, TAUGHT_BATCH, TAUGHT_ROWS = 1000, 128, 4096


class Node(NamedTuple):
    """A leaf, or what was one before it was split."""

    # Weights with the intercept in the last row: (d + 1) × outputs.
    coefficients: Float[np.ndarray, "d1 t"]
    log_scale: Float[np.ndarray, " t"]  # log-deviation of every output; zeros for classes


class Split(NamedTuple):
    """The division of one leaf: rows above the cut leave it for a new one."""

    leaf: int  # which leaf is divided; the new one gets the next number
    # Rows with ``x @ direction > cut`` go to the new leaf; an axis-parallel split has one entry.
    direction: Float[np.ndarray, " d"]
    cut: float
    width: float  # deviation of ``x @ direction`` within the leaf
    # The models of the two parts.
    below: Node
    above: Node

    def is_above(self, x: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
        """Return which rows are on the side of the new leaf."""
        return x @ self.direction > self.cut


class LinearTree(NamedTuple):
    """A tree and all trees it grew out of: the first k − 1 splits make the one with k leaves."""

    root: Node
    splits: list[Split]
    classify: bool

    @property
    def n_leaves(self) -> int:
        """Leaves of the whole tree."""
        return len(self.splits) + 1

    def leaves(self, n_leaves: int) -> list[Node]:
        """Return the leaves of the tree with so many of them."""
        nodes = [self.root]
        for split in self.splits[: n_leaves - 1]:
            nodes[split.leaf] = split.below
            nodes.append(split.above)
        return nodes

    def first(self, n_leaves: int) -> "LinearTree":
        """Return the tree with so many leaves, if there are as many."""
        return self._replace(splits=self.splits[: n_leaves - 1])

    def branch(self, n_leaves: int, leaf: int) -> "LinearTree":
        """Return what has become of one leaf of the tree with so many."""
        place, splits = {leaf: 0}, []
        for number, split in enumerate(self.splits[n_leaves - 1 :], start=n_leaves):
            if split.leaf in place:
                splits.append(split._replace(leaf=place[split.leaf]))
                place[number] = len(splits)
        return LinearTree(self.leaves(n_leaves)[leaf], splits, self.classify)

    def assign(self, x: Float[np.ndarray, "n d"], n_leaves: int) -> Int[np.ndarray, " n"]:
        """Return the leaf of every row in the tree with so many leaves."""
        assigned = np.zeros(len(x), np.int32)
        for number, split in enumerate(self.splits[: n_leaves - 1], start=1):
            assigned[(assigned == split.leaf) & split.is_above(x)] = number
        return assigned

    def log_likelihoods(self, table: Table) -> Float[np.ndarray, "n k"]:
        """Return log p(y|x) of every row under the trees with 1, 2, … leaves."""
        x = with_intercept(table.x)
        result = np.empty((len(x), self.n_leaves))
        result[:, 0] = self._log_likelihood(self.root, x, table.y)
        assigned = np.zeros(len(x), np.int32)
        for number, split in enumerate(self.splits, start=1):
            result[:, number] = result[:, number - 1]
            inside = assigned == split.leaf
            above = split.is_above(table.x)
            assigned[inside & above] = number
            for rows, node in ((inside & ~above, split.below), (inside & above, split.above)):
                result[rows, number] = self._log_likelihood(node, x[rows], table.y[rows])
        return result

    def errors_of_root(self, table: Table) -> Float[np.ndarray, "n t"]:
        """Return y minus what the tree with one leaf expects, for targets that are numbers."""
        return table.y - with_intercept(table.x) @ self.root.coefficients

    def _log_likelihood(self, node: Node, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean = x @ node.coefficients
        if self.classify:
            return log_softmax(mean, axis=1)[np.arange(len(y)), y]
        error = (y - mean) / np.exp(node.log_scale)
        return -np.sum(0.5 * (error**2 + LOG_2PI) + node.log_scale, axis=1)


# ------------------------------------------------------------------------------------- leaves


@dataclass(frozen=True)
class Regressions:
    """The rows of a tree, and the regression that fits any part of them."""

    x: Float[np.ndarray, "n d1"]  # inputs, with ones in the last column
    y: Float[np.ndarray, "n t"]  # targets; classes as one column each
    weight: Float[np.ndarray, " n"]  # weights of the rows
    classify: bool  # whether targets are classes
    linear: bool  # whether leaves have linear models, or constants
    log_floor: Float[np.ndarray, "*t"]  # the least log-deviation of an output

    def fit(self, rows: np.ndarray, parent: Node | None) -> Node:
        """Fit a leaf with weights around those of its parent, as far as evidence says."""
        child = parent is not None
        if parent is None:
            n_inputs, n_outputs = self.x.shape[1], self.y.shape[1]
            parent = Node(np.zeros((n_inputs, n_outputs)), np.zeros(n_outputs))
        if self.classify:
            return self._fit_classes(rows, parent)
        return self._fit_numbers(rows, parent, child) if self.linear else self._constant(rows)

    def _fit_numbers(self, rows: np.ndarray, parent: Node, child: bool) -> Node:
        x, y, weight = self._take(rows)
        residual = y - x @ parent.coefficients
        values, vectors = _spectrum(x, np.sqrt(weight))
        cross = sum((x[k] @ vectors).T @ (weight[k, None] * residual[k]) for k in parts(len(x)))
        total, square = weight.sum(), weight @ residual**2
        floor = np.exp(2.0 * self.log_floor)
        # For every spread: a penalty in units of the noise, which the penalty itself decides.
        variance = np.maximum(square / total, floor)[None]
        for _ in range(3):
            penalty = np.mean(variance / LEAF_SPREADS[:, None] ** 2, axis=1)
            shrunk = cross / (values + penalty[:, None])[..., None]
            rss = square - np.sum(shrunk * cross, axis=1)
            variance = np.maximum(rss / total, floor)
        log_det = np.sum(np.log1p(values / penalty[:, None]), axis=1)
        evidence = -0.5 * (total * np.log(variance).sum(axis=1) + variance.shape[1] * log_det)
        best = int(np.argmax(evidence))
        effect = shrunk[best]
        used = min(np.sum(values / (values + penalty[best])), 0.9 * total)
        error = square - 2 * np.sum(effect * cross, axis=0) + values @ effect**2
        known = PRIOR_ROWS if child else 0.0
        scale = (error + known * np.exp(2 * parent.log_scale)) / (total - used + known)
        scale = np.maximum(scale, floor)
        return Node(parent.coefficients + vectors @ effect, 0.5 * np.log(scale))

    def _take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return inputs, targets and weights of rows; all of them are not copied."""
        chosen = slice(None) if len(rows) == len(self.x) else rows
        return self.x[chosen], self.y[chosen], self.weight[chosen]

    def _constant(self, rows: np.ndarray) -> Node:
        y, weight = self.y[rows], self.weight[rows]
        coefficients = np.zeros((self.x.shape[1], y.shape[1]))
        mean = np.average(y, axis=0, weights=weight)
        variance = np.average((y - mean) ** 2, axis=0, weights=weight)
        coefficients[-1] = mean
        return Node(coefficients, np.maximum(0.5 * np.log(variance + 1e-12), self.log_floor))

    def _fit_classes(self, rows: np.ndarray, parent: Node) -> Node:
        x, y, weight = self._take(rows)
        weight = weight[:, None]
        if not self.linear:
            x = x * (np.arange(x.shape[1]) == x.shape[1] - 1)
        offset, shape = x @ parent.coefficients, parent.coefficients.shape

        def loss(flat: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
            change = flat.reshape(shape)
            value, gradient = 0.5 * penalty * np.sum(change**2), penalty * change
            for k in parts(len(x)):
                log_probs = log_softmax(offset[k] + x[k] @ change, axis=1)
                value -= np.sum(weight[k] * y[k] * log_probs)
                gradient += x[k].T @ (weight[k] * (np.exp(log_probs) - y[k]))
            return float(value), gradient.ravel()

        best, flat, result = -np.inf, np.zeros(parent.coefficients.size), parent
        for spread in CLASS_SPREADS:
            penalty = 1.0 / spread**2
            found = minimize(loss, flat, (penalty,), "L-BFGS-B", jac=True, options={"maxiter": 50})
            flat = found.x
            coefficients = parent.coefficients + flat.reshape(shape)
            heavy = np.concatenate(
                [
                    weight[k, 0] * curvature(softmax(x[k] @ coefficients, axis=1))
                    for k in parts(len(x))
                ]
            )
            values = np.linalg.eigvalsh(_gram(x, np.sqrt(heavy)))
            log_det = np.sum(np.log1p(np.maximum(values, 0.0) / penalty))
            evidence = -found.fun - 0.5 * (shape[1] - 1) * log_det
            if evidence <= best:
                break
            best, result = evidence, Node(coefficients, parent.log_scale)
        return result


def parts(n_rows: int) -> list[slice]:
    """Return parts of the rows, so that what is computed of them takes little memory."""
    return [slice(start, start + PART) for start in range(0, n_rows, PART)]


def _gram(x: Float[np.ndarray, "n d"], scale: Float[np.ndarray, " n"]) -> np.ndarray:
    """Return zᵀz of scaled rows z, or zzᵀ, which has the same values above zero, if smaller."""
    if x.shape[1] > len(x):
        scaled = scale[:, None] * x
        return scaled @ scaled.T
    scaled_parts = (scale[k, None] * x[k] for k in parts(len(x)))
    return sum((part.T @ part for part in scaled_parts), start=np.zeros(()))


def _spectrum(
    x: Float[np.ndarray, "n d"], scale: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "d k"]]:
    """Return eigenvalues and eigenvectors of zᵀz of scaled rows z: if these are few, above zero."""
    values, vectors = eigh(_gram(x, scale))
    if x.shape[1] <= len(x):
        return np.maximum(values, 0.0), vectors
    kept = values > len(x) * np.finfo(float).eps * values[-1]
    return values[kept], (scale[:, None] * x).T @ (vectors[:, kept] / np.sqrt(values[kept]))


def curvature(probs: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
    """Return the mean curvature of the log-likelihood in the logits, which sum to zero."""
    return np.maximum(np.sum(probs * (1 - probs), axis=1) / (probs.shape[1] - 1), 1e-3)


def with_intercept(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d1"]:
    """Return inputs with ones in a last column."""
    joined = np.ones((len(x), x.shape[1] + 1))
    joined[:, :-1] = x
    return joined


# ------------------------------------------------------------- committees that begin as a tree


def begin(hierarchy: Hierarchy, tree: LinearTree, n_leaves: int) -> Hierarchy:
    """Return the hierarchy with the first experts set to the leaves, and no others available.

    Selectors that are trees themselves get the cuts; others have to be taught. Of several levels,
    the first has the first splits, and each of its experts what became of one leaf.
    """
    tree, n_experts = tree.first(n_leaves), len(hierarchy.available)
    n_used = min(tree.n_leaves, n_experts)
    available = jax.device_put(np.arange(n_experts) < n_used)
    selector, experts = hierarchy.selector, hierarchy.experts
    if isinstance(selector, networks.SoftTree):
        selector = _gates(selector, tree, n_used)
    if not isinstance(experts, Hierarchy):
        experts = _experts(experts, tree.leaves(n_used))
        return Hierarchy(selector, experts, available, top_k=hierarchy.top_k)
    inner = [pick(experts, m) for m in range(n_experts)]
    for m in range(n_used):
        inner[m] = begin(inner[m], tree.branch(n_used, m), n_leaves)
    return Hierarchy(selector, stack(inner), available)


def place(
    tree: LinearTree, n_leaves: int, sizes: Sequence[int], x: Float[np.ndarray, "n d"]
) -> Int[np.ndarray, " n"]:
    """Return which expert of the last level begins as the leaf of each row."""
    tree, below = tree.first(n_leaves), sizes[1:]
    n_used = min(tree.n_leaves, sizes[0])
    first = tree.assign(x, n_used)
    if not below:
        return first
    placed = first * math.prod(below)
    for m in range(n_used):
        mine = first == m
        placed[mine] += place(tree.branch(n_used, m), n_leaves, below, x[mine])
    return placed


def accepts_leaves(expert: Any) -> bool:
    """Return whether the network of an expert has a linear part that a leaf can set."""
    network = getattr(expert, "network", None)
    if isinstance(network, eqx.nn.Linear):
        return network.bias is not None
    return isinstance(network, networks.Residual | networks.Constant)


def _gates(selector: networks.SoftTree, tree: LinearTree, n_leaves: int) -> networks.SoftTree:
    weight, bias = (np.array(leaf) for leaf in (selector.weight, selector.bias))
    splits = tree.splits[: n_leaves - 1]
    for gate, split in enumerate(splits):
        sharpness = SHARPNESS / max(split.width, 1e-3)
        weight[gate], bias[gate] = sharpness * split.direction, -sharpness * split.cut
    path = networks.split_paths([split.leaf for split in splits], len(selector.path))
    return networks.SoftTree(*jax.device_put((weight, bias, path)))


def _experts(experts: Any, leaves: Sequence[Node]) -> Any:
    """Return stacked experts, the first of them with the linear maps of the leaves."""
    n_outputs = leaves[0].coefficients.shape[1]
    weight = np.stack([leaf.coefficients[:-1].T for leaf in leaves])
    bias = np.stack([leaf.coefficients[-1] for leaf in leaves])
    log_scale = np.stack([leaf.log_scale for leaf in leaves])
    if isinstance(experts, ConstantNoiseExpert):
        lowest = -5.0 if experts.floor is None else np.asarray(experts.floor)[: len(leaves)] / 1e3
        scale = _first(experts.log_scale, unbounded(log_scale, lowest))
        experts = eqx.tree_at(lambda e: e.log_scale, experts, scale)
    elif isinstance(experts, FamilyExpert) and _width(experts.network) == 2 * n_outputs:
        # The second half of the outputs are log-deviations, the same everywhere to begin with.
        weight = np.concatenate([weight, np.zeros_like(weight)], axis=1)
        bias = np.concatenate([bias, unbounded(log_scale)], axis=1)
    network = _with_linear_part(experts.network, weight, bias)
    return eqx.tree_at(lambda e: e.network, experts, network)


def _width(network: Any) -> int:
    """Return the number of outputs of stacked networks."""
    part: Any = network.linear if isinstance(network, networks.Residual) else network
    return part.bias.shape[1]


def _with_linear_part(network: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
    if isinstance(network, networks.Constant):
        return networks.Constant(_first(network.bias, bias))
    if isinstance(network, networks.Residual):
        linear = _with_linear_part(network.linear, weight, bias)
        last = jax.tree.map(
            lambda leaf: SMALL * leaf if eqx.is_array(leaf) else leaf, network.mlp.layers[-1]
        )
        return eqx.tree_at(lambda n: (n.linear, n.mlp.layers[-1]), network, (linear, last))
    changed = (_first(network.weight, weight), _first(network.bias, bias))
    return eqx.tree_at(lambda n: (n.weight, n.bias), network, changed)


def _first(old: Array, new: np.ndarray) -> Array:
    """Replace the first entries."""
    changed = np.array(old)
    changed[: len(new)] = new
    return jax.device_put(changed)


# --------------------------------------------------------------------- selectors that are taught


class SelectorLoss(eqx.Module):
    """−log p(m|x) of the leaf m that a row belongs to."""

    def __call__(
        self, model: Hierarchy, state: State, batch: Data, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
        log_probs = jax.vmap(model.select_last)(batch.x).log_probs
        chosen = jnp.arange(log_probs.shape[1]) == batch.y[:, None]
        value = -jnp.mean(batch.weight * jnp.sum(jnp.where(chosen, log_probs, 0.0), axis=1))
        return value, (state.constraints, value)


def teach(
    hierarchies: Sequence[Hierarchy],
    table: Table,
    learned: Sequence[RowNumbers],
    assign: Sequence[Callable[[Float[np.ndarray, "n d"]], Int[np.ndarray, " n"]]],
    seeds: Sequence[int],
) -> list[Hierarchy]:
    """Train selectors to send every row to its leaf; experts stay as they are."""
    rows = [np.sort(own)[:TAUGHT_ROWS] for own in learned]
    parts = [table.take(own) for own in rows]
    codes = [choose(part.x) for choose, part in zip(assign, parts, strict=True)]
    ends = np.cumsum([len(part.x) for part in parts])
    together = Table(
        np.concatenate([part.x for part in parts]),
        np.concatenate(codes),
        np.concatenate([part.weight for part in parts]),
    )
    own_rows = [np.arange(end - len(part.x), end) for end, part in zip(ends, parts, strict=True)]
    learner = Learner(SelectorLoss())
    states = stack([learner.init(hierarchy, learning_rate=0.01) for hierarchy in hierarchies])
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    trained = train(
        learner,
        Run.start(keys, states),
        together.padded(),
        batches=RowBatches(own_rows, TAUGHT_BATCH),
        steps=TAUGHT_STEPS,
        chunk=TAUGHT_STEPS,
    )
    return [pick(trained.run.state.model, n) for n in range(len(hierarchies))]
