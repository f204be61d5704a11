"""From samples to experts: start, ascent over more and more samples, merging and splitting."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core.families import NormalWishart

from .ascent import Ascent, ascend, ascend_best, conditional_entropy
from .experts import Hyperparameters
from .kmeans import partition, partition_statistics
from .learning import LEAST_VARIANCE
from .merge_effects import MergeEffects, merge_effects
from .merging import (
    Pairs,
    best_pairs,
    fitted_statistics,
    may_merge,
    may_remove,
    merged,
    penalised_objective,
    removed,
)
from .splitting import split_expert
from .statistics import Blocks, HostStatistics, Statistics, to_device
from .whitening import RIDGE, Rows, Whitening

# How many times as long each part of the data is as the one before.
GROWTH = 4
# Blocks between two returns to Python, where progress is shown and Ctrl-C takes effect.
BLOCKS_PER_CALL = 512


class Samples(NamedTuple):
    """Samples on the device, and how many of the blocks hold any."""

    blocks: Blocks
    n_blocks: int

    @classmethod
    def of(cls, whitening: Whitening, x: np.ndarray, rows: Rows) -> "Samples":
        """Bring chosen rows of a table to the device, in whitened coordinates."""
        columns, weights, n_blocks = whitening.blocks(x, rows)
        blocks = Blocks(columns, weights)
        # Compiled functions take a little from the host quicker than `jax.device_put` brings it.
        return cls(blocks if n_blocks == 1 else jax.device_put(blocks), n_blocks)

    def first(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of the first block (as columns) and their weights, on the host."""
        weight = np.asarray(self.blocks.weight)[0]
        x = np.asarray(self.blocks.x)[0]
        return x[:, weight > 0].astype(float), weight[weight > 0].astype(float)


def starts(
    samples: Samples,
    whitening: Whitening,
    random: np.random.RandomState,
    n_experts: int,
    n_init: int,
) -> list[HostStatistics]:
    """Return the statistics of k-means partitions of the first block.

    Distances are between standardised features: the whitened coordinates, in which the data as a
    whole are round, would hide long clusters side by side.
    """
    x, weight = samples.first()
    points = np.linalg.inv(whitening.transform) @ x
    parts = (partition(points, weight, n_experts, random) for _ in range(n_init))
    return [partition_statistics(x, weight, label, n_experts) for label in parts]


