"""From samples to experts: start, ascent over more and more samples, neglect of the superfluous."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from pinfactory.core.families import NormalWishart

from ._ascent import Ascent, ascend
from ._experts import Prices
from ._frame import RIDGE, Frame, Rows
from ._merging import likely_pairs, survey, without_superfluous, worth
from ._seeding import hard_statistics, partition
from ._splitting import divided
from ._statistics import Blocks, Exact, Statistics, to_device

# How many times as long each part of the data is as the one before.
GROWTH = 4
# The least variance an expert expects, as a share of the data's: that of repeated samples.
LEAST_VARIANCE = 1e-10
# Blocks to work on before the program looks up, to show progress or to be interrupted.
BLOCKS_PER_CALL = 512


class Samples(NamedTuple):
    """Samples on the device, and how many of the blocks hold any."""

    blocks: Blocks
    n_blocks: int

    @classmethod
    def of(cls, frame: Frame, x: np.ndarray, rows: Rows) -> "Samples":
        """Bring chosen rows of a table to the device, in the coordinates of `frame`."""
        columns, weights, n_blocks = frame.blocks(x, rows)
        return cls(Blocks(*jax.device_put((columns, weights))), n_blocks)

    def first(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of the first block (as columns) and their weights, on the host."""
        weight = np.asarray(self.blocks.weight)[0]
        x = np.asarray(self.blocks.x)[0]
        return x[:, weight > 0].astype(float), weight[weight > 0].astype(float)


def starts(
    samples: Samples, frame: Frame, random: np.random.RandomState, n_experts: int, n_init: int
) -> list[Exact]:
    """Return the statistics of k-means partitions of the first block.

    Distances are between standardised features: the coordinates of `frame`, in which the data as a
    whole are round, would hide long clusters side by side.
    """
    x, weight = samples.first()
    points = np.linalg.inv(frame.transform) @ x
    parts = (partition(points, weight, n_experts, random) for _ in range(n_init))
    return [hard_statistics(x, weight, label, n_experts) for label in parts]


def common_prior(
    partitions: list[Exact], df: float, strength: float | None = None
) -> NormalWishart:
    """Return p₀: centred on the data, with the covariance that samples have within clusters.

    An unknown λ₀ is 0.01, or less where that would pull clusters: D / tr(Σ_within⁻¹ Σ_between)
    makes the distance of the clusters from their centre what p₀ expects.
    """
    scatter = np.sum([part.scatter.sum(axis=0) for part in partitions], axis=0)
    mass = sum(part.mass.sum() for part in partitions)
    d = len(scatter)
    covariance = scatter / mass
    floor = 10.0 * RIDGE * np.trace(covariance) / d + LEAST_VARIANCE
    precision = np.linalg.inv(covariance + floor * np.eye(d))
    if strength is None:
        apart = sum(
            np.sum(part.mass[:, None] * part.mean * (part.mean @ precision)) for part in partitions
        )
        strength = min(0.01, d / max(apart / mass, 1.0))
    root = np.linalg.cholesky(precision / df)
    parameters = np.zeros(d), root, np.asarray(df), np.asarray(strength)
    return NormalWishart(*jax.device_put([a.astype(np.float32) for a in parameters]))


class Search:
    """The search for the best experts; `best` is how far it has come."""

    best: Ascent

    def __init__(
        self,
        samples: Samples,
        prices: Prices,
        *,
        tol: float,
        max_iter: int,
        report: Callable[[int, float], None],
    ) -> None:
        self.samples, self.prices, self.report = samples, prices, report
        self.tol, self.max_iter = tol, max_iter
        self.n_blocks, self.n_iter, self.converged = 1, 0, False

    def choose(self, partitions: list[Exact]) -> None:
        """Learn from the first block from every partition, and keep the best."""
        ascents = [self._ascend(to_device(part)) for part in partitions]
        self.best = max(ascents, key=lambda ascent: float(ascent.objective))

    def grow(self, random: np.random.RandomState | None) -> None:
        """Learn from more and more blocks: most of the way is made on few.

        With a source of randomness superfluous experts are dismissed on the way.
        """
        while True:
            if random is not None:
                self.neglect()
                self.hire(random)
            if self.n_blocks == self.samples.n_blocks:
                return
            self.n_blocks = min(self.n_blocks * GROWTH, self.samples.n_blocks)
            self.climb(self.best.seen)

    def climb(self, statistics: Statistics) -> None:
        """Learn until the objective stands still."""
        self.best = self._ascend(statistics)

    def neglect(self) -> None:
        """Dismiss experts as long as that raises the free energy."""
        while (statistics := self._fewer()) is not None:
            self.climb(statistics)

    def hire(self, random: np.random.RandomState) -> None:
        """Let dismissed experts take over a part of another's work where that is better."""
        while (
            statistics := divided(self.best, self.prices, *self.samples.first(), random)
        ) is not None:
            before = self.best
            self.climb(statistics)
            if worth(self.best) <= worth(before):
                self.best = before
                return

    def look(self, statistics: Statistics) -> Ascent:
        """Learn from the statistics, and look at all samples once."""
        self.n_blocks = self.samples.n_blocks
        return self._call(statistics, -np.inf, 1)

    def _ascend(self, statistics: Statistics) -> Ascent:
        objective, n_iter, self.converged = -np.inf, 0, False
        patience = max(1, BLOCKS_PER_CALL // self.n_blocks)
        while n_iter < self.max_iter and not self.converged:
            ascent = self._call(statistics, objective, min(patience, self.max_iter - n_iter))
            statistics, objective = ascent.seen, float(ascent.objective)
            n_iter += int(ascent.n_iter)
            self.converged = float(ascent.change) < self.tol
            self.report(int(ascent.n_iter), objective)
        self.n_iter += n_iter
        return ascent

    def _call(self, statistics: Statistics, objective: float, max_iter: int) -> Ascent:
        return ascend(
            statistics,
            np.float32(objective),
            self.prices,
            self.samples.blocks,
            np.int32(self.n_blocks),
            np.float32(self.tol),
            np.int32(max_iter),
        )

    def _fewer(self) -> Statistics | None:
        if np.count_nonzero(np.asarray(self.best.seen.mass)) < 2:
            return None
        pairs = likely_pairs(self.best.seen, self.prices)
        surveyed = survey(
            self.best.experts,
            self.prices.beta_selector,
            self.samples.blocks,
            np.int32(self.n_blocks),
            pairs.a.astype(np.int32),
            pairs.b.astype(np.int32),
        )
        return without_superfluous(self.best, self.prices, surveyed, pairs)
