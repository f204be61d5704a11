"""Samples on the device, and where experts start: k-means and a common prior."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pinfactory.core.compiling import bounded
from pinfactory.core.families import NormalWishart

from .ascent import Ascent, ascend, conditional_entropy
from .experts import LEAST_VARIANCE, Blocks, Experts, HostStatistics, Hyperparameters, to_device
from .gaps import patterns
from .merging import MergeEffects, Pairs, merge_effects
from .splitting import partition, partition_statistics
from .whitening import RIDGE, Rows, Whitening

# How many times as long each part of the data is as the one before.
GROWTH = 4


class Samples(NamedTuple):
    """Samples on the device, and how many of the blocks hold any."""

    blocks: Blocks
    n_blocks: int

    @classmethod
    def of(cls, whitening: Whitening, x: np.ndarray, rows: Rows) -> "Samples":
        """Bring chosen rows of a table to the device, in whitened coordinates; NaN is missing."""
        columns, weights, n_blocks = whitening.blocks(x, rows)
        missing = np.isnan(x)
        gaps = None
        if missing.any():
            gaps = patterns(missing[rows[0]], weights.shape[1], len(weights))
        blocks = Blocks(columns, weights, gaps)
        # Compiled functions take a little from the host quicker than `jax.device_put` brings it.
        return cls(blocks if n_blocks == 1 else jax.device_put(blocks), n_blocks)

    def grown(self, n_blocks: int) -> int:
        """Return how many blocks to use after so many."""
        return min(n_blocks * GROWTH, self.n_blocks)

    def ascend(
        self, start: Ascent, hyper: Hyperparameters, n_blocks: int, tol: float, max_iter: int
    ) -> Ascent:
        """Ascend on the first blocks; see `ascent.ascend`."""
        return ascend(
            start.statistics,
            start.objective,
            hyper,
            self.blocks,
            np.int32(n_blocks),
            np.float32(tol),
            np.int32(max_iter),
        )

    def conditional_entropy(self, experts: Experts, beta: np.float32, n_blocks: int) -> float:
        """Return H(M|X) of the first blocks, in nats."""
        return float(conditional_entropy(experts, beta, self.blocks, np.int32(n_blocks)))

    def merge_effects(
        self, experts: Experts, hyper: Hyperparameters, pairs: Pairs, n_blocks: int
    ) -> MergeEffects:
        """Return what would change on the first blocks if pairs were one expert."""
        return merge_effects(
            experts,
            to_device(pairs.joint),
            hyper,
            self.blocks,
            np.int32(n_blocks),
            pairs.a.astype(np.int32),
            pairs.b.astype(np.int32),
        )

    def first(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of the first block (as columns) and their weights, on the host."""
        weight = np.asarray(self.blocks.weight)[0]
        x = np.asarray(self.blocks.x)[0]
        return x[:, weight > 0].astype(float), weight[weight > 0].astype(float)

    def first_missing(self) -> Bool[np.ndarray, "n d"] | None:
        """Return what is missing of the samples of the first block; None if nothing is."""
        if self.blocks.gaps is None:
            return None
        missing, pattern = (np.asarray(part)[0] for part in self.blocks.gaps)
        return missing[pattern][np.asarray(self.blocks.weight)[0] > 0]


def starts(
    first: tuple[np.ndarray, np.ndarray],
    whitening: Whitening,
    random: np.random.RandomState,
    n_experts: int,
    n_init: int,
) -> HostStatistics:
    """Return the statistics of k-means partitions of the first samples, along the first axis.

    Distances are between standardised features: the whitened coordinates, in which the data as a
    whole are round, would hide long clusters side by side.
    """
    x, weight = first
    points = np.linalg.inv(whitening.transform) @ x
    labels = (partition(points, weight, n_experts, random) for _ in range(n_init))
    parts = [partition_statistics(x, weight, label, n_experts) for label in labels]
    return HostStatistics(*(np.stack(leaves) for leaves in zip(*parts, strict=True)))


def common_prior(starts: HostStatistics, df: float, strength: float | None = None) -> NormalWishart:
    """Return p₀ to start with: centred on the data, with the covariance within clusters.

    An unknown λ₀ is 0.01, or less where that would pull clusters: D / tr(Σ_within⁻¹ Σ_between)
    makes the distance of the clusters from their centre what p₀ expects.
    """
    scatter, mass = starts.scatter.sum(axis=(0, 1)), starts.mass.sum()
    d = len(scatter)
    covariance = scatter / mass
    floor = 10.0 * RIDGE * np.trace(covariance) / d + LEAST_VARIANCE
    precision = np.linalg.inv(covariance + floor * np.eye(d))
    if strength is None:
        spread = np.sum(starts.mass[..., None] * starts.mean * (starts.mean @ precision))
        strength = min(0.01, d / max(spread / mass, 1.0))
    root = np.linalg.cholesky(precision / df)
    return _single(
        np.zeros(d, np.float32), root.astype(np.float32), np.float32(df), np.float32(strength)
    )


@bounded
@jax.jit
def _single(
    mean: Float[Array | np.ndarray, " d"],
    root: Float[Array | np.ndarray, "d d"],
    df: Float[Array | np.float32, ""],
    strength: Float[Array | np.float32, ""],
) -> NormalWishart:
    """Return the family on the device: several times quicker than `jax.device_put`."""
    return NormalWishart(*map(jnp.asarray, (mean, root, df, strength)))
