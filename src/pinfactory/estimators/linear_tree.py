"""Linear model trees: axis-parallel splits with a ridge or logistic regression in every leaf.

The best split of a leaf is found from Gram matrices that are accumulated over sorted bins of every
column. A split is worth the evidence (marginal log-likelihood) that two children gain over their
parent when each child's weights are Gaussian around those of the parent.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from threadpoolctl import threadpool_limits

from .table import Table

LOG_2PI = float(np.log(2.0 * np.pi))
# Cuts of a column: few to find the best columns, more to find the best cut of those.
COARSE, FINE, FINE_COLUMNS = 8, 32, 3
# More rows, or more regressors, do not find better cuts. Rows come in the order of a hash, so that
# the first of them are a random sample.
MOST_SEARCHED, MOST_REGRESSORS = 4096, 24
# A leaf has at least so many rows.
FEWEST = 10
# Deviations of a child's weights around those of its parent that are tried.
SPREADS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# … and in the search, in units of the target's deviation, or of logits.
SEARCHED_SPREADS = (0.03, 0.15, 0.7)
# So many rows' worth of the parent's variance is in every leaf's.
PRIOR_ROWS = 5.0
# Cuts lie within the range of inputs that selectors see.
FARTHEST_CUT = 4.9


class Node(NamedTuple):
    """A leaf, or what was one before it was split.

    Attributes
    ----------
    coefficients
        Weights with the intercept in the last row: (d + 1) × outputs.
    log_scale
        Log-deviation of every output; zeros for classes.
    """

    coefficients: Float[np.ndarray, "d1 t"]
    log_scale: Float[np.ndarray, " t"]


class Split(NamedTuple):
    """The division of one leaf: rows above the cut leave it for a new one.

    Attributes
    ----------
    leaf
        Which leaf is divided; the new one gets the next number.
    column, cut
        Rows with ``x[column] > cut`` go to the new leaf.
    width
        Deviation of that column within the leaf.
    below, above
        The models of the two parts.
    """

    leaf: int
    column: int
    cut: float
    width: float
    below: Node
    above: Node


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
            assigned[(assigned == split.leaf) & (x[:, split.column] > split.cut)] = number
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
            above = x[:, split.column] > split.cut
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
    """
    # Threads cost more than they bring on matrices this small.
    with threadpool_limits(1, user_api="blas"):
        return _Growth(table, n_classes, np.asarray(log_floor, float), linear).grow(n_leaves)


class _Leaf(NamedTuple):
    rows: Int[np.ndarray, " n"]
    node: Node
    # (evidence gained, column, cut), or None where no split gains any
    best: tuple[float, int, float] | None


