"""How linear model trees grow, by splits parallel to an axis or oblique.

The best split of a leaf is found from Gram matrices that are accumulated over sorted bins of a
column, or of x projected on a direction. A split is worth the evidence (marginal log-likelihood)
that two children gain over their parent when each child's weights are Gaussian around those of the
parent. Directions of oblique splits are those in which the leaf's residuals bend (principal Hessian
directions, Li 1992), improved as hinges are (Breiman 1993); each weight beyond the first pays what
a parameter costs in BIC.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from pinfactory.core.growth import best_split, parameter_price

from .linear_tree import (
    PRIOR_ROWS,
    LinearTree,
    Node,
    Regressions,
    Split,
    curvature,
    parts,
    with_intercept,
)
from .table import RowNumbers, Table

# Cuts of a column: few to find the best columns, more to find the best cut of those.
COARSE, FINE, FINE_COLUMNS = 8, 32, 3
# More rows, or more regressors, do not find better cuts, and of more columns those of the largest
# weights are looked at. Rows come in the order of a hash, so that the first of them are a random
# sample.
MOST_SEARCHED, MOST_REGRESSORS, MOST_COLUMNS = 4096, 24, 256
# How many directions of bends are tried, how often each is improved, how much a single row counts
# for that in nats, and how much its weights are shrunk.
BENDS, HINGE_ROUNDS, MOST_GAINED, RIDGE = 2, 3, 3.0, 0.01
# A leaf has at least so many rows.
FEWEST = 10
# Deviations of a child's weights around those of its parent that are tried, in units of the
# target's deviation, or of logits.
SPREADS = (0.03, 0.15, 0.7)
# Cuts lie within the range of inputs that selectors see.
FARTHEST_CUT = 4.9


def grow(
    table: Table,
    n_leaves: int,
    *,
    rows: RowNumbers | None = None,
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
    rows
        Those of the table that it grows on; all by default.
    n_classes
        Number of classes if targets are class codes; else they are columns of numbers.
    log_floor
        The least log-deviation of an output.
    linear
        Whether leaves have linear models, or constants.
    oblique
        Whether splits may be oblique, or all are parallel to an axis.
    """
    chosen = slice(None) if rows is None else rows
    y = table.y[chosen]
    # Threads cost more than they bring on matrices this small.
    with threadpool_limits(1, user_api="blas"):
        return Growth(
            with_intercept(table.x[chosen]),
            y.astype(float) if n_classes is None else np.eye(n_classes)[y],
            table.weight[chosen].astype(float),
            n_classes is not None,
            linear,
            np.asarray(log_floor, float),
            oblique,
        ).grow(n_leaves)


class Cut(NamedTuple):
    """A possible split at ``x @ direction > cut``, and the evidence it gains."""

    gain: float
    direction: Float[np.ndarray, " d"]
    cut: float


class _Leaf(NamedTuple):
    rows: Int[np.ndarray, " n"]
    node: Node
    # None where no split gains evidence
    best: Cut | None