def common_prior(
    partitions: list[HostStatistics], df: float, strength: float | None = None
) -> NormalWishart:
    """Return p₀ to start with: centred on the data, with the covariance within clusters.

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
        spread = sum(
            np.sum(part.mass[:, None] * part.mean * (part.mean @ precision)) for part in partitions
        )
        strength = min(0.01, d / max(spread / mass, 1.0))
    root = np.linalg.cholesky(precision / df)
    return _single(
        np.zeros(d, np.float32), root.astype(np.float32), np.float32(df), np.float32(strength)
    )


@jax.jit
def _single(
    mean: Float[Array | np.ndarray, " d"],
    root: Float[Array | np.ndarray, "d d"],
    df: Float[Array | np.float32, ""],
    strength: Float[Array | np.float32, ""],
) -> NormalWishart:
    """Return the family on the device: several times quicker than `jax.device_put`."""
    return NormalWishart(*map(jnp.asarray, (mean, root, df, strength)))


class Search:
    """The search for the best experts; `best` is the current solution."""

    best: Ascent

    def __init__(
        self,
        samples: Samples,
        hyper: Hyperparameters,
        *,
        tol: float,
        max_iter: int,
        report: Callable[[int, float], None],
    ) -> None:
        self.samples, self.hyper, self.report = samples, hyper, report
        self.tol, self.max_iter = tol, max_iter
        self.n_blocks, self.n_iter, self.converged = 1, 0, False

    def start(self, partitions: list[HostStatistics]) -> None:
        """Ascend on the first block from every partition, and keep the best."""
        if len(partitions) == 1:
            self.ascend(to_device(partitions[0]))
            return
        starts = to_device(
            HostStatistics(*(np.stack(leaves) for leaves in zip(*partitions, strict=True)))
        )
        tol, most = np.float32(self.tol), np.int32(self._max_iterations(0))
        ascent, n_iter = ascend_best(starts, self.hyper, self.samples.blocks, tol, most)
        self.hyper = self.hyper.with_prior(ascent.prior)
        # All but the best are finished.
        self.n_iter += int(n_iter) - int(ascent.n_iter)
        self._continue(ascent)

    def grow(self, random: np.random.RandomState | None) -> None:
        """Fit to more and more blocks: most iterations are made on few.

        With a source of randomness superfluous experts are merged or removed, and others split.
        """
        while True:
            if random is not None:
                self.neglect()
                self.split(random)
            if self.n_blocks == self.samples.n_blocks:
                return
            self.n_blocks = min(self.n_blocks * GROWTH, self.samples.n_blocks)
            self.ascend(self.best.statistics)

    def ascend(self, statistics: Statistics) -> None:
        """Ascend until the objective converges."""
        self._continue(self._call(statistics, -np.inf, self._max_iterations(0)))

    def neglect(self) -> None:
        """Merge or remove experts as long as that raises the free energy."""
        while (statistics := self._merge_or_remove()) is not None:
            self.ascend(statistics)

    def split(self, random: np.random.RandomState) -> None:
        """Give unused experts a part of another's samples where that is better."""
        while (statistics := self._split(random)) is not None:
            before, hyper = self.best, self.hyper
            self.ascend(statistics)
            if penalised_objective(self.best) <= penalised_objective(before):
                self.best, self.hyper = before, hyper
                return

    def single_step(self, statistics: Statistics) -> Ascent:
        """Fit to the statistics, and pass over all samples once."""
        self.n_blocks = self.samples.n_blocks
        return self._call(statistics, -np.inf, 1)

    def conditional_entropy(self) -> float:
        """Return H(M|X) in nats, of the samples that the best experts were fitted to last."""
        return float(
            conditional_entropy(
                self.best.experts,
                self.hyper.beta_selector,
                self.samples.blocks,
                np.int32(self.n_blocks),
            )
        )

    def merge_effects(self, ascent: Ascent, pairs: Pairs) -> MergeEffects:
        """Look whether experts are superfluous."""
        return merge_effects(
            ascent.experts,
            to_device(pairs.joint),
            self.hyper,
            self.samples.blocks,
            np.int32(self.n_blocks),
            pairs.a.astype(np.int32),
            pairs.b.astype(np.int32),
        )

    def _continue(self, ascent: Ascent) -> None:
        """Continue an ascent until the objective converges."""
        n_iter = int(ascent.n_iter)
        while True:
            objective, change = float(ascent.objective), float(ascent.change)
            self.report(int(ascent.n_iter), objective)
            self.converged = change < self.tol
            if self.converged or n_iter >= self.max_iter:
                break
            ascent = self._call(ascent.statistics, objective, self._max_iterations(n_iter))
            n_iter += int(ascent.n_iter)
        self.n_iter += n_iter
        self.best = ascent

    def _max_iterations(self, n_iter: int) -> int:
        """Return how many iterations to take at once, after so many."""
        return min(max(1, BLOCKS_PER_CALL // self.n_blocks), self.max_iter - n_iter)

    def _call(self, statistics: Statistics, objective: float, max_iter: int) -> Ascent:
        ascent = ascend(
            statistics,
            np.float32(objective),
            self.hyper,
            self.samples.blocks,
            np.int32(self.n_blocks),
            np.float32(self.tol),
            np.int32(max_iter),
        )
        self.hyper = self.hyper.with_prior(ascent.prior)
        return ascent

    def _merge_or_remove(self) -> Statistics | None:
        known = fitted_statistics(self.best)
        if np.count_nonzero(known.mass) < 2:
            return None
        pairs = best_pairs(known, self.hyper)
        if not may_merge(known, pairs) and not may_remove(known, self.best, self.hyper):
            return None
        effects = self.merge_effects(self.best, pairs)
        reduced = merged(known, self.best, self.hyper, effects, pairs)
        if reduced is not None:
            return reduced
        return removed(known, self.best, self.hyper, effects)

    def _split(self, random: np.random.RandomState) -> Statistics | None:
        # The first block suggests a split; all blocks decide whether it is kept.
        known, experts = fitted_statistics(self.best), self.best.experts
        samples = self.samples.first()
        return split_expert(experts, known, self.hyper, *samples, random, extrapolate=True)