class _Growth:
    """The data of a tree that grows, and how its leaves are fitted and divided."""

    def __init__(
        self, table: Table, n_classes: int | None, log_floor: np.ndarray, linear: bool
    ) -> None:
        self.x = _with_intercept(table.x)
        self.weight = table.weight.astype(float)
        self.n_classes, self.log_floor, self.linear = n_classes, log_floor, linear
        if n_classes is None:
            self.y = table.y.astype(float)
        else:
            self.y = np.eye(n_classes)[table.y]

    def grow(self, n_leaves: int) -> LinearTree:
        everything = np.arange(len(self.x))
        root = self._fit(everything, None)
        leaves, splits = [self._leaf(everything, root, n_leaves > 1)], []
        while len(leaves) < n_leaves:
            gains = [-np.inf if leaf.best is None else leaf.best[0] for leaf in leaves]
            chosen = int(np.argmax(gains))
            rows, node, best = leaves[chosen]
            if best is None:
                break
            _, column, cut = best
            above = self.x[rows, column] > cut
            parts = [rows[~above], rows[above]]
            nodes = [self._fit(part, node) for part in parts]
            values, weight = self.x[rows, column], self.weight[rows]
            width = float(np.sqrt(np.cov(values, aweights=weight, ddof=0)))
            splits.append(Split(chosen, column, cut, width, *nodes))
            more = len(leaves) + 1 < n_leaves
            leaves[chosen], new = (
                self._leaf(part, child, more) for part, child in zip(parts, nodes, strict=True)
            )
            leaves.append(new)
        return LinearTree(root, splits, self.n_classes is not None)

    def _leaf(self, rows: np.ndarray, node: Node, search: bool) -> _Leaf:
        enough = search and self.weight[rows].sum() >= 2 * FEWEST
        return _Leaf(rows, node, self._best_split(rows, node) if enough else None)

    # ---------------------------------------------------------------------------- one leaf's fit

    def _fit(self, rows: np.ndarray, parent: Node | None) -> Node:
        """Fit a leaf with weights around those of its parent, as far as evidence says."""
        child = parent is not None
        if parent is None:
            n_inputs, n_outputs = self.x.shape[1], self.y.shape[1]
            parent = Node(np.zeros((n_inputs, n_outputs)), np.zeros(n_outputs))
        if self.n_classes is not None:
            return self._fit_classes(rows, parent)
        return self._fit_numbers(rows, parent, child) if self.linear else self._constant(rows)

    def _fit_numbers(self, rows: np.ndarray, parent: Node, child: bool) -> Node:
        x, weight = self.x[rows], self.weight[rows]
        residual = self.y[rows] - x @ parent.coefficients
        scaled = weight[:, None] * x
        values, vectors = eigh(scaled.T @ x)
        values = np.maximum(values, 0.0)
        cross = vectors.T @ (scaled.T @ residual)
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
            curvature = weight[:, 0] * _curvature(probs)
            values = np.linalg.eigvalsh((curvature[:, None] * x).T @ x)
            log_det = np.sum(np.log1p(np.maximum(values, 0.0) / penalty))
            evidence = -found.fun - 0.5 * (shape[1] - 1) * log_det
            if evidence <= best:
                break
            best, result = evidence, Node(coefficients, parent.log_scale)
        return result

    # --------------------------------------------------------------------------- the best split

    def _best_split(self, rows: np.ndarray, node: Node) -> tuple[float, int, float] | None:
        """Return the evidence gained by the best split, its column and its cut."""
        total = self.weight[rows].sum()
        rows = rows[:MOST_SEARCHED]
        factor = total / self.weight[rows].sum()
        joint, unit = self._regression(rows, node)
        x = self.x[rows, :-1]
        first = [self._cuts(column, rows, COARSE) for column in x.T]
        gains = [
            self._gains(joint, x[:, column], cuts, rows, unit, factor)
            for column, cuts in enumerate(first)
        ]
        peaks = np.asarray([gain.max(initial=-np.inf) for gain in gains])
        best: tuple[float, int, float] | None = None
        for column in np.argsort(-peaks, kind="stable")[:FINE_COLUMNS]:
            cuts = self._cuts(x[:, column], rows, FINE)
            gain = self._gains(joint, x[:, column], cuts, rows, unit, factor)
            if len(gain) and gain.max() > max(0.0, best[0] if best else 0.0):
                best = float(gain.max()), int(column), float(cuts[gain.argmax()])
        return best

    def _regression(self, rows: np.ndarray, node: Node) -> tuple[np.ndarray, float]:
        """Return regressors beside working residuals, and the unit of weights, for the search.

        Residuals are in units of the noise. Those of classes are Newton's: (y − p)/√h beside √h·x,
        with h the curvature of the log-likelihood.
        """
        x, weight = self.x[rows], self.weight[rows, None]
        importance = np.abs(node.coefficients[:-1]).sum(axis=1)
        columns = np.sort(np.argsort(-importance, kind="stable")[:MOST_REGRESSORS])
        regressors = x[:, [*columns, -1]] if self.linear else x[:, -1:]
        if self.n_classes is None:
            scale = np.exp(node.log_scale)
            residual = (self.y[rows] - x @ node.coefficients) / scale
            joint = np.hstack([regressors, residual]) * np.sqrt(weight)
            return joint, float(1.0 / scale.mean())
        probs = softmax(x @ node.coefficients, axis=1)
        root = np.sqrt(_curvature(probs))[:, None]
        joint = np.hstack([root * regressors, (self.y[rows] - probs) / root]) * np.sqrt(weight)
        return joint, 1.0

    def _cuts(
        self, column: Float[np.ndarray, " n"], rows: np.ndarray, n_bins: int
    ) -> Float[np.ndarray, " cuts"]:
        """Return cuts between neighbouring values, with about equal weight between them."""
        order = np.argsort(column, kind="stable")
        values, share = column[order], np.cumsum(self.weight[rows[order]])
        distinct = np.unique(values)
        edges = np.arange(1, len(distinct))
        if len(edges) > n_bins:
            places = np.searchsorted(share, share[-1] * np.arange(1, n_bins) / n_bins)
            found = np.searchsorted(distinct, values[places])
            edges = np.unique(found)
            if len(edges) < len(places):
                # Values that many rows share are cut off on both sides.
                edges = np.unique(np.concatenate([edges, edges + 1]))
            edges = edges[(edges > 0) & (edges < len(distinct))]
        # Halfway between neighbours, which are told apart in any precision.
        cuts = (distinct[edges - 1] + distinct[edges]) / 2
        return cuts[np.abs(cuts) < FARTHEST_CUT]

    def _gains(
        self,
        joint: np.ndarray,
        values: np.ndarray,
        cuts: np.ndarray,
        rows: np.ndarray,
        unit: float,
        factor: float,
    ) -> Float[np.ndarray, " cuts"]:
        """Return the evidence gained by every cut of one column."""
        if not len(cuts):
            return np.empty(0)
        code = np.searchsorted(cuts, values, side="left")
        order = np.argsort(code.astype(np.uint8), kind="stable")
        ends = np.searchsorted(code[order], np.arange(len(cuts) + 1), side="right")
        ordered, weight = joint[order], self.weight[rows][order]
        starts = np.concatenate([[0], ends[:-1]])
        grams = np.stack(
            [part.T @ part for part in map(ordered.__getitem__, map(slice, starts, ends))]
        )
        mass = np.concatenate([[0.0], np.cumsum(weight)])[ends]
        below, everything = np.cumsum(grams, axis=0)[:-1], grams.sum(axis=0)
        both = np.concatenate([below, everything - below])
        masses = np.concatenate([mass[:-1], mass[-1] - mass[:-1]])
        evidence = self._evidence(both, masses, unit, factor)
        gain = evidence[: len(cuts)] + evidence[len(cuts) :]
        large = np.minimum(masses[: len(cuts)], masses[len(cuts) :]) * factor >= FEWEST
        gain = np.where(large, gain, -np.inf)
        if self.n_classes is None:
            square = np.diagonal(everything)[-self.y.shape[1] :]
            gain = gain + 0.5 * factor * mass[-1] * np.log(square / mass[-1] + 1e-12).sum()
        return gain

    def _evidence(
        self, grams: np.ndarray, masses: np.ndarray, unit: float, factor: float
    ) -> Float[np.ndarray, " parts"]:
        """Return the log marginal likelihood of parts, apart from what all parts share.

        The best of a few spreads of the weights is taken; that of the intercept is the largest.
        """
        n_outputs = self.y.shape[1]
        # A sample of the rows stands for all of them.
        grams, masses = factor * grams, factor * np.maximum(masses, 1e-9)
        gram, cross = grams[:, :-n_outputs, :-n_outputs], grams[:, :-n_outputs, -n_outputs:]
        square = np.diagonal(grams, axis1=1, axis2=2)[:, -n_outputs:]
        best = np.full(len(grams), -np.inf)
        for spread in SEARCHED_SPREADS if self.linear else SEARCHED_SPREADS[-1:]:
            spreads = np.full(gram.shape[1], spread * unit)
            spreads[-1] = SEARCHED_SPREADS[-1] * unit
            # In units of the spreads, so that the prior is the identity.
            scaled = spreads[:, None] * gram * spreads + np.eye(len(spreads))
            effect = spreads[:, None] * cross
            factors = np.linalg.cholesky(scaled)
            log_det = 2 * np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
            explained = np.sum(effect * np.linalg.solve(scaled, effect), axis=1)
            if self.n_classes is not None:
                evidence = 0.5 * explained.sum(axis=1) - 0.5 * (n_outputs - 1) * log_det
            else:
                # The parent's variance is one.
                known = square - explained + PRIOR_ROWS
                variance = np.maximum(known / (masses[:, None] + PRIOR_ROWS), 1e-4)
                evidence = -0.5 * (masses * np.log(variance).sum(axis=1) + n_outputs * log_det)
            best = np.maximum(best, evidence)
        return best


def _with_intercept(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d1"]:
    return np.column_stack([x, np.ones(len(x))]).astype(float)


def _curvature(probs: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
    """Return the mean curvature of the log-likelihood in the logits, which sum to zero."""
    return np.maximum(np.sum(probs * (1 - probs), axis=1) / (probs.shape[1] - 1), 1e-3)


__all__ = ["LinearTree", "Node", "Split", "grow"]
