"""Samples in blocks, in coordinates in which they have mean 0 and covariance 1."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from pinfactory.core.batches import MIX, hashed, padded_length, sorted_rows

from .ascent import Ascent, ascend, conditional_entropy
from .experts import RIDGE, Blocks, Experts, Hyperparameters
from .gaps import patterns
from .merging import MergeEffects, Pairs, merge_effects

# Where chosen rows stand in a table, and their weights.
Rows = tuple[np.ndarray, np.ndarray]

# Columns of a block: what an expert computes from one of them stays in the processor's cache.
BLOCK = 4096
# Rows that are enough to find the coordinates.
MAX_ROWS = 65536
# How many times as long each part of the data is as the one before.
GROWTH = 4


@np.errstate(over="ignore", invalid="ignore")  # values that are too large are refused later
def canonical_order(x: np.ndarray, rows: Rows) -> Rows:
    """Return the rows in an order that depends on neither their own nor the features' units.

    They are sorted by a hash of their standardised values, rounded to a millionth of a deviation.
    """
    position, weight = rows
    share = weight / weight.sum()
    code = np.zeros(len(position), np.uint64)
    for column in x.T:
        values = column[position]
        centred = values - values[0]
        # Threads of a library for matrices cost more here than they compute: no `@`.
        centred -= np.sum(share * centred)
        deviation = float(np.max(np.abs(centred)))
        if deviation > 0.0:
            centred /= deviation
            centred /= np.sqrt(np.sum(share * centred**2))
        code = _mixed(code, centred)
    order = sorted_rows(code * MIX)
    return position[order], weight[order]


@np.errstate(over="ignore")
def canonical_codes(x: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the numbers by which `canonical_order` sorts rows, if mean and deviation are known."""
    code = np.zeros(len(x), np.uint64)
    for column, centre, scale in zip(x.T, mean, deviation, strict=True):
        code = _mixed(code, (column - centre) / (scale if scale > 0.0 else 1.0))
    return code * MIX


def _mixed(code: np.ndarray, standardised: np.ndarray) -> np.ndarray:
    millionths = standardised * 1e6
    np.round(millionths, out=millionths)
    return hashed(code, millionths.astype(np.int64).view(np.uint64))


class Whitening(NamedTuple):
    """An affine map x ↦ T(x − location)/scale, T lower triangular.

    T is 1 if values are missing: another would mix those of a sample with the others.
    """

    location: np.ndarray
    scale: np.ndarray
    transform: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, rows: Rows) -> "Whitening":
        """Return the map that makes weighted rows have mean 0 and covariance 1; NaN is missing."""
        position, weight = (part[:MAX_ROWS] for part in rows)
        x = x[position]
        missing = np.isnan(x)
        share = weight[:, None] * ~missing
        share /= np.maximum(share.sum(axis=0), np.finfo(float).tiny)
        # A first sample is near the data, so that a mean far from zero loses no digits.
        near = np.nan_to_num(np.take_along_axis(x, missing.argmin(axis=0)[None], axis=0)[0])
        x = np.where(missing, near, x) if missing.any() else x
        location = near + np.sum(share * (x - near), axis=0)
        centred = x - location
        with np.errstate(over="ignore"):
            scale = np.sqrt(np.sum(share * centred**2, axis=0))
        if not np.isfinite(scale).all():
            raise ValueError("The values of X must be within ±1e150, but got larger ones.")
        # What is left of a constant column is rounding.
        constant = scale <= 1e-12 * np.abs(location)
        scale = np.where(constant | (scale == 0.0), 1.0, scale)
        if missing.any():
            return cls(location, scale, np.eye(x.shape[1]))
        centred /= scale
        correlation = (centred * share).T @ centred
        root = np.linalg.cholesky(correlation + RIDGE * np.eye(x.shape[1]))
        return cls(location, scale, np.linalg.inv(root))

    @property
    def is_diagonal(self) -> bool:
        """Whether features stay apart, so that some may be missing."""
        return bool((self.transform == np.diag(np.diagonal(self.transform))).all())

    @property
    def log_det(self) -> float:
        """Return log|∂z/∂x|, to be added to a log-density in these coordinates."""
        return float(np.sum(np.log(np.diagonal(self.transform))) - np.sum(np.log(self.scale)))

    @property
    def inverse(self) -> np.ndarray:
        """Return the matrix that takes deviations back to the user's units."""
        return self.scale[:, None] * np.linalg.inv(self.transform)

    def columns(self, x: np.ndarray, n: int | None = None) -> np.ndarray:
        """Return samples as columns, and columns of zeros to make it n; a missing value is zero."""
        result = np.zeros((x.shape[1], len(x) if n is None else n), np.float32)
        centred = x - self.location
        centred[np.isnan(x)] = 0.0
        centred /= self.scale
        mapped = self.transform @ centred.T
        # Squares of larger numbers would overflow in single precision.
        result[:, : len(x)] = np.clip(mapped, -1e12, 1e12, out=mapped)
        return result

    def blocks(self, x: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray, int]:
        """Return blocks of samples, their weights, and how many blocks hold any."""
        position, weight = rows
        return in_blocks(x.shape[1], weight, lambda k: self.columns(x[position[k]]))


def in_blocks(
    d: int, weight: np.ndarray, columns_of: Callable[[slice], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return samples in blocks, their weights, and how many blocks hold any.

    `columns_of` returns some of the samples as columns.
    """
    n = len(weight)
    size = min(padded_length(n), BLOCK)
    used = -(-n // size)
    reserved = used if used <= 4 else padded_length(used)
    columns = np.zeros((reserved, d, size), np.float32)
    weights = np.zeros((reserved, size), np.float32)
    for i in range(used):
        chosen = slice(i * size, (i + 1) * size)
        length = len(weight[chosen])
        columns[i, :, :length] = columns_of(chosen)
        weights[i, :length] = weight[chosen]
    return columns, weights, used


class StoredSamples(NamedTuple):
    """Samples on the device, and how many of the blocks hold any."""

    blocks: Blocks
    n_blocks: int

    @classmethod
    def of(cls, whitening: Whitening, x: np.ndarray, rows: Rows) -> "StoredSamples":
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
        return merge_effects(experts, hyper, pairs, self.blocks, n_blocks)

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
