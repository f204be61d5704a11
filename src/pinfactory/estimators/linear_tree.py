"""Linear model trees with a ridge or logistic regression in every leaf."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from threadpoolctl import threadpool_limits

from pinfactory.core.growth import best_split

from .splits import FEWEST, PRIOR_ROWS, Cut, Node, SplitSearch, curvature
from .table import Table

LOG_2PI = float(np.log(2.0 * np.pi))
# Deviations of a child's weights around those of its parent that are tried.
SPREADS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


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
        x = _with_intercept(table.x)
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
        return table.y - _with_intercept(table.x) @ self.root.coefficients

    def _log_likelihood(self, node: Node, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        mean = x @ node.coefficients
        if self.classify:
            return log_softmax(mean, axis=1)[np.arange(len(y)), y]
        error = (y - mean) / np.exp(node.log_scale)
        return -np.sum(0.5 * (error**2 + LOG_2PI) + node.log_scale, axis=1)


def grow(
    table: Table,
    n_leaves: int,
    *,
    n_classes: int | None = None,
    log_floor: Float[np.ndarray, " t"] | float = -5.0,
    linear: bool = True,
    oblique: bool = False,
) -> LinearTree:
    """Grow a linear model tree, the leaf that gains most first.

    Parameters
    ----------
    table
        Standardised rows in the order of a hash of their content.
    n_leaves
        The most leaves there may be; growth ends earlier where no split gains evidence.
    n_classes
        Number of classes if targets are class codes; else they are columns of numbers.
    log_floor
        The least log-deviation of an output.
    linear
        Whether leaves have linear models, or constants.
    oblique
        Whether splits may be oblique, or all are parallel to an axis.
    """
    # Threads cost more than they bring on matrices this small.
    with threadpool_limits(1, user_api="blas"):
        growth = _Growth(table, n_classes, np.asarray(log_floor, float), linear, oblique)
        return growth.grow(n_leaves)


class _Leaf(NamedTuple):
    rows: Int[np.ndarray, " n"]
    node: Node
    # None where no split gains evidence
    best: Cut | None


class _Growth:
    """The data of a tree that grows, and how its leaves are fitted and divided."""

    def __init__(
        self,
        table: Table,
        n_classes: int | None,
        log_floor: np.ndarray,
        linear: bool,
        oblique: bool,
    ) -> None:
        classify = n_classes is not None
        self.x, self.weight = _with_intercept(table.x), table.weight.astype(float)
        self.y = table.y.astype(float) if n_classes is None else np.eye(n_classes)[table.y]
        self.classify, self.log_floor, self.linear = classify, log_floor, linear
        self.search = SplitSearch(self.x, self.y, self.weight, classify, linear, oblique)

    def grow(self, n_leaves: int) -> LinearTree:
        everything = np.arange(len(self.x))
        root = self._fit(everything, None)
        leaves, splits = [self._leaf(everything, root, n_leaves > 1)], []
        while len(leaves) < n_leaves:
            gains = [0.0 if leaf.best is None else leaf.best.gain for leaf in leaves]
            if (chosen := best_split(np.asarray(gains))) is None:
                break
            rows, node, best = leaves[chosen]
            assert best is not None
            values, weight = self.x[rows, :-1] @ best.direction, self.weight[rows]
            above = values > best.cut
            parts = [rows[~above], rows[above]]
            nodes = [self._fit(part, node) for part in parts]
            width = float(np.sqrt(np.cov(values, aweights=weight, ddof=0)))
            splits.append(Split(chosen, best.direction, best.cut, width, *nodes))
            more = len(leaves) + 1 < n_leaves
            leaves[chosen], new = (
                self._leaf(part, child, more) for part, child in zip(parts, nodes, strict=True)
            )
            leaves.append(new)
        return LinearTree(root, splits, self.classify)

    def _leaf(self, rows: np.ndarray, node: Node, search: bool) -> _Leaf:
        enough = search and len(rows) >= 2 * FEWEST
        return _Leaf(rows, node, self.search.best(rows, node) if enough else None)

    # ---------------------------------------------------------------------------- one leaf's fit

    def _fit(self, rows: np.ndarray, parent: Node | None) -> Node:
        """Fit a leaf with weights around those of its parent, as far as evidence says."""
        child = parent is not None
        if parent is None:
            n_inputs, n_outputs = self.x.shape[1], self.y.shape[1]
            parent = Node(np.zeros((n_inputs, n_outputs)), np.zeros(n_outputs))
        if self.classify:
            return self._fit_classes(rows, parent)
        return self._fit_numbers(rows, parent, child) if self.linear else self._constant(rows)

    def _fit_numbers(self, rows: np.ndarray, parent: Node, child: bool) -> Node:
        x, weight = self.x[rows], self.weight[rows]
        residual = self.y[rows] - x @ parent.coefficients
        values, vectors = _spectrum(np.sqrt(weight)[:, None] * x)
        cross = (x @ vectors).T @ (weight[:, None] * residual)
        total, square = weight.sum(), weight @ residual**2
        best, result = -np.inf, parent
        floor = np.exp(2.0 * self.log_floor)
        for spread in SPREADS:
            # Penalty in units of the noise, which the penalty itself decides.
            variance = np.maximum(square / total, floor)
            for _ in range(3):
                penalty = (variance / spread**2).mean()
                shrunk = cross / (values + penalty)[:, None]
                rss = square - np.sum(shrunk * cross, axis=0)
                variance = np.maximum(rss / total, floor)
            log_det = np.sum(np.log1p(values / penalty))
            evidence = -0.5 * (total * np.log(variance).sum() + len(variance) * log_det)
            if evidence > best:
                best = evidence
                used = min(np.sum(values / (values + penalty)), 0.9 * total)
                error = square - 2 * np.sum(shrunk * cross, axis=0) + values @ shrunk**2
                known = PRIOR_ROWS if child else 0.0
                scale = (error + known * np.exp(2 * parent.log_scale)) / (total - used + known)
                scale = np.maximum(scale, floor)
                result = Node(parent.coefficients + vectors @ shrunk, 0.5 * np.log(scale))
        return result

    def _constant(self, rows: np.ndarray) -> Node:
        y, weight = self.y[rows], self.weight[rows]
        coefficients = np.zeros((self.x.shape[1], y.shape[1]))
        mean = np.average(y, axis=0, weights=weight)
        variance = np.average((y - mean) ** 2, axis=0, weights=weight)
        coefficients[-1] = mean
        return Node(coefficients, np.maximum(0.5 * np.log(variance + 1e-12), self.log_floor))

    def _fit_classes(self, rows: np.ndarray, parent: Node) -> Node:
        x, y, weight = self.x[rows], self.y[rows], self.weight[rows, None]
        if not self.linear:
            x = x * (np.arange(x.shape[1]) == x.shape[1] - 1)
        offset, shape = x @ parent.coefficients, parent.coefficients.shape

        def loss(flat: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
            change = flat.reshape(shape)
            log_probs = log_softmax(offset + x @ change, axis=1)
            gradient = x.T @ (weight * (np.exp(log_probs) - y)) + penalty * change
            value = -np.sum(weight * y * log_probs) + 0.5 * penalty * np.sum(change**2)
            return float(value), gradient.ravel()

        best, flat, result = -np.inf, np.zeros(parent.coefficients.size), parent
        for spread in SPREADS[1:-1]:
            penalty = 1.0 / spread**2
            found = minimize(loss, flat, (penalty,), "L-BFGS-B", jac=True, options={"maxiter": 50})
            flat = found.x
            coefficients = parent.coefficients + flat.reshape(shape)
            probs = softmax(x @ coefficients, axis=1)
            heavy = weight[:, 0] * curvature(probs)
            scaled = np.sqrt(heavy)[:, None] * x
            # Of the two Gram matrices with the same values above zero the smaller one.
            gram = scaled.T @ scaled if x.shape[1] <= len(x) else scaled @ scaled.T
            values = np.linalg.eigvalsh(gram)
            log_det = np.sum(np.log1p(np.maximum(values, 0.0) / penalty))
            evidence = -found.fun - 0.5 * (shape[1] - 1) * log_det
            if evidence <= best:
                break
            best, result = evidence, Node(coefficients, parent.log_scale)
        return result


def _spectrum(
    x: Float[np.ndarray, "n d"],
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "d k"]]:
    """Return eigenvalues and eigenvectors of xᵀx: of more columns than rows, those above zero."""
    if x.shape[1] <= len(x):
        values, vectors = eigh(x.T @ x)
        return np.maximum(values, 0.0), vectors
    values, sides = eigh(x @ x.T)
    kept = values > len(x) * np.finfo(float).eps * values[-1]
    return values[kept], x.T @ (sides[:, kept] / np.sqrt(values[kept]))


def _with_intercept(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d1"]:
    return np.column_stack([x, np.ones(len(x))]).astype(float)


__all__ = ["LinearTree", "Node", "Split", "grow"]