@dataclass(frozen=True)
class Growth(Regressions):
    """A tree that grows."""

    oblique: bool  # whether splits may be oblique

    def grow(self, n_leaves: int) -> LinearTree:
        """Divide the leaf that gains most, again and again."""
        everything = np.arange(len(self.x))
        root = self.fit(everything, None)
        leaves, splits = [self._leaf(everything, root, n_leaves > 1)], []
        while len(leaves) < n_leaves:
            gains = [0.0 if leaf.best is None else leaf.best.gain for leaf in leaves]
            if (chosen := best_split(np.asarray(gains))) is None:
                break
            rows, node, best = leaves[chosen]
            assert best is not None
            pieces = [self.x[rows[k], :-1] @ best.direction for k in parts(len(rows))]
            values, weight = np.concatenate(pieces), self.weight[rows]
            above = values > best.cut
            sides = [rows[~above], rows[above]]
            nodes = [self.fit(side, node) for side in sides]
            width = float(np.sqrt(np.cov(values, aweights=weight, ddof=0)))
            splits.append(Split(chosen, best.direction, best.cut, width, *nodes))
            more = len(leaves) + 1 < n_leaves
            leaves[chosen], new = (
                self._leaf(side, child, more) for side, child in zip(sides, nodes, strict=True)
            )
            leaves.append(new)
        return LinearTree(root, splits, self.classify)

    def _leaf(self, rows: np.ndarray, node: Node, search: bool) -> _Leaf:
        enough = search and len(rows) >= 2 * FEWEST
        return _Leaf(rows, node, self.best(rows, node) if enough else None)

    def best(self, rows: Int[np.ndarray, " n"], node: Node) -> Cut | None:
        """Return the split of a leaf that gains most evidence, if any does."""
        total, n_rows = self.weight[rows].sum(), len(rows)
        rows = rows[:MOST_SEARCHED]
        factor = total / self.weight[rows].sum()
        joint, unit = self._regression(rows, node)
        x = self.x[rows, :-1]

        def gains(values: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
            cuts = self._cuts(values, rows, n_bins)
            return self._gains(joint, values, cuts, rows, unit, factor, n_rows), cuts

        def best_cut(direction: np.ndarray) -> Cut:
            found, cuts = gains(x @ direction, FINE)
            if not len(found):
                return Cut(-np.inf, direction, 0.0)
            return Cut(float(found.max()), direction, float(cuts[found.argmax()]))

        columns = self._important(node, MOST_COLUMNS)
        peaks = np.asarray([gains(x[:, n], COARSE)[0].max(initial=-np.inf) for n in columns])
        best_columns = columns[np.argsort(-peaks, kind="stable")[:FINE_COLUMNS]]
        found = [best_cut((np.arange(x.shape[1]) == n).astype(float)) for n in best_columns]
        if self.oblique and x.shape[1] > 1:
            # Every weight beyond the first costs what a parameter does in BIC.
            price = parameter_price(total, x.shape[1] - 1)
            starts = [
                max(found, key=lambda cut: cut.gain),
                *map(best_cut, self._bends(rows, joint)),
            ]
            for cut in starts:
                for _ in range(HINGE_ROUNDS):
                    direction = self._hinge(rows, joint, x @ cut.direction, cut.cut)
                    norm = np.linalg.norm(direction)
                    if norm < 1e-9:
                        break
                    cut = best_cut(direction / norm)
                    found.append(cut._replace(gain=cut.gain - price))
        best = max(found, key=lambda cut: cut.gain)
        return best if best.gain > 0.0 else None

    def _bends(self, rows: np.ndarray, joint: np.ndarray) -> list[np.ndarray]:
        """Return the directions in which residuals bend most (principal Hessian directions).

        They are the eigenvectors of E[r z zᵀ] with z the whitened inputs (Li 1992).
        """
        x, weight = self.x[rows, :-1], self.weight[rows]
        centred = x - np.average(x, axis=0, weights=weight)
        values, vectors = eigh((weight[:, None] * centred).T @ centred / weight.sum())
        kept = values > 1e-4 * values[-1]
        whiten = vectors[:, kept] / np.sqrt(values[kept])
        z = centred @ whiten
        found = []
        for residual in joint[:, -self.y.shape[1] :].T:
            bend, axes = eigh((residual[:, None] * z).T @ z / len(z))
            first = np.argsort(-np.abs(bend))[:BENDS]
            found += [(abs(bend[i]), whiten @ axes[:, i]) for i in first]
        found.sort(key=lambda pair: -pair[0])
        return [direction / np.linalg.norm(direction) for _, direction in found[:BENDS]]

    def _hinge(
        self, rows: np.ndarray, joint: np.ndarray, values: np.ndarray, cut: float
    ) -> Float[np.ndarray, " d"]:
        """Return the direction along which the model of one side of a cut gains on the other's.

        Both are ridge regressions; what one gains on the other, row by row, is regressed on x.
        """
        weight, n_outputs = self.weight[rows], self.y.shape[1]
        regressors, residual = joint[:, :-n_outputs], joint[:, -n_outputs:]
        errors = []
        for side in (values <= cut, values > cut):
            gram = regressors[side].T @ regressors[side] + np.eye(regressors.shape[1])
            effect = np.linalg.solve(gram, regressors[side].T @ residual[side])
            errors.append(np.sum((residual - regressors @ effect) ** 2, axis=1) / weight)
        gained = np.clip(0.5 * (errors[0] - errors[1]), -MOST_GAINED, MOST_GAINED)
        x = self.x[rows]
        scaled = weight[:, None] * x
        penalty = np.diag([*np.full(x.shape[1] - 1, RIDGE * weight.sum()), 0.0])
        return np.linalg.solve(scaled.T @ x + penalty, scaled.T @ gained)[:-1]

    def _regression(self, rows: np.ndarray, node: Node) -> tuple[np.ndarray, float]:
        """Return regressors beside working residuals, and the unit of weights, for the search.

        Residuals are in units of the noise. Those of classes are Newton's: (y − p)/√h beside √h·x,
        with h the curvature of the log-likelihood.
        """
        x, weight = self.x[rows], self.weight[rows, None]
        columns = self._important(node, MOST_REGRESSORS)
        regressors = x[:, [*columns, -1]] if self.linear else x[:, -1:]
        if not self.classify:
            scale = np.exp(node.log_scale)
            residual = (self.y[rows] - x @ node.coefficients) / scale
            joint = np.hstack([regressors, residual]) * np.sqrt(weight)
            return joint, float(1.0 / scale.mean())
        probs = softmax(x @ node.coefficients, axis=1)
        root = np.sqrt(curvature(probs))[:, None]
        joint = np.hstack([root * regressors, (self.y[rows] - probs) / root]) * np.sqrt(weight)
        return joint, 1.0

    def _important(self, node: Node, most: int) -> Int[np.ndarray, " k"]:
        """Return the columns of the largest weights in a leaf."""
        importance = np.abs(node.coefficients[:-1]).sum(axis=1)
        return np.sort(np.argsort(-importance, kind="stable")[:most])

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
        n_rows: int,
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
        # By the number of rows: one of large weight is not enough for a leaf.
        large = np.minimum(ends[:-1], len(rows) - ends[:-1]) * n_rows >= FEWEST * len(rows)
        gain = np.where(large, gain, -np.inf)
        if not self.classify:
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
        for spread in SPREADS if self.linear else SPREADS[-1:]:
            spreads = np.full(gram.shape[1], spread * unit)
            spreads[-1] = SPREADS[-1] * unit
            # In units of the spreads, so that the prior is the identity.
            scaled = spreads[:, None] * gram * spreads + np.eye(len(spreads))
            effect = spreads[:, None] * cross
            factors = np.linalg.cholesky(scaled)
            log_det = 2 * np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
            explained = np.sum(effect * np.linalg.solve(scaled, effect), axis=1)
            if self.classify:
                evidence = 0.5 * explained.sum(axis=1) - 0.5 * (n_outputs - 1) * log_det
            else:
                # The parent's variance is one.
                known = square - explained + PRIOR_ROWS
                variance = np.maximum(known / (masses[:, None] + PRIOR_ROWS), 1e-4)
                evidence = -0.5 * (masses * np.log(variance).sum(axis=1) + n_outputs * log_det)
            best = np.maximum(best, evidence)
        return best
