"""Coordinates in which the data have mean 0 and covariance 1, whatever the user's units."""

from typing import NamedTuple

import numpy as np

from pinfactory.estimators._rows import padded_length

# Columns of a block: what an expert computes from one of them stays in the processor's cache.
BLOCK = 4096
# The share of a feature's variance that is added to it, so that singular data have a density.
RIDGE = 1e-6


class Frame(NamedTuple):
    """An affine map x ↦ T(x − location)/scale, T lower triangular."""

    location: np.ndarray
    scale: np.ndarray
    transform: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, weight: np.ndarray) -> "Frame":
        """Return the map that makes weighted samples have mean 0 and covariance 1."""
        share = weight / weight.sum()
        # The first sample is near the data, so that a mean far from zero loses no digits.
        location = x[0] + share @ (x - x[0])
        centred = x - location
        scale = np.sqrt(share @ centred**2)
        # What is left of a constant column is rounding.
        constant = scale <= 1e-12 * np.abs(location)
        scale = np.where(constant | (scale == 0.0), 1.0, scale)
        centred /= scale
        correlation = (centred * share[:, None]).T @ centred
        root = np.linalg.cholesky(correlation + RIDGE * np.eye(x.shape[1]))
        return cls(location, scale, np.linalg.inv(root))

    @property
    def log_det(self) -> float:
        """What a log-density in these coordinates lacks in the user's units."""
        return float(np.sum(np.log(np.diagonal(self.transform))) - np.sum(np.log(self.scale)))

    @property
    def inverse(self) -> np.ndarray:
        """Return the matrix that takes deviations back to the user's units."""
        return self.scale[:, None] * np.linalg.inv(self.transform)

    def columns(self, x: np.ndarray, n: int) -> np.ndarray:
        """Return at most n samples as columns, and columns of zeros to make it n."""
        result = np.zeros((x.shape[1], n), np.float32)
        result[:, : len(x)] = self.transform @ ((x - self.location) / self.scale).T
        return result

    def blocks(
        self, x: np.ndarray, position: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Return blocks of samples, their weights, and how many blocks hold any."""
        n = len(position)
        size = min(padded_length(n), BLOCK)
        used = -(-n // size)
        reserved = used if used <= 4 else padded_length(used)
        columns = np.zeros((reserved, x.shape[1], size), np.float32)
        weights = np.zeros((reserved, size), np.float32)
        for i in range(used):
            chosen = slice(i * size, (i + 1) * size)
            columns[i] = self.columns(x[position[chosen]], size)
            weights[i, : len(position[chosen])] = weight[chosen]
        return columns, weights, used
