"""From samples to experts: start, ascent over more and more samples, neglect of the superfluous."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core.families import NormalWishart

from ._ascent import Ascent, ascend, ascend_best
from ._experts import Prices
from ._frame import RIDGE, Frame, Rows
from ._learning import LEAST_VARIANCE
from ._merging import Pairs, departed, known_to, likely_pairs, may_depart, may_merge, merged, worth
from ._seeding import hard_statistics, partition
from ._splitting import divided
from ._statistics import Blocks, Exact, Statistics, to_single
from ._survey import Survey, survey

# How many times as long each part of the data is as the one before.
GROWTH = 4
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
        blocks = Blocks(columns, weights)
        # Compiled functions take a little from the host quicker than `jax.device_put` brings it.
        return cls(blocks if n_blocks == 1 else jax.device_put(blocks), n_blocks)

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
        apart = sum(
            np.sum(part.mass[:, None] * part.mean * (part.mean @ precision)) for part in partitions
        )
        strength = min(0.01, d / max(apart / mass, 1.0))
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
        if len(partitions) == 1:
            self.climb(to_single(partitions[0]))
            return
        starts = to_single(Exact(*(np.stack(leaves) for leaves in zip(*partitions, strict=True))))
        tol, most = np.float32(self.tol), np.int32(self._patience(0))
        ascent, n_iter = ascend_best(starts, self.prices, self.samples.blocks, tol, most)
        self.prices = self.prices.expecting(ascent.prior)
        # All but the best have come to their end.
        self.n_iter += int(n_iter) - int(ascent.n_iter)
        self._follow(ascent)

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
        self._follow(self._call(statistics, -np.inf, self._patience(0)))

    def neglect(self) -> None:
        """Dismiss experts as long as that raises the free energy."""
        while (statistics := self._fewer()) is not None:
            self.climb(statistics)

    def hire(self, random: np.random.RandomState) -> None:
        """Let dismissed experts take over a part of another's work where that is better."""
        while (statistics := self._more(random)) is not None:
            before, prices = self.best, self.prices
            self.climb(statistics)
            if worth(self.best) <= worth(before):
                self.best, self.prices = before, prices
                return

    def look(self, statistics: Statistics) -> Ascent:
        """Learn from the statistics, and look at all samples once."""
        self.n_blocks = self.samples.n_blocks
        return self._call(statistics, -np.inf, 1)

    def survey(self, ascent: Ascent, pairs: Pairs) -> Survey:
        """Look whether experts are superfluous."""
        return survey(
            ascent.experts,
            to_single(pairs.joint),
            self.prices,
            self.samples.blocks,
            np.int32(self.n_blocks),
            pairs.a.astype(np.int32),
            pairs.b.astype(np.int32),
        )

    def _follow(self, ascent: Ascent) -> None:
        """Go on with an ascent until the objective stands still."""
        n_iter = int(ascent.n_iter)
        while True:
            objective, change = float(ascent.objective), float(ascent.change)
            self.report(int(ascent.n_iter), objective)
            self.converged = change < self.tol
            if self.converged or n_iter >= self.max_iter:
                break
            ascent = self._call(ascent.seen, objective, self._patience(n_iter))
            n_iter += int(ascent.n_iter)
        self.n_iter += n_iter
        self.best = ascent

    def _patience(self, n_iter: int) -> int:
        """Return how many iterations to take at once, after so many."""
        return min(max(1, BLOCKS_PER_CALL // self.n_blocks), self.max_iter - n_iter)

    def _call(self, statistics: Statistics, objective: float, max_iter: int) -> Ascent:
        ascent = ascend(
            statistics,
            np.float32(objective),
            self.prices,
            self.samples.blocks,
            np.int32(self.n_blocks),
            np.float32(self.tol),
            np.int32(max_iter),
        )
        self.prices = self.prices.expecting(ascent.prior)
        return ascent

    def _fewer(self) -> Statistics | None:
        known = known_to(self.best)
        if np.count_nonzero(known.mass) < 2:
            return None
        pairs = likely_pairs(known, self.prices)
        if not may_merge(known, pairs) and not may_depart(known, self.best, self.prices):
            return None
        surveyed = self.survey(self.best, pairs)
        fewer = merged(known, self.best, self.prices, surveyed, pairs)
        if fewer is not None:
            return fewer
        return departed(known, self.best, self.prices, surveyed)

    def _more(self, random: np.random.RandomState) -> Statistics | None:
        # Whether a division that the first block suggests is really better, all blocks will say.
        known, experts = known_to(self.best), self.best.experts
        samples = self.samples.first()
        return divided(experts, known, self.prices, *samples, random, extrapolate=True)
