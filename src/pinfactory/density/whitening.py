"""Coordinates in which the data have mean 0 and covariance 1, whatever the user's units."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pinfactory.core.batches import MIX, hashed, padded_length

# Where chosen rows stand in a table, and their weights.
Rows = tuple[np.ndarray, np.ndarray]

# Columns of a block: what an expert computes from one of them stays in the processor's cache.
BLOCK = 4096
# Rows that are enough to find the coordinates.
MAX_ROWS = 65536
# The share of a feature's variance that is added to it, so that singular data have a density.
RIDGE = 1e-6


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
    order = np.argsort(code * MIX, kind="stable")
    return position[order], weight[order]


@np.errstate(over="ignore")
def canonical_codes(x: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the numbers by which `canonical_order` sorts rows, if mean and deviation are known."""
    code = np.zeros(len(x), np.uint64)
    for column, centre, scale in zip(x.T, mean, deviation, strict=True):
        code = _mixed(code, (column - centre) / (scale if scale > 0.0 else 1.0))
    return code * MIX


def _mixed(code: np.ndarray, standardised: np.ndarray) -> np.ndarray:
    return hashed(code, np.round(standardised * 1e6).astype(np.int64).view(np.uint64))


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
        x = np.where(missing, near, x)
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

    def columns(self, x: np.ndarray, n: int) -> np.ndarray:
        """Return at most n samples as columns, and columns of zeros to make it n.

        A missing value is zero.
        """
        result = np.zeros((x.shape[1], n), np.float32)
        x = np.where(np.isnan(x), self.location, x)
        mapped = self.transform @ ((x - self.location) / self.scale).T
        # Squares of larger numbers would overflow in single precision.
        result[:, : len(x)] = np.clip(mapped, -1e12, 1e12)
        return result

    def blocks(self, x: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray, int]:
        """Return blocks of samples, their weights, and how many blocks hold any."""
        position, weight = rows
        return in_blocks(x.shape[1], weight, lambda k: self.columns(x[position[k]], len(weight[k])))


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
